"""Recovery of a GPU as the driver requests it: no less, no more, and nothing once it is done."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


def xid(code: int, text: str = "", *, at: int = 0, gpu: str = "1b") -> str:
    minute, second = divmod(at, 60)
    return (
        f"[Tue Nov 12 09:{minute:02}:{second:02} 2024] NVRM: Xid (PCI:0000:{gpu}:00): {code}, pid=1, name=a, {text}\n"
    )


NAMES = ("None", "GPU Reset Required", "Node Reboot Required", "Drain P2P", "Drain and Reset")


def wish(after: int, before: int = 0, *, at: int = 6) -> str:
    change = f"changed from 0x{before} ({NAMES[before]}) to 0x{after} ({NAMES[after]})"
    return xid(154, f"GPU recovery action {change}", at=at)


RESET = "sudo nvidia-smi --gpu-reset --id=0000:1b:00.0"
REBOOT = "sudo systemctl reboot"


def typed_commands(found: Diagnosis) -> list[str]:
    done = [command for fix in found.findings[0].remedy if not fix.when for command in fix.commands]
    return [command for command in done if command in {RESET, REBOOT}]


@pytest.mark.parametrize(
    ("after", "disruption", "commands"),
    [
        (1, "reset-gpu", [RESET]),
        (2, "reboot", [REBOOT]),
        (3, "restart-container", []),
        (4, "reset-gpu", [RESET]),
    ],
)
def test_requested_recovery_action_is_the_remedy(after: int, disruption: str, commands: list[str]) -> None:
    found = diagnose_pieces(("dmesg -T", wish(after)))
    (root,) = found.roots
    assert (root.cause, root.disruption, typed_commands(found)) == ("xid-154-recovery-action", disruption, commands)


@pytest.mark.parametrize(
    ("name", "disruption"),
    [
        ("Reset", "reset-gpu"),
        ("Reboot", "reboot"),
        ("Drain P2P", "restart-container"),
        ("Drain and Reset", "reset-gpu"),
    ],
)
def test_recovery_action_is_read_from_nvidia_smi(name: str, disruption: str) -> None:
    rows = f"GPU 00000000:1B:00.0\n    Product Name : NVIDIA A100\n    GPU Recovery Action : {name}\n"
    (root,) = diagnose_pieces(("nvidia-smi -q", rows)).roots
    assert (root.cause, root.disruption) == ("xid-154-recovery-action", disruption)


def test_more_severe_of_two_recovery_actions_is_done() -> None:
    rows = "GPU 00000000:1B:00.0\n    Product Name : NVIDIA A100\n    GPU Recovery Action : {}\n"
    for action, after in (("Reboot", 1), ("Reset", 2)):
        found = diagnose_pieces(("dmesg -T", wish(after)), ("nvidia-smi -q", rows.format(action)))
        assert (found.roots[0].disruption, typed_commands(found)) == ("reboot", [REBOOT])


def test_withdrawn_recovery_action_is_no_fault() -> None:
    found = diagnose_pieces(("dmesg -T", wish(1) + wish(0, 1, at=606)))
    assert found.is_healthy
    (told,) = found.findings
    assert (told.disruption, typed_commands(found), told.summary.endswith("the driver no longer asks for it")) == (
        "none",
        [],
        True,
    )
    assert len(told.citations) == 2


GSP = "Timeout after 45s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL)"


@pytest.mark.parametrize(
    ("cause", "log"),
    [
        ("xid-62-pmu-halt", xid(62, "32de(2384) 00000000 00000000")),
        ("gsp-rpc-timeout", xid(119, GSP)),
        ("ecc-dbe-uncorrectable", xid(48, "An uncorrectable double bit error (DBE) has been detected")),
    ],
)
def test_reboot_replaces_a_reset_that_is_not_enough(cause: str, log: str) -> None:
    asked = diagnose_pieces(("dmesg -T", log + wish(1) + wish(2, 1, at=8)))
    assert (asked.roots[0].cause, asked.roots[0].disruption, typed_commands(asked)) == (cause, "reboot", [REBOOT])
    assert any("to 0x2" in citation.line for citation in asked.roots[0].citations)
    less = diagnose_pieces(("dmesg -T", log + wish(1)))
    assert (less.roots[0].disruption, typed_commands(less)) == ("reset-gpu", [RESET])


@pytest.mark.parametrize(
    ("cause", "log"),
    [
        ("xid-62-pmu-halt", xid(62, "32de(2384) 00000000 00000000")),
        ("gsp-rpc-timeout", xid(119, GSP)),
        ("xid-95-uncontained-ecc", xid(95, "Uncontained: LTC TAG (0x5,0x0). RST: Yes, D-RST: No")),
    ],
)
def test_fault_without_a_pending_recovery_action_needs_no_reset(cause: str, log: str) -> None:
    for later in ("", xid(31, "Ch 00000010, MMU Fault: ENGINE GRAPHICS faulted @ 0x7f_00000000", at=700)):
        over = diagnose_pieces(("dmesg -T", log + wish(1) + wish(0, 1, at=606) + later))
        (told,) = (one for one in over.findings if one.cause == cause)
        assert (told.severity, told.disruption) == ("info", "none")
        assert not any(RESET in fix.commands for fix in told.remedy)
    again = diagnose_pieces(("dmesg -T", log + wish(1) + wish(0, 1, at=606) + xid(119, GSP, at=1000)))
    assert again.roots[0].severity == "error"


ASKED = "GPU 00000000:1B:00.0\n    Product Name : NVIDIA H100\n    GPU Recovery Action : {}\n"


def diagnosis_of_capture(log: str, key: str, answer: str) -> Diagnosis:
    """Return the diagnosis of a node or a capture whose nvidia-smi ran after its logs were read."""
    evidence = {"dmesg": ("dmesg -T", log), key: ("nvidia-smi", answer)}
    return diagnose(take_snapshot({one: Capture(said, "ok", text.encode()) for one, (said, text) in evidence.items()}))


@pytest.mark.parametrize(
    ("key", "action", "severity"),
    [
        ("smi-query", "None", "info"),
        ("pasted", "None", "error"),
        ("smi-query", "N/A", "error"),
        ("smi-query", "Reset", "error"),
    ],
)
def test_later_nvidia_smi_answer_overrides_the_log(key: str, action: str, severity: str) -> None:
    found = diagnosis_of_capture(
        xid(95, "Uncontained: LTC TAG (0x5,0x0). RST: Yes, D-RST: No"), key, ASKED.format(action)
    )
    assert [one.severity for one in found.findings if one.cause == "xid-95-uncontained-ecc"] == [severity]


# --- NVLink 5 ---------------------------------------------------------------------------------------------------------

IGNORED = "RLW_REMAP Nonfatal XC0 i0 Link 05 (0x00000004 0x00000100 0x00000000 0x00000000 0x00000000 0x00000000)"
LEFT_TO_DRIVER = IGNORED.replace("RLW_REMAP", "RLW_SRC_TRACK").replace("0x00000004 0x00000100", "0x00000007 0x00000004")
FATAL = LEFT_TO_DRIVER.replace("Nonfatal", "Fatal").replace("0x00000007 0x00000004", "0x00000007 0x00000001")
WISHES = {"": "", **{name: wish(number, at=8) for number, name in enumerate(NAMES) if number}}


@pytest.mark.parametrize(
    ("body", "asked", "severity", "disruption"),
    [
        (IGNORED, "", "info", "none"),
        (LEFT_TO_DRIVER, "", "warning", "none"),
        (LEFT_TO_DRIVER, "GPU Reset Required", "error", "reset-gpu"),
        (LEFT_TO_DRIVER, "Node Reboot Required", "error", "reboot"),
        (FATAL, "", "error", "reset-gpu"),
        (FATAL, "Drain P2P", "error", "reset-gpu"),
    ],
)
def test_nvlink_error_severity_follows_catalog_and_driver(
    body: str, asked: str, severity: str, disruption: str
) -> None:
    (told,) = diagnose_pieces(("dmesg -T", xid(145, body) + WISHES[asked])).findings
    assert (told.cause, told.severity, told.disruption) == ("xid-145-149-nvlink5-fault", severity, disruption)
    at_once = [command for fix in told.remedy if not fix.when for command in fix.commands]
    assert any("--gpu-reset" in command for command in at_once) == (disruption == "reset-gpu")


def test_nvlink_error_without_a_recovery_action_is_no_fault() -> None:
    rows = (
        "GPU 00000000:1B:00.0\n    GPU Recovery Action : None\nGPU 00000000:43:00.0\n    GPU Recovery Action : None\n"
    )
    (told,) = diagnose_pieces(("dmesg -T", xid(145, LEFT_TO_DRIVER)), ("nvidia-smi -q", rows)).findings
    assert (told.severity, told.disruption) == ("info", "none")


def test_fatal_nvlink_error_counts_beside_an_ignored_one() -> None:
    (told,) = diagnose_pieces(("dmesg -T", xid(145, IGNORED) + xid(145, FATAL, at=2))).findings
    assert (told.severity, told.disruption) == ("error", "reset-gpu")
