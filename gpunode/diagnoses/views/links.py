"""PCIe: lanes and speed of every device that somebody showed, and the bridges above it.

From lspci -vvv whole or in part, from sysfs, from nvidia-smi and from the kernel's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from gpunode.diagnoses.judging import is_examined
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find, stated
from gpunode.diagnoses.views import boards, kernel, pci, smi_query
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

ADDRESS: Final = r"(?:[0-9a-f]{4,8}:)[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_ASKED: Final = Pattern(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_VERBOSE: Final = Pattern(r"\b(?:LnkSta|LnkCap|UESta|Region \d|secondary=)")
_LANES: Final = Pattern(
    r"\bLnk(?P<what>Sta|Cap):.{0,200}?Speed (?P<speed>[\d.]{1,6})GT/s.{0,60}?Width x(?P<width>\d{1,3})"
    r"(?P<narrow> \(downgraded\))?"
)
_BUSES: Final = Pattern(r"\bsecondary=(?P<first>[0-9a-f]{2}), subordinate=(?P<last>[0-9a-f]{2})")
_SYSFS: Final = Pattern(
    rf"(?P<address>{ADDRESS})/(?P<what>(?:current|max)_link_(?:speed|width))[\s:=]{{1,3}}(?P<value>\d{{1,3}}(?:\.\d+)?)"
)
_KNOWN_IN_LOG: Final = Pattern(
    rf"\bpci (?P<listed>{ADDRESS}): \[10de:|\bnvidia (?P<bound>{ADDRESS}): |\bGPU (?P<named>(?:[0-9a-f]{{4,8}}:)?"
    r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])|\bPCI:(?P<xid>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?\)",
    re.IGNORECASE,
)
_SPEEDS: Final = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
_MOST_LANES: Final = 32
_NOWHERE: Final = stated("", "")


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link; 0 where a number was not seen.

    Attributes:
        address: of the device; empty where the piece does not tell.
        width: lanes in use, as ``speed`` in GT/s a lane is now: an idle GPU lowers it, and never the width.
        is_called_narrow: whether lspci itself calls the width downgraded.
        is_of_both: whether ``most_width`` is what both ends could; else it is the device's own.
    """

    address: str = ""
    speed: float = 0.0
    width: int = 0
    most_speed: float = 0.0
    most_width: int = 0
    citation: Citation = _NOWHERE
    is_called_narrow: bool = False
    is_of_both: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether fewer lanes are in use than could be."""
        return 0 < self.width < self.most_width or (self.is_called_narrow and self.width > 0)

    @property
    def newest(self) -> int:
        """The generation of PCIe that it could have; 0 where that was not seen."""
        return _SPEEDS.index(self.most_speed) + 1 if self.most_speed in _SPEEDS else 0


def slot(address: str) -> str:
    """The address without its function: what one card has."""
    return address.rpartition(".")[0]


def nvidia(snapshot: Snapshot) -> frozenset[str]:
    """The slots in which something names a GPU of NVIDIA's."""
    found = {gpu.address for gpu in snapshot.view(pci.gpus)}
    found |= {gpu.bus for gpu in snapshot.view(smi_query.gpus) if gpu.bus}
    found |= {board.bus for one in snapshot.view(boards.inventories) for board in one.boards if board.bus}
    for message in snapshot.view(kernel.messages):
        if match := _KNOWN_IN_LOG.search(message.text):
            found.add(pci.address(next(value for value in match.groups() if value)))
    return frozenset(map(slot, found))


# --- bridges


def bridges(snapshot: Snapshot) -> Mapping[str, tuple[int, int]]:
    """The first and the last bus behind each bridge, by ``lspci -v``."""
    return {
        address: (int(match["first"], 16), int(match["last"], 16))
        for address, lines, _ in snapshot.view(_described)
        for _, line in lines
        if (match := _BUSES.search(line))
    }


def above(snapshot: Snapshot, address: str) -> tuple[str, ...]:
    """The bridges between the root and a device, the root port first; empty where they were not seen."""
    bus = int(address[5:7], 16)
    found = (
        (last - first, bridge)
        for bridge, (first, last) in snapshot.view(bridges).items()
        if bridge[:4] == address[:4] and first <= bus <= last
    )
    return tuple(bridge for _, bridge in sorted(found, reverse=True))


def ports(snapshot: Snapshot) -> frozenset[str] | None:
    """The bridges with a GPU of NVIDIA's below them; None where nobody shows what is below which."""
    if not snapshot.view(bridges):
        return None
    return frozenset(bridge for gpu in snapshot.view(nvidia) for bridge in above(snapshot, gpu))


def gpu_at(snapshot: Snapshot, address: str) -> str:
    """The GPU at this address, or the only one below the bridge at it; empty where that is not known."""
    gpus = snapshot.view(nvidia)
    if slot(address) in gpus:
        return f"{slot(address)}.0"
    below = [gpu for gpu in gpus if address in above(snapshot, gpu)]
    return f"{below[0]}.0" if len(below) == 1 else ""


# --- lanes


def _described(snapshot: Snapshot) -> tuple[tuple[str, list[tuple[int, str]], Item], ...]:
    """Each device of a verbose lspci: address, numbered lines; people paste those of their GPU without its heading."""
    found = []
    for item in snapshot.of("lspci", "text", "file"):
        if item.where != "host" or item.is_register or not find(item, _VERBOSE):
            continue
        listed = tuple(pci.listed(item))
        found += [
            (one.address, list(enumerate(one.detail, (one.citation.line_number or 0) + 1)), item) for one in listed
        ]
        if not listed:
            asked = next((after for word, after in pairwise(item.source.words) if word == "-s"), "")
            address = pci.address(asked) if _ASKED.fullmatch(asked) else ""
            found.append((address, list(enumerate(item.lines, 1)), item))
    return tuple(found)


def of_gpus(snapshot: Snapshot, pattern: Pattern) -> Iterator[Citation]:
    """The lines of a verbose lspci about GPUs in which ``pattern`` occurs."""
    for address, lines, item in snapshot.view(_described):
        if not address or slot(address) in snapshot.view(nvidia):
            yield from (cite(item, number) for number, line in lines if pattern.search(line))


def table(snapshot: Snapshot) -> Mapping[str, Link]:
    """The link of each device on the bus, by lspci and sysfs."""
    found: dict[str, Link] = {}
    for address, lines, item in snapshot.view(_described):
        for number, line in lines:
            if match := _LANES.search(line):
                link, speed, width = found.get(address, Link(address)), float(match["speed"]), int(match["width"])
                if match["what"] == "Sta":
                    narrow, place = bool(match["narrow"]), cite(item, number)
                    found[address] = replace(link, speed=speed, width=width, is_called_narrow=narrow, citation=place)
                else:
                    found[address] = replace(link, most_speed=speed, most_width=width)
    for item in snapshot.of("file", "listing", "text"):
        text = f"{item.subject}:{item.text}" if "_link_" in item.subject else item.text
        for match in _SYSFS.finditer(text) if "_link_" in text else ():
            address, value = pci.address(match["address"]), float(match["value"])
            link, place = found.get(address, Link(address)), cite(item, item.number_at(match.start()))
            if match["what"].endswith("speed"):
                is_now = match["what"].startswith("current")
                found[address] = replace(link, speed=value) if is_now else replace(link, most_speed=value)
            # 255 is the kernel's word for a width that it does not know.
            elif value <= _MOST_LANES and match["what"].startswith("current"):
                found[address] = replace(link, width=int(value), citation=place)
            elif value <= _MOST_LANES:
                found[address] = replace(link, most_width=int(value))
    return found


def links(snapshot: Snapshot) -> tuple[Link, ...]:
    """The links of the GPUs, from every source that tells of one."""
    gpus = snapshot.view(nvidia)
    # Where no GPU is known and nobody listed the bus, somebody asked about the one that he means.
    is_any = not gpus and not is_examined(snapshot) and not pci.is_listed(snapshot)
    shown = (
        link
        for address, link in snapshot.view(table).items()
        if link.width and (not address or (address.endswith(".0") and (is_any or slot(address) in gpus)))
    )
    return (*shown, *_of_smi(snapshot))


def _of_smi(snapshot: Snapshot) -> Iterator[Link]:
    for gpu in snapshot.view(smi_query.gpus):
        if row := gpu.find("Link Width", "Current"):
            now, newest = (_small(gpu.number("PCIe Generation", name)) for name in ("Current", "Max"))
            width, widest = (_small(gpu.number("Link Width", name)) for name in ("Current", "Max"))
            # NVML's maximum is that of the GPU in this system: of an x8 slot it is 8.
            yield Link(gpu.bus, _speed(now), width, _speed(newest), widest, row.citation, is_of_both=True)


def _small(number: float | None) -> int:
    return int(number) if number is not None and number <= _MOST_LANES else 0


def _speed(generation: int) -> float:
    return _SPEEDS[generation - 1] if 0 < generation <= len(_SPEEDS) else 0.0
