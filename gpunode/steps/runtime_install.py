"""The container runtime itself: installed from the distribution where it is missing, never replaced."""

from __future__ import annotations

from gpunode.change import KnownAfter, PackageChange
from gpunode.facts.model import Facts, Known, need
from gpunode.recipe import Recipe
from gpunode.runtimes import runtime
from gpunode.steps.outcome import Outcome, Planned, Refusal, Step
from gpunode.steps.selection import matches


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Some package that provides the runtime is installed."""
    if recipe.runtime.name == "none":
        return Planned((), "no container runtime is asked for")
    row = runtime(recipe.runtime.name)
    packages = need(facts.packages, "which packages are installed")
    for name in row.packages:
        if matches(packages.get(name), ""):
            return Planned((), f"{name} {packages[name].version} is installed")
    unit = facts.unit(row.unit)
    if isinstance(unit, Known) and unit.value.exists and not unit.value.masked:
        return Planned((), f"{row.unit} is here, installed by other means than its package; it is not replaced")
    if recipe.runtime.install == "never":
        return Refusal(
            what=f"{row.id} is not installed",
            why='the recipe says runtime.install = "never"',
            hint=f'install {" or ".join(row.packages)}, or set runtime.install = "if-missing"',
        )
    first = row.packages[0]
    reason = f"{row.id} is missing; the distribution's own package is taken"
    return Planned((PackageChange(first, packages.get(first), KnownAfter(why="runtime")),), reason)


RUNTIME_INSTALL = Step("runtime-install", "container runtime", "packages", plan)
