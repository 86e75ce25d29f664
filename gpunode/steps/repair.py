"""Package changes that were interrupted are finished before anything else is asked of the package manager."""

from __future__ import annotations

from gpunode.facts.model import Facts, need
from gpunode.outcome import Outcome, Planned, Step
from gpunode.packages import system
from gpunode.recipe import Recipe


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Plans what makes every package whole, where a change of packages was stopped in its middle."""
    del recipe
    if not need(facts.packages_interrupted, "whether a change of packages was interrupted"):
        return Planned((), "no change of packages was interrupted")
    repair = system(facts).repair
    return Planned((repair,), repair.why)


REPAIR = Step("repair", "package database", "sources", plan)
