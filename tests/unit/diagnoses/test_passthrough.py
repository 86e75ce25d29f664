"""GPUs passed through to virtual machines on purpose: no fault, neither of them nor of the host's own GPUs."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest"
HOSTS = "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102 [GeForce RTX 4090] [10de:2684] (rev a1)\n"
LENT = (
    "02:00.0 VGA compatible controller [0300]: NVIDIA Corporation GA104 [GeForce RTX 3070] [10de:2484] (rev a1)\n"
    "\tKernel driver in use: vfio-pci\n\tKernel modules: nvidiafb, nouveau, nvidia\n"
)
RESERVED = ("cat /etc/modprobe.d/vfio.conf", "options vfio-pci ids=10de:2484,10de:228b disable_vga=1\n")
PROXMOX = ("uname -r", "6.8.12-8-pve\n")


def diagnosis(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


def faults(found: Diagnosis) -> list[str]:
    return [one.cause for one in found.roots if one.severity != "info"]


def test_nouveau_on_the_host_gpu_is_found_beside_passthrough() -> None:
    bus = f"{HOSTS}\tKernel driver in use: nouveau\n\tKernel modules: nvidiafb, nouveau, nvidia\n{LENT}"
    found = diagnosis(
        PROXMOX, ("lspci -nnk -d 10de:", bus), RESERVED, ("nvidia-smi", NO_DRIVER),
        ("dkms status", "nvidia/565.57.01, 6.8.12-8-pve, x86_64: installed"),
    )  # fmt: skip
    assert faults(found) == ["nouveau-bound"]
    assert found.findings[0].gpus == ("0000:01:00.0",)
    assert not [
        command for one in found.findings for fix in one.remedy for command in fix.commands if "vfio" in command
    ]


def test_unbuilt_module_is_found_beside_a_passed_through_gpu() -> None:
    found = diagnosis(
        PROXMOX, ("lspci -nnk -d 10de:", f"{HOSTS}\tKernel modules: nvidiafb, nouveau, nvidia\n{LENT}"),
        ("nvidia-smi", NO_DRIVER), ("dkms status", "nvidia/565.57.01, 6.8.12-4-pve, x86_64: installed"),
        ("modprobe nvidia", "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.12-8-pve"),
    )  # fmt: skip
    assert faults(found) == ["module-built-for-other-kernel"]


@pytest.mark.parametrize(
    "shown",
    [
        (
            "qm list",
            " VMID NAME      STATUS     MEM(MB)  BOOTDISK(GB) PID\n       101 win11     running    32768  200 231\n",
        ),
        ("virsh list --all", " Id   Name     State\n-----------------------\n 1    gpu-vm   running\n"),
    ],
    ids=["qm", "virsh"],
)
def test_gpu_used_by_a_virtual_machine_is_information(shown: tuple[str, str]) -> None:
    found = diagnosis(PROXMOX, ("lspci -nnk -d 10de:", LENT), ("nvidia-smi", NO_DRIVER), shown)
    lent = next(one for one in found.findings if one.cause == "vfio-bound")
    assert (lent.severity, lent.disruption) == ("info", "none")
    assert not [command for fix in lent.remedy for command in fix.commands]


def test_only_gpu_of_a_hypervisor_is_a_suspect() -> None:
    found = diagnosis(PROXMOX, ("lspci -nnk -d 10de:", LENT), RESERVED, ("nvidia-smi", NO_DRIVER))
    assert "vfio-bound" not in faults(found)
    assert [one for one in found.suspects if one.cause == "vfio-bound"]


def test_gpu_is_returned_from_vfio_with_proxmox_boot_tool() -> None:
    log = "NVRM: GPU 0000:02:00.0 is already bound to vfio-pci.\nNVRM: The NVIDIA probe routine was not called for 1"
    found = diagnosis(PROXMOX, ("lspci -nnk -d 10de:", LENT), ("dmesg", log), ("nvidia-smi", NO_DRIVER))
    assert faults(found) == ["vfio-bound"]
    commands = [command for fix in found.findings[0].remedy for command in fix.commands]
    assert "sudo proxmox-boot-tool refresh" in commands
    assert found.findings[0].remedy[0].text.startswith("make sure that no virtual machine needs the GPU")
    assert found.findings[0].remedy[0].commands == ()
