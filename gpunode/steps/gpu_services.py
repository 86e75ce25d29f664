"""Show what changes take from the users of GPUs, and how NVIDIA's services let go before and start again afterwards."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from gpunode.catalog.conflicts import BY_THEMSELVES, purge_reason
from gpunode.change import (
    GPU_SERVICES,
    Change,
    MigChange,
    ModuleChange,
    PackageChange,
    ServiceChange,
    Trigger,
    triggers,
)
from gpunode.facts.model import Facts, Known
from gpunode.facts.project import UNINSTALL_RUN_DRIVER
from gpunode.outcome import Planned, Step
from gpunode.steps.daemons import MPS_SERVICE

GpuLoss: TypeAlias = Literal["driver", "layout", "mps"]
# Of a layout only DCGM keeps hold (NVIDIA/DCGM issue 276; NVIDIA's MIG guide stops it before MIG is switched on). The
# fabric manager must run for the GPU's reset.
_HOLDS_LAYOUTS: Final = frozenset({"nvidia-dcgm.service"})
_REASON: Final = "they stop first and start again at the end; setup refuses while programs use a GPU"


def find_gpu_loss(changes: Collection[Change], owed: Collection[Trigger] = ()) -> GpuLoss | None:
    """Return what ``changes`` and ``owed`` take from the users of GPUs, the most first; None where they take nothing.

    A driver's packages count as soon as one of its version is replaced or removed: programs that start meanwhile find
    no GPU, and the fabric manager's end aborts those that run (ABORT_CUDA_JOBS_ON_FM_EXIT in its user guide).
    """
    unloads = any(change.module.startswith("nvidia") and not change.after for change in ModuleChange.among(changes))
    uninstalls = any(change.runs(*UNINSTALL_RUN_DRIVER) for change in changes)
    if unloads or uninstalls or any(_takes_driver(change) for change in PackageChange.among(changes)):
        return "driver"
    if MigChange.among(changes):
        return "layout"
    stops = any(one.unit == MPS_SERVICE and not one.after.active for one in ServiceChange.among(changes))
    return "mps" if stops or Trigger("restart", MPS_SERVICE) in {*triggers(changes), *owed} else None


def _takes_driver(change: PackageChange) -> bool:
    name, before = change.id.name, change.before
    is_part = before is not None and purge_reason(name, before.version) not in {None, "relation"}
    return is_part and name not in BY_THEMSELVES and change.ends_version


def plan_pauses(changes: Collection[Change], facts: Facts) -> tuple[ServiceChange, ...]:
    """Return the stop of each running service that holds what ``changes`` take; a trigger starts it again."""
    loss = find_gpu_loss(changes)
    if loss not in ("driver", "layout"):
        return ()
    others = {change.unit for change in ServiceChange.among(changes)}
    units = (unit for unit in reversed(GPU_SERVICES) if loss == "driver" or unit in _HOLDS_LAYOUTS)
    running = ((unit, facts.units.get(unit)) for unit in units if unit not in others)
    return tuple(
        ServiceChange(unit, state, replace(state, active=False), frozenset({Trigger("start", unit)}))
        for unit, fact in running
        if isinstance(fact, Known) and fact.value.exists and (state := fact.value.state).active
    )


def plan_gpu_services(changes: Collection[Change], facts: Facts) -> Planned:
    """Return the plan of the pauses that the other changes of a stage need."""
    return Planned(plan_pauses(changes, facts), _REASON)


# In no table of steps: its changes follow from those of the other steps of a stage.
GPU_RELEASE: Final = Step("gpu-services", "GPU services", "packages", lambda _, __: Planned((), _REASON, asked=False))
