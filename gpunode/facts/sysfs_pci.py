"""PCI devices from sysfs, for nodes without lspci."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.facts.evidence import Found
from gpunode.facts.lspci import ADDRESS
from gpunode.facts.model import PciDevice
from gpunode.facts.patterns import Pattern

# Documentation/ABI/testing/sysfs-bus-pci and scripts/mod/file2alias.c, do_pci_entry, in the kernel's source.
_MODALIAS = Pattern(
    r"pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})"
    r"bc([0-9A-F]{2})sc([0-9A-F]{2})i[0-9A-F]{2}\s*"
)


def devices(modaliases: Iterable[Found], drivers: Iterable[Found]) -> tuple[PciDevice, ...]:
    """The devices by address; names are not in sysfs.

    Raises:
        ValueError: a modalias was not read, or is none of a PCI device.
    """
    bound = {_address(found.path): found.link.rpartition("/")[2] for found in drivers if found.link}
    return tuple(_device(found, bound.get(_address(found.path))) for found in modaliases)


def _address(path: str) -> str:
    return path.rpartition("/")[0].rpartition("/")[2]


def _device(found: Found, driver: str | None) -> PciDevice:
    address, alias = _address(found.path), (found.data or b"").decode("ascii", "replace")
    match = _MODALIAS.fullmatch(alias)
    if match is None or not ADDRESS.fullmatch(address):
        raise ValueError(f"{found.path}: not the modalias of a PCI device: {alias[:80]!r}")
    vendor, device, board_vendor, board, base, sub = (number.lower() for number in match.groups())
    subsystem = None if board_vendor == "0000" else (board_vendor, board)
    return PciDevice(address, vendor, device, base + sub, subsystem, driver)
