"""The kernel's own drivers for NVIDIA GPUs are kept off the card, before the NVIDIA driver is installed."""

from __future__ import annotations

from gpunode.change import FileChange, FileState, Trigger
from gpunode.facts.model import Facts, known, need
from gpunode.recipe import Recipe
from gpunode.steps.outcome import Outcome, Planned, Step
from gpunode.steps.selection import standing_driver, wants_driver

BLACKLIST = "/etc/modprobe.d/gpunode-nouveau.conf"
# nova_core and nova_drm bind GSP GPUs from Linux 6.18 on; a blacklist line for an absent module does nothing.
_TEXT = b"""# Written by gpunode: these drivers must not bind the GPU that the NVIDIA driver uses.
blacklist nouveau
blacklist nova_core
blacklist nova_drm
options nouveau modeset=0
"""


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Keeps nouveau and nova off the card, in the initramfs too."""
    if not wants_driver(recipe, facts):
        return Planned((), "the driver is not gpunode's here")
    if standing := standing_driver(recipe, facts):
        return Planned((), standing.reason)
    present = need(facts.file(BLACKLIST), f"what {BLACKLIST} holds")
    wanted = FileState(_TEXT)
    if present == wanted:
        return Planned((), "nouveau and nova are blacklisted")
    loaded = sorted(known(facts.modules, frozenset()) & {"nouveau", "nova_core", "nova_drm"})
    now = f" ({', '.join(loaded)} is loaded now)" if loaded else ""
    reason = f"nouveau and nova must not take the GPU before the NVIDIA driver does{now}"
    return Planned((FileChange(BLACKLIST, present, wanted, frozenset({Trigger("initramfs")})),), reason)


NOUVEAU = Step("nouveau", "nouveau and nova", "packages", plan)
