"""A driver of the .run installer beside packages."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Finding
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

Row = tuple[str, str]
BASE: list[Row] = [
    ("/etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n'),
    ("uname -r", "5.15.0-125-generic"),
    ("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.216"),
    (
        "cat /proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024",
    ),
]
DISK = (
    "modinfo nvidia",
    "filename:       /lib/modules/5.15.0-125-generic/kernel/drivers/video/nvidia.ko\nversion:        535.183.06\n",
)
LIBRARY = "ii  libnvidia-compute-535:amd64        535.216.03-0ubuntu0.22.04.1             amd64        NVIDIA"
STRAY = ("dpkg -l | grep -i nvidia", LIBRARY)
DKMS = ("dpkg -l | grep -i nvidia", f"{LIBRARY}\nii  nvidia-dkms-535   535.216.03-0ubuntu0.22.04.1   amd64   NVIDIA")
UNINSTALLER = ("ls /usr/bin/nvidia-uninstall", "/usr/bin/nvidia-uninstall")
LOG = (
    "tail -1 /var/log/nvidia-installer.log",
    "Installation of the NVIDIA Accelerated Graphics Driver for Linux-x86_64 (version: 535.183.06) is now complete.",
)
GRIDD = ("ls -l /usr/bin/nvidia-gridd", "-rwxr-xr-x 1 root root 5400000 Jul  1 10:00 /usr/bin/nvidia-gridd")


def root(*rows: Row) -> Finding:
    (found,) = diagnose(take_snapshot(pasted.collect_pieces([*BASE, *rows]))).roots
    return found


def commands(finding: Finding) -> list[str]:
    return [command for fix in finding.remedy for command in fix.commands]


def test_installer_driver_is_removed_where_packages_have_a_module() -> None:
    finding = root(DKMS, UNINSTALLER)
    assert finding.cause == "runfile-leftover"
    assert commands(finding)[0] == "sudo nvidia-installer --uninstall --silent"
    assert "nvidia-dkms-535" in commands(finding)[1]


def test_installer_driver_of_unknown_origin_is_replaced() -> None:
    finding = root(("dpkg -l | grep libnvidia-compute", LIBRARY), UNINSTALLER)
    assert commands(finding)[:2] == ["sudo nvidia-installer --uninstall --silent", "sudo gpunode setup"]


@pytest.mark.parametrize("pattern", ["(", "*nvidia", "libnvidia"])
def test_filtered_package_list_proves_no_missing_module(pattern: str) -> None:
    finding = root((f"dpkg -l | grep -E '{pattern}'", LIBRARY), UNINSTALLER)
    assert commands(finding)[:2] == ["sudo nvidia-installer --uninstall --silent", "sudo gpunode setup"]


MAKE_LOG = "/var/lib/dkms/nvidia-current/535.309.01/build/make.log"
ERROR = '/usr/src/linux-headers-6.1.0-50-common/include/linux/pci.h:1:2: error: #error "broken on purpose"'
BROKEN_BUILD: list[Row] = [
    ("/etc/os-release", 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'),
    ("uname -r", "6.1.0-50-amd64"),
    (
        "dpkg -l | grep nvidia",
        "iF  nvidia-kernel-dkms  535.309.01-0+deb12u1  amd64  NVIDIA binary kernel module DKMS source",
    ),
    (
        "cat /var/log/apt/history.log",
        (
            "Start-Date: 2026-11-28  22:00:14\n"
            "Commandline: apt-get -y install nvidia-kernel-dkms\n"
            "Install: nvidia-installer-cleanup:amd64 (20220217+3~deb12u1, automatic), "
            "nvidia-kernel-dkms:amd64 (535.309.01-0+deb12u1)\n"
            "Error: Sub-process /usr/bin/dpkg returned an error code (1)\n"
        ),
    ),
    (
        f"cat {MAKE_LOG}",
        (
            "DKMS make.log for nvidia-current-535.309.01 for kernel 6.1.0-50-amd64 (x86_64)\n"
            "  CC [M]  /var/lib/dkms/nvidia-current/535.309.01/build/nvidia/nv.o\n"
            f"{ERROR}\n"
            "make[3]: *** [scripts/Makefile.build:255: nvidia/nv-pci.o] Error 1\n"
        ),
    ),
]


def test_debians_cleanup_package_is_no_trace_of_an_installer() -> None:
    """It is installed with every driver of Debian's own; the build failed, and its first error is quoted."""
    (found,) = diagnose(take_snapshot(pasted.collect_pieces(BROKEN_BUILD))).roots
    assert found.cause == "dkms-build-kernel-api"
    assert ERROR in found.citations[0].text


@pytest.mark.parametrize(
    "line",
    [
        "dpkg: error processing package nvidia-installer-cleanup (--configure):",
        " installed nvidia-installer-cleanup package post-installation script subprocess returned error exit status 1",
    ],
)
def test_cleanup_that_met_an_installers_driver_is_a_trace(line: str) -> None:
    assert root(DKMS, ("apt-get install nvidia-driver", line)).cause == "runfile-leftover"
