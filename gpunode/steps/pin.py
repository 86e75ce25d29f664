"""A pin that holds the driver at the chosen branch, written before the package index is read."""

from __future__ import annotations

from gpunode.catalog.conflicts import pinned_names
from gpunode.catalog.driver import Choice
from gpunode.change import FileChange, FileState
from gpunode.facts.model import Facts, known, need
from gpunode.outcome import Outcome, Planned, Refusal, Step
from gpunode.packages import system
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import pinned_by_package
from gpunode.steps.selection import WantedDriver, wanted_driver


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Driver packages of any other branch are not candidates; a pinning package that agrees is respected.

    NVIDIA's pinning package cannot be installed together with the driver: pins are read before a transaction starts, so
    the newest branch would be taken.
    """
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    chosen, package_system = driver.chosen, system(facts)
    pinned = pinned_by_package(known(facts.packages, {}))
    if pinned and not _agree(pinned, chosen):
        return Refusal(
            what=f"nvidia-driver-pinning-{pinned} pins another driver",
            why=f"this node needs {_held(chosen.branch, chosen.exact)}: {chosen.reason}",
            hint=f"{package_system.purge((f'nvidia-driver-pinning-{pinned}',))}\nthen run the same command again",
        )
    wanted = FileState(package_system.pin(chosen, driver.family.origins))
    present = need(facts.file(package_system.pin_file), f"what {package_system.pin_file} holds")
    names = dict.fromkeys((*(package.name for package in driver.packages(recipe)), *pinned_names(chosen.branch)))
    notes = (*chosen.warnings, *package_system.overriding(facts, chosen, names))
    if present == wanted:
        return Planned((), f"held at {_held(chosen.branch, chosen.exact)}", notes)
    reason = f"driver {_held(chosen.branch, chosen.exact)}, {chosen.flavour} kernel modules: {chosen.reason}"
    return Planned((FileChange(package_system.pin_file, present, wanted),), reason, notes)


def _held(branch: int, exact: str) -> str:
    return exact or f"branch {branch}"


def _agree(pinned: str, chosen: Choice) -> bool:
    """Whether both leave some version: one is the other, or the branch of it."""
    wanted = chosen.exact or str(chosen.branch)
    return f"{pinned}.".startswith(f"{wanted}.") or f"{wanted}.".startswith(f"{pinned}.")


DRIVER_PIN = Step("driver-pin", "driver branch", "sources", plan, for_driver=True)
