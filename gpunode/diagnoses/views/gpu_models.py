"""View the models of the node's GPUs, as far as drivers distinguish them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.catalog import gpus as catalog
from gpunode.catalog.gpus import GpuModel
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, find_all
from gpunode.diagnoses.views import boards, kernel, pci, virtualization
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

# "The NVIDIA GPU 0000:09:00.0 (PCI ID: 10de:1d01)", and older forms of this message.
_DRIVER_MESSAGE_WITH_PCI_ID: Final = Pattern(
    r"(?i)NVIDIA GPU (?P<address>[0-9a-fA-F:.]{7,16})\s*\(PCI ID: ?10de:(?P<device>[0-9a-fA-F]{4})"
)
_DRIVER_MESSAGE_WITH_GPU_NAME: Final = Pattern(
    r"The NVIDIA (?:NVIDIA )?(?P<name>(?:GeForce|Quadro|Tesla|TITAN|GRID|NVS|RTX)[\w +/().-]{0,50}?) GPU installed"
)
# The modalias of an NVIDIA display device, as printed by udev and ubuntu-drivers.
_GPU_MODALIAS: Final = Pattern(r"pci:v000010DEd0000(?P<device>[0-9A-F]{4})sv\w{8}sd\w{8}bc03")
# "GP108 [GeForce GT 1030]", as written in pci.ids.
_CHIP_AND_MODEL_NAME: Final = Pattern(r"\b(?P<chip>G[A-Z]?\d{1,3}\w*|TU\d+\w*|AD\d+\w*)\s*\[(?P<name>[^\]]{3,60})\]")


@dataclass(frozen=True, slots=True)
class GpuCard:
    """A GPU of this node.

    Attributes:
        address: PCI address; empty if unknown.
    """

    model: GpuModel
    address: str
    citation: Citation


def whole_gpus(snapshot: Snapshot) -> tuple[GpuCard, ...]:
    """Return the GPUs that need a driver for the whole device, each once; vGPUs are left out."""
    cards: dict[str, GpuCard] = {}
    for card in _find_cards(snapshot):
        cards.setdefault(card.address or card.model.name, card)
    return tuple(cards.values())


def gpu_models(snapshot: Snapshot) -> tuple[GpuModel, ...]:
    """Return the models of the node's GPUs; without any known card, those that nvidia-smi names."""
    shown = tuple(card.model for card in snapshot.view(whole_gpus))
    named_ones = (catalog.find_by_name(name) for name in snapshot.view(boards.gpu_model_names))
    return shown or tuple(model for model in named_ones if model is not None)


def gpu_models_if_all_known(snapshot: Snapshot) -> tuple[GpuModel, ...]:
    """Return the models of all GPUs; none if one of them is unknown."""
    shown, listed = snapshot.view(whole_gpus), snapshot.view(pci.pci_gpus)
    if shown and len(shown) >= len(listed):
        return tuple(card.model for card in shown)
    if listed:
        return ()
    found = [_unambiguous_model(name) for name in sorted(snapshot.view(boards.gpu_model_names))]
    return tuple(model for model in found if model) if all(found) else ()


def _unambiguous_model(name: str) -> GpuModel | None:
    """Return the GPU of this name if all GPUs with the name need the same drivers."""
    kinds = {(model.last_branch, model.open_modules) for model in catalog.find_all_by_name(name)}
    return catalog.find_by_name(name) if len(kinds) == 1 else None


def _find_cards(snapshot: Snapshot) -> Iterator[GpuCard]:
    shares = snapshot.view(virtualization.vgpu_addresses)
    # Without subsystem ids, no GPU is known to be a whole one.
    if not shares and virtualization.is_vgpu(snapshot):
        return
    for gpu in snapshot.view(pci.pci_gpus):
        if gpu.address not in shares and (model := gpu.model or model_by_lspci_name(gpu.name)):
            yield GpuCard(model, gpu.address, gpu.citation)
    for message in kernel.matching_messages(snapshot, _DRIVER_MESSAGE_WITH_PCI_ID):
        for match in _DRIVER_MESSAGE_WITH_PCI_ID.finditer(message.text):
            yield GpuCard(
                catalog.find_model(match["device"].lower()), pci.normalize_address(match["address"]), message.citation
            )
    listed = bool(snapshot.view(pci.pci_gpus))
    for item in snapshot.items_to_search(_GPU_MODALIAS, "text", "listing") if not listed else ():
        for match in find_all(item, _GPU_MODALIAS):
            yield GpuCard(
                catalog.find_model(match["device"].lower()), "", cite(item, item.line_number_at(match.start()))
            )
    for message in () if listed else kernel.matching_messages(snapshot, _DRIVER_MESSAGE_WITH_GPU_NAME):
        name = _DRIVER_MESSAGE_WITH_GPU_NAME.search(message.text)
        if name is not None and (model := catalog.find_by_name(name["name"])):
            yield GpuCard(model, "", message.citation)


def model_by_lspci_name(text: str) -> GpuModel | None:
    """Return the GPU that lspci lists without its device id: by name if the catalog has it, else by chip."""
    if (match := _CHIP_AND_MODEL_NAME.search(text)) is None:
        return None
    names = [part.strip() for part in match["name"].split(" / ")]
    by_chip = catalog.model_of_chip(match["chip"], names[0])
    by_name = (model for name in names for model in catalog.find_all_by_name(name))
    # One name may cover GPUs of two generations.
    return next((model for model in by_name if by_chip is None or model.last_branch == by_chip.last_branch), by_chip)
