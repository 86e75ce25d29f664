"""What a lock asks of single packages: the version that each is to have, and what does not have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from gpunode.catalog.gpudirect import FEATURES
from gpunode.change import KnownAfter, PackageState
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.model import Facts
from gpunode.outcome import Refusal
from gpunode.packages import system
from gpunode.recipe import Recipe
from gpunode.runtimes import RUNTIMES
from gpunode.steps.installed_driver import matches


def wanted_state(recipe: Recipe, name: str, otherwise: KnownAfter) -> PackageState | KnownAfter:
    """What ``name`` is to be: of the locked version, or as it would be without a lock."""
    version = recipe.lock.packages.get(name) if recipe.lock else None
    return PackageState(version) if version else otherwise


def astray(recipe: Recipe, packages: Mapping[str, PackageState], names: Iterable[str]) -> tuple[str, ...]:
    """Those of ``names`` that are installed in another version than the lock holds."""
    locked: Mapping[str, str] = recipe.lock.packages if recipe.lock else {}
    return tuple(
        name
        for name in names
        if name in locked and matches(packages.get(name), "") and packages[name].version != locked[name]
    )


def beside_driver(recipe: Recipe) -> tuple[str, ...]:
    """The locked packages of no other step: the driver, and what came along with it."""
    elsewhere = (*(row.packages for row in RUNTIMES), *(feature.packages for feature in FEATURES))
    others = {*TOOLKIT_PACKAGES, *chain.from_iterable(elsewhere)}
    return tuple(name for name in sorted(recipe.lock.packages) if name not in others) if recipe.lock else ()


def held_elsewhere(facts: Facts, names: Iterable[str], asks: str) -> Refusal:
    """The refusal of packages that somebody holds at a version that is not the wanted one."""
    listed = tuple(names)
    return Refusal(
        what=f"{', '.join(listed)} is held, and {asks} asks for another version",
        why="somebody put it on hold; gpunode breaks no holds",
        hint=f"{system(facts).unhold(listed)}, then run the command again",
    )
