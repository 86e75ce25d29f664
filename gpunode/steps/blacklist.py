"""The kernel's own drivers for NVIDIA GPUs are kept off the card, before the NVIDIA driver is installed."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.change import FileChange, FileState, Trigger
from gpunode.facts import modprobe
from gpunode.facts.model import Facts, known, need
from gpunode.outcome import Outcome, Planned, Step
from gpunode.recipe import Recipe
from gpunode.steps.families import wants_driver
from gpunode.steps.installed_driver import preexisting_driver

BLACKLIST = "/etc/modprobe.d/gpunode-nouveau.conf"
# nova_core and nova_drm bind GSP GPUs from Linux 6.18 on; a blacklist line for an absent module does nothing.
_RIVALS = frozenset({"nouveau", "nova_core", "nova_drm"})
_DRIVER = frozenset({"nvidia", "nvidia_drm", "nvidia_modeset", "nvidia_uvm"})
_DOES_NOTHING = frozenset({"true", "false", ":"})
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
    if preexisting := preexisting_driver(recipe, facts):
        return Planned((), preexisting.reason)
    notes = tuple(_overruled(facts))
    present = need(facts.file(BLACKLIST), f"what {BLACKLIST} holds")
    wanted = FileState(_TEXT)
    if present == wanted:
        return Planned((), "nouveau and nova are blacklisted", notes)
    loaded = sorted(known(facts.modules, frozenset()) & _RIVALS)
    now = f" ({', '.join(loaded)} is loaded now)" if loaded else ""
    reason = f"nouveau and nova must not take the GPU before the NVIDIA driver does{now}"
    return Planned((FileChange(BLACKLIST, present, wanted, frozenset({Trigger("initramfs")})),), reason, notes)


def _overruled(facts: Facts) -> Iterator[str]:
    """A note for every line by which the node loads nouveau all the same, or keeps NVIDIA's modules out."""
    for one in modprobe.loaded_by_name(facts):
        if one.words[0] in _RIVALS:
            yield f"{one.file}:{one.line} loads {one.words[0]} by name, despite any blacklist: remove it"
    for one in modprobe.directives(facts):
        if one.file != BLACKLIST and (effect := _effect(one.words)):
            yield f"{one.file}:{one.line} {effect}: remove it"


def _effect(words: tuple[str, ...]) -> str:
    """What a directive of modprobe does against the NVIDIA driver; empty where it does nothing."""
    match words:
        case ("blacklist", module) if module in _DRIVER:
            return f"keeps {module} from being loaded for its GPU"
        case ("install", module, program, *_) if module in _DRIVER and program.rpartition("/")[2] in _DOES_NOTHING:
            return f"makes modprobe run {program} instead of loading {module}"
        case ("alias", module, "off") if module in _DRIVER:
            return f"disables {module}"
        case ("softdep", module, *others) if rivals := sorted(_RIVALS.intersection(others)):
            return f"loads {', '.join(rivals)} along with {module}"
        case ("options", "nouveau", *options) if any(o.startswith("modeset=") and o != "modeset=0" for o in options):
            return "makes nouveau drive the display when it is loaded"
        case _:
            return ""


NOUVEAU = Step("nouveau", "nouveau and nova", "packages", plan)
