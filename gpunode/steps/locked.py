"""What a lock asks of single packages: the version that each is to have, and what does not have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from gpunode.change import KnownAfter, PackageState
from gpunode.facts.model import Facts
from gpunode.outcome import Refusal
from gpunode.package_id import PackageId
from gpunode.packages import system
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import matches


def wanted_state(recipe: Recipe, package: PackageId, otherwise: PackageState | KnownAfter) -> PackageState | KnownAfter:
    """What ``package`` is to be: of the locked version, or as it would be without a lock."""
    version = recipe.lock.packages.get(package) if recipe.lock else None
    return PackageState(version) if version else otherwise


def astray(
    recipe: Recipe, packages: Mapping[PackageId, PackageState], asked: Iterable[PackageId]
) -> tuple[PackageId, ...]:
    """Those of ``asked`` that are installed in another version than the lock holds."""
    locked: Mapping[PackageId, str] = recipe.lock.packages if recipe.lock else {}
    there = (one for one in asked if one in locked and matches(packages.get(one), ""))
    return tuple(one for one in there if packages[one].version != locked[one])


def beside_driver(recipe: Recipe) -> tuple[PackageId, ...]:
    """The locked packages of no other step: the driver, and what came along with it."""
    from gpunode.steps.table import STEPS  # which imports this module's users

    owners = [step.packages.owns for step in STEPS if step.packages]
    locked = recipe.lock.packages if recipe.lock else ()
    return tuple(one for one in sorted(locked) if not any(owns(one) for owns in owners))


def held_elsewhere(facts: Facts, packages: Iterable[PackageId], asks: str) -> Refusal:
    """The refusal of packages that somebody holds at a version that is not the wanted one."""
    listed = tuple(packages)
    return Refusal(
        what=f"{', '.join(map(str, listed))} is held, and {asks} asks for another version",
        why="somebody put it on hold; gpunode breaks no holds",
        hint=f"{system(facts).unhold(listed)}\nthen run the same command again",
        held=listed,
    )


def with_all_holds(refusals: Sequence[Refusal], facts: Facts) -> Refusal:
    """Return the first of ``refusals``; where it is for a hold, with the holds of all others in one command."""
    first, *others = refusals
    held = tuple(dict.fromkeys(chain.from_iterable(one.held for one in refusals)))
    if not first.held or held == first.held:
        return first
    return replace(
        first,
        what=f"{', '.join(map(str, held))} are held, and this recipe needs them in other versions or not at all",
        why="\n".join((*(one.what for one in (first, *others) if one.held), first.why)),
        hint=f"{system(facts).unhold(held)}\nthen run the same command again",
        held=held,
    )
