"""Remedies act on all faulty GPUs, and on no other."""

from __future__ import annotations

import json
import re

import pytest

from gpunode.diagnoses import diagnose, generic_remedy, rules_by_cause
from gpunode.diagnoses.model import Finding, choose_next_step
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted


def first_finding(*pieces: tuple[str, str]) -> Finding:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report"))).roots[0]


def resets(finding: Finding) -> list[str]:
    typed = [command for fix in finding.remedy for command in fix.commands]
    return [command.removeprefix("sudo nvidia-smi ") for command in typed if "--gpu-reset" in command]


def rows(bus: str, pending: str = "No", failure: str = "No") -> str:
    return (
        f"GPU 00000000:{bus}\n    Remapped Rows\n        Correctable Error                 : 0\n"
        f"        Uncorrectable Error               : 1\n        Pending                           : {pending}\n"
        f"        Remapping Failure Occurred        : {failure}\n"
    )


def pages(bus: str, pending: str) -> str:
    return f"GPU 00000000:{bus}\n    Retired Pages\n        Pending Page Blacklist            : {pending}\n"


def action(bus: str, name: str) -> str:
    return f"GPU 00000000:{bus}\n    Product Name : NVIDIA A100\n    GPU Recovery Action : {name}\n"


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("row-remap-pending", rows("07:00.0") + rows("0F:00.0", pending="Yes")),
        ("row-remap-failure", rows("07:00.0") + rows("0F:00.0", failure="Yes")),
        ("page-retirement-pending-handles-held", pages("07:00.0", "No") + pages("0F:00.0", "Yes")),
        ("xid-154-recovery-action", action("07:00.0", "None") + action("0F:00.0", "Reset")),
    ],
)
def test_reset_names_the_gpu_of_the_finding(cause: str, text: str) -> None:
    finding = first_finding(("nvidia-smi -q", text))
    assert (finding.cause, finding.gpus) == (cause, ("0000:0f:00.0",))
    assert resets(finding) == ["--gpu-reset --id=0000:0f:00.0"]


def test_two_faulty_gpus_are_both_named_and_reset() -> None:
    text = rows("07:00.0") + rows("0F:00.0", pending="Yes") + rows("47:00.0", pending="Yes")
    finding = first_finding(("nvidia-smi -q -d ROW_REMAPPER", text))
    assert finding.gpus == ("0000:0f:00.0", "0000:47:00.0")
    assert finding.summary.startswith("GPU 0000:0f:00.0: ")
    assert finding.summary.endswith("; GPU 0000:47:00.0 as well")
    assert resets(finding) == ["--gpu-reset --id=0000:0f:00.0", "--gpu-reset --id=0000:47:00.0"]


def test_power_limits_of_two_gpus_are_both_restored() -> None:
    limits = (
        "index, power.limit, power.default_limit\n0, 200.00 W, 400.00 W\n1, 250.00 W, 400.00 W\n2, 400.00 W, 400.00 W\n"
    )
    option = "nvidia-smi --query-gpu=index,power.limit,power.default_limit --format=csv -d POWER"
    rows = [{"source": option, "text": limits}]
    (finding,) = diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report"))).findings
    assert finding.remedy[0].commands == ("sudo nvidia-smi -i 0 -pl 400", "sudo nvidia-smi -i 1 -pl 400")


MET = ("python train.py", "RuntimeError: CUDA error: uncorrectable ECC error encountered")
WORKS = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-11111111-aaaa-bbbb-cccc-333333333333)\n"


def test_unknown_gpu_is_left_as_a_placeholder_in_the_reset() -> None:
    finding = first_finding(MET, ("nvidia-smi -L", WORKS + WORKS.replace("GPU 0", "GPU 1").replace("GPU-1", "GPU-2")))
    assert finding.cause == "ecc-dbe-uncorrectable"
    assert resets(finding) == ["--gpu-reset --id=ADDRESS"]
    assert any("the GPU is not known here" in fix.text for fix in finding.remedy)


def test_only_gpu_of_a_node_is_reset_without_a_placeholder() -> None:
    finding = first_finding(MET, ("nvidia-smi -L", WORKS))
    assert resets(finding) == ["--gpu-reset --id=0"]
    assert not any("ADDRESS" in fix.text for fix in finding.remedy)


MODES = "index, name, mig.mode.current, mig.mode.pending\n{}, NVIDIA A100-SXM4-80GB, Disabled, Enabled\n"
REFUSED = "Warning: MIG mode is in pending enable state for GPU 00000000:0F:00.0:In use by another client\n"
QUERY = "nvidia-smi --query-gpu=index,name,mig.mode.current,mig.mode.pending --format=csv"


@pytest.mark.parametrize(
    ("pieces", "gpu"),
    [
        ((("nvidia-smi -i 1 -mig 1", REFUSED),), "0000:0f:00.0"),
        (((QUERY, MODES.format(1)),), "1"),
    ],
)
def test_pending_mig_mode_resets_only_its_gpu(pieces: tuple[tuple[str, str], ...], gpu: str) -> None:
    finding = first_finding(*pieces)
    assert finding.cause == "mig-mode-pending-reset"
    assert resets(finding) == [f"--gpu-reset --id={gpu}"]


def test_gpu_to_enable_mig_on_is_left_as_a_placeholder() -> None:
    off = "0000000{0}:07:00.0, Disabled, Disabled\n"
    modes = "pci.bus_id, mig.mode.current, mig.mode.pending\n" + off.format(0) + off.format(1)
    finding = first_finding(
        ("nvidia-smi --query-gpu=pci.bus_id,mig.mode.current,mig.mode.pending --format=csv", modes),
        ("nvidia-smi mig -lgi", "Insufficient Permissions\n"),
    )
    assert finding.cause == "mig-capabilities-permission"
    assert finding.remedy[0].commands == ("sudo nvidia-smi -i ADDRESS -mig 1",)


ALTERS = re.compile(r"nvidia-smi\b.*(?:--gpu-reset|-mig|-cgi|-pl|-c DEFAULT|--lock)")


@pytest.mark.parametrize("cause", sorted(rules_by_cause()))
def test_command_that_changes_a_gpu_names_it_unless_all_are_meant(cause: str) -> None:
    for fix in generic_remedy(cause, take_snapshot({})):
        for command in filter(ALTERS.search, fix.commands):
            is_named = "ADDRESS" in command and "replace ADDRESS by its PCI address" in fix.text
            assert is_named or "all GPUs" in fix.text or "reset the GPUs" in fix.text, command


# --- nvidia-smi's answers without the lines with which each GPU begins ------------------------------------------------

GREP = 'nvidia-smi -q | grep -E "Bus Id|Remapping Failure|Pending|Recovery Action|SRAM Threshold"'
CONTAINED = (
    "NVRM: Xid (PCI:0000:{}:00): 94, pid=4711, name=python, Contained: CE User Channel (0x9). RST: No, D-RST: No"
)
BUSES = ("19:00.0", "3B:00.0", "4C:00.0", "5D:00.0")


def gpu_query(*buses: str) -> tuple[str, str]:
    rows = "".join(f"{index}, 00000000:{bus}\n" for index, bus in enumerate(buses))
    return "nvidia-smi --query-gpu=index,pci.bus_id --format=csv", f"index, pci.bus_id\n{rows}"


def memory(pending: str = "No", failure: str = "No") -> str:
    return f"        Pending                 : {pending}\n        Remapping Failure Occurred : {failure}\n"


def bus_id(bus: str) -> str:
    return f"        Bus Id                  : 00000000:{bus}\n"


def sram(value: str) -> str:
    return f"            SRAM Threshold Exceeded : {value}\n"


def wants(name: str) -> str:
    return f"    GPU Recovery Action         : {name}\n"


@pytest.mark.parametrize(
    ("cause", "answer"),
    [
        ("row-remap-failure", [bus_id(bus) + memory(failure="Yes" if "4C" in bus else "No") for bus in BUSES]),
        ("row-remap-pending", [bus_id(bus) + memory(pending="Yes" if "4C" in bus else "No") for bus in BUSES]),
        ("hbm-failing-rma", [bus_id(bus) + sram("Yes" if "4C" in bus else "No") for bus in BUSES]),
    ],
)
def test_filtered_row_belongs_to_the_gpu_of_its_section(cause: str, answer: list[str]) -> None:
    finding = first_finding((GREP, "\n".join(answer)))
    assert (finding.cause, finding.gpus) == (cause, ("0000:4c:00.0",))
    assert resets(finding) == ["--gpu-reset --id=0000:4c:00.0"]


EIGHT = "".join(memory(failure="Yes" if number == 5 else "No") for number in range(8))


@pytest.mark.parametrize("beside", [("dmesg", CONTAINED.format("07")), gpu_query("07:00.0", "0F:00.0")])
def test_unattributable_row_names_no_gpu(beside: tuple[str, str]) -> None:
    finding = first_finding(beside, ("nvidia-smi -q -d ROW_REMAPPER | grep -E 'Pending|Occurred'", EIGHT))
    assert (finding.cause, finding.gpus) == ("row-remap-failure", ())
    assert resets(finding) == ["--gpu-reset --id=ADDRESS"]


def test_answer_about_the_only_gpu_is_attributed_to_it() -> None:
    finding = first_finding(("dmesg", CONTAINED.format("07")), ("nvidia-smi -q -d ROW_REMAPPER", memory(failure="Yes")))
    assert (finding.cause, finding.gpus) == ("row-remap-failure", ("0000:07:00.0",))


FIRST, SECOND = (f"GPU-11111111-2222-3333-4444-55555555555{number}" for number in range(2))


@pytest.mark.parametrize("option", ["-i 1", "--id=1"])
def test_gpu_selected_by_the_command_is_attributed(option: str) -> None:
    asked = f"nvidia-smi -q -d ROW_REMAPPER {option} | grep -E 'Pending|Occurred'"
    finding = first_finding(("dmesg", CONTAINED.format("1b")), (asked, memory(failure="Yes")))
    assert (finding.cause, finding.gpus) == ("row-remap-failure", ("1",))
    assert resets(finding) == ["--gpu-reset --id=1"]


def test_index_is_not_used_after_a_gpu_was_lost() -> None:
    lost = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=python, GPU has fallen off the bus."
    asked = "nvidia-smi -i 1 -q -d ROW_REMAPPER | grep -E 'Pending|Occurred'"
    rows = [("dmesg", lost), gpu_query("1B:00.0", "3B:00.0"), (asked, memory(pending="Yes"))]
    pieces = [{"source": source, "text": text} for source, text in rows]
    every = diagnose(take_snapshot(pasted.parse_json_report(json.dumps(pieces), "a report"))).findings
    (pending,) = (one for one in every if one.cause == "row-remap-pending")
    assert resets(pending) == ["--gpu-reset --id=ADDRESS"]


def test_csv_row_is_attributed_by_uuid() -> None:
    option = "nvidia-smi --query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure --format=csv"
    csv = f"gpu_uuid, remapped_rows.pending, remapped_rows.failure\n{FIRST}, No, No\n{SECOND}, No, Yes\n"
    finding = first_finding(("dmesg", CONTAINED.format("07")), (option, csv))
    assert (finding.cause, finding.gpus) == ("row-remap-failure", (SECOND,))
    assert finding.summary.startswith(f"{SECOND}: ")


def test_second_gpu_requesting_a_reset_is_named_too() -> None:
    asked = "NVRM: Xid (PCI:0000:19:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    finding = first_finding(
        ("dmesg", asked), ("nvidia-smi -q", action("19:00.0", "Reset") + action("4C:00.0", "Reset"))
    )
    assert finding.gpus == ("0000:19:00.0", "0000:4c:00.0")


@pytest.mark.parametrize("cause", sorted(rules_by_cause()))
def test_next_step_never_asks_to_type_a_placeholder(cause: str) -> None:
    rule, remedy = rules_by_cause()[cause], generic_remedy(cause, take_snapshot({}))
    for look_at in ((), rule.look_at):
        step = choose_next_step(cause, rule.title, remedy, look_at)
        assert "ADDRESS" not in f"{step.text} {step.command}"


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("journalctl -u job", "sudo dmesg | grep -iE 'xid|gsp|gfw|wpr2|nvrm'"),
        ("dmesg", "sudo gpunode doctor  # on the node itself"),
    ],
)
def test_unnamed_gpu_of_a_certain_fault_is_looked_for_first(source: str, command: str) -> None:
    found = first_finding((source, "NVRM: Xid: 119, Timeout waiting for RPC from GSP!"))
    assert (found.cause, found.confidence) == ("gsp-rpc-timeout", "certain")
    assert found.next_step.command == command


def test_next_step_does_not_end_with_an_empty_folder() -> None:
    remedies = ((cause, generic_remedy(cause, take_snapshot({}))) for cause in rules_by_cause())
    steps = {cause: choose_next_step(cause, "", remedy, ()).command or "" for cause, remedy in remedies}
    assert steps["cdi-spec-missing"] == (
        "sudo mkdir -p /etc/cdi && sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    )
    assert not [cause for cause, step in steps.items() if "mkdir" in step and "&&" not in step]
