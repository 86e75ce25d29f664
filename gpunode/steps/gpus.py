"""GPUs among PCI devices, and who uses them."""

from __future__ import annotations

from gpunode.catalog.gpus import GpuModel, find_model, is_nvswitch
from gpunode.facts.model import PciDevice

NVIDIA_VENDOR_ID = "10de"
# Display controllers: VGA compatible and 3D. The NVIDIA kernel module binds only these and bridges of class 0680
# (nv-pci-table.c, open-gpu-kernel-modules).
GPU_CLASS_CODES = frozenset({"0300", "0302"})
BRIDGE_CLASS_CODE = "0680"
# PCI class codes by the kinds of other_devices.csv; "other system peripheral" for the rest.
CLASS_CODE_BY_DEVICE_KIND = {
    "audio function": "0403",
    "USB controller": "0c03",
    "NVSwitch": BRIDGE_CLASS_CODE,
    "PCI bridge": "0604",
}
UNKNOWN_CLASS_CODE = "0880"
# The option with which the user names the GPUs of another machine.
GPU_OPTION = "--gpu"
VFIO_DRIVER = "vfio-pci"


def find_gpus(devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """Return NVIDIA GPUs among ``devices``, including those passed through to virtual machines."""
    return tuple(d for d in devices if d.vendor == NVIDIA_VENDOR_ID and d.class_code in GPU_CLASS_CODES)


def find_own_gpus(devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """Return the GPUs that this system itself may use, without those bound to vfio-pci."""
    return tuple(d for d in find_gpus(devices) if d.driver != VFIO_DRIVER)


def find_other_gpus(devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """Return GPUs of other makers, such as AMD's and Intel's."""
    return tuple(d for d in devices if d.vendor in {"1002", "8086"} and d.class_code in {*GPU_CLASS_CODES, "0380"})


def find_nvswitches(devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """Return the NVSwitches among ``devices``, which need the fabric manager."""
    return tuple(
        d
        for d in devices
        if d.vendor == NVIDIA_VENDOR_ID and d.class_code == BRIDGE_CLASS_CODE and is_nvswitch(d.device)
    )


def find_models(devices: tuple[PciDevice, ...]) -> tuple[GpuModel, ...]:
    """Return the catalog's model of each of this system's GPUs."""
    return tuple(find_model(d.device) for d in find_own_gpus(devices))
