"""GPU fault messages: Xid, SXid of the NVSwitches, and GPUs that fell off the bus; in every known form.

The forms are those of kernel_rc.c, nv.c and the NVSwitch driver in NVIDIA/open-gpu-kernel-modules, and of the drivers
before them.
"""

from __future__ import annotations

import re
from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

# (PCI:0000:61:00), (PCI:0018:01:00.0), (0000:03:00), (PCI:0000:3b:00 GPU-I:05 GPU-CI:00)
_PCI_ADDRESS_IN_XID: Final = r"(?:[0-9a-f]{1,8}:)?[0-9a-f]{1,2}:[0-9a-f]{1,2}(?:\.[0-9a-f])?"
_XID_LINE: Final = Pattern(
    rf"\bXid\s*(?:\(\s*(?:PCI:)?(?P<bus>{_PCI_ADDRESS_IN_XID})(?:\s+GPU-I:(?P<instance>\d{{1,18}}))?[^)]{{0,20}}\))?\s*:\s*(?P<code>\d{{1,3}})"
    r"\b[,:]?\s*(?P<rest>.*)",
    re.IGNORECASE,
)
_SXID_LINE: Final = Pattern(
    rf"\bSXid\s*\(\s*(?:PCI:)?(?P<bus>{_PCI_ADDRESS_IN_XID})\s*\)\s*:\s*(?P<code>\d{{4,6}})\b[,:]?\s*(?P<rest>.*)",
    re.IGNORECASE,
)
_XID_PROCESS_FIELDS: Final = Pattern(
    r"^pid=(?:'(?P<quoted>[^']*)'|(?P<pid>[^,\s]*))(?:,\s*name=(?P<name>[^,]*))?(?:,\s*|$)(?P<rest>.*)"
)
_CAUSED_BY_XID: Final = Pattern(r"\bcaused by previous Xid\s+(?P<code>\d{1,3})", re.IGNORECASE)
_FALLEN_OFF_BUS_WORDS: Final = Pattern(r"\bfallen off the bus\b|\bfell off the bus\b", re.IGNORECASE)
_FULL_PCI_ADDRESS: Final = Pattern(
    r"\b(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)(?![0-9a-f])", re.IGNORECASE
)
_PCI_ID: Final = Pattern(r"PCI ID:\s*10de:(?P<device>[0-9a-f]{4})", re.IGNORECASE)
_FATAL_OR_NONFATAL: Final = Pattern(r"\b(?P<non>Non-?\s?)?Fatal\b", re.IGNORECASE)
_NVLINK_NUMBER: Final = Pattern(r"\bLink\s+(?P<link>\d{1,3})\b", re.IGNORECASE)
_NVLINK_UNIT_AND_STATUS: Final = Pattern(
    r"\b(?P<unit>(?:SAW|RLW|TLW|TREX|NVLPW|NETIR|MSE)(?:_\w+)?)\s+(?P<non>Non-?)?Fatal\b"
    r"(?:[^(\[]{0,40}[(\[](?P<words>(?:\s*0x[0-9a-f]+)+))?",
    re.IGNORECASE,
)
FALLEN_OFF_THE_BUS_XID: Final = 79


@dataclass(frozen=True, slots=True)
class XidMessage:
    """An Xid message, or a fall off the bus, which counts as Xid 79 even if the driver gave no number.

    Attributes:
        pci_address: PCI address as the message has it, without function; empty if it has none.
        instance: the MIG instance's number; empty without one.
        process: the program's name; empty if the driver did not know it.
        text: the message after code and process.
        caused_by: the Xid that the driver itself names as the cause; 0 if it names none.
        device: PCI device id, where the message has it.
    """

    code: int
    pci_address: str
    text: str
    instance: str = ""
    pid: str = ""
    process: str = ""
    caused_by: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True)
class SxidMessage:
    """An NVSwitch error.

    Attributes:
        pci_address: of the switch.
        fatal: None if the message does not say.
        link: None if it names no link.
    """

    code: int
    pci_address: str
    text: str
    fatal: bool | None = None
    link: int | None = None


@dataclass(frozen=True, slots=True)
class LinkError:
    """The body of an NVLink 5 error (Xid 144 to 150).

    Attributes:
        unit: in upper case (``RLW_SRC_TRACK``).
        words: the numbers in brackets: the interrupt's information, its status, and more.
    """

    unit: str
    fatal: bool
    link: int | None
    words: tuple[int, ...]


def parse_xid(text: str) -> XidMessage | SxidMessage | None:
    """Parse the fault in ``text``, one complete message; return None if it reports none."""
    if match := _SXID_LINE.search(text):
        fatal, link = _FATAL_OR_NONFATAL.search(match["rest"]), _NVLINK_NUMBER.search(match["rest"])
        return SxidMessage(
            int(match["code"]),
            match["bus"].lower(),
            match["rest"].strip(),
            None if fatal is None else not fatal["non"],
            None if link is None else int(link["link"]),
        )
    if match := _XID_LINE.search(text):
        return _make_xid(match)
    return _parse_bus_loss(text) if _FALLEN_OFF_BUS_WORDS.search(text) else None


def _make_xid(match: re.Match[str]) -> XidMessage:
    rest, pid, name = match["rest"].strip(), "", ""
    if process := _XID_PROCESS_FIELDS.match(rest):
        pid = (process["quoted"] or process["pid"] or "").strip("<>")
        name, rest = (process["name"] or "").strip("<> "), process["rest"].strip()
    caused = _CAUSED_BY_XID.search(rest)
    return XidMessage(
        int(match["code"]),
        (match["bus"] or "").lower(),
        rest,
        match["instance"] or "",
        pid if pid.isdigit() else "",
        "" if name == "unknown" else name,
        int(caused["code"]) if caused else 0,
    )


def _parse_bus_loss(text: str) -> XidMessage | None:
    """Parse the loss of a GPU from a message without an Xid; return None if it names no device."""
    bus, device = _FULL_PCI_ADDRESS.search(text), _PCI_ID.search(text)
    if not bus and not device and "GPU" not in text:
        return None
    return XidMessage(
        FALLEN_OFF_THE_BUS_XID,
        bus["bus"].lower() if bus else "",
        text.strip(),
        device=device["device"].lower() if device else "",
    )


def parse_link_error(text: str) -> LinkError | None:
    """Parse the body of an NVLink 5 error; return None if it has another form."""
    match = _NVLINK_UNIT_AND_STATUS.search(text)
    if match is None:
        return None
    link = _NVLINK_NUMBER.search(text)
    words = tuple(int(word, 16) for word in (match["words"] or "").split())
    return LinkError(match["unit"].upper(), not match["non"], int(link["link"]) if link else None, words)
