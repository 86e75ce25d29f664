"""What of a node is held against the others of a fleet: its model, its versions, and all that ``compare`` compares."""

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
# What was compared, the name of what differs in it, and its value.
Feature: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Model:
    """Nodes of one model are compared with each other.

    Attributes:
        machine: as the firmware names it; empty where nothing does.
        gpus: the kinds of its GPUs, without their number: a node that lost one is still of its model.
    """

    machine: str
    gpus: tuple[str, ...]

    @property
    def title(self) -> str:
        """As a person would say it."""
        return " with ".join(part for part in (self.machine, " and ".join(self.gpus)) if part) or "unknown model"


@dataclass(frozen=True, slots=True)
class Portrait:
    """One node as the others see it.

    Attributes:
        versions: by axis; what the evidence does not show is not in it.
        features: of all traits, without what explains little when it differs.
    """

    model: Model
    versions: Mapping[Axis, str]
    features: tuple[Feature, ...]


# Where a version stands among the traits: in the first of these that the node shows.
_VERSIONS: Final[Mapping[Axis, tuple[tuple[str, str], ...]]] = {
    "VBIOS": (("firmware", "VBIOS of the GPUs"),),
    "BIOS": (("firmware", "BIOS version"),),
    "distribution": (("system", "distribution"),),
    "kernel": (("kernel", "running kernel"),),
    "driver": (("driver", "loaded module"), ("driver", "nvidia-smi")),
    "CUDA": (("driver", "CUDA"),),
    "toolkit": (("packages", "nvidia-container-toolkit"),),
}


def portrait(snapshot: Snapshot, layers: tuple[LayerState, ...]) -> Portrait:
    """The node that ``snapshot`` shows."""
    seen = [(trait, *row) for trait in TRAITS for row in trait.values(snapshot)]
    values = {(trait.id, name): value for trait, name, value in seen}
    kinds = {one.model.name if one.model else one.name for one in snapshot.view(pci.gpus)}
    model = Model(" ".join(filter(None, (values.get(place) for place in _MACHINE))), tuple(sorted(kinds)))
    state = {layer.id: layer.seen for layer in layers}
    versions = {axis: next((values[one] for one in places if one in values), "") for axis, places in _VERSIONS.items()}
    versions |= {"machine": model.machine, "GPUs": state["pci"], "runtime": state["runtime"]}
    if state["driver"] == "not loaded":
        versions["driver"] = versions["driver"] or "not loaded"
    features = ((trait.id, name, value) for trait, name, value in seen if trait.weight(name, value) != "background")
    return Portrait(model, {axis: versions[axis] for axis in AXES if versions[axis]}, tuple(features))


_MACHINE: Final = (("firmware", "vendor"), ("firmware", "model"))
