"""View GPUs that a host passes through to its virtual machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import pci, system
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

PASSTHROUGH_DRIVERS: Final = frozenset(
    {"vfio-pci", "pci-stub", "xen-pciback", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"}
)
"""Drivers that do nothing but hand a device to a virtual machine."""

_RUNS: Final = Pattern(r"^[ \t]*(?:\d+|-)[ \t]+\S[^\n]*[ \t]running\b", re.MULTILINE)
_LISTS: Final = Pattern(r"\b(?:qm|virsh)(?: -\S+| --\S+)* list\b")
_HYPERVISOR: Final = Pattern(r"\b(?:qm (?:list|config|status)|virsh|pveversion)\b|/etc/pve/|/etc/libvirt/")


def passed_through_gpus(snapshot: Snapshot) -> tuple[pci.PciFunction, ...]:
    """Return the GPUs that the host has given away."""
    return tuple(gpu for gpu in snapshot.view(pci.pci_gpus) if gpu.driver in PASSTHROUGH_DRIVERS)


def guest_lists(snapshot: Snapshot) -> Iterator[Item]:
    """Yield the lists of the host's virtual machines."""
    return (item for item in snapshot.items if item.where == "host" and _LISTS.search(item.written))


def has_running_guests(snapshot: Snapshot) -> bool:
    """Return whether a virtual machine is shown to run."""
    return any(_RUNS.search(item.text) for item in guest_lists(snapshot))


def is_hypervisor(snapshot: Snapshot) -> bool:
    """Return whether the host is seen to run virtual machines."""
    return system.is_proxmox(snapshot) or any(_HYPERVISOR.search(item.written) for item in snapshot.items)
