"""PCIe of the GPUs: width and speed of each link, BARs, error reports and access control.

From lspci -vvv whole or in part, from sysfs, from nvidia-smi and from the kernel's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import boards, kernel, pci, smi_query
from gpunode.facts.items import Item

ADDRESS: Final = r"(?:[0-9a-f]{4,8}:)[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_ANY_ADDRESS: Final = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_HEAD: Final = re.compile(
    r"^(?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s+(?P<rest>[A-Z0-9].*)$", re.IGNORECASE
)
_NVIDIA: Final = re.compile(r"nvidia|\b10de:", re.IGNORECASE)
_DETAIL: Final = re.compile(r"\b(?:LnkSta|LnkCap|ACSCtl|UESta|CESta|secondary=|Region \d):?")
_STATUS: Final = re.compile(
    r"\bLnkSta:\s*Speed (?P<speed>[\d.]+)GT/s(?: \([a-z]+\))?,\s*"
    r"Width x(?P<width>\d+)(?P<narrow> \(downgraded\))?"
)
_CAPABLE: Final = re.compile(r"\bLnkCap:.{0,40}?Speed (?P<speed>[\d.]+)GT/s,\s*Width x(?P<width>\d+)")
_REGION: Final = re.compile(r"\bRegion (?P<bar>\d): Memory at <(?:unassigned|ignored)>")
_REDIRECTS: Final = re.compile(r"\bACSCtl:[^\n]*?\bReqRedir\+")
_VALIDATES: Final = re.compile(r"\bACSCtl:[^\n]*?\bSrcValid\+")
_SECONDARY: Final = re.compile(r"\bsecondary=(?P<first>[0-9a-f]{2}), subordinate=(?P<last>[0-9a-f]{2})")
_UNCORRECTED_STATUS: Final = re.compile(r"\bUESta:[^\n]*?\b(?P<bit>CmpltTO|SDES|DLP|MalfTLP)\+")
_SYSFS: Final = re.compile(
    rf"(?P<address>{ADDRESS})/(?P<what>(?:current|max)_link_(?:speed|width))(?::|\s*=\s*|\s+)(?P<value>\d+(?:\.\d+)?)"
)
_SYSFS_PATH: Final = re.compile(
    rf"/(?P<address>{ADDRESS})/(?P<what>(?:current|max)_link_(?:speed|width)|aer_dev_correctable)$"
)
_LIMITED: Final = re.compile(
    rf"(?P<address>{ADDRESS}): [\d.]+ Gb/s available PCIe bandwidth, "
    r"limited by (?P<speed>[\d.]+) GT/s PCIe x(?P<width>\d+) "
    rf"link at \S+ \(capable of [\d.]+ Gb/s with (?P<most>[\d.]+) GT/s PCIe x(?P<widest>\d+) link"
)
_TREE: Final = re.compile(
    r"(?P<device>[0-9a-f]{2}\.[0-7])-\[(?P<bus>[0-9a-f]{2})(?:-[0-9a-f]{2})?\]-[-+]*0?0\.0\s+(?P<name>\S[^\n]*)"
)
_KNOWN_IN_LOG: Final = re.compile(
    rf"\bpci (?P<listed>{ADDRESS}): \[10de:|\bnvidia (?P<bound>{ADDRESS}): |\bGPU (?P<named>{_ANY_ADDRESS})|"
    r"\bPCI:(?P<xid>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?\)",
    re.IGNORECASE,
)
_GENERATION: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@dataclass(frozen=True, slots=True)
class Device:
    """What lspci -v says of one device.

    Attributes:
        address: empty where the heading was cut away.
        head: what stands behind the address.
        lines: below the heading, each with its number.
    """

    address: str
    head: str
    lines: tuple[tuple[int, str], ...]
    item: Item

    @property
    def is_nvidia(self) -> bool:
        """Whether it is of NVIDIA's; people paste the lines of their GPU without its heading."""
        return not self.address or bool(_NVIDIA.search(self.head))

    @property
    def is_bridge(self) -> bool:
        """Whether it is a bridge, or may be one."""
        return not self.address or "bridge" in self.head.lower()


@dataclass(frozen=True, slots=True)
class Link:
    """The PCIe link of a GPU.

    Attributes:
        address: of the GPU; empty where the piece does not tell.
        width: lanes in use; ``widest`` what the GPU could; either None where nobody says.
        generation: of the speed in use; ``newest`` what the GPU could.
        narrow: whether lspci itself calls the width downgraded.
        of_both: whether the slot could as much, too, as nvidia-smi's maximum says.
    """

    address: str
    width: int | None
    widest: int | None
    generation: int | None
    newest: int | None
    citation: Citation
    narrow: bool = False
    of_both: bool = False


def devices(snapshot: Snapshot) -> tuple[Device, ...]:
    """The devices of every verbose lspci."""
    found = (item for item in snapshot.of("lspci", "text", "file") if _DETAIL.search(item.text))
    return tuple(device for item in found if item.where == "host" for device in _devices(item))


def _devices(item: Item) -> Iterator[Device]:
    address, head, lines = "", "", list[tuple[int, str]]()
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
        if slot(address) in snapshot.view(nvidia) and address.endswith(".0") and address in places:
            yield Link(
                address,
                _whole(values.get("current_link_width", "")),
                _whole(values.get("max_link_width", "")),
                _generation(values.get("current_link_speed", "")),
                _generation(values.get("max_link_speed", "")),
                places[address],
            )


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
                of_both=True,
            )


def _first(gpu: smi_query.Gpu, *paths: tuple[str, ...]) -> int | None:
    found = (gpu.number(*path) for path in paths)
    return next((int(number) for number in found if number is not None), None)


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
            )


def _whole(text: str) -> int | None:
    match = re.match(r"\d+", text.strip())
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


def _of_bridges(snapshot: Snapshot, pattern: re.Pattern[str]) -> tuple[Citation, ...]:
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
_BIT: Final = re.compile(
    rf"\[\s*\d{{1,2}}\]\s*(?:(?P<corrected>{_CORRECTED_BITS})|(?P<uncorrected>{_UNCORRECTED_BITS}))\b"
)
_REPORT: Final = re.compile(
    r"\bPCIe Bus Error: (?:severity=)?(?P<un>Unc|C)orrect(?:ed|able)|"
    r"\bAER: (?P<many>Multiple )?(?P<un2>Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))? error(?: message)? received"
)
_FROM: Final = re.compile(rf"received(?: from|:) (?P<address>{ADDRESS})")
_SPEAKER: Final = re.compile(rf"(?<![\w-])(?P<driver>[\w-]{{1,40}}) (?P<address>{ADDRESS}): ")
_UNRECOVERED: Final = re.compile(r"\bnvidia \S+: AER: can't recover|\bnvidia \S+: device has no AER-aware driver")
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
            yield Report(last, "", bool(report["many"]), address, message.citation)
        elif _UNRECOVERED.search(text):
            yield Report("uncorrected", "", False, address, message.citation)
        for bit in _BIT.finditer(text):
            severity: Severity = "corrected" if bit["corrected"] else "uncorrected"
            yield Report(severity, bit["corrected"] or bit["uncorrected"], False, address, message.citation)


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
    return tuple(
        cite(device.item, number)
        for device in snapshot.view(devices)
        if device.address and device.is_nvidia
        for number, line in device.lines
        if _UNCORRECTED_STATUS.search(line)
    )


_COUNTED: Final = re.compile(r"TOTAL_ERR_COR\s+(?P<count>\d+)")


def counted(snapshot: Snapshot) -> tuple[tuple[int, Citation], ...]:
    """How many corrected errors sysfs counts for each GPU."""
    found = []
    for item in snapshot.of("file", "listing", "text"):
        path = _SYSFS_PATH.search(item.subject)
        if path and slot(pci.address(path["address"])) in snapshot.view(nvidia):
            for number, line in enumerate(item.lines, 1):
                if match := _COUNTED.search(line):
                    found.append((int(match["count"]), cite(item, number)))
    return tuple(found)


# ---- BARs and windows, by the kernel's own bus code

_ASSIGNMENT: Final = re.compile(
    rf"(?<![\w-])(?P<driver>[\w-]{{1,40}}) (?P<address>{ADDRESS}): +(?P<what>(?:VF )?BAR \d{{1,2}}|bridge window|ROM)"
    r"(?: \[(?P<before>[^\]]{1,80})\])?: +"
    r"(?P<verdict>no space for|failed to assign|can't assign; no space|can't assign; bogus alignment|assigned)"
    r"(?: \[(?P<behind>[^\]]{1,80})\])?"
)
_ROOT_WINDOW: Final = re.compile(r"root bus resource \[mem 0x[0-9a-f]+-0x(?P<end>[0-9a-f]+)")
_SIZE: Final = re.compile(r"size 0x(?P<size>[0-9a-f]+)")
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
