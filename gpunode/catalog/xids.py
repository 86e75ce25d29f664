"""Xid codes: their meaning, and what to do at once and later; and the decoding of NVLink 5 errors.

Sources: see xids.csv and nvlink5.csv.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, Literal, TypeAlias, cast

from gpunode.catalog import tables
from gpunode.fast_dataclass import dataclass

XidKind: TypeAlias = Literal[
    "application",  # caused by a program, unless something else points to the GPU
    "engine",  # one engine of the GPU
    "memory",
    "firmware",  # of the controllers inside the GPU
    "link",  # NVLink, C2C
    "bus",  # PCI Express
    "board",  # power, flash, initialisation
    "security",
    "virtual",
    "consequence",  # of another Xid
    "information",
    "unused",  # by the catalog; the name says what it once meant
]
LinkSeverity: TypeAlias = Literal["nonfatal", "link-fatal", "fatal"]
NVLINK5_XIDS: Final = range(144, 151)
_SEVERITIES_ASCENDING: Final[tuple[LinkSeverity, ...]] = ("nonfatal", "link-fatal", "fatal")


@dataclass(frozen=True, slots=True)
class Xid:
    """A code.

    Attributes:
        name: from the driver's headers, in lower case.
        meaning: what happened, in a few words.
        action: what to do at once, according to NVIDIA's catalog (``reset-gpu``); empty if it does not say.
        follow_up: what to do after that (``contact-support``).
        source: ``catalog`` or ``header``.
    """

    code: int
    name: str
    kind: XidKind
    meaning: str
    action: str
    follow_up: str
    source: str

    @property
    def advice(self) -> str:
        """Return the advice in NVIDIA's catalog as text; empty if there is none, or if it is to ignore the Xid."""
        steps = (word for word in (self.action, self.follow_up) if word and word != "ignore")
        return ", then ".join(dict.fromkeys(_TEXT_BY_ACTION.get(word, word.replace("-", " ")) for word in steps))


_TEXT_BY_ACTION: Final = {
    "restart-app": "restart the program",
    "restart-vm": "restart the virtual machine",
    "restart-bm": "power the node off and on",
    "reset-gpu": "reset the GPU",
    "update-swfw": "update driver and firmware",
    "check-app": "look at the program",
    "check-mechanicals": "check cables and seat",
    "contact-support": "contact support if it comes back",
    "investigate-sw": "look for a fault in driver or program",
    "investigate-sw-user": "look for a fault in driver or program",
    "investigate-link-si": "check the link's connectors and signal",
    "workflow-xid-31": "check whether other programs fail too",
    "workflow-xid-45": "look at the Xid before it",
    "workflow-xid-48": "look at the remapped rows, then reset",
    "workflow-nvlink-err": "check the link and its peer",
    "workflow-nvlink5-err": "decode unit and status, check the link and its peer",
}


@dataclass(frozen=True, slots=True)
class LinkFault:
    """The meaning of an NVLink 5 error.

    Attributes:
        units: the names of the unit in messages.
    """

    xid: int
    units: tuple[str, ...]
    status: int
    severity: LinkSeverity
    action: str
    follow_up: str


@cache
def lookup(code: int) -> Xid | None:
    """Return the code's entry; None if it is in neither the catalog nor the driver's headers."""
    row = tables.find("xids.csv", str(code))
    return _xid_from_row(row) if row else None


def decode_nvlink5_fault(code: int, unit: str, intrinfo: int, status: int) -> LinkFault | None:
    """Return the worst meaning of an NVLink 5 error's status bits; None if the catalog has none.

    Args:
        code: 144 to 150.
        unit: its name in the message (``RLW_SRC_TRACK``).
        intrinfo: the first word in the message's brackets.
        status: the second.
    """
    of_unit = [
        fault
        for layouts, fault in _read_faults_with_layouts()
        if fault.xid == code and unit.upper() in fault.units and _matches_layout(layouts, intrinfo)
    ]
    exact = [fault for fault in of_unit if fault.status == status]
    faults = exact or [fault for fault in of_unit if fault.status & status]
    return max(faults, key=lambda fault: _SEVERITIES_ASCENDING.index(fault.severity), default=None)


def _matches_layout(layouts: tuple[str, str], intrinfo: int) -> bool:
    bits = f"{intrinfo & 0xFFFFFFFF:032b}"
    return any(all(want in {"-", bit} for want, bit in zip(layout, bits, strict=True)) for layout in layouts)


@cache
def _read_faults_with_layouts() -> tuple[tuple[tuple[str, str], LinkFault], ...]:
    return tuple(((row["intrinfo_v1"], row["intrinfo_v2"]), _fault_from_row(row)) for row in tables.rows("nvlink5.csv"))


def _fault_from_row(row: Mapping[str, str]) -> LinkFault:
    return LinkFault(
        xid=int(row["xid"]),
        units=tuple(row["units"].split("/")),
        status=int(row["status"], 16),
        severity=cast("LinkSeverity", row["severity"]),
        action=row["action"],
        follow_up=row["follow_up"],
    )


def _xid_from_row(row: Mapping[str, str]) -> Xid:
    return Xid(
        code=int(row["code"]),
        name=row["name"],
        kind=cast("XidKind", row["kind"]),
        meaning=row["meaning"],
        action=row["action"],
        follow_up=row["follow_up"],
        source=row["source"],
    )
