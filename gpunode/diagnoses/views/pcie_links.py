"""View PCIe links: lanes and speed of devices, and the bridges above them.

The sources are lspci -vvv, complete or not, sysfs, nvidia-smi and the kernel log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, find_first
from gpunode.diagnoses.views import boards, kernel, pci, smi_query
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

ADDRESS: Final = r"(?:[0-9a-f]{4,8}:)[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_PCI_ADDRESS: Final = Pattern(r"(?i)(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_VERBOSE_LSPCI_LINE: Final = Pattern(r"\b(?:LnkSta|LnkCap|UESta|Region \d|secondary=|Memory at <)")
_LINK_SPEED_AND_WIDTH: Final = Pattern(
    r"\bLnk(?P<what>Sta|Cap):.{0,200}?Speed (?P<speed>[\d.]{1,6})GT/s.{0,60}?Width x(?P<width>\d{1,3})"
    r"(?P<narrow> \(downgraded\))?"
)
_BRIDGE_BUS_RANGE: Final = Pattern(r"\bsecondary=(?P<first>[0-9a-f]{2}), subordinate=(?P<last>[0-9a-f]{2})")
_SYSFS_LINK_ATTRIBUTE: Final = Pattern(
    rf"(?P<address>{ADDRESS})/(?P<what>(?:current|max)_link_(?:speed|width))[\s:=]{{1,3}}(?P<value>\d{{1,3}}(?:\.\d+)?)"
)
_GPU_ADDRESS_IN_LOG: Final = Pattern(
    rf"(?i)\bpci (?P<listed>{ADDRESS}): \[10de:|\bnvidia (?P<bound>{ADDRESS}): |\bGPU (?P<named>(?:[0-9a-f]{{4,8}}:)?"
    r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])|\bPCI:(?P<xid>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?\)"
)
_PCIE_SPEEDS_GT_S: Final = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
_MAX_LANES: Final = 32
_NO_CITATION: Final = cite_fact("", "")


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A PCIe link; unknown numbers are 0.

    Attributes:
        address: the device's address; empty if unknown.
        width: lanes in use.
        is_downgraded: lspci marks the width as downgraded.
        covers_both_ends: ``max_width`` applies to both ends; else to the device alone.
    """

    address: str = ""
    width: int = 0
    max_speed: float = 0.0
    max_width: int = 0
    citation: Citation = _NO_CITATION
    is_downgraded: bool = False
    covers_both_ends: bool = False

    @property
    def is_narrow(self) -> bool:
        """True if fewer lanes are in use than possible."""
        return 0 < self.width < self.max_width or (self.is_downgraded and self.width > 0)

    @property
    def max_generation(self) -> int:
        """The highest PCIe generation; 0 if unknown."""
        return _PCIE_SPEEDS_GT_S.index(self.max_speed) + 1 if self.max_speed in _PCIE_SPEEDS_GT_S else 0


def pci_slot(address: str) -> str:
    """Return the address without its function, common to all functions of a card."""
    return address.rpartition(".")[0]


def nvidia_slots(snapshot: Snapshot) -> frozenset[str]:
    """Return the slots that any source shows with an NVIDIA GPU."""
    addresses = {gpu.address for gpu in snapshot.view(pci.pci_gpus)}
    addresses |= {gpu.pci_address for gpu in snapshot.view(smi_query.smi_gpus) if gpu.pci_address}
    addresses |= {board.bus for one in snapshot.view(boards.smi_inventories) for board in one.boards if board.bus}
    for message in kernel.matching_messages(snapshot, _GPU_ADDRESS_IN_LOG):
        if match := _GPU_ADDRESS_IN_LOG.search(message.text):
            addresses.add(pci.normalize_address(next(value for value in match.groups() if value)))
    return frozenset(map(pci_slot, addresses))


# --- bridges


def bridge_buses(snapshot: Snapshot) -> Mapping[str, tuple[int, int]]:
    """Return the first and last bus behind each bridge, from ``lspci -v``."""
    return {
        address: (int(match["first"], 16), int(match["last"], 16))
        for address, lines, _ in snapshot.view(_verbose_devices)
        for _, line in lines
        if (match := _BRIDGE_BUS_RANGE.search(line))
    }


def bridges_above(snapshot: Snapshot, address: str) -> tuple[str, ...]:
    """Return the bridges from the root port to a device; empty if unknown."""
    bus = int(address[5:7], 16)
    found = (
        (last - first, bridge)
        for bridge, (first, last) in snapshot.view(bridge_buses).items()
        if bridge[:4] == address[:4] and first <= bus <= last
    )
    return tuple(bridge for _, bridge in sorted(found, reverse=True))


def gpu_bridges(snapshot: Snapshot) -> frozenset[str] | None:
    """Return the bridges with an NVIDIA GPU below them; None if the topology is unknown."""
    if not snapshot.view(bridge_buses):
        return None
    return frozenset(bridge for gpu in snapshot.view(nvidia_slots) for bridge in bridges_above(snapshot, gpu))


def gpu_at(snapshot: Snapshot, address: str) -> str:
    """Return the GPU at this address, or the only one below a bridge at this address; empty if unknown."""
    gpus = snapshot.view(nvidia_slots)
    if pci_slot(address) in gpus:
        return f"{pci_slot(address)}.0"
    below = [gpu for gpu in gpus if address in bridges_above(snapshot, gpu)]
    return f"{below[0]}.0" if len(below) == 1 else ""


# --- lanes


def _verbose_devices(snapshot: Snapshot) -> tuple[tuple[str, list[tuple[int, str]], EvidenceItem], ...]:
    """Return address, numbered lines and item of each device in verbose lspci output; headings may be missing."""
    devices = []
    for item in snapshot.items_to_search(_VERBOSE_LSPCI_LINE, "lspci", "text", "file"):
        if item.where != "host" or item.is_package_record or not find_first(item, _VERBOSE_LSPCI_LINE):
            continue
        listed = tuple(pci.parse_lspci(item))
        devices += [
            (one.address, list(enumerate(one.detail, (one.citation.line_number or 0) + 1)), item) for one in listed
        ]
        if not listed:
            asked = next((after for word, after in pairwise(item.source.words) if word == "-s"), "")
            address = pci.normalize_address(asked) if _PCI_ADDRESS.fullmatch(asked) else ""
            devices.append((address, list(enumerate(item.lines, 1)), item))
    return tuple(devices)


def gpu_lines(snapshot: Snapshot, pattern: Pattern) -> Iterator[Citation]:
    """Yield the lines of verbose lspci output about GPUs in which ``pattern`` occurs."""
    for address, lines, item in snapshot.view(_verbose_devices):
        if not address or pci_slot(address) in snapshot.view(nvidia_slots):
            yield from (cite(item, number) for number, line in lines if pattern.search(line))


def link_table(snapshot: Snapshot) -> Mapping[str, PcieLink]:
    """Return the link of each device on the bus, from lspci and sysfs."""
    links: dict[str, PcieLink] = {}
    for address, lines, item in snapshot.view(_verbose_devices):
        for number, line in lines:
            if match := _LINK_SPEED_AND_WIDTH.search(line):
                link, speed, width = links.get(address, PcieLink(address)), float(match["speed"]), int(match["width"])
                if match["what"] == "Sta":
                    narrow, place = bool(match["narrow"]), cite(item, number)
                    links[address] = replace(link, width=width, is_downgraded=narrow, citation=place)
                else:
                    links[address] = replace(link, max_speed=speed, max_width=width)
    for item in snapshot.items_of("file", "listing", "text"):
        text = f"{item.subject}:{item.text}" if "_link_" in item.subject else item.text
        for match in _SYSFS_LINK_ATTRIBUTE.finditer(text) if "_link_" in text else ():
            address, value = pci.normalize_address(match["address"]), float(match["value"])
            link, place = links.get(address, PcieLink(address)), cite(item, item.line_number_at(match.start()))
            if match["what"].endswith("speed"):
                # An idle GPU lowers its current speed, but never the width.
                links[address] = link if match["what"].startswith("current") else replace(link, max_speed=value)
            # The kernel prints 255 for an unknown width.
            elif value <= _MAX_LANES and match["what"].startswith("current"):
                links[address] = replace(link, width=int(value), citation=place)
            elif value <= _MAX_LANES:
                links[address] = replace(link, max_width=int(value))
    return links


def gpu_links(snapshot: Snapshot) -> tuple[PcieLink, ...]:
    """Return the links of the GPUs, from every source."""
    gpus = snapshot.view(nvidia_slots)
    # If no GPU is known and the bus was not listed, the author queried the device in question.
    is_any = not gpus and not is_examined_by_gpunode(snapshot) and not pci.is_bus_listed(snapshot)
    shown = (
        link
        for address, link in snapshot.view(link_table).items()
        if link.width and (not address or (address.endswith(".0") and (is_any or pci_slot(address) in gpus)))
    )
    return (*shown, *_smi_links(snapshot))


def _smi_links(snapshot: Snapshot) -> Iterator[PcieLink]:
    for gpu in snapshot.view(smi_query.smi_gpus):
        if row := gpu.find_row("Link Width", "Current"):
            newest = _lane_count(gpu.number("PCIe Generation", "Max"))
            width, widest = (_lane_count(gpu.number("Link Width", name)) for name in ("Current", "Max"))
            # NVML's maximum is the GPU's in this system: 8 in an x8 slot.
            yield PcieLink(
                gpu.pci_address,
                width,
                _generation_speed(newest),
                widest,
                row.citation,
                covers_both_ends=True,
            )


def _lane_count(number: float | None) -> int:
    return int(number) if number is not None and number <= _MAX_LANES else 0


def _generation_speed(generation: int) -> float:
    return _PCIE_SPEEDS_GT_S[generation - 1] if 0 < generation <= len(_PCIE_SPEEDS_GT_S) else 0.0
