"""PCIe of the GPUs: width and speed of each link, BARs, error reports and access control.

From lspci -vvv whole or in part, from sysfs, from nvidia-smi and from the kernel's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.judging import is_examined
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find
from gpunode.diagnoses.views import boards, kernel, pci, smi_query
from gpunode.diagnoses.views.topology import topology
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

ADDRESS: Final = r"(?:[0-9a-f]{4,8}:)[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_ANY_ADDRESS: Final = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_HEAD: Final = Pattern(
    r"^(?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+(?P<rest>[A-Z0-9].*)$", re.IGNORECASE
)
_NVIDIA: Final = Pattern(r"nvidia|\b10de:", re.IGNORECASE)
_DETAIL: Final = Pattern(r"\b(?:LnkSta|LnkCap|ACSCtl|UESta|CESta|secondary=|Region \d):?")
_STATUS: Final = Pattern(
    r"\bLnkSta:\s*Speed (?P<speed>[\d.]+)GT/s(?: \([a-z]+\))?,\s*"
    r"Width x(?P<width>\d{1,18})(?P<narrow> \(downgraded\))?"
)
_CAPABLE: Final = Pattern(r"\bLnkCap:.{0,40}?Speed (?P<speed>[\d.]+)GT/s,\s*Width x(?P<width>\d{1,18})")
_REGION: Final = Pattern(r"\bRegion (?P<bar>\d): Memory at <(?:unassigned|ignored)>")
_REDIRECTS: Final = Pattern(r"\bACSCtl:[^\n]{0,200}?\bReqRedir\+")
_VALIDATES: Final = Pattern(r"\bACSCtl:[^\n]{0,200}?\bSrcValid\+")
_SECONDARY: Final = Pattern(r"\bsecondary=(?P<first>[0-9a-f]{2}), subordinate=(?P<last>[0-9a-f]{2})")
_UNCORRECTED_STATUS: Final = Pattern(r"\bUESta:[^\n]{0,200}?\b(?P<bit>CmpltTO|SDES|DLP|MalfTLP)\+")
_SYSFS: Final = Pattern(
    rf"(?P<address>{ADDRESS})/(?P<what>(?:current|max)_link_(?:speed|width))(?::|\s*=\s*|\s+)(?P<value>\d+(?:\.\d+)?)"
)
_SYSFS_PATH: Final = Pattern(
    rf"/(?P<address>{ADDRESS})/(?P<what>(?:current|max)_link_(?:speed|width)|aer_dev_correctable)$"
)
_SYSFS_COUNTS: Final = Pattern(rf"/(?P<address>{ADDRESS})/aer_dev_correctable\b")
_LIMITED: Final = Pattern(
    rf"(?P<address>{ADDRESS}): [\d.]+ Gb/s available PCIe bandwidth, "
    r"limited by (?P<speed>[\d.]+) GT/s PCIe x(?P<width>\d{1,18}) "
    rf"link at \S+ \(capable of [\d.]+ Gb/s with (?P<most>[\d.]+) GT/s PCIe x(?P<widest>\d{{1,18}}) link"
)
_TREE: Final = Pattern(
    r"(?P<device>[0-9a-f]{2}\.[0-7])-\[(?P<bus>[0-9a-f]{2})(?:-[0-9a-f]{2})?\]-[-+]*0?0\.0\s+(?P<name>\S[^\n]*)"
)
_KNOWN_IN_LOG: Final = Pattern(
    rf"\bpci (?P<listed>{ADDRESS}): \[10de:|\bnvidia (?P<bound>{ADDRESS}): |\bGPU (?P<named>{_ANY_ADDRESS})|"
    r"\bPCI:(?P<xid>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?\)",
    re.IGNORECASE,
)
_GENERATION: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@dataclass(frozen=True, slots=True)
class Device:
    """What lspci -v says of one device.

    Attributes:
        address: empty where the heading was cut away and nothing else tells it.
        head: what stands behind the address; empty where that was cut away.
        lines: below the heading, each with its number.
    """

    address: str
    head: str
    lines: tuple[tuple[int, str], ...]
    item: Item

    @property
    def is_nvidia(self) -> bool:
        """Whether it is of NVIDIA's; people paste the lines of their GPU without its heading."""
        return not self.head or bool(_NVIDIA.search(self.head))

    @property
    def is_bridge(self) -> bool:
        """Whether it is a bridge, or may be one."""
        return not self.head or "bridge" in self.head.lower()


@dataclass(frozen=True, slots=True)
class Link:
    """The PCIe link of a GPU.

    Attributes:
        address: of the GPU; empty where the piece does not tell.
        width: lanes in use; ``widest`` what could be; either None where nobody says.
        generation: of the speed in use; ``newest`` what could be.
        narrow: whether lspci itself calls the width downgraded.
        is_of_both: whether ``widest`` is what both ends could; else it is the GPU's own, and the slot may have less.
    """

    address: str
    width: int | None
    widest: int | None
    generation: int | None
    newest: int | None
    citation: Citation
    narrow: bool = False
    is_of_both: bool = False


@dataclass(frozen=True, slots=True)
class Lanes:
    """How many lanes a device can use, and the line that says so."""

    width: int
    citation: Citation


def devices(snapshot: Snapshot) -> tuple[Device, ...]:
    """The devices of every verbose lspci."""
    told = (item for item in snapshot.of("lspci", "text", "file") if item.where == "host" and not item.is_register)
    return tuple(device for item in told if find(item, _DETAIL) for device in _devices(item))


_ADDRESS: Final = Pattern(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)


def _value_of(words: tuple[str, ...], option: str) -> str:
    return next((after for word, after in pairwise(words) if word == option), "")


def _devices(item: Item) -> Iterator[Device]:
    address, head, lines = "", "", list[tuple[int, str]]()
    if item.lines and not any(_HEAD.match(line) for line in item.lines):
        # Its heading was cut away; which one it is, and that a port is a bridge, is told all the same.
        asked = _value_of(item.source.words, "-s")
        address = pci.address(asked) if _ADDRESS.fullmatch(asked) else ""
        head = "bridge" if "driver in use: pcieport" in item.text else ""
    for number, line in enumerate(item.lines, 1):
        match = None if line[:1].isspace() else _HEAD.match(line)
        if match is None:
            lines.append((number, line))
            continue
        if lines or address:
            yield Device(address, head, tuple(lines), item)
        address, head, lines = pci.address(match["address"]), match["rest"], []
    if lines or address:
        yield Device(address, head, tuple(lines), item)


def nvidia(snapshot: Snapshot) -> frozenset[str]:
    """The slots (addresses without function) in which something names a GPU of NVIDIA's."""
    found = {gpu.address for gpu in snapshot.view(pci.gpus)}
    found |= {gpu.bus for gpu in snapshot.view(smi_query.gpus) if gpu.bus}
    found |= {board.bus for one in snapshot.view(boards.inventories) for board in one.boards if board.bus}
    for message in snapshot.view(kernel.messages):
        if match := _KNOWN_IN_LOG.search(message.text):
            found.add(pci.address(next(value for value in match.groups() if value)))
    for device in snapshot.view(tree):
        found.add(device)
    return frozenset(slot(address) for address in found)


def tree(snapshot: Snapshot) -> Mapping[str, str]:
    """The GPUs that ``lspci -t`` shows, each with the bridge above it (bus 0000:00 only)."""
    found: dict[str, str] = {}
    for item in snapshot.of("lspci"):
        for match in _TREE.finditer(item.text):
            if _NVIDIA.search(match["name"]):
                found[f"0000:{match['bus']}:00.0"] = f"0000:00:{match['device']}"
    return found


def slot(address: str) -> str:
    """The address without its function: what one card has."""
    return address.rpartition(".")[0]


def above_gpus(snapshot: Snapshot) -> frozenset[str] | None:
    """The bridges with a GPU of NVIDIA's below them; None where nobody shows what is below which."""
    buses = {int(one.rpartition(":")[0].rpartition(":")[2], 16) for one in snapshot.view(nvidia)}
    found, is_shown = set(snapshot.view(tree).values()), bool(snapshot.view(tree))
    for device in snapshot.view(devices):
        for _, line in device.lines:
            if device.address and (match := _SECONDARY.search(line)):
                is_shown = True
                if any(int(match["first"], 16) <= bus <= int(match["last"], 16) for bus in buses):
                    found.add(device.address)
    return frozenset(found) if is_shown else None


def links(snapshot: Snapshot) -> tuple[Link, ...]:
    """The links of the GPUs, from every source that tells of one."""
    return (*_of_lspci(snapshot), *_of_sysfs(snapshot), *_of_smi(snapshot), *_of_log(snapshot))


def lanes_above(snapshot: Snapshot) -> Mapping[str, Lanes]:
    """How many lanes the port above each GPU has, where that was seen."""
    ports = {gpu.address: gpu.above[-1] for gpu in snapshot.view(topology).gpus if gpu.above}
    ports = {**snapshot.view(tree), **ports}
    seen = snapshot.view(_capable)
    return {gpu: seen[port] for gpu, port in ports.items() if port in seen}


def _capable(snapshot: Snapshot) -> Mapping[str, Lanes]:
    """How many lanes each device on the bus can use, bridges among them."""
    found: dict[str, Lanes] = {}
    for device in snapshot.view(devices):
        for number, line in device.lines:
            if device.address and (match := _CAPABLE.search(line)):
                found[device.address] = Lanes(int(match["width"]), cite(device.item, number))
    for item in snapshot.of("file", "listing", "text"):
        for match in _SYSFS.finditer(item.text) if "max_link_width" in item.text else ():
            if match["what"] == "max_link_width":
                place = cite(item, item.number_at(match.start()))
                found[pci.address(match["address"])] = Lanes(int(float(match["value"])), place)
        path = _SYSFS_PATH.search(item.subject)
        if path and path["what"] == "max_link_width" and (width := _whole(item.text)) is not None:
            found[pci.address(path["address"])] = Lanes(width, cite(item, 1))
    return found


def gpu_at(snapshot: Snapshot, address: str) -> str:
    """The GPU at this address, or the only one below the bridge at it; empty where that is not known."""
    if slot(address) in snapshot.view(nvidia):
        return f"{slot(address)}.0"
    gpus = snapshot.view(topology).gpus
    below = [gpu.address for gpu in gpus if address in gpu.above]
    below = below or [gpu for gpu, port in snapshot.view(tree).items() if port == address]
    return below[0] if len(below) == 1 else ""


def _of_lspci(snapshot: Snapshot) -> Iterator[Link]:
    for device in snapshot.view(devices):
        if not device.is_nvidia or not (device.address == "" or device.address.endswith(".0")):
            continue
        capable = next((match for _, line in device.lines if (match := _CAPABLE.search(line))), None)
        for number, line in device.lines:
            if match := _STATUS.search(line):
                yield Link(
                    device.address,
                    int(match["width"]),
                    int(capable["width"]) if capable else None,
                    _generation(match["speed"]),
                    _generation(capable["speed"]) if capable else None,
                    cite(device.item, number),
                    bool(match["narrow"]),
                )
                break


def _of_sysfs(snapshot: Snapshot) -> Iterator[Link]:
    found: dict[str, dict[str, str]] = {}
    places: dict[str, Citation] = {}
    for item in snapshot.of("file", "listing", "text"):
        for match in _SYSFS.finditer(item.text) if "_link_" in item.text else ():
            address = pci.address(match["address"])
            found.setdefault(address, {})[match["what"]] = match["value"]
            if match["what"] == "current_link_width":
                places[address] = cite(item, item.number_at(match.start()))
        if (path := _SYSFS_PATH.search(item.subject)) and item.lines and path["what"] != "aer_dev_correctable":
            address = pci.address(path["address"])
            found.setdefault(address, {})[path["what"]] = next(iter(item.text.split()), "")
            places.setdefault(address, cite(item, 1))
    for address, values in found.items():
        if _may_be_gpu(snapshot, address) and address.endswith(".0") and address in places:
            yield Link(
                address,
                _whole(values.get("current_link_width", "")),
                _whole(values.get("max_link_width", "")),
                _generation(values.get("current_link_speed", "")),
                _generation(values.get("max_link_speed", "")),
                places[address],
            )


def _may_be_gpu(snapshot: Snapshot, address: str) -> bool:
    """Whether it is a GPU, or a device that somebody asked about where no GPU is known."""
    gpus = snapshot.view(nvidia)
    return slot(address) in gpus or not (gpus or is_examined(snapshot))


def _of_smi(snapshot: Snapshot) -> Iterator[Link]:
    for gpu in snapshot.view(smi_query.gpus):
        row = gpu.find("Link Width", "Current") or gpu.find("link", "width", "current")
        if row is not None:
            yield Link(
                gpu.bus,
                _whole(row.value),
                _first(gpu, ("Link Width", "Max"), ("link", "width", "max")),
                _first(gpu, ("PCIe Generation", "Current"), ("link", "gen", "current"), ("link", "gen", "gpucurrent")),
                _first(gpu, ("PCIe Generation", "Max"), ("link", "gen", "max")),
                row.citation,
                # NVML's maximum is that of the GPU in this system: of an x8 slot it is 8.
                is_of_both=True,
            )


# Infinity is a number, too, where somebody wrote thousands of digits.
_MOST: Final = 1 << 20


def _first(gpu: smi_query.Gpu, *paths: tuple[str, ...]) -> int | None:
    found = (gpu.number(*path) for path in paths)
    return next((int(number) for number in found if number is not None and number < _MOST), None)


def _of_log(snapshot: Snapshot) -> Iterator[Link]:
    for message in kernel.said(snapshot, _LIMITED):
        match = _LIMITED.search(message.text)
        if match and slot(pci.address(match["address"])) in snapshot.view(nvidia):
            yield Link(
                pci.address(match["address"]),
                int(match["width"]),
                int(match["widest"]),
                _generation(match["speed"]),
                _generation(match["most"]),
                message.citation,
                is_of_both=True,
            )


def _whole(text: str) -> int | None:
    match = re.match(r"\d{1,9}", text.strip())
    return int(match[0]) if match else None


def _generation(speed: str) -> int | None:
    try:
        return _GENERATION.get(float(speed))
    except ValueError:
        return None


def unassigned(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The memory regions of the GPUs that lspci shows without an address."""
    return tuple(
        cite(device.item, number)
        for device in snapshot.view(devices)
        if device.is_nvidia
        for number, line in device.lines
        if _REGION.search(line)
    )


def redirecting(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines of bridges that send requests between peers up to the root, through the IOMMU (ACS)."""
    return _of_bridges(snapshot, _REDIRECTS)


def validating(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines of bridges with access control on, whether or not they redirect what peers ask of each other."""
    return _of_bridges(snapshot, _VALIDATES)


def _of_bridges(snapshot: Snapshot, pattern: Pattern) -> tuple[Citation, ...]:
    return tuple(
        cite(device.item, number)
        for device in snapshot.view(devices)
        if device.is_bridge
        for number, line in device.lines
        if pattern.search(line)
    )


# ---- error reports

Severity: TypeAlias = Literal["corrected", "uncorrected"]
_CORRECTED_BITS: Final = (
    r"RxErr|Receiver Error|Bad ?TLP|Bad ?DLLP|Rollover|RELAY_NUM Rollover|(?:Replay Timer )?Timeout|"
    r"(?:Adv)?NonFatalErr|Advisory Non-Fatal"
)
_UNCORRECTED_BITS: Final = (
    r"DLP|Data Link Protocol|SDES|Surprise Down(?: Error)?|TLP|Poisoned TLP|FCP|Flow Control Protocol|CmpltTO|"
    r"Completion Timeout|CmpltAbrt|Completer Abort|UnxCmplt|Unexpected Completion|RxOF|Receiver Overflow|MalfTLP|"
    r"Malformed TLP|ECRC|UnsupReq|Unsupported Request|ACSViol"
)
_BIT: Final = Pattern(
    rf"\[\s*\d{{1,2}}\]\s*(?:(?P<corrected>{_CORRECTED_BITS})|(?P<uncorrected>{_UNCORRECTED_BITS}))\b"
)
_REPORT: Final = Pattern(
    r"\bPCIe Bus Error: (?:severity=)?(?P<un>Unc|C)orrect(?:ed|able)|"
    r"\bAER: (?P<many>Multiple )?(?P<un2>Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))? error(?: message)? received"
)
_FROM: Final = Pattern(rf"received(?: from|:) (?P<address>{ADDRESS})")
_SPEAKER: Final = Pattern(rf"(?<![\w-])(?P<driver>[\w-]{{1,40}}) (?P<address>{ADDRESS}): ")
_UNRECOVERED: Final = Pattern(r"\bnvidia \S+: AER: can't recover|\bnvidia \S+: device has no AER-aware driver")
_MINOR: Final = frozenset({"UnsupReq", "Unsupported Request", "ACSViol"})


@dataclass(frozen=True, slots=True)
class Report:
    """A line by which the kernel tells of an error on the bus.

    Attributes:
        bit: what went wrong, in the kernel's short word; empty in lines that only announce a report.
        many: whether it stands for several.
        address: of the device that speaks; empty where the line was cut.
    """

    severity: Severity
    bit: str
    many: bool
    address: str
    citation: Citation
    at: float | None = None


def reports(snapshot: Snapshot) -> tuple[Report, ...]:
    """The errors on the bus that may be those of a GPU: none of a device that is known to be another."""
    return tuple(_reports(snapshot))


def _reports(snapshot: Snapshot) -> Iterator[Report]:
    last: Severity = "uncorrected"
    strangers = _strangers(snapshot)
    for message in snapshot.view(kernel.messages):
        text = message.text
        if "AER" not in text and "PCIe Bus Error" not in text and not _BIT.search(text):
            continue
        speaker = _SPEAKER.search(text)
        address = pci.address(speaker["address"]) if speaker else ""
        origin = _FROM.search(text)
        named = pci.address(origin["address"]) if origin else address
        if slot(named) in strangers or slot(address) in strangers:
            continue
        if report := _REPORT.search(text):
            last = "uncorrected" if (report["un"] or report["un2"]) == "Unc" else "corrected"
            yield Report(last, "", bool(report["many"]), address, message.citation, message.at)
        elif _UNRECOVERED.search(text):
            yield Report("uncorrected", "", False, address, message.citation, message.at)
        for bit in _BIT.finditer(text):
            severity: Severity = "corrected" if bit["corrected"] else "uncorrected"
            bits = bit["corrected"] or bit["uncorrected"]
            yield Report(severity, bits, False, address, message.citation, message.at)


_PORTS: Final = frozenset({"pcieport", "pci", "nvidia", "vfio-pci", "nouveau", "nvidia-gpu"})


def _strangers(snapshot: Snapshot) -> frozenset[str]:
    """The slots of devices that speak of errors and are neither a GPU nor a bridge above one."""
    gpus, ports = snapshot.view(nvidia), snapshot.view(above_gpus)
    found: set[str] = set()
    for message in snapshot.view(kernel.messages):
        if "AER" not in message.text and "PCIe Bus Error" not in message.text:
            continue
        for speaker in _SPEAKER.finditer(message.text):
            address = pci.address(speaker["address"])
            if slot(address) in gpus:
                continue
            if speaker["driver"] not in _PORTS or (ports is not None and address not in ports):
                found.add(slot(address))
    return frozenset(found)


def grave(reports: tuple[Report, ...]) -> tuple[Report, ...]:
    """The uncorrected ones; none where all that was wrong is a request that a device does not know."""
    found = tuple(one for one in reports if one.severity == "uncorrected")
    bits = {one.bit for one in found if one.bit}
    return () if bits and bits <= _MINOR else found


def latched(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The GPUs' own registers that remember an uncorrected error, from lspci."""
    return tuple(line for device, line in snapshot.view(_remembering) if device.address and device.is_nvidia)


def remembered(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Such registers of any device."""
    return tuple(line for _, line in snapshot.view(_remembering))


def _remembering(snapshot: Snapshot) -> tuple[tuple[Device, Citation], ...]:
    lines = ((device, number, line) for device in snapshot.view(devices) for number, line in device.lines)
    found = ((device, number) for device, number, line in lines if _UNCORRECTED_STATUS.search(line))
    return tuple((device, cite(device.item, number)) for device, number in found)


_COUNTED: Final = Pattern(r"^(?:TOTAL_ERR_COR|RxErr|BadTLP|BadDLLP)\s+(?P<count>\d{1,18})")


def counted(snapshot: Snapshot) -> tuple[tuple[int, Citation], ...]:
    """How many corrected errors sysfs counts for each GPU."""
    found = []
    for item in snapshot.of("file", "listing", "text"):
        path = _SYSFS_PATH.search(item.subject) or _SYSFS_COUNTS.search(item.written)
        if path and _may_be_gpu(snapshot, pci.address(path["address"])):
            for number, line in enumerate(item.lines, 1):
                if match := _COUNTED.search(line):
                    found.append((int(match["count"]), cite(item, number)))
    return tuple(found)


# ---- BARs and windows, by the kernel's own bus code

_ASSIGNMENT: Final = Pattern(
    rf"(?<![\w-])(?P<driver>[\w-]{{1,40}}) (?P<address>{ADDRESS}): +(?P<what>(?:VF )?BAR \d{{1,2}}|bridge window|ROM)"
    r"(?: \[(?P<before>[^\]]{1,80})\])?: +"
    r"(?P<verdict>no space for|failed to assign|can't assign; no space|can't assign; bogus alignment|assigned)"
    r"(?: \[(?P<behind>[^\]]{1,80})\])?"
)
_ROOT_WINDOW: Final = Pattern(r"root bus resource \[mem 0x[0-9a-f]+-0x(?P<end>[0-9a-f]+)")
_SIZE: Final = Pattern(r"size 0x(?P<size>[0-9a-f]+)")
_FOUR_GIB: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A memory region for which the kernel found no place.

    Attributes:
        is_window: of a bridge, not of a device.
        size: in bytes; 0 where the line does not tell.
    """

    address: str
    what: str
    is_window: bool
    size: int
    citation: Citation


def unplaced(snapshot: Snapshot) -> tuple[Unplaced, ...]:
    """The regions that the kernel could not place at last: what a later attempt placed is not among them.

    Nor are those that nothing needs: expansion ROMs, I/O ports, the BARs of virtual functions.
    """
    found: dict[tuple[str, str], Unplaced] = {}
    for message in kernel.said(snapshot, _ASSIGNMENT):
        if (match := _ASSIGNMENT.search(message.text)) is None:
            continue
        resource = match["before"] or match["behind"] or ""
        what, number = match["what"], int(match["what"].rpartition(" ")[2]) if match["what"].startswith("BAR") else -1
        if not resource.startswith("mem") or what.startswith(("VF", "ROM")) or 6 <= number <= 12:
            continue
        address = pci.address(match["address"])
        is_window = what == "bridge window" or number > 12
        key = (address, f"{what}{' pref' if 'pref' in resource else ''}")
        if match["verdict"] == "assigned":
            found.pop(key, None)
            continue
        size = _SIZE.search(resource)
        found[key] = Unplaced(address, what, is_window, int(size["size"], 16) if size else 0, message.citation)
    return tuple(found.values())


def has_high_window(snapshot: Snapshot) -> bool | None:
    """Whether firmware gave the bus addresses above 4 GiB; None where the log does not show its windows."""
    ends = [
        int(match["end"], 16)
        for message in kernel.said(snapshot, _ROOT_WINDOW)
        if (match := _ROOT_WINDOW.search(message.text))
    ]
    return any(end >= _FOUR_GIB for end in ends) if ends else None
