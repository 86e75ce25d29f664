"""An apt preferences file that holds the driver at the chosen branch, written before the index is read."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.change import FileChange, FileState, PackageState
from gpunode.distros.family import PIN_FILE
from gpunode.facts.model import Facts, known, need
from gpunode.recipe import Recipe
from gpunode.steps.outcome import Outcome, Planned, Refusal, Step
from gpunode.steps.selection import choice, family_of, wants_driver


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Driver packages of any other branch are not candidates; a pinning package that agrees is respected.

    NVIDIA's pinning package cannot be installed together with the driver: apt reads its preferences at start, so the
    newest branch would be taken.
    """
    if not wants_driver(recipe, facts):
        return Planned((), "the driver is not gpunode's here")
    found, chosen = family_of(facts), choice(recipe, facts)
    if isinstance(found, Refusal):
        return found
    if isinstance(chosen, Refusal):
        return chosen
    packages = known(facts.packages, {})
    if rival := _other_pinning_package(packages, chosen.branch):
        return Refusal(
            what=f"{rival} pins another driver branch",
            why=f"this node needs branch {chosen.branch}: {chosen.reason}",
            hint=f"apt-get purge {rival}, then run the command again",
        )
    wanted = FileState(found.pin(chosen))
    present = need(facts.file(PIN_FILE), f"what {PIN_FILE} holds")
    if present == wanted:
        return Planned((), f"held at {_held(chosen.branch, chosen.exact)}", chosen.warnings)
    reason = f"driver {_held(chosen.branch, chosen.exact)}, {chosen.flavour} kernel modules: {chosen.reason}"
    return Planned((FileChange(PIN_FILE, present, wanted),), reason, chosen.warnings)


def _held(branch: int, exact: str) -> str:
    return exact or f"branch {branch}"


def _other_pinning_package(packages: Mapping[str, PackageState], branch: int) -> str:
    for name, state in packages.items():
        pinned = name.removeprefix("nvidia-driver-pinning-")
        if pinned != name and not state.config_files_only and pinned.partition(".")[0] != str(branch):
            return name
    return ""


DRIVER_PIN = Step("driver-pin", "driver branch", "sources", plan)
