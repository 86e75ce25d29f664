"""nvidia-persistenced keeps the driver's state while nothing uses the GPU."""

from __future__ import annotations

from gpunode.change import ServiceChange, ServiceState
from gpunode.facts.model import Facts, Known, Unknown
from gpunode.recipe import Recipe
from gpunode.steps.outcome import Outcome, Planned, Step
from gpunode.steps.selection import wants_driver

UNIT = "nvidia-persistenced.service"


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """The daemon is enabled and runs, once the driver is loaded."""
    if not wants_driver(recipe, facts) or not recipe.driver.persistence:
        return Planned((), "not asked for")
    fact = facts.unit(UNIT)
    if isinstance(fact, Unknown):
        return Planned((), f"systemd does not say ({fact.reason}); the package enables it for the next boot")
    unit = fact.value
    if unit.masked:
        return Planned((), f"{UNIT} is masked", (f"{UNIT} is masked, so the first CUDA call after idle is slow",))
    loaded = isinstance(facts.loaded_driver, Known) and facts.loaded_driver.value is not None
    wanted = ServiceState(enabled=True, active=loaded or unit.state.active)
    if unit.exists and _satisfied(unit.state, wanted):
        return Planned((), "enabled" + (" and running" if unit.state.active else "; it starts with the driver"))
    return Planned((ServiceChange(UNIT, unit.state, wanted),), "keeps the GPU initialised while nothing uses it")


def _satisfied(state: ServiceState, wanted: ServiceState) -> bool:
    return state.enabled and (state.active or not wanted.active)


PERSISTENCE = Step("persistence", "persistence daemon", "kernel", plan)
