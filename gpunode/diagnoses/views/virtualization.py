"""Detect vGPU guests: virtual machines with a share of a GPU, which only NVIDIA's guest driver supports.

The share shows the device id of the whole GPU; its subsystem, profile name, nvidia-smi mode or licence daemon reveals
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.catalog.gpus import is_vgpu_profile, vgpu_profile
from gpunode.diagnoses.snapshot import Snapshot, find_all
from gpunode.diagnoses.views import boards, pci, smi_query, system
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_SUBSYSTEM_IDS: Final = Pattern(r"(?i)Subsystem:.*\[(?P<vendor>[0-9a-f]{4}):(?P<device>[0-9a-f]{4})\]")
# "Device 130f" without vendor ids, and [10de:130f] or [130f] with them.
_SUBSYSTEM_DEVICE: Final = Pattern(r"(?i)Subsystem: NVIDIA Corporation (?:Device )?\[?(?P<device>[0-9a-f]{4})\]?\s*$")
_GRIDD_MESSAGE_OR_FILE: Final = Pattern(r"(?m)\bnvidia-gridd\[\d+\]: |^(?:[-l]\S{9}.* )?/usr/bin/nvidia-gridd\s*$")


def is_vgpu(snapshot: Snapshot) -> bool:
    """Return whether a GPU of this node is a vGPU, or uses the guest driver."""
    return snapshot.view(_detect_vgpu)


def _detect_vgpu(snapshot: Snapshot) -> bool:
    if snapshot.view(vgpu_addresses) or any(map(is_vgpu_profile, snapshot.view(boards.gpu_model_names))):
        return True
    modes = [row.value.strip().upper() for _, row in smi_query.find_rows(snapshot, "Virtualization Mode")]
    # The same daemon fetches licences for whole GPUs.
    return "VGPU" in modes or (_has_guest_driver(snapshot) and not modes and not _shows_subsystems(snapshot))


def _has_guest_driver(snapshot: Snapshot) -> bool:
    """Return whether nvidia-gridd runs or exists; only NVIDIA's guest driver contains it."""
    told = snapshot.items_to_search(
        _GRIDD_MESSAGE_OR_FILE, "unit-status", "unit-log", "journal", "listing", "which", "text"
    )
    seen = (item for item in told if item.where == "host" and item.outcome == "ok")
    return any(True for item in seen for _ in find_all(item, _GRIDD_MESSAGE_OR_FILE))


def _shows_subsystems(snapshot: Snapshot) -> bool:
    """Return whether the subsystems of all GPUs are shown, which would identify a vGPU."""
    gpus = snapshot.view(pci.pci_gpus)
    return bool(gpus) and all(any(_subsystem_ids(gpu)) for gpu in gpus)


def vgpu_addresses(snapshot: Snapshot) -> frozenset[str]:
    """Return the addresses of the GPUs whose subsystem is a vGPU profile."""
    return frozenset(_find_vgpu_addresses(snapshot))


def _find_vgpu_addresses(snapshot: Snapshot) -> Iterator[str]:
    devices = snapshot.facts.devices
    if isinstance(devices, Known):
        for device in devices.value:
            if device.vendor == "10de" and vgpu_profile(device.device, device.subsystem):
                yield device.address
    for gpu in snapshot.view(pci.pci_gpus):
        if gpu.device and any(vgpu_profile(gpu.device, board) for board in _subsystem_ids(gpu)):
            yield gpu.address


def _subsystem_ids(gpu: pci.PciFunction) -> Iterator[tuple[str, str]]:
    for line in gpu.detail:
        if match := _SUBSYSTEM_IDS.search(line):
            yield match["vendor"], match["device"]
        elif match := _SUBSYSTEM_DEVICE.search(line):
            yield "10de", match["device"]


PASSTHROUGH_DRIVERS: Final = frozenset(
    {"vfio-pci", "pci-stub", "xen-pciback", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"}
)
"""The drivers that only pass a device to a virtual machine."""

_GUEST_RUNNING: Final = Pattern(r"(?m)^[ \t]*(?:\d+|-)[ \t]+\S[^\n]*[ \t]running\b")
_GUEST_LIST_COMMAND: Final = Pattern(r"\b(?:qm|virsh)(?: -\S+| --\S+)* list\b")
_HYPERVISOR_TRACE: Final = Pattern(
    r"\b(?:qm (?:list|config|status)|virsh|pveversion|kubevirt|virt-(?:controller|handler|launcher)\S*)\b"
    r"|/etc/pve/|/etc/libvirt/"
)


_KUBEVIRT_LINE: Final = Pattern(r"\"component\":\"virt-(?:controller|handler|launcher)\"|\bpermittedHostDevices\b")


def passed_through_gpus(snapshot: Snapshot) -> tuple[pci.PciFunction, ...]:
    """Return the GPUs that the host passes through to guests."""
    return tuple(gpu for gpu in snapshot.view(pci.pci_gpus) if gpu.driver in PASSTHROUGH_DRIVERS)


def guest_lists(snapshot: Snapshot) -> Iterator[EvidenceItem]:
    """Yield the lists of the host's virtual machines."""
    return (item for item in snapshot.items if item.where == "host" and _GUEST_LIST_COMMAND.search(item.written))


def has_running_guests(snapshot: Snapshot) -> bool:
    """Return whether a virtual machine is shown as running."""
    return any(_GUEST_RUNNING.search(item.text) for item in guest_lists(snapshot))


def is_hypervisor(snapshot: Snapshot) -> bool:
    """Return whether the host is known to run virtual machines."""
    if system.is_proxmox(snapshot) or snapshot.contains(_KUBEVIRT_LINE):
        return True
    return any(_HYPERVISOR_TRACE.search(item.written) for item in snapshot.items)
