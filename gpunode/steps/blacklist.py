"""The kernel's own drivers for NVIDIA GPUs are kept off the card, before the NVIDIA driver is installed."""

from __future__ import annotations

from gpunode.change import FileChange, FileState, Trigger
from gpunode.facts.model import Facts, known, need
from gpunode.facts.probes import BOOT_LOADER, DRIVER_PARAMETERS, KERNEL_ARGUMENTS
from gpunode.outcome import Outcome, Planned, Step
from gpunode.recipe import Recipe
from gpunode.steps.families import wants_driver
from gpunode.steps.installed_driver import preexisting_driver
from gpunode.steps.module_hazards import BLACKLIST, RIVALS, hazards

_TEXT = b"""# Written by gpunode: these drivers must not bind the GPU that the NVIDIA driver uses.
blacklist nouveau
blacklist nova_core
blacklist nova_drm
options nouveau modeset=0
"""


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Keeps nouveau and nova off the card, in the initramfs too."""
    if not wants_driver(recipe, facts):
        return Planned((), "this driver is not managed by gpunode")
    notes = hazards(facts)
    if preexisting := preexisting_driver(recipe, facts):
        return Planned((), preexisting.reason, notes)
    present = need(facts.file(BLACKLIST), f"what {BLACKLIST} holds")
    wanted = FileState(_TEXT)
    if present == wanted:
        return Planned((), "nouveau and nova are blacklisted", notes)
    loaded = sorted(known(facts.modules, frozenset()) & RIVALS)
    now = f" ({', '.join(loaded)} is loaded now)" if loaded else ""
    reason = f"nouveau and nova must not take the GPU before the NVIDIA driver does{now}"
    return Planned((FileChange(BLACKLIST, present, wanted, frozenset({Trigger("initramfs")})),), reason, notes)


NOUVEAU = Step(
    "nouveau",
    "nouveau and nova",
    "packages",
    plan,
    for_driver=True,
    files=(KERNEL_ARGUMENTS, BOOT_LOADER, DRIVER_PARAMETERS),
)
