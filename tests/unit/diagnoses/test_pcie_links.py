"""Questions about NVLink, the bus, power, guests and GPUDirect, and the one word that decides each."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


NOT_READY = "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
SWITCH = ("lspci", "05:00.0 Bridge: NVIDIA Corporation GH100 [H100 NVSwitch] (rev a1)")
NOT_STARTED = "[   12.1] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)"
REFUSED = """GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Fabric
        State                             : Completed
        Status                            : Insufficient Resources
"""
ALL_DOWN = "\n".join(
    f"GPU {gpu}: Tesla V100 (UUID: GPU-{gpu})\n\t Link 0: <inactive>\n\t Link 1: <inactive>" for gpu in range(2)
)


@pytest.mark.parametrize(
    ("piece", "causes"),
    [
        (
            ("python", NOT_READY),
            {"fabric-manager-not-installed", "fabric-manager-version-mismatch"},
        ),
        (
            ("dmesg", NOT_STARTED),
            {"gpu-stuck-d3cold", "proprietary-module-on-blackwell"},
        ),
        (("nvidia-smi nvlink -s", ALL_DOWN), {"nvlink-all-links-inactive-gpu", "nvlink-link-inactive"}),
    ],
)
def test_ambiguous_message_leaves_all_causes_open(piece: tuple[str, str], causes: set[str]) -> None:
    found = diagnose_pieces(piece)
    assert not found.findings
    suspected = {one.cause for one in found.suspects}
    assert causes <= suspected


def test_gpu_refused_by_its_fabric_is_found() -> None:
    assert [(one.cause, one.confidence) for one in diagnose_pieces(("nvidia-smi -q", REFUSED)).roots] == [
        ("nvlink-all-links-inactive-gpu", "likely")
    ]


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        (
            (SWITCH, ("rpm -qa | grep -i fabric", "")),
            "fabric-manager-not-installed",
        ),
        (
            (SWITCH, ("systemctl status nvidia-fabricmanager", "     Active: failed (Result: exit-code)")),
            "fabric-manager-not-running",
        ),
        (
            (("rpm -qa", "nvidia-fabric-manager-550.54.15-1.x86_64"), ("cat /sys/module/nvidia/version", "550.90.07")),
            "fabric-manager-version-mismatch",
        ),
    ],
)
def test_further_evidence_decides_the_kind_of_cuda_802(more: tuple[tuple[str, str], ...], cause: str) -> None:
    assert [finding.cause for finding in diagnose_pieces(("python", NOT_READY), *more).roots] == [cause]


def test_invalid_bar_is_certain_only_outside_a_guest() -> None:
    invalid = "[   28.1] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0"
    (unknown,) = diagnose_pieces(("dmesg", invalid)).roots
    (host,) = diagnose_pieces(("dmesg", invalid), ("systemd-detect-virt", "none")).roots
    (guest,) = diagnose_pieces(("dmesg", invalid), ("systemd-detect-virt", "kvm")).roots
    assert (unknown.cause, unknown.confidence) == ("bar-above-4g-disabled", "likely")
    assert (host.cause, host.confidence) == ("bar-above-4g-disabled", "certain")
    assert guest.cause == "vm-passthrough-mmio-config"


def test_half_width_link_is_a_warning_only_beside_full_ones() -> None:
    narrow, full = "GPU 00000000:{}:00.0\n    Product Name : NVIDIA GeForce RTX 3090\n    GPU Link Info\n", "Link Width"
    row = "        {}\n            Max                       : 16x\n            Current                   : {}x\n"
    alone = diagnose_pieces(("nvidia-smi -q", narrow.format("01") + row.format(full, 8))).roots
    beside = diagnose_pieces(
        (
            "nvidia-smi -q",
            "".join(narrow.format(bus) + row.format(full, width) for bus, width in (("01", 8), ("41", 16))),
        )
    ).roots
    assert [(finding.cause, finding.severity) for finding in alone] == [("pcie-link-degraded", "info")]
    assert [(finding.cause, finding.severity) for finding in beside] == [("pcie-link-degraded", "warning")]


PORT = (
    "00:01.0 PCI bridge [0604]: Intel Corporation Device [8086:a70d] (rev 01)\n"
    "\tBus: primary=00, secondary=01, subordinate=01\n"
)
GPU = "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GA102 [GeForce RTX 3090] [10de:2204] (rev a1)\n"
HAS, RUNS = "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x{}\n", "\t\tLnkSta:\tSpeed {}GT/s, Width x{}\n"


@pytest.mark.parametrize(
    ("port", "speed", "width", "said"),
    [
        (HAS.format(16), 16, 4, ("warning", "certain", "both ends have")),
        ("", 16, 4, ("warning", "likely", "the slot's width is unknown")),
        (HAS.format(4), 16, 4, None),
        (HAS.format(16), 2.5, 16, None),
        ("", 2.5, 16, None),
    ],
)
def test_narrow_link_is_certain_only_if_both_ends_are_wider(
    port: str, speed: float, width: int, said: tuple[str, str, str] | None
) -> None:
    gpu = f"{GPU}{HAS.format(16)}{RUNS.format(speed, width)}"
    found = diagnose_pieces(("lspci -vvv", f"{PORT}{port}{gpu}" if port else gpu)).findings
    told = [(one.severity, one.confidence) for one in found]
    assert told == ([said[:2]] if said else [])
    assert all(said and said[2] in one.summary for one in found)


def test_errors_of_a_port_belong_to_the_gpu_below_it() -> None:
    error = "[  100.{0}] pcieport 0000:00:01.0: {1}\n"
    told = ("AER: Corrected error received: 0000:00:01.0", "   [ 6] BadTLP")
    log = "".join(error.format(number, line) for number in range(10, 40) for line in told)
    (storm,) = diagnose_pieces(("dmesg", log), ("lspci -vvv", f"{PORT}{GPU}")).findings
    assert (storm.cause, storm.gpus, storm.at) == ("pcie-aer-correctable-storm", ("0000:01:00.0",), 100.1)
