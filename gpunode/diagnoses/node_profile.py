"""Profile a node for comparison with its fleet: model, versions, and the traits of ``compare``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.stack import LayerState
from gpunode.diagnoses.traits import TRAITS
from gpunode.diagnoses.views import pci

Axis: TypeAlias = Literal[
    "machine", "GPUs", "VBIOS", "BIOS", "distribution", "kernel", "driver", "CUDA", "toolkit", "runtime"
]
AXES: Final[tuple[Axis, ...]] = get_args(Axis)
# Trait, name and value.
Feature: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class NodeModel:
    """The hardware by which nodes are grouped.

    Attributes:
        machine: as the firmware names it; empty if unknown.
        gpus: the kinds of its GPUs, without their number: a node that lost one is still of its model.
    """

    machine: str
    gpus: tuple[str, ...]

    @property
    def title(self) -> str:
        """The model as a person would say it."""
        return " with ".join(part for part in (self.machine, " and ".join(self.gpus)) if part) or "unknown model"


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """A node as its fleet is compared with it.

    Attributes:
        versions: by axis, if known.
        features: of all traits that can explain a fault.
    """

    model: NodeModel
    versions: Mapping[Axis, str]
    features: tuple[Feature, ...]


# Traits and names of each version; the first that the node shows counts.
_VERSIONS: Final[Mapping[Axis, tuple[tuple[str, str], ...]]] = {
    "VBIOS": (("firmware", "VBIOS of the GPUs"),),
    "BIOS": (("firmware", "BIOS version"),),
    "distribution": (("system", "distribution"),),
    "kernel": (("kernel", "running kernel"),),
    "driver": (("driver", "loaded module"), ("driver", "nvidia-smi")),
    "CUDA": (("driver", "CUDA"),),
    "toolkit": (("packages", "nvidia-container-toolkit"),),
}


def profile_node(snapshot: Snapshot, layers: tuple[LayerState, ...]) -> NodeProfile:
    """Return the profile of the node that ``snapshot`` shows."""
    seen = [(trait, *row) for trait in TRAITS for row in trait.values(snapshot)]
    values = {(trait.id, name): value for trait, name, value in seen}
    kinds = {one.model.name if one.model else one.name for one in snapshot.view(pci.pci_gpus)}
    model = NodeModel(" ".join(filter(None, (values.get(place) for place in _MACHINE))), tuple(sorted(kinds)))
    state = {layer.id: layer.summary for layer in layers}
    versions = {axis: next((values[one] for one in places if one in values), "") for axis, places in _VERSIONS.items()}
    versions |= {"machine": model.machine, "GPUs": state["pci"], "runtime": state["runtime"]}
    if state["driver"] == "not loaded":
        versions["driver"] = versions["driver"] or "not loaded"
    features = ((trait.id, name, value) for trait, name, value in seen if trait.weigh(name, value) != "background")
    return NodeProfile(model, {axis: versions[axis] for axis in AXES if versions[axis]}, tuple(features))


_MACHINE: Final = (("firmware", "vendor"), ("firmware", "model"))
