"""The installed packages of a fabric: moved to the driver's version, or removed in favour of new ones."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.catalog.fabric import is_version_locked, package_stem
from gpunode.change import KnownAfter, PackageChange
from gpunode.facts.model import Facts, value_or
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe
from gpunode.steps.fabric import FABRIC_STEP, wanted_fabric_packages
from gpunode.steps.installed_driver import is_at_version, version_prefix
from gpunode.steps.packages import desired_state
from gpunode.steps.selection import WantedDriver, kept_driver_version


def plan_fabric_version_changes(recipe: Recipe, facts: Facts, driver: WantedDriver) -> tuple[PackageChange, ...]:
    """Return the changes that bring the installed parts to the driver's version, if their own step is skipped.

    They work only with the driver of their exact version, no matter who installed them.
    """
    if FABRIC_STEP.id not in recipe.skip:
        return ()
    packages, version = value_or(facts.packages, {}), kept_driver_version(recipe, facts, driver)
    after = KnownAfter(f"{version}-" if version else version_prefix(driver.chosen), "driver")
    installed = {package_stem(package.name): state for package, state in packages.items() if is_at_version(state, "")}
    return tuple(
        PackageChange(locked_package, packages.get(locked_package), desired_state(recipe, locked_package, after))
        for locked_package in _version_locked_packages(recipe, facts)
        if (state := installed.get(package_stem(locked_package.name))) and not is_at_version(state, after.prefix)
    )


def find_conflicting_packages(recipe: Recipe, facts: Facts, driver: WantedDriver) -> tuple[PackageId, ...]:
    """Return the installed parts that have the same files as the new ones, under a name with a branch in it.

    Ubuntu's archive has the branch in the names of all releases; NVIDIA dropped it at 580.
    """
    moves = (change.id for change in plan_fabric_version_changes(recipe, facts, driver))
    planned = {*(moves if FABRIC_STEP.id in recipe.skip else _version_locked_packages(recipe, facts))}
    stems = {package_stem(package.name) for package in planned}
    installed = sorted(package for package, state in value_or(facts.packages, {}).items() if is_at_version(state, ""))
    return tuple(package for package in installed if package not in planned and package_stem(package.name) in stems)


def _version_locked_packages(recipe: Recipe, facts: Facts) -> Iterator[PackageId]:
    return (package for package in wanted_fabric_packages(recipe, facts) if is_version_locked(package.name))
