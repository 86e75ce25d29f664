"""plan: what setup would do, and why; changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from gpunode.change import KnownAfter
from gpunode.facts.model import Facts
from gpunode.host.port import HostView
from gpunode.packages.simulation import NOT_SIMULATED
from gpunode.recipe import Recipe
from gpunode.workflow.converge import StagePlan, project_stage, walk
from gpunode.workflow.recovery import NO_BACKLOG, Backlog
from gpunode.workflow.transaction import resolve_stage

# Why a package is asked for, where it does not come from NVIDIA's repositories.
_NOT_NVIDIAS = frozenset({"headers", "gdrcopy"})


def plan(recipe: Recipe, facts: Facts, host: HostView, only: Collection[str] = ()) -> tuple[StagePlan, ...]:
    """Return every stage's plan, with exact package versions if sources and pins need no change.

    Raises:
        Refused: the simulated transaction is not what was planned.
        Undetermined: evidence that a step needs is missing.
    """
    earlier: list[StagePlan] = []

    def exact(now: Facts, stage: StagePlan) -> StagePlan:
        is_current = not any(plan.changes for plan in earlier)
        earlier.append(stage)
        if is_current:
            return resolve_stage(stage, now, host.simulate, recipe.lock)
        return replace(stage, unresolved=_why_packages_missing(stage, host))

    return tuple(walk(recipe, facts, exact, project_stage, only))


def _why_packages_missing(stage: StagePlan, host: HostView) -> str:
    """Return why no present archive has the kernel headers, or GDRCopy: no source that this run adds has them."""
    sought = [one for one in stage.packages if isinstance(one.after, KnownAfter) and one.after.why in _NOT_NVIDIAS]
    found = host.simulate(sought) if sought else None
    return found.problem if found and not found.problem.startswith(NOT_SIMULATED) else ""


def has_pending_work(plans: Sequence[StagePlan], left: Backlog = NO_BACKLOG) -> bool:
    """Return whether anything is to be done or waits, including what earlier runs left undone."""
    return bool(left) or any(plan.changes or plan.waits for plan in plans)
