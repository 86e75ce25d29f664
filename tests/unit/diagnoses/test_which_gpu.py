"""On which GPU something is done: on all those that are at fault, and on no other."""

from __future__ import annotations

import json
import re

import pytest

from gpunode.diagnoses import diagnose, remedy_of, rules
from gpunode.diagnoses.model import Finding
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted


def found(*pieces: tuple[str, str]) -> Finding:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(snapshot(pasted.from_json(json.dumps(rows), "a report"))).roots[0]


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
def test_the_gpu_that_is_reset_is_the_one_of_the_finding(cause: str, text: str) -> None:
    finding = found(("nvidia-smi -q", text))
    assert (finding.cause, finding.gpus) == (cause, ("0000:0f:00.0",))
    assert resets(finding) == ["--gpu-reset --id=0000:0f:00.0"]


def test_two_gpus_with_one_fault_are_both_named_and_both_reset() -> None:
    text = rows("07:00.0") + rows("0F:00.0", pending="Yes") + rows("47:00.0", pending="Yes")
    finding = found(("nvidia-smi -q -d ROW_REMAPPER", text))
    assert finding.gpus == ("0000:0f:00.0", "0000:47:00.0")
    assert finding.summary.startswith("GPU 0000:0f:00.0: ")
    assert finding.summary.endswith("; GPU 0000:47:00.0 as well")
    assert resets(finding) == ["--gpu-reset --id=0000:0f:00.0", "--gpu-reset --id=0000:47:00.0"]


def test_limits_of_two_gpus_are_both_set_again() -> None:
    limits = (
        "index, power.limit, power.default_limit\n0, 200.00 W, 400.00 W\n1, 250.00 W, 400.00 W\n2, 400.00 W, 400.00 W\n"
    )
    option = "nvidia-smi --query-gpu=index,power.limit,power.default_limit --format=csv -d POWER"
    rows = [{"source": option, "text": limits}]
    (finding,) = diagnose(snapshot(pasted.from_json(json.dumps(rows), "a report"))).findings
    assert finding.remedy[0].commands == ("sudo nvidia-smi -i 0 -pl 400", "sudo nvidia-smi -i 1 -pl 400")


MET = ("python train.py", "RuntimeError: CUDA error: uncorrectable ECC error encountered")
WORKS = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-11111111-aaaa-bbbb-cccc-333333333333)\n"


def test_where_nothing_tells_which_gpu_it_is_the_reader_puts_it_in() -> None:
    finding = found(MET, ("nvidia-smi -L", WORKS + WORKS.replace("GPU 0", "GPU 1").replace("GPU-1", "GPU-2")))
    assert finding.cause == "ecc-dbe-uncorrectable"
    assert resets(finding) == ["--gpu-reset --id=ADDRESS"]
    assert any("which GPU it is, is not known here" in fix.text for fix in finding.remedy)


def test_the_only_gpu_of_a_node_is_the_one() -> None:
    finding = found(MET, ("nvidia-smi -L", WORKS))
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
        (((QUERY, MODES.format(1)), ("nvidia-smi -i 1 -mig 1", REFUSED)), "0000:0f:00.0"),
        (
            (
                (QUERY, MODES.format(1)),
                (
                    "nvidia-smi",
                    "|   1  NVIDIA A100-SXM4-80GB          On  | 00000000:0F:00.0 Off |                    0 |\n",
                ),
            ),
            "0000:0f:00.0",
        ),
    ],
)
def test_a_mode_waits_for_the_reset_of_one_gpu(pieces: tuple[tuple[str, str], ...], gpu: str) -> None:
    finding = found(*pieces)
    assert finding.cause == "mig-mode-pending-reset"
    assert resets(finding) == [f"--gpu-reset -i {gpu}"]


def test_which_of_several_gpus_is_to_be_divided_is_not_chosen() -> None:
    off = "0000000{0}:07:00.0, Disabled, Disabled\n"
    modes = "pci.bus_id, mig.mode.current, mig.mode.pending\n" + off.format(0) + off.format(1)
    finding = found(
        ("nvidia-smi --query-gpu=pci.bus_id,mig.mode.current,mig.mode.pending --format=csv", modes),
        ("nvidia-smi mig -lgi", "Insufficient Permissions\n"),
    )
    assert finding.cause == "mig-capabilities-permission"
    assert finding.remedy[0].commands == ("sudo nvidia-smi -i ADDRESS -mig 1",)


ALTERS = re.compile(r"nvidia-smi\b.*(?:--gpu-reset|-mig|-cgi|-pl|-c DEFAULT|--lock)")


@pytest.mark.parametrize("cause", sorted(rules()))
def test_what_alters_a_gpu_names_it_unless_all_are_meant(cause: str) -> None:
    for fix in remedy_of(cause, snapshot({})):
        for command in filter(ALTERS.search, fix.commands):
            is_named = "ADDRESS" in command and "put its PCI address for ADDRESS" in fix.text
            assert is_named or "all GPUs" in fix.text or "reset the GPUs" in fix.text, command
