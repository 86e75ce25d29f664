"""What driver, toolkit, headers and runtime depend on is installed: all of it, whoever took it away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpunode.catalog.conflicts import pinned_names
from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.model import Facts, Known, MissingDependency, need
from gpunode.outcome import Outcome, Planned, Step
from gpunode.package_id import PackageId
from gpunode.packages.simulation import ANY_PROVIDER
from gpunode.recipe import Recipe
from gpunode.runtimes import runtime
from gpunode.steps.headers import header_packages
from gpunode.steps.installed_driver import prefix
from gpunode.steps.locked import held_elsewhere, wanted_state
from gpunode.steps.repositories import wants_toolkit
from gpunode.steps.selection import WantedDriver, installed_version, wanted_driver


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Plan to install what the recipe's packages need, directly or not, and the node lacks.

    Each missing package is named to the package manager, which refuses to do anything to a node with unmet
    dependencies unless it is told all of them. What these need in turn comes along.
    """
    packages = need(facts.packages, "which packages are installed")
    if not isinstance(facts.dependencies, Known):
        return Planned((), f"dependencies of packages are unknown: {facts.dependencies.reason}", asked=False)
    driver = wanted_driver(recipe, facts)
    chosen = driver if isinstance(driver, WantedDriver) else None
    missing = facts.dependencies.value.missing(packages, tuple(_roots(recipe, facts, chosen)))
    if missing is None:
        return Planned((), "none of the packages that the recipe asks for is installed yet", asked=False)
    if not missing:
        return Planned((), "all that the recipe's packages depend on is installed")
    if held := [one.package for one in missing if one.package in packages and packages[one.package].held]:
        return held_elsewhere(facts, held, f"{missing[0].needed_by}")
    changes = tuple(
        PackageChange(one.package, packages.get(one.package), _after(recipe, facts, chosen, one)) for one in missing
    )
    first = missing[0]
    others = f"; {len(missing) - 1} more of this kind" if missing[1:] else ""
    return Planned(changes, f"{first.needed_by} needs {first.relation}, which is not installed{others}")


def _roots(recipe: Recipe, facts: Facts, driver: WantedDriver | None) -> Iterator[PackageId]:
    """Yield the packages that the other steps ask for."""
    if driver is not None:
        yield from driver.packages(recipe)
        yield from header_packages(driver.family, facts)
    if wants_toolkit(recipe):
        yield from TOOLKIT_PACKAGES
    if recipe.runtime.name != "none":
        yield from map(PackageId, runtime(recipe.runtime.name).packages)


def _after(
    recipe: Recipe, facts: Facts, driver: WantedDriver | None, missing: MissingDependency
) -> PackageState | KnownAfter:
    """Return the state to bring about: a dependency, in the locked version, the only one that will do, or any."""
    anyhow: PackageState | KnownAfter = ANY_PROVIDER
    if missing.version:
        anyhow = PackageState(missing.version, auto=True)
    if driver is not None and missing.package.name in pinned_names(driver.chosen.branch):
        # Whoever asks for another version, the driver has one.
        version = "" if recipe.upgrade else installed_version(facts, driver)
        anyhow = KnownAfter(f"{version}-" if version else prefix(driver.chosen), "driver", auto=True)
    return replace(wanted_state(recipe, missing.package, anyhow), auto=True)


MISSING_DEPENDENCIES = Step("missing-dependencies", "dependencies", "packages", plan)
