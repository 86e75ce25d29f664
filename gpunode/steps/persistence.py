"""nvidia-persistenced keeps the driver's state while nothing uses the GPU."""

from __future__ import annotations

from gpunode.catalog.driver import Choice
from gpunode.change import ServiceChange, ServiceState
from gpunode.facts.model import Facts, Unknown, known
from gpunode.facts.project import PLAN
from gpunode.outcome import Outcome, Planned, Step
from gpunode.recipe import Recipe
from gpunode.steps.families import wants_driver
from gpunode.steps.installed_driver import preexisting_driver
from gpunode.steps.module import is_loaded
from gpunode.steps.selection import choice

UNIT = "nvidia-persistenced.service"


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """The daemon is enabled and runs, once the driver is loaded."""
    if not wants_driver(recipe, facts) or not recipe.driver.persistence:
        return Planned((), "not requested", asked=False)
    fact = facts.unit(UNIT)
    if isinstance(fact, Unknown):
        return Planned(
            (), f"systemd does not say ({fact.reason}); the package enables it for the next boot", later=True
        )
    unit = fact.value
    if unit.masked:
        return Planned((), f"{UNIT} is masked", (f"{UNIT} is masked, so the first CUDA call after idle is slow",))
    if not unit.exists and preexisting_driver(recipe, facts):
        return Planned((), f"the installed driver, which stays, has no {UNIT}")
    wanted = ServiceState(enabled=True, active=unit.state.active or _can_run(recipe, facts))
    if unit.exists and _satisfied(unit.state, wanted):
        state = "enabled" + (" and running" if unit.state.active else "; it starts with the driver")
        return Planned((), state, later=fact.probe == PLAN)
    return Planned((ServiceChange(UNIT, unit.state, wanted),), "keeps the GPU initialised while nothing uses it")


def _can_run(recipe: Recipe, facts: Facts) -> bool:
    """Return whether systemd can start the daemon and the loaded module is the installed driver's.

    The daemon cannot talk to a module of another version.
    """
    chosen = choice(recipe, facts)
    return facts.can_start(UNIT) and isinstance(chosen, Choice) and is_loaded(known(facts.loaded_driver, None), chosen)


def _satisfied(state: ServiceState, wanted: ServiceState) -> bool:
    return state.enabled and (state.active or not wanted.active)


PERSISTENCE = Step("persistence", "persistence daemon", "kernel", plan, needs=("driver",), for_driver=True)
