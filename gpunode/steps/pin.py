"""An apt preferences file that holds the driver at the chosen branch, written before the index is read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from gpunode.catalog.conflicts import pinned_names
from gpunode.catalog.driver import Choice
from gpunode.change import FileChange, FileState
from gpunode.distros.family import PIN_FILE
from gpunode.facts.apt_preferences import in_order, parse
from gpunode.facts.model import Facts, known, need
from gpunode.recipe import Recipe
from gpunode.steps.outcome import Outcome, Planned, Refusal, Step
from gpunode.steps.selection import WantedDriver, pinned_by_package, wanted_driver


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Driver packages of any other branch are not candidates; a pinning package that agrees is respected.

    NVIDIA's pinning package cannot be installed together with the driver: apt reads its preferences at start, so the
    newest branch would be taken.
    """
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    chosen = driver.chosen
    pinned = pinned_by_package(known(facts.packages, {}))
    if pinned and not _agree(pinned, chosen):
        return Refusal(
            what=f"nvidia-driver-pinning-{pinned} pins another driver",
            why=f"this node needs {_held(chosen.branch, chosen.exact)}: {chosen.reason}",
            hint=f"apt-get purge nvidia-driver-pinning-{pinned}, then run the command again",
        )
    wanted = FileState(driver.family.pin(chosen))
    present = need(facts.file(PIN_FILE), f"what {PIN_FILE} holds")
    notes = (*chosen.warnings, *_overruled(driver, recipe, facts))
    if present == wanted:
        return Planned((), f"held at {_held(chosen.branch, chosen.exact)}", notes)
    reason = f"driver {_held(chosen.branch, chosen.exact)}, {chosen.flavour} kernel modules: {chosen.reason}"
    return Planned((FileChange(PIN_FILE, present, wanted),), reason, notes)


def _overruled(driver: WantedDriver, recipe: Recipe, facts: Facts) -> Iterator[str]:
    """A warning for every record that apt reads before gpunode's own and that decides over a package of the driver."""
    names = dict.fromkeys((*driver.packages(recipe), *pinned_names(driver.chosen.branch)))
    for path in takewhile(lambda path: path != PIN_FILE, in_order({*facts.files, PIN_FILE})):
        state = known(facts.file(path), None)
        for record in parse(path, state.content.decode("utf-8", "replace")) if state else ():
            name = next(filter(record.names, names), "")
            if name and not _is_for(record.pin, driver.chosen):
                place = f"{record.file}:{record.line}"
                yield f"{place} decides over {name} before {PIN_FILE} does: apt may install another driver; remove it"


def _is_for(pin: str, chosen: Choice) -> bool:
    """Whether a record is about the chosen versions, which it may want as much as it likes."""
    kind, _, version = pin.partition(" ")
    return kind == "version" and f"{version.strip().rstrip('*-')}.".replace("..", ".").startswith(f"{chosen.branch}.")


def _held(branch: int, exact: str) -> str:
    return exact or f"branch {branch}"


def _agree(pinned: str, chosen: Choice) -> bool:
    """Whether both leave some version: one is the other, or the branch of it."""
    wanted = chosen.exact or str(chosen.branch)
    return f"{pinned}.".startswith(f"{wanted}.") or f"{wanted}.".startswith(f"{pinned}.")


DRIVER_PIN = Step("driver-pin", "driver branch", "sources", plan)
