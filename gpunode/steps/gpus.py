"""Which PCI devices are GPUs, and whose."""

from __future__ import annotations

from gpunode.catalog.gpus import GpuModel, is_nvswitch, lookup
from gpunode.facts.model import PciDevice

NVIDIA = "10de"
# Display controllers: VGA compatible and 3D. The NVIDIA kernel module binds these and bridges of class 0680 alone
# (nv-pci-table.c, open-gpu-kernel-modules).
GPU_CLASSES = frozenset({"0300", "0302"})
BRIDGE_CLASS = "0680"
# PCI class codes by the kinds of other_devices.csv; "other system peripheral" for the rest.
CLASSES = {"audio function": "0403", "USB controller": "0c03", "NVSwitch": BRIDGE_CLASS, "PCI bridge": "0604"}
UNKNOWN_CLASS = "0880"
# Where the GPUs come from that the user names for another machine.
GPU_OPTION = "--gpu"
PASSED_THROUGH = "vfio-pci"


def gpus(devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """NVIDIA's GPUs among ``devices``, those given to virtual machines included."""
    return tuple(d for d in devices if d.vendor == NVIDIA and d.class_code in GPU_CLASSES)


def own_gpus(devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """The GPUs that this system itself may use: not those bound to vfio-pci for a virtual machine."""
    return tuple(d for d in gpus(devices) if d.driver != PASSED_THROUGH)


def other_gpus(devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """Display controllers of other makers that compute, such as AMD's and Intel's."""
    return tuple(d for d in devices if d.vendor in {"1002", "8086"} and d.class_code in {*GPU_CLASSES, "0380"})


def nvswitches(devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """The NVSwitches among ``devices``: they need the fabric manager."""
    return tuple(d for d in devices if d.vendor == NVIDIA and d.class_code == BRIDGE_CLASS and is_nvswitch(d.device))


def models(devices: tuple[PciDevice, ...]) -> tuple[GpuModel, ...]:
    """What the catalog knows of each of this system's GPUs."""
    return tuple(lookup(d.device) for d in own_gpus(devices))
