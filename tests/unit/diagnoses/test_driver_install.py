"""The driver from a distribution's packages: no name that could install a driver without support for the GPU."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose, remedies
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

Row = tuple[str, str]


def system(name: str, version: str, like: str = "") -> Row:
    return ("/etc/os-release", f'ID={name}\nVERSION_ID="{version}"\nID_LIKE="{like}"\n')


ROCKY, FEDORA, ARCH = system("rocky", "9.4", "rhel centos fedora"), system("fedora", "42"), system("arch", "")
SLES, AMAZON = system("sles", "15.6", "suse"), system("amzn", "2023", "fedora")
NOBLE, BOOKWORM, TRIXIE = system("ubuntu", "24.04"), system("debian", "12"), system("debian", "13")
V100 = "3b:00.0 3D controller [0302]: NVIDIA Corporation GV100GL [Tesla V100 PCIe 16GB] [10de:1db4] (rev a1)"
K80 = "3b:00.0 3D controller [0302]: NVIDIA Corporation GK210GL [Tesla K80] [10de:102d] (rev a1)"
B200 = "1b:00.0 3D controller [0302]: NVIDIA Corporation GB100 [B200] [10de:2901] (rev a1)"
T4 = "02:00.0 3D controller [0302]: NVIDIA Corporation TU104GL [Tesla T4] [10de:1eb8] (rev a1)"


def gpu(line: str) -> Row:
    return ("lspci -nn", line)


NAMED = ("nvidia-smi -L", "GPU 0: Tesla V100-PCIE-16GB (UUID: GPU-11111111-aaaa-bbbb-cccc-333333333333)")
UNNUMBERED = ("lspci", "3b:00.0 3D controller: NVIDIA Corporation GP100GL [Tesla P100 PCIe 16GB] (rev a1)")
OPEN_ONES = (
    ("cat /proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release"),
    ("nvidia-smi", "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06   CUDA Version: 13.0     |"),
)


def driver(*rows: Row) -> Fix:
    return remedies.install_driver(take_snapshot(pasted.collect_pieces(rows)), "install the driver")


@pytest.mark.parametrize(
    ("rows", "last"),
    [
        ((ROCKY, gpu(V100)), "sudo dnf module switch-to nvidia-driver:580-dkms/default --allowerasing"),
        ((ROCKY, NAMED), "sudo dnf module switch-to nvidia-driver:580-dkms/default --allowerasing"),
        ((AMAZON, UNNUMBERED), "sudo dnf module switch-to nvidia-driver:580-dkms/default --allowerasing"),
        ((ROCKY, gpu(f"{V100}\n{T4}")), "sudo dnf module switch-to nvidia-driver:580-dkms/default --allowerasing"),
        ((ROCKY, gpu(T4)), "sudo dnf module switch-to nvidia-driver:open-dkms/default --allowerasing"),
        ((ROCKY, *OPEN_ONES), "sudo dnf module switch-to nvidia-driver:open-dkms/default --allowerasing"),
        ((FEDORA, gpu(B200)), "sudo dnf install --allowerasing nvidia-open"),
        ((SLES, gpu(B200)), "sudo zypper install nvidia-open"),
        ((ARCH, gpu(T4)), "sudo pacman -S nvidia-open-dkms nvidia-utils"),
        # gpunode would refuse: the branch is not in NVIDIA's repositories any more.
        ((NOBLE, gpu(K80)), "sudo apt-get install nvidia-driver-470"),
        ((BOOKWORM, gpu(K80)), "sudo apt-get install nvidia-tesla-470-driver nvidia-driver-"),
        ((NOBLE, gpu(T4)), "sudo gpunode setup"),
    ],
)
def test_newest_branch_that_supports_the_gpu_is_installed(rows: tuple[Row, ...], last: str) -> None:
    assert driver(*rows).commands == (last,)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        *(((one, gpu(V100)), "branch 580, the last for this GPU") for one in (FEDORA, SLES, ARCH)),
        *(((one, gpu(K80)), "branch 470, the last for this GPU") for one in (ROCKY, FEDORA, SLES, ARCH, TRIXIE)),
        *(((one, gpu(f"{V100}\n{B200}")), "no kernel modules drive all GPUs of this host") for one in (NOBLE, ROCKY)),
        ((FEDORA, gpu(f"{K80}\n{B200}")), "no driver of NVIDIA's current repositories"),
    ],
)
def test_missing_repository_is_explained_without_commands(rows: tuple[Row, ...], words: str) -> None:
    fix = driver(*rows)
    assert words in fix.text
    assert fix.commands == ()


@pytest.mark.parametrize("release", [ROCKY, FEDORA, AMAZON, SLES, ARCH])
@pytest.mark.parametrize("seen", [(), (gpu("3b:00.0 3D controller: NVIDIA Corporation Graphics Device (rev a1)"),)])
def test_unknown_gpu_gets_no_driver_command(release: Row, seen: tuple[Row, ...]) -> None:
    fix = driver(release, *seen)
    assert fix.commands == ()
    assert "lspci -nn -d 10de:" in fix.text


def test_one_unknown_gpu_of_two_prevents_a_choice() -> None:
    both = f"{T4}\n04:00.0 3D controller: NVIDIA Corporation Graphics Device (rev a1)"
    assert driver(ROCKY, gpu(both)).commands == ()


def test_no_supported_branch_new_enough_is_explained() -> None:
    node = take_snapshot(pasted.collect_pieces([ROCKY, NAMED]))
    (fix,) = remedies.change_driver(node, "upgrade the driver", oldest_branch=590)
    assert fix.commands == ()
    assert "none of NVIDIA's maintained branches" in fix.text


def test_branch_that_dropped_the_gpu_is_not_reinstalled() -> None:
    said = (
        "dmesg | grep NVRM",
        (
            "[   22.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  595.45.04  Release Build\n"
            "[   30.1] NVRM: The NVIDIA Tesla V100-PCIE-16GB GPU installed in this system is\n"
            "               NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please\n"
            "               NVRM:  visit http://www.nvidia.com/object/unix.html for more\n"
            "               NVRM:  information.  The 595.45.04 NVIDIA driver will ignore\n"
            "               NVRM:  this GPU.  Continuing probe..."
        ),
    )
    (finding,) = diagnose(take_snapshot(pasted.collect_pieces([ROCKY, gpu(V100), said]))).roots
    commands = " ".join(command for fix in finding.remedy for command in fix.commands)
    assert "nvidia-driver:580-dkms/default" in commands
    assert "cuda-drivers" not in commands


def test_removed_driver_is_not_completed_by_packages() -> None:
    """After `gpunode remove` no archive has nvidia-smi of that driver; the node needs a reboot."""
    rows = (
        BOOKWORM,
        gpu(T4),
        ("nvidia-smi", "nvidia-smi: command not found"),
        (
            "cat /proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release",
        ),
        ("modinfo nvidia", "modinfo: ERROR: Module nvidia not found."),
        ("dpkg -l", "ii  bash 5.2 amd64 x"),
    )
    found = diagnose(take_snapshot(pasted.collect_pieces(rows))).findings[0]
    assert found.cause == "driver-userspace-incomplete"
    assert "was removed" in found.summary
    assert [str(one) for fix in found.remedy for one in fix.commands] == [
        "sudo gpunode setup",
        "sudo systemctl reboot",
    ]
