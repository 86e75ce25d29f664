"""Two kinds of GPU in one node: the driver of one is not removed because of the other."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis, Finding
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

SYSTEM = ("/etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n')
KERNEL = ("uname -r", "6.8.0-49-generic")
OLD = "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GK208B [GeForce GT 710] [10de:128b] (rev a1)"
NEW = "41:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102 [GeForce RTX 4090] [10de:2684] (rev a1)"
BUS = ("lspci -nn -d 10de:", f"{OLD}\n{NEW}")
BOUND = (
    "lspci -nnk -d 10de:",
    f"{OLD}\n\tKernel modules: nouveau, nvidia\n{NEW}\n\tKernel driver in use: nvidia\n\tKernel modules: nouveau\n",
)
PACKAGES = (
    "dpkg -l",
    "ii  nvidia-dkms-550  550.120-0ubuntu0.22.04.1  amd64  x\nii  nvidia-driver-550  550.120-1  amd64  x",
)
WORKS = ("nvidia-smi -L", "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-11111111-aaaa-bbbb-cccc-333333333333)")
LEGACY_GPU_CAUSE = (
    "dmesg | grep NVRM",
    (
        "[    9.1] NVRM: The NVIDIA GeForce GT 710 GPU installed in this system is\n"
        "               NVRM:  supported through the NVIDIA 470.xx Legacy drivers. Please\n"
        "               NVRM:  visit http://www.nvidia.com/object/unix.html for more\n"
        "               NVRM:  information.  The 550.120 NVIDIA driver will ignore\n"
        "               NVRM:  this GPU.  Continuing probe...\n"
        "[    9.3] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.120  Fri Sep 13 10:10:01 UTC 2024"
    ),
)


def diagnose_rows(*rows: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces([SYSTEM, KERNEL, PACKAGES, *rows])))


def commands(finding: Finding) -> list[str]:
    return [command for fix in finding.remedy for command in fix.commands]


@pytest.mark.parametrize(
    ("rows", "severity"),
    [
        ((BOUND, LEGACY_GPU_CAUSE), "warning"),
        ((BOUND, LEGACY_GPU_CAUSE, WORKS), "warning"),
        ((BUS, LEGACY_GPU_CAUSE, WORKS), "warning"),
        ((BUS, WORKS), "warning"),
        ((BUS, LEGACY_GPU_CAUSE), "warning"),
        ((BUS,), "warning"),
    ],
    ids=["bound", "bound-and-works", "told-and-works", "works", "told", "by-table"],
)
def test_unsupported_display_card_does_not_change_the_driver(rows: tuple[tuple[str, str], ...], severity: str) -> None:
    (finding,) = diagnose_rows(*rows).findings
    assert (finding.cause, finding.severity) == ("gpu-legacy-unsupported-by-branch", severity)
    assert commands(finding) == []
    assert finding.remedy[0].text.startswith("leave the driver as it is")
    assert "GeForce GT 710" in finding.summary


def test_single_legacy_gpu_gets_its_branch() -> None:
    (finding,) = diagnose_rows(("lspci -nn -d 10de:", OLD), LEGACY_GPU_CAUSE).findings
    assert finding.severity == "error"
    assert "sudo apt-get install nvidia-driver-470" in commands(finding)


def test_maintained_branch_for_both_gpus_is_suggested() -> None:
    p100 = "3b:00.0 3D controller [0302]: NVIDIA Corporation GP100GL [Tesla P100 PCIe 16GB] [10de:15f8] (rev a1)"
    bus = ("lspci -nn -d 10de:", f"{p100}\n{NEW}")
    smi = ("nvidia-smi", "| NVIDIA-SMI 595.58.03    Driver Version: 595.58.03     CUDA Version: 13.2 |")
    found = diagnose(take_snapshot(pasted.collect_pieces([SYSTEM, KERNEL, bus, smi, WORKS])))
    (finding,) = found.findings
    assert (finding.cause, finding.severity) == ("gpu-legacy-unsupported-by-branch", "warning")
    assert "sudo gpunode setup --driver 580" in commands(finding)


def test_two_failing_gpus_of_one_kind_are_an_error() -> None:
    b200 = (
        "3D controller [0302]: NVIDIA Corporation GB100 [B200] [10de:2901] (rev a1)\n\tKernel driver in use: nvidia\n"
    )
    said = (
        "dmesg",
        (
            "[   10.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30 04:01:10 UTC 2025\n"
            "[   20.1] NVRM: The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2901)\n"
            "NVRM: installed in this system requires use of the NVIDIA open kernel modules.\n"
        ),
    )
    bus = ("lspci -nnk -d 10de:", f"1b:00.0 {b200}43:00.0 {b200}")
    (finding,) = diagnose(take_snapshot(pasted.collect_pieces([SYSTEM, KERNEL, bus, said]))).roots
    assert (finding.cause, finding.severity) == ("proprietary-module-on-blackwell", "error")


def test_unsupported_gpu_is_not_counted_as_missing() -> None:
    third = NEW.replace("41:00.0", "61:00.0")
    found = diagnose_rows(("lspci -nn -d 10de:", f"{OLD}\n{NEW}\n{third}"), WORKS)
    (missing,) = (one for one in found.findings if one.cause == "gpu-missing-from-inventory")
    assert missing.summary.startswith("2 GPUs are on the PCI bus, but nvidia-smi shows 1")
    assert "gpu-missing-from-inventory" not in [one.cause for one in diagnose_rows(BUS, WORKS).findings]
