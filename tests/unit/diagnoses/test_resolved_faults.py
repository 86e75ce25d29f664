"""A GPU that worked after a fault: a fault that stops a GPU until its reset is then over."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture

TABLE = """| NVIDIA-SMI 535.161.08             Driver Version: 535.161.08   CUDA Version: 12.2     |
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |
| N/A   34C    P0              62W / 400W |      0MiB / 81920MiB |      0%      Default |
"""
AT_WORK = ("nvidia-smi", f"Sat Nov 21 21:27:39 2026       \n{TABLE}")
QUERY = (
    "nvidia-smi -q",
    (
        "Timestamp                                 : Sat Nov 21 21:27:39 2026\n"
        "Driver Version                            : 535.161.08\nAttached GPUs                             : 1\n"
        "GPU 00000000:07:00.0\n    Temperature\n        GPU Current Temp                  : 34 C\n"
    ),
)
FELL = "NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus."
SILENT = (
    "NVRM: Xid (PCI:0000:07:00): 119, pid=8, name=nvidia-smi, Timeout after 45s of waiting for RPC response from GPU0 "
    "GSP! Expected function 76 (GSP_RM_CONTROL) (0x20 0x0)."
)
LAPTOP = "01:00.0 3D controller [0302]: NVIDIA Corporation GA107M [GeForce RTX 3050 Mobile] [10de:25a2] (rev ff)\n"
STUCK = "[   12.101] nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible\n"


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


@pytest.mark.parametrize(
    ("source", "stamp"),
    [
        ("dmesg -T", "[Sat Nov 21 21:27:40 2026] "),
        ("dmesg", "[ 4242.123456] "),
        ("journalctl -k", "Nov 21 22:00:00 n1 kernel: "),
        ("journalctl -k -o short-iso", "2026-11-21T22:00:00+0100 n1 kernel: "),
        ("journalctl -k -o short-iso --utc", "2026-11-21T20:00:00+0000 n1 kernel: "),
    ],
)
def test_undated_order_of_a_paste_leaves_the_fault_open(source: str, stamp: str) -> None:
    (root,) = diagnose_pieces(AT_WORK, (source, f"{stamp}{FELL}\n")).roots
    assert (root.cause, root.confidence) == ("gpu-fallen-off-bus", "certain")


def test_working_gpu_does_not_resolve_a_fault_of_another() -> None:
    other = ("dmesg -T", f"[Sat Nov 21 20:27:39 2026] {FELL.replace('07:00', '08:00')}\n")
    assert [root.cause for root in diagnose_pieces(AT_WORK, other).roots] == ["gpu-fallen-off-bus"]


def test_gpu_without_readings_is_not_working() -> None:
    broken = (AT_WORK[0], AT_WORK[1].replace(" 34C ", " ERR!"))
    (root,) = diagnose_pieces(broken, ("dmesg -T", f"[Sat Nov 21 20:27:39 2026] {FELL}\n")).roots
    assert root.cause == "gpu-fallen-off-bus"


@pytest.mark.parametrize(("key", "answer"), [("smi", AT_WORK), ("smi-query", QUERY)], ids=["table", "query"])
@pytest.mark.parametrize("fault", [FELL, SILENT], ids=["79", "119"])
def test_capture_answers_are_newer_than_its_logs(key: str, answer: tuple[str, str], fault: str) -> None:
    log = f"[ 4242.123456] {fault}\n"
    evidence = {
        "dmesg": Capture("dmesg", "ok", log.encode()),
        key: Capture(answer[0], "ok", answer[1].encode()),
    }
    assert diagnose(take_snapshot(evidence)).is_healthy


def test_laptop_gpu_that_slept_and_works_has_no_fault() -> None:
    works = (AT_WORK[0], AT_WORK[1].replace("07:00.0", "01:00.0"))
    assert diagnose_pieces(works, ("lspci -nn", LAPTOP), ("dmesg", STUCK)).is_healthy
    assert [root.cause for root in diagnose_pieces(("lspci -nn", LAPTOP), ("dmesg", STUCK)).roots] == [
        "gpu-stuck-d3cold"
    ]


def test_process_name_cannot_look_like_a_lost_gpu() -> None:
    line = "[  100.1] NVRM: Xid (PCI:0000:07:00): 31, pid=1, name=GPU is lost, Ch 00000001, intr 00000000. MMU Fault\n"
    assert "gpu-fallen-off-bus" not in [finding.cause for finding in diagnose_pieces(("dmesg", line)).findings]


@pytest.mark.parametrize("row", ["| ERR!  34C    P0    62W / 400W |", "|  0%   34C    P0    ERR! / 400W |"])
def test_gpu_with_unreadable_values_is_not_healthy(row: str) -> None:
    table = "\n".join((*TABLE.splitlines()[:2], f"{row}      0MiB / 81920MiB |      0%      Default |"))
    found = diagnose_pieces(("nvidia-smi", table))
    assert not found.findings
    assert found.suspects
    live = {
        "smi": Capture("nvidia-smi", "ok", table.encode()),
        "modules": Capture("lsmod", "ok", b"Module Size Used\n"),
    }
    assert diagnose(take_snapshot(live)).suspects
