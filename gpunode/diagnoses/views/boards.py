"""View GPUs as named by nvidia-smi and NVML, and their kind of board: NVSwitch baseboard, rack or card."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import pci, smi_query
from gpunode.facts import nvml
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

# baseboard: connected by NVSwitches, judging by the model. rack: its switches are in other trays. card: a PCIe card.
BoardKind: TypeAlias = Literal["baseboard", "rack", "card", ""]

_PCI_ADDRESS: Final = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_GPU_TABLE_ROW: Final = Pattern(rf"^\|\s+(?P<index>\d{{1,3}})\s+(?P<name>\S[^|]{{2,60}})\|\s*(?P<bus>{_PCI_ADDRESS})\s")
_GPU_LIST_LINE: Final = Pattern(r"^GPU (?P<index>\d{1,3}): (?P<name>[^(\n]{2,60}?) \(UUID")
_PCI_ADDRESS_LINE: Final = Pattern(rf"^\s*(?P<bus>{_PCI_ADDRESS})\s*$")
_ATTACHED_GPU_COUNT: Final = Pattern(r"(?m)^Attached GPUs\s*:\s*(?P<count>\d{1,18})")
_RACK_MODEL_NAME: Final = Pattern(r"\bG[HB][23]00\b")
_BASEBOARD_MODEL_NAME: Final = Pattern(r"SXM|HBM[23]e?\b|\bH[28]00\b|\bH20\b|\bB[123]00\b|\bHGX\b")
_PCIE_CARD_MODEL_NAME: Final = Pattern(
    r"(?i)PCIe|\bNVL\b|GeForce|\bRTX\b|Quadro|\bTITAN\b|Tesla [TPMK]\d|\bL40S?\b|\bL4\b|\bL20?\b|\bA10G?\b|\bA2\b"
    r"|\bA16\b|\bA30X?\b|\bA40\b|\bT4\b|\bT1?[06]00\b"
)
# Fifth-generation NVLink: its switches use the InfiniBand stack, not NVIDIA's own switch driver.
_NVLINK5_MODEL_NAME: Final = Pattern(r"\bG?B[23]00\b|\bB100\b")


@dataclass(frozen=True, slots=True)
class InventoryGpu:
    """A GPU in the output of nvidia-smi.

    Attributes:
        index: NVML's index; None if the output has none.
        bus: its PCI address in the kernel's form; empty if the output has none.
    """

    index: int | None
    name: str
    bus: str
    citation: Citation


@dataclass(frozen=True, slots=True)
class SmiInventory:
    """The GPUs in one output of nvidia-smi.

    Attributes:
        count: the total number, from a complete table or an explicit count; None if the output may be truncated.
    """

    boards: tuple[InventoryGpu, ...]
    count: int | None
    citation: Citation


def smi_inventories(snapshot: Snapshot) -> tuple[SmiInventory, ...]:
    """Return the GPU lists in nvidia-smi's output on the node."""
    return tuple(
        one for item in snapshot.items_of("nvidia-smi", "nvidia-smi-q", "text") if (one := _parse_inventory(item))
    )


def only_gpu(snapshot: Snapshot) -> str:
    """Return the address or index of the node's GPU if every list of GPUs shows only this one; else empty."""
    shown = [smi_inventory for smi_inventory in snapshot.view(smi_inventories) if smi_inventory.count is not None]
    listed = snapshot.view(pci.pci_gpus) if pci.is_bus_listed(snapshot) else ()
    counts = {one.count for one in shown} | ({len(listed)} if listed else set())
    buses = [gpu.address for gpu in listed] + [board.bus for one in shown for board in one.boards if board.bus]
    return next(iter(buses), "0") if counts == {1} else ""


def _parse_inventory(item: EvidenceItem) -> SmiInventory | None:
    if item.where != "host":
        return None
    boards = tuple(_parse_inventory_gpus(item))
    count = _ATTACHED_GPU_COUNT.search(item.text)
    whole = int(count["count"]) if count else None
    if not boards:
        return SmiInventory((), whole, cite(item, item.line_number_at(count.start()))) if count else None
    is_cut = item.source.is_part or bool(item.source.pattern) or bool({"-i", "--id"} & set(item.source.words))
    indices = [board.index for board in boards]
    in_order = indices == list(range(len(boards))) or set(indices) == {None}
    known = whole if whole is not None else (len(boards) if in_order and not is_cut else None)
    return SmiInventory(boards, known, boards[0].citation)


def _parse_inventory_gpus(item: EvidenceItem) -> Iterator[InventoryGpu]:
    for number, line in enumerate(item.lines, 1):
        if match := _GPU_TABLE_ROW.match(line):
            name = re.sub(r"(?<!\s)\s+(?:On|Off|N/A|TCC|WDDM|MCDM)\s*$", "", match["name"].strip())
            yield InventoryGpu(int(match["index"]), name, pci.normalize_address(match["bus"]), cite(item, number))
        elif match := _PCI_ADDRESS_LINE.match(line):
            yield InventoryGpu(None, "", pci.normalize_address(match["bus"]), cite(item, number))
        elif match := _GPU_LIST_LINE.match(line):
            yield InventoryGpu(int(match["index"]), match["name"], "", cite(item, number))


def gpu_model_names(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the GPU models, from any source that names them."""
    names = [gpu.model.name if gpu.model else gpu.name for gpu in snapshot.view(pci.pci_gpus)]
    names += [board.name for inventory in snapshot.view(smi_inventories) for board in inventory.boards if board.name]
    for item in snapshot.items_of("nvidia-smi-nvlink", "nvidia-smi-topo", "application", "container-run", "gpudirect"):
        names += [match["name"] for line in item.lines if (match := _GPU_LIST_LINE.match(line))]
    for gpu in snapshot.view(smi_query.smi_gpus):
        names += [row.value for key in ("Product Name", "name") for row in gpu.find_rows(key)]
    return tuple(dict.fromkeys(names))


def board_kind_by_name(name: str) -> BoardKind:
    """Return the kind of board of a GPU with this name; empty if unknown."""
    if _RACK_MODEL_NAME.search(name):
        return "rack"
    if _PCIE_CARD_MODEL_NAME.search(name):
        return "card"
    return "baseboard" if _BASEBOARD_MODEL_NAME.search(name) else ""


def board_kinds(snapshot: Snapshot) -> frozenset[BoardKind]:
    """Return the kinds of board of the node's GPUs, by device id, else by name."""
    by_id = {_find_board_kind(gpu) for gpu in snapshot.view(pci.pci_gpus) if gpu.model is not None and gpu.model.listed}
    by_name = {board_kind_by_name(name) for name in snapshot.view(gpu_model_names)}
    return frozenset((by_id or by_name) - {""})


def _find_board_kind(gpu: pci.PciFunction) -> BoardKind:
    board = gpu.model.nvswitch_board if gpu.model else ""
    if board == "possible":
        return "baseboard"
    return "rack" if board == "external" else "card"


def has_nvlink5(snapshot: Snapshot) -> bool:
    """Return whether the GPUs have NVLink 5, whose switches need the InfiniBand modules and the subnet manager."""
    return any(_NVLINK5_MODEL_NAME.search(name) for name in snapshot.view(gpu_model_names))


def nvml_inventory(snapshot: Snapshot) -> nvml.NvmlInventory | None:
    """Return NVML's first answer with GPUs; None if it failed or is damaged."""
    for item in snapshot.items_of("nvml"):
        try:
            answer = nvml.parse_answer(item.text.encode()) if item.outcome == "ok" else None
        except ValueError:
            continue
        if isinstance(answer, nvml.NvmlInventory):
            return answer
    return None
