"""The kernel module: built for the running kernel and the next to boot, and loaded."""

from __future__ import annotations

from gpunode.catalog.driver import Choice
from gpunode.change import Change, CommandChange, ModuleChange
from gpunode.facts.model import Facts, Kernels, known, need
from gpunode.recipe import Recipe
from gpunode.steps.outcome import Outcome, Planned, Refusal, Step, Waits
from gpunode.steps.selection import choice, prefix, wants_driver

RIVALS = frozenset({"nouveau", "nova_core", "nova_drm"})


def plan_build(recipe: Recipe, facts: Facts) -> Outcome:
    """A module of the chosen version is on disk for every kernel that must have one.

    The driver's package has DKMS build them; ``dkms autoinstall`` may exit 0 with a build skipped, so the files are
    what counts.
    """
    if not wants_driver(recipe, facts):
        return Planned((), "the driver is not gpunode's here")
    chosen = choice(recipe, facts)
    if isinstance(chosen, Refusal):
        return chosen
    kernels = need(facts.kernels, "which kernels are installed")
    missing = missing_for(chosen, kernels, facts)
    if not missing:
        return Planned((), f"built for {' and '.join(kernels.wanted)}")
    changes: list[Change] = [
        CommandChange(("dkms", "autoinstall", "-k", kernel), f"no module for kernel {kernel}") for kernel in missing
    ]
    return Planned(tuple(changes), f"no NVIDIA module of {prefix(chosen)}* for {' and '.join(missing)}")


def missing_for(chosen: Choice, kernels: Kernels, facts: Facts) -> tuple[str, ...]:
    """The wanted kernels for which no module of the chosen driver is on disk."""
    files = need(facts.module_files, "which NVIDIA modules are built")
    wanted = prefix(chosen).rstrip("-")
    return tuple(
        kernel
        for kernel in kernels.wanted
        if not any(f.kernel == kernel and (not f.version or f.version.startswith(wanted)) for f in files)
    )


def plan_load(recipe: Recipe, facts: Facts) -> Outcome:
    """The installed module is the loaded one; where only a reboot can change it, the answer is to wait for one."""
    if not wants_driver(recipe, facts):
        return Planned((), "the driver is not gpunode's here")
    if not need(facts.platform, "what kind of machine this is").is_live:
        return Planned((), "an image: its kernel loads the module when it boots")
    chosen = choice(recipe, facts)
    if isinstance(chosen, Refusal):
        return chosen
    loaded = need(facts.loaded_driver, "whether the NVIDIA driver is loaded")
    if loaded is not None:
        return _loaded(loaded.version, chosen)
    if rivals := sorted(known(facts.modules, frozenset()) & RIVALS):
        reason = f"{', '.join(rivals)} still drives the GPU; it is blacklisted, so the next boot leaves the card free"
        return Waits("reboot", reason)
    return Planned((ModuleChange("nvidia", before=False, after=True),), "the module is not loaded")


def _loaded(version: str, chosen: Choice) -> Outcome:
    wanted = prefix(chosen).rstrip("-")
    if version.startswith(wanted):
        return Planned((), f"driver {version} is loaded")
    return Waits("reboot", f"the kernel still runs driver {version}; {wanted}* is installed")


MODULE_BUILD = Step("module-build", "kernel module", "kernel", plan_build)
MODULE_LOAD = Step("module-load", "loaded driver", "kernel", plan_load)
