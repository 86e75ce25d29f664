"""What of a node is held against the others of a fleet: its model, its versions, and all that ``compare`` compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.stack import LayerState
from gpunode.diagnoses.traits import TRAITS, vbios
from gpunode.diagnoses.views import driver, packages, pci, system

Axis: TypeAlias = Literal[
    "machine", "GPUs", "VBIOS", "BIOS", "distribution", "kernel", "driver", "CUDA", "toolkit", "runtime"
]
AXES: Final[tuple[Axis, ...]] = (
    *("machine", "GPUs", "VBIOS", "BIOS", "distribution"),
    *("kernel", "driver", "CUDA", "toolkit", "runtime"),
)  # fmt: skip
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


def portrait(snapshot: Snapshot, layers: tuple[LayerState, ...]) -> Portrait:
    """The node that ``snapshot`` shows."""
    seen = [(trait, *row) for trait in TRAITS for row in trait.values(snapshot)]
    firmware = {name: value for trait, name, value in seen if trait.id == "firmware"}
    machine = " ".join(firmware[name] for name in ("vendor", "model") if name in firmware)
    kinds = tuple(sorted({one.model.name if one.model else one.name for one in snapshot.view(pci.gpus)}))
    features = tuple(
        (trait.id, name, value) for trait, name, value in seen if trait.judge(name, value)[0] != "background"
    )
    return Portrait(Model(machine, kinds), _versions(snapshot, layers, firmware, machine), features)


def _versions(
    snapshot: Snapshot, layers: tuple[LayerState, ...], firmware: Mapping[str, str], machine: str
) -> Mapping[Axis, str]:
    seen = {layer.id: layer.seen for layer in layers}
    module = snapshot.view(driver.loaded) or snapshot.view(driver.smi_version)
    cuda = snapshot.view(driver.cuda_version)
    distribution = snapshot.view(system.distro)
    toolkit = snapshot.view(packages.packages).get("nvidia-container-toolkit")
    found: dict[Axis, str] = {
        "machine": machine,
        "GPUs": seen["pci"],
        "VBIOS": vbios(snapshot),
        "BIOS": firmware.get("BIOS version", ""),
        "distribution": distribution.name if distribution else "",
        "kernel": snapshot.view(system.running_kernel),
        "driver": module.version if module else "not loaded" if seen["driver"] == "not loaded" else "",
        "CUDA": cuda.version if cuda else "",
        "toolkit": toolkit.version if toolkit and toolkit.is_installed else "",
        "runtime": seen["runtime"],
    }
    return {axis: value for axis in AXES if (value := found[axis])}
