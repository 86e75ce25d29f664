"""Remedies fit the node: the operator's driver, a lock, the branch of the libraries, installed headers."""

from __future__ import annotations

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

UBUNTU = ("/etc/os-release", 'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n')
ROCKY = ("/etc/os-release", 'ID="rocky"\nVERSION_ID="9.4"\nID_LIKE="rhel centos fedora"\n')
A100 = ("lspci -nn", "3b:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 80GB] [10de:20b5] (rev a1)")
BARE = (
    ("nvidia-smi", "-bash: nvidia-smi: command not found"),
    ("lsmod", "Module Size Used by\next4 1 0\n"),
    ("dpkg -l", "ii  bash  5.1-6ubuntu1.1  amd64  GNU Bourne Again SHell"),
)


def diagnose_rows(*rows: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(rows)))


def commands(found: Diagnosis) -> list[str]:
    return [command for finding in found.roots for fix in finding.remedy for command in fix.commands]


def pods(status: str, ready: str = "0/1") -> tuple[str, str]:
    return ("kubectl get pods -n gpu-operator", f"nvidia-driver-daemonset-7xk2d  {ready}  {status}  0  12m")


PULL = (
    "kubectl describe pod -n gpu-operator nvidia-driver-daemonset-7xk2d",
    (
        '  Warning  Failed  10m  kubelet  Failed to pull image "nvcr.io/nvidia/driver:550.127.05-ubuntu22.04": rpc '
        "error: "
        "code = NotFound desc = failed to pull: dial tcp: lookup nvcr.io on 10.0.0.2:53: no such host"
    ),
)


def test_host_with_an_operator_driver_gets_no_own_driver() -> None:
    found = diagnose_rows(UBUNTU, A100, *BARE, pods("ImagePullBackOff"), PULL)
    assert found.findings == ()


def test_failing_driver_pod_is_a_suspect() -> None:
    found = diagnose_rows(UBUNTU, A100, *BARE, pods("CrashLoopBackOff"))
    assert found.findings == ()
    assert found.suspects


def test_host_without_the_operator_gets_a_driver() -> None:
    assert "sudo gpunode setup" in commands(diagnose_rows(UBUNTU, A100, *BARE))


def test_version_lock_of_the_module_is_removed_first() -> None:
    found = diagnose_rows(
        ROCKY,
        ("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 560.35"),
        (
            "cat /proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 03:22:07 UTC 2024",
        ),
        (
            "rpm -qa | grep -i nvidia | sort",
            (
                "kmod-nvidia-550.127.05-1.el9.x86_64\nnvidia-driver-cuda-libs-560.35.03-1.el9.x86_64\n"
                "nvidia-driver-libs-560.35.03-1.el9.x86_64\nxorg-x11-drv-nvidia-cuda-550.127.05-1.el9.x86_64\n"
            ),
        ),
        ("dnf versionlock list", "kmod-nvidia-3:550.127.05-1.el9.*"),
        ("modinfo -F version nvidia", "550.127.05"),
    )
    assert commands(found)[0] == "sudo dnf versionlock delete kmod-nvidia"


REJECTED = (
    ("modprobe nvidia", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"),
    ("mokutil --sb-state", "SecureBoot enabled"),
    (
        "modinfo nvidia | grep -E 'signer|filename'",
        "filename:       /lib/modules/6.8.0-48-generic/updates/dkms/nvidia.ko.zst\nsigner:         n Secure Boot key",
    ),
    ("uname -r", "6.8.0-48-generic"),
)


def test_signed_modules_of_the_installed_branch_are_suggested() -> None:
    (found,) = diagnose_rows(UBUNTU, *REJECTED).findings
    assert any("linux-modules-nvidia-BRANCH-generic" in fix.text for fix in found.remedy)


def test_installed_headers_are_not_installed_again() -> None:
    kernel = "5.15.0-126-generic"
    rows = (
        UBUNTU,
        ("uname -r", kernel),
        ("dkms status", "nvidia/535.183.06, 5.15.0-125-generic, x86_64: installed"),
        ("modprobe nvidia", f"modprobe: FATAL: Module nvidia not found in directory /lib/modules/{kernel}"),
    )
    there = (f"ls -d /usr/src/linux-headers-{kernel}", f"/usr/src/linux-headers-{kernel}")
    assert f"sudo apt-get install linux-headers-{kernel}" in commands(diagnose_rows(*rows))
    assert commands(diagnose_rows(*rows, there))[0] == f"sudo dkms autoinstall -k {kernel}"


def test_fabric_manager_follows_the_driver_version() -> None:
    rows = (
        ("/etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.2 LTS"\n'),
        ("lspci -nn", "1b:00.0 3D controller [0302]: NVIDIA Corporation GB100 [B200] [10de:2901] (rev a1)"),
        (
            "dmesg | grep NVRM",
            (
                "[   10.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30 04:01:10 UTC 2025\n"
                "[   20.1] NVRM: The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2901)\n"
                "NVRM: installed in this system requires use of the NVIDIA open kernel modules.\n"
            ),
        ),
    )
    manager = ("dpkg -l", "ii  nvidia-fabricmanager-570  570.133.20-1  amd64  Fabric Manager")
    (with_manager,) = [one for one in commands(diagnose_rows(*rows, manager)) if "fabricmanager" in one]
    assert with_manager.startswith("v=$(modinfo -F version nvidia); ")
    assert not [one for one in commands(diagnose_rows(*rows)) if "fabricmanager" in one]
