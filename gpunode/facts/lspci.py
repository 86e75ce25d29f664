"""The machine-readable records of ``lspci -Dvmmnnk`` (lspci(8), "Verbose format")."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpunode.facts.model import PciDevice
from gpunode.facts.patterns import Pattern

ADDRESS = Pattern(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ID = Pattern(r"\[([0-9a-f]{4})\]\Z")


def parse(text: str) -> tuple[PciDevice, ...]:
    """The devices, in the order of ``text``.

    Raises:
        ValueError: a record lacks its address, class, vendor or device.
    """
    return tuple(_device(_fields(record)) for record in re.split(r"\n{2,}", text.strip("\n")) if record)


def _fields(record: str) -> Mapping[str, str]:
    # Module is the only tag that comes more than once, and nobody reads it.
    return {tag: value.strip() for tag, _, value in (line.partition(":") for line in record.split("\n"))}


def _device(fields: Mapping[str, str]) -> PciDevice:
    address = fields.get("Slot", "")
    if not ADDRESS.fullmatch(address):
        raise ValueError(f"not a PCI address: {address[:40]!r}")
    board = tuple(_id(fields[tag]) for tag in ("SVendor", "SDevice") if tag in fields)
    name = fields.get("Device", "").rpartition("[")[0].strip()
    return PciDevice(
        address=address,
        vendor=_id(fields.get("Vendor", "")),
        device=_id(fields.get("Device", "")),
        class_code=_id(fields.get("Class", "")),
        subsystem=(board[0], board[1]) if len(board) == 2 else None,
        driver=fields.get("Driver") or None,
        name="" if name == "Device" else name,
    )


def _id(value: str) -> str:
    match = _ID.search(value[-6:])
    if match is None:
        raise ValueError(f"no number in brackets at the end of {value[:80]!r}")
    return match[1]
