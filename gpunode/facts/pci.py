"""PCI devices from ``lspci -Dvmmnnk`` (lspci(8), "Verbose format"), or from sysfs on nodes without lspci."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpunode.facts.evidence import Found
from gpunode.facts.model import PciDevice
from gpunode.facts.patterns import Pattern

MELLANOX = "15b3"
_ADDRESS = Pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ID = Pattern(r"\[([0-9a-f]{4})\]\Z")


def parse_lspci(text: str) -> tuple[PciDevice, ...]:
    """Return the devices, in the order of ``text``.

    Raises:
        ValueError: if a record lacks its address, class, vendor or device.
    """
    return tuple(_make_device(_parse_record(record)) for record in re.split(r"\n{2,}", text.strip("\n")) if record)


def _parse_record(record: str) -> Mapping[str, str]:
    # Module is the only tag that comes more than once, and nobody reads it.
    return {tag: value.strip() for tag, _, value in (line.partition(":") for line in record.split("\n"))}


def _make_device(fields: Mapping[str, str]) -> PciDevice:
    address = fields.get("Slot", "")
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"not a PCI address: {address[:40]!r}")
    board = tuple(_extract_id(fields[tag]) for tag in ("SVendor", "SDevice") if tag in fields)
    name = fields.get("Device", "").rpartition("[")[0].strip()
    return PciDevice(
        address=address,
        vendor=_extract_id(fields.get("Vendor", "")),
        device=_extract_id(fields.get("Device", "")),
        class_code=_extract_id(fields.get("Class", "")),
        subsystem=(board[0], board[1]) if len(board) == 2 else None,
        driver=fields.get("Driver") or None,
        name="" if name == "Device" else name,
    )


def _extract_id(value: str) -> str:
    match = _ID.search(value[-6:])
    if match is None:
        raise ValueError(f"no number in brackets at the end of {value[:80]!r}")
    return match[1]


# Documentation/ABI/testing/sysfs-bus-pci and scripts/mod/file2alias.c, do_pci_entry, in the kernel's source.
_MODALIAS = Pattern(
    r"pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})"
    r"bc([0-9A-F]{2})sc([0-9A-F]{2})i[0-9A-F]{2}\s*"
)


def read_sysfs_devices(modaliases: Iterable[Found], drivers: Iterable[Found]) -> tuple[PciDevice, ...]:
    """Return the devices by address; names are not in sysfs.

    Raises:
        ValueError: if a modalias was not read, or is not of a PCI device.
    """
    bound = {_address_of(found.path): found.link.rpartition("/")[2] for found in drivers if found.link}
    return tuple(_make_sysfs_device(found, bound.get(_address_of(found.path))) for found in modaliases)


def _address_of(path: str) -> str:
    return path.rpartition("/")[0].rpartition("/")[2]


def _make_sysfs_device(found: Found, driver: str | None) -> PciDevice:
    address, alias = _address_of(found.path), (found.data or b"").decode("ascii", "replace")
    match = _MODALIAS.fullmatch(alias)
    if match is None or not _ADDRESS.fullmatch(address):
        raise ValueError(f"{found.path}: not the modalias of a PCI device: {alias[:80]!r}")
    vendor, device, board_vendor, board, base, sub = (number.lower() for number in match.groups())
    subsystem = None if board_vendor == "0000" else (board_vendor, board)
    return PciDevice(address, vendor, device, base + sub, subsystem, driver)
