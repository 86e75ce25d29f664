"""Old drivers that conflict with the chosen one leave in the same transaction that brings it."""

from __future__ import annotations

from gpunode.change import PackageChange
from gpunode.facts.model import Facts, known, need
from gpunode.recipe import Recipe
from gpunode.steps.outcome import Outcome, Planned, Refusal, Step
from gpunode.steps.selection import (
    branch_of,
    choice,
    family_of,
    installed_driver_packages,
    own_gpus,
    prefix,
    version_matches,
    wants_driver,
)


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Purges exactly the installed driver packages of another version; never a pattern, never the toolkit.

    A package of the same name in NVIDIA's repository is replaced rather than purged; which these are only the index
    tells, so the transaction's resolution settles it.
    """
    if not wants_driver(recipe, facts):
        return Planned((), "the driver is not gpunode's here")
    found, chosen = family_of(facts), choice(recipe, facts)
    if isinstance(found, Refusal):
        return found
    if isinstance(chosen, Refusal):
        return chosen
    wanted = frozenset(found.driver_packages(chosen, recipe.driver.scope))
    old = {
        name: state
        for name, state in installed_driver_packages(facts).items()
        if name not in wanted and branch_of(state.version) and not version_matches(state.version, prefix(chosen))
    }
    if not old:
        return Planned((), "no package of another driver is installed")
    if held := [name for name, state in old.items() if state.held]:
        return Refusal(
            what=f"{', '.join(held)} is held at a version that conflicts with driver {chosen.branch}",
            why="somebody ran apt-mark hold on it; gpunode breaks no holds",
            hint=f"apt-mark unhold {' '.join(held)}, then run the command again",
        )
    versions = ", ".join(sorted({state.version for state in old.values()}))
    changes = tuple(PackageChange(name, state, None) for name, state in old.items())
    reason = f"{len(old)} packages of driver {versions} conflict with branch {chosen.branch}"
    return Planned(changes, reason, _display(facts))


def _display(facts: Facts) -> tuple[str, ...]:
    """A warning when a display may hang on the card: compute-only driver packages show no desktop."""
    driven = [d.address for d in own_gpus(known(facts.devices, ())) if d.class_code == "0300" and d.driver == "nvidia"]
    desktop = need(facts.packages, "which packages are installed").keys() & {
        "xserver-xorg-core",
        "gdm3",
        "sddm",
        "xwayland",
    }
    if not driven or not desktop:
        return ()
    where, what = ", ".join(driven), ", ".join(sorted(desktop))
    warning = f"a display may hang on {where} ({what} is installed), and the compute-only driver shows none"
    return (f'{warning}; driver.scope = "full" in the recipe keeps it',)


CONFLICTS = Step("conflicts", "old drivers", "packages", plan)
