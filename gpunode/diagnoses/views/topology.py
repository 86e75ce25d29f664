"""View how the GPUs are connected: NUMA nodes, PCIe switches, NVLinks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards, pci, pcie_links
from gpunode.diagnoses.views.boards import nvml_inventory
from gpunode.diagnoses.views.fabric import gpu_nvlinks
from gpunode.diagnoses.views.pcie_links import PcieLink
from gpunode.facts.patterns import Pattern

PciDeviceSort: TypeAlias = Literal["gpu", "nvswitch", "nic", "nvme"]

_NUMA_NODE: Final = Pattern(r"NUMA node:\s*(?P<node>\d{1,18})")
_LSPCI_IDS_AND_REVISION: Final = Pattern(
    r"(?i)(?<!\s)\s*(?:\[[0-9a-f]{4}:[0-9a-f]{4}\]|\(rev [^)]*\)|\(prog-if [^)]*\))"
)
_TEXT_IN_BRACKETS: Final = Pattern(r"\[([^\[\]]+)\]")
_COLOR_CODE: Final = Pattern(r"\x1b\[[0-9;]{0,20}m")
_TOPOLOGY_CELL: Final = Pattern(r"^(?:X|SYS|NODE|PHB|PXB|PIX|PSB|SOC|NV\d+)$")
_TOPOLOGY_COLUMN_NAME: Final = Pattern(r"^(?:GPU\d+|NIC\d+|mlx\w+|\w*_\d+)$")
_NIC_LEGEND_LINE: Final = Pattern(r"(?m)^[ \t]*(?P<nic>NIC\d+):\s*(?P<name>\w+)\s*$")
_DEVICE_SORT_BY_CLASS: Final[tuple[tuple[str, PciDeviceSort], ...]] = (
    ("0108", "nvme"), ("non-volatile", "nvme"), ("0200", "nic"), ("0207", "nic"), ("ethernet", "nic"),
    ("infiniband", "nic"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Device:
    """A device on the PCI bus.

    Attributes:
        index: of a GPU, as nvidia-smi counts; None where nothing tells.
        numa: None where nobody looked, or the machine has none.
    """

    address: str
    sort: PciDeviceSort
    name: str
    index: int | None = None
    numa: int | None = None
    link: PcieLink = field(default_factory=PcieLink)


@dataclass(frozen=True, slots=True)
class Topology:
    """The connections of a node's devices, as far as seen.

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


def find_topology(snapshot: Snapshot) -> Topology:
    """Return the node's wiring."""
    matrix, nics = _parse_matrix(snapshot)
    answered, seen = _answering_gpus_by_address(snapshot), _functions_by_address(snapshot)
    found = [_make_device(snapshot, function, answered) for function in seen.values()]
    unlisted = [
        Device(address, "gpu", _short_name(name), index, _numa_node(snapshot, address), _pcie_link(snapshot, address))
        for address, (index, name) in answered.items()
        if address not in seen
    ]
    wanted = sorted((*(device for device in found if device is not None), *unlisted), key=lambda device: device.address)
    rates = {nvlink.index: nvlink.rates for nvlink in snapshot.view(gpu_nvlinks) if nvlink.index is not None}
    return Topology(_number_gpus(tuple(wanted), matrix), matrix, nics, rates)


def _short_name(name: str) -> str:
    """Return a GPU's name as the driver tells it, which cuts long ones."""
    return name.removeprefix("NVIDIA ").rstrip(".")


def _functions_by_address(snapshot: Snapshot) -> Mapping[str, pci.PciFunction]:
    """Return every function on the bus, NVIDIA's by what is known of them otherwise, each with the fullest detail."""
    functions = {function.address: function for function in snapshot.view(pci.nvidia_functions)}
    for item in snapshot.items_of("lspci"):
        for function in pci.parse_lspci(item):
            before = functions.get(function.address)
            if before is None:
                functions[function.address] = function
            elif len(function.detail) > len(before.detail):
                functions[function.address] = replace(before, detail=function.detail)
    return dict(sorted(functions.items()))


def _make_device(
    snapshot: Snapshot, function: pci.PciFunction, answered: Mapping[str, tuple[int, str]]
) -> Device | None:
    sort, at = _device_sort(function), function.address
    if sort is None:
        return None
    index = answered[at][0] if at in answered else None
    numa = _numa_node(snapshot, at, "\n".join(function.detail))
    return Device(at, sort, _model_name(function), index, numa, _pcie_link(snapshot, at))


def _pcie_link(snapshot: Snapshot, address: str) -> PcieLink:
    return snapshot.view(pcie_links.link_table).get(address, PcieLink())


def _device_sort(function: pci.PciFunction) -> PciDeviceSort | None:
    if function.is_switch:
        return "nvswitch"
    if pci.is_nvidia(function):
        return "gpu" if function.is_gpu else None
    kind = function.class_name.lower()
    return next((sort for word, sort in _DEVICE_SORT_BY_CLASS if word in kind), None)


def _model_name(function: pci.PciFunction) -> str:
    if function.model and function.model.listed:
        return function.model.name.removeprefix("NVIDIA ")
    plain = _LSPCI_IDS_AND_REVISION.sub("", function.name).strip()
    bracketed = _TEXT_IN_BRACKETS.findall(plain)
    return bracketed[-1] if bracketed else plain.replace("NVIDIA Corporation", "").strip() or plain


def _numa_node(snapshot: Snapshot, address: str, detail: str = "") -> int | None:
    file = snapshot.file(f"/sys/bus/pci/devices/{address}/numa_node")
    told = file.text.strip() if file else ""
    if re.fullmatch(r"-?\d{1,4}", told):
        return int(told) if int(told) >= 0 else None
    match = _NUMA_NODE.search(detail)
    return int(match["node"]) if match else None


def _answering_gpus_by_address(snapshot: Snapshot) -> Mapping[str, tuple[int, str]]:
    """Return the GPUs that answered, by NVML or in nvidia-smi's table: number and name of each, by address."""
    if answer := snapshot.view(nvml_inventory):
        nvml_gpus = [(gpu.pci, gpu.index, gpu.name) for gpu in answer.gpus if isinstance(gpu.pci, str)]
        return {at.lower(): (index, name if isinstance(name, str) else "") for at, index, name in nvml_gpus}
    for one in snapshot.view(boards.smi_inventories):
        rows = {board.bus: (board.index, board.name) for board in one.boards if board.bus and board.index is not None}
        if rows:
            return rows
    return {}


def _number_gpus(devices: tuple[Device, ...], matrix: Mapping[tuple[str, str], str]) -> tuple[Device, ...]:
    """Number the GPUs by bus order, as nvidia-smi does, if as many of them answered."""
    gpus = [device.address for device in devices if device.sort == "gpu"]
    answered = {name for name, _ in matrix if name.startswith("GPU")}
    if any(device.index is not None for device in devices) or not gpus or len(gpus) != len(answered):
        return devices
    numbers = {address: number for number, address in enumerate(gpus)}
    return tuple(replace(device, index=numbers.get(device.address)) for device in devices)


def _parse_matrix(snapshot: Snapshot) -> tuple[Mapping[tuple[str, str], str], Mapping[str, str]]:
    """Return the pairs of ``nvidia-smi topo -m`` and the names in its legend."""
    for item in snapshot.items_of("nvidia-smi-topo", "nvidia-smi", "text"):
        text = _COLOR_CODE.sub("", item.text)
        if cells := dict(_parse_cells(text)):
            return cells, {match["nic"]: match["name"] for match in _NIC_LEGEND_LINE.finditer(text)}
    return {}, {}


def _parse_cells(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    columns: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["GPU0"] and (len(words) == 1 or not _TOPOLOGY_CELL.match(words[1])):
            columns = [word for word in words if _TOPOLOGY_COLUMN_NAME.match(word)]
        elif columns and words and words[0] in columns:
            cells = [word for word in words[1 : len(columns) + 1] if _TOPOLOGY_CELL.match(word)]
            if len(cells) == len(columns):
                yield from (((words[0], column), cell) for column, cell in zip(columns, cells, strict=True))
