"""How the GPUs hang together: on which NUMA node, behind which PCIe switch, over which NVLinks; only what was seen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import pci
from gpunode.diagnoses.views.inventory import inventory
from gpunode.diagnoses.views.nvlinks import nvlinks
from gpunode.facts.items import Item
from gpunode.facts.numbers import whole
from gpunode.facts.patterns import Pattern

Sort: TypeAlias = Literal["gpu", "nvswitch", "nic", "nvme", "bridge"]

_SYSFS: Final = Pattern(r"^/sys/bus/pci/devices/(?P<address>[0-9a-f:.]+)/(?P<name>\w+)$")
_GTS: Final = Pattern(r"(?P<speed>\d{1,3}(?:\.\d+)?)\s*GT/s")
_CAPABLE: Final = Pattern(r"LnkCap:.{0,200}?Speed (?P<speed>[\d.]+)GT/s.{0,200}?Width x(?P<width>\d{1,18})")
_STATUS: Final = Pattern(r"LnkSta:.{0,200}?Speed (?P<speed>[\d.]+)GT/s.{0,200}?Width x(?P<width>\d{1,18})")
_NUMA: Final = Pattern(r"NUMA node:\s*(?P<node>\d{1,18})")
_BUSES: Final = Pattern(r"Bus: primary=[0-9a-f]{2}, secondary=(?P<secondary>[0-9a-f]{2})", re.IGNORECASE)
_IDS: Final = Pattern(r"(?<!\s)\s*(?:\[[0-9a-f]{4}:[0-9a-f]{4}\]|\(rev [^)]*\)|\(prog-if [^)]*\))", re.IGNORECASE)
_BRACKETED: Final = Pattern(r"\[([^\[\]]+)\]")
_BRANCH: Final = Pattern(
    r"\[(?:(?P<domain>[0-9a-f]{4}):)?(?P<bus>[0-9a-f]{2})(?:-[0-9a-f]{2})?\]|(?P<slot>[0-9a-f]{2}\.[0-7])",
    re.IGNORECASE,
)
_TREE: Final = Pattern(r"^[-+\\| ]*-\[[0-9a-f]{4}:[0-9a-f]{2}\]-", re.MULTILINE | re.IGNORECASE)
# lspci -tv puts a device's name two blanks behind its address.
_DESCRIBED: Final = Pattern(r"(?<=\.[0-7]) {2}")
_COLOUR: Final = Pattern(r"\x1b\[[0-9;]{0,20}m")
_CELL: Final = Pattern(r"^(?:X|SYS|NODE|PHB|PXB|PIX|PSB|SOC|NV\d+)$")
_NAMED: Final = Pattern(r"^(?:GPU\d+|NIC\d+|mlx\w+|\w*_\d+)$")
# |   0  Tesla V100-SXM2-32GB           On  | 00000000:1A:00.0 Off |
_ROW: Final = Pattern(
    r"^\|\s{1,4}(?P<index>\d{1,3})\s{1,3}(?P<name>\S[^|\n]{0,38}?)\s{2,}(?:On|Off|N/A|TCC|WDDM|MCDM)\s*\|"
    r"\s*(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s",
    re.MULTILINE,
)
_LEGEND: Final = Pattern(r"^[ \t]*(?P<nic>NIC\d+):\s*(?P<name>\w+)\s*$", re.MULTILINE)
_SORTS: Final[tuple[tuple[str, Sort], ...]] = (
    ("0108", "nvme"), ("non-volatile", "nvme"), ("0200", "nic"), ("0207", "nic"), ("ethernet", "nic"),
    ("infiniband", "nic"), ("0604", "bridge"), ("pci bridge", "bridge"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link; 0 where a number was not seen.

    Attributes:
        speed: GT/s a lane, as it is now: an idle GPU lowers it.
        width: lanes in use.
    """

    speed: float = 0.0
    width: int = 0
    most_speed: float = 0.0
    most_width: int = 0

    @property
    def is_narrow(self) -> bool:
        """Whether fewer lanes are in use than both ends could: unlike the speed, no idle GPU does that."""
        return 0 < self.width < self.most_width


@dataclass(frozen=True, slots=True)
class Device:
    """A device on the PCI bus.

    Attributes:
        index: of a GPU, as nvidia-smi counts; None where nothing tells.
        numa: None where nobody looked, or the machine has none.
        above: the bridges between it and the root, the root port first; empty where they were not seen.
    """

    address: str
    sort: Sort
    name: str
    index: int | None = None
    numa: int | None = None
    link: Link = Link()
    above: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """What was seen of a node's wiring.

    Attributes:
        devices: GPUs, NVSwitches, network and NVMe devices, by address.
        matrix: how each pair is connected, by the names of ``nvidia-smi topo -m`` (``GPU0``, ``NIC1``).
        nics: the names of its network devices (``NIC0`` is ``mlx5_0``).
        nvlinks: of each GPU's index the rate of each of its links; empty where the link is inactive.
    """

    devices: tuple[Device, ...] = ()
    matrix: Mapping[tuple[str, str], str] = field(default_factory=dict)
    nics: Mapping[str, str] = field(default_factory=dict)
    nvlinks: Mapping[int, Mapping[int, str]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The rows of the matrix, in their order."""
        return tuple(dict.fromkeys(first for first, _ in self.matrix))

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs on the bus."""
        return tuple(device for device in self.devices if device.sort == "gpu")


def topology(snapshot: Snapshot) -> Topology:
    """The node's wiring."""
    matrix, nics = _matrix(snapshot)
    answered = _answered(snapshot)
    parents = _parents(snapshot)
    sysfs = _sysfs(snapshot)
    seen = _with_links(snapshot)
    indexes = {address: index for address, (index, _) in answered.items()}
    devices = (_device(function, indexes, parents, sysfs) for function in seen.values())
    listed = [device for device in devices if device is not None and device.sort != "bridge"]
    unlisted = [
        Device(address, "gpu", _called(name), index, _numa(address, "", sysfs), _link(address, "", sysfs))
        for address, (index, name) in answered.items()
        if address not in seen
    ]
    wanted = tuple(sorted((*listed, *unlisted), key=lambda device: device.address))
    links = {one.index: one.rates for one in snapshot.view(nvlinks) if one.index is not None}
    return Topology(_counted(wanted, matrix), matrix, nics, links)


def addresses(snapshot: Snapshot) -> Mapping[int, str]:
    """The PCI address of each GPU by nvidia-smi's number for it, where something tells both."""
    return {gpu.index: gpu.address for gpu in snapshot.view(topology).gpus if gpu.index is not None}


def _called(name: str) -> str:
    """A GPU's name as the driver tells it, which cuts long ones."""
    return name.removeprefix("NVIDIA ").rstrip(".")


def _with_links(snapshot: Snapshot) -> Mapping[str, pci.Function]:
    """Every function on the bus, NVIDIA's by what is known of them otherwise, each with the fullest detail."""
    found = {function.address: function for function in snapshot.view(pci.functions)}
    for item in snapshot.of("lspci"):
        for function in pci.listed(item):
            before = found.get(function.address)
            if before is None:
                found[function.address] = function
            elif len(function.detail) > len(before.detail):
                found[function.address] = replace(before, detail=function.detail)
    return dict(sorted(found.items()))


def _device(
    function: pci.Function,
    indexes: Mapping[str, int],
    parents: Mapping[str, str],
    sysfs: Mapping[tuple[str, str], str],
) -> Device | None:
    sort = _sort(function)
    if sort is None:
        return None
    at = function.address
    detail = "\n".join(function.detail)
    numa, link = _numa(at, detail, sysfs), _link(at, detail, sysfs)
    return Device(at, sort, _name(function), indexes.get(at), numa, link, _way(at, parents))


def _sort(function: pci.Function) -> Sort | None:
    if function.is_switch:
        return "nvswitch"
    if pci.is_nvidias(function):
        return "gpu" if function.is_gpu else None
    kind = function.kind.lower()
    return next((sort for word, sort in _SORTS if word in kind), None)


def _name(function: pci.Function) -> str:
    if function.model and function.model.listed:
        return function.model.name.removeprefix("NVIDIA ")
    plain = _IDS.sub("", function.name).strip()
    bracketed = _BRACKETED.findall(plain)
    return bracketed[-1] if bracketed else plain.replace("NVIDIA Corporation", "").strip() or plain


def _numa(address: str, detail: str, sysfs: Mapping[tuple[str, str], str]) -> int | None:
    told = sysfs.get((address, "numa_node"), "")
    if re.fullmatch(r"-?\d{1,4}", told):
        return int(told) if int(told) >= 0 else None
    match = _NUMA.search(detail)
    return int(match["node"]) if match else None


def _link(address: str, detail: str, sysfs: Mapping[tuple[str, str], str]) -> Link:
    status, capable = _STATUS.search(detail), _CAPABLE.search(detail)

    def speed(name: str, match: re.Match[str] | None) -> float:
        told = _GTS.search(sysfs.get((address, name), "")) or match
        return float(told["speed"]) if told else 0.0

    def width(name: str, match: re.Match[str] | None) -> int:
        told = sysfs.get((address, name), "")
        # 255 is the kernel's word for a link whose width it does not know.
        seen = whole(told)
        return seen if seen is not None and seen <= 64 else int(match["width"]) if match else 0

    return Link(
        speed("current_link_speed", status),
        width("current_link_width", status),
        speed("max_link_speed", capable),
        width("max_link_width", capable),
    )


def _sysfs(snapshot: Snapshot) -> Mapping[tuple[str, str], str]:
    read = (item for item in snapshot.files("/sys/bus/pci/devices/*"))
    found = ((_SYSFS.match(item.subject), item.text.strip()) for item in read if item.outcome == "ok")
    return {(match["address"], match["name"]): text for match, text in found if match}


def _parents(snapshot: Snapshot) -> Mapping[str, str]:
    """Of each device the bridge above it, by ``lspci -v`` and by ``lspci -t``."""
    bridges: dict[str, str] = {}
    devices: list[str] = []
    parents: dict[str, str] = {}
    for item in snapshot.of("lspci", "text"):
        if _TREE.search(item.text):
            parents.update(_tree(item))
        if item.kind != "lspci":
            continue
        for function in pci.listed(item):
            devices.append(function.address)
            if buses := next((m for line in function.detail if (m := _BUSES.search(line))), None):
                bridges[f"{function.address[:4]}:{buses['secondary'].lower()}"] = function.address
    return parents | {at: bridges[at[:7]] for at in devices if at[:7] in bridges}


def _tree(item: Item) -> Iterator[tuple[str, str]]:
    """The bridges above each device, as ``lspci -t`` draws them: a device hangs on the bus that opened to its left."""
    domain = "0000"
    buses: list[tuple[int, str, str]] = []
    for line in item.lines:
        bridge = ""
        for match in _BRANCH.finditer(_DESCRIBED.split(line, 1)[0]):
            while buses and buses[-1][0] >= match.start():
                buses.pop()
            if match["bus"]:
                domain = match["domain"] or domain
                buses.append((match.start(), f"{domain.lower()}:{match['bus'].lower()}", bridge))
            elif buses:
                bridge = f"{buses[-1][1]}:{match['slot'].lower()}"
                if buses[-1][2]:
                    yield bridge, buses[-1][2]


def _way(address: str, parents: Mapping[str, str]) -> tuple[str, ...]:
    way: list[str] = []
    while (address := parents.get(address, "")) and address not in way:
        way.append(address)
    return tuple(reversed(way))


def _answered(snapshot: Snapshot) -> Mapping[str, tuple[int, str]]:
    """The GPUs that answered, by NVML or in nvidia-smi's table: number and name of each, by address."""
    if answer := snapshot.view(inventory):
        told = [(gpu.pci, gpu.index, gpu.name) for gpu in answer.gpus if isinstance(gpu.pci, str)]
        return {at.lower(): (index, name if isinstance(name, str) else "") for at, index, name in told}
    for item in snapshot.of("nvidia-smi", "text"):
        rows = {pci.address(row["bus"]): (int(row["index"]), row["name"].strip()) for row in _ROW.finditer(item.text)}
        if rows:
            return rows
    return {}


def _counted(devices: tuple[Device, ...], matrix: Mapping[tuple[str, str], str]) -> tuple[Device, ...]:
    """With the numbers that follow from the order of the bus, which is nvidia-smi's, when as many GPUs answered."""
    gpus = [device.address for device in devices if device.sort == "gpu"]
    answered = {name for name, _ in matrix if name.startswith("GPU")}
    if any(device.index is not None for device in devices) or not gpus or len(gpus) != len(answered):
        return devices
    numbers = {address: number for number, address in enumerate(gpus)}
    return tuple(replace(device, index=numbers.get(device.address)) for device in devices)


def _matrix(snapshot: Snapshot) -> tuple[Mapping[tuple[str, str], str], Mapping[str, str]]:
    """The pairs of ``nvidia-smi topo -m`` and the names in its legend."""
    for item in snapshot.of("nvidia-smi-topo", "nvidia-smi", "text"):
        text = _COLOUR.sub("", item.text)
        if cells := dict(_cells(text)):
            return cells, {match["nic"]: match["name"] for match in _LEGEND.finditer(text)}
    return {}, {}


def _cells(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    columns: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["GPU0"] and (len(words) == 1 or not _CELL.match(words[1])):
            columns = [word for word in words if _NAMED.match(word)]
        elif columns and words and words[0] in columns:
            found = [word for word in words[1 : len(columns) + 1] if _CELL.match(word)]
            if len(found) == len(columns):
                yield from (((words[0], column), cell) for column, cell in zip(columns, found, strict=True))
