"""The kernel module: built for the running kernel and the next to boot, and loaded."""

from __future__ import annotations

from dataclasses import replace

from gpunode.catalog.driver import Choice
from gpunode.change import CommandChange, ModuleChange
from gpunode.facts.model import Facts, Kernels, LoadedDriver, ModuleFile, known, need
from gpunode.facts.project import PLAN
from gpunode.outcome import Outcome, Planned, Step, Waits
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import PreexistingDriver, is_version_of, preexisting_driver, prefix
from gpunode.steps.module_hazards import RIVALS
from gpunode.steps.selection import WantedDriver, installed_version, wanted_driver


def plan_build(recipe: Recipe, facts: Facts) -> Outcome:
    """A module of the chosen version is on disk for every kernel that must have one.

    The driver's package has DKMS build them; ``dkms autoinstall`` may exit 0 with a build skipped, so the files are
    what counts. Where DKMS believes that a file is there which is not, it skips the build and has to be overruled.
    """
    if preexisting := preexisting_driver(recipe, facts):
        return _kept(preexisting, facts)
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    chosen = driver.chosen
    kernels = need(facts.kernels, "which kernels are installed")
    missing = missing_for(chosen, kernels, facts)
    if not missing:
        is_planned = facts.module_files.probe == PLAN
        by = "the driver's package builds it" if is_planned else "built"
        return Planned((), f"{by} for {' and '.join(kernels.wanted)}", later=is_planned)
    changes = tuple(_build(kernel, chosen, facts) for kernel in missing)
    return Planned(changes, f"no NVIDIA module of {prefix(chosen)}* for {' and '.join(missing)}")


def _kept(preexisting: PreexistingDriver, facts: Facts) -> Planned:
    """Nothing is built for a driver that stays as it is; a kernel that it lacks is told."""
    # Of a prebuilt module the branch alone is known.
    wanted = need(facts.kernels, "which kernels are installed")
    lacking = missing_for(replace(preexisting.chosen, exact=""), wanted, facts)
    kernel = ", ".join(lacking)
    mend = "install the package that brings it (linux-modules-nvidia-*)" if preexisting.prebuilt else "dkms autoinstall"
    warning = f"driver {preexisting.version} has no module for kernel {kernel}: {mend} before booting that kernel"
    return Planned((), preexisting.reason, (warning,) if lacking else ())


def _build(kernel: str, chosen: Choice, facts: Facts) -> CommandChange:
    believed = known(facts.dkms, {}).get(kernel)
    if believed is None or not is_version_of(believed.version, chosen):
        return CommandChange(("dkms", "autoinstall", "-k", kernel), f"no module for kernel {kernel}")
    argv = ("dkms", "install", "--force", "-m", believed.module, "-v", believed.version, "-k", kernel)
    return CommandChange(argv, f"DKMS has built a module for kernel {kernel}, but its file is gone")


def missing_for(chosen: Choice, kernels: Kernels, facts: Facts) -> tuple[str, ...]:
    """The wanted kernels for which no module of the chosen driver is on disk."""
    files = need(facts.module_files, "which NVIDIA modules are built")
    built = {file.kernel for file in files if _is_of(file, chosen)}
    return tuple(kernel for kernel in kernels.wanted if kernel not in built)


def _is_of(file: ModuleFile, chosen: Choice) -> bool:
    """Whether a module is of the chosen driver; one without a version proves that only where DKMS put it."""
    return is_version_of(file.version, chosen) if file.version else file.dkms


def plan_load(recipe: Recipe, facts: Facts) -> Outcome:
    """The installed module is the loaded one; where only a reboot can change it, the answer is to wait for one."""
    if (preexisting := preexisting_driver(recipe, facts)) and preexisting.loaded.version != preexisting.version:
        versions = f"{preexisting.loaded.version}, and the libraries are {preexisting.version}"
        return Waits("reboot", f"the kernel still runs driver {versions}")
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    if facts.is_image:
        return Planned((), "the kernel of the image loads it at boot", later=True)
    loaded = need(facts.loaded_driver, "whether the NVIDIA driver is loaded")
    if loaded is not None:
        return _loaded(loaded, driver.chosen, installed_version(facts, driver))
    if rivals := sorted(known(facts.modules, frozenset()) & RIVALS):
        reason = f"{', '.join(rivals)} still drives the GPU; it is blacklisted, so the next boot leaves the card free"
        return Waits("reboot", reason)
    return Planned((ModuleChange("nvidia", before=False, after=True),), "the module is not loaded")


def _loaded(loaded: LoadedDriver, chosen: Choice, installed: str) -> Outcome:
    """The loaded driver is the installed one, not just of its branch: libraries work with a module of their version."""
    flavour = "open" if loaded.open_module else "proprietary"
    if is_loaded(loaded, chosen) and installed in {"", loaded.version}:
        return Planned((), f"driver {loaded.version}, {flavour} modules, is loaded")
    has, wants = ("", "") if flavour == chosen.flavour else (f", {flavour} modules", f", {chosen.flavour} modules")
    wanted = f"{installed or chosen.exact or f'branch {chosen.branch}'}{wants}"
    return Waits("reboot", f"the kernel still runs driver {loaded.version}{has}; the node needs {wanted}")


def is_loaded(loaded: LoadedDriver | None, chosen: Choice) -> bool:
    """Whether the running kernel has the chosen driver, in version and flavour."""
    if loaded is None or not is_version_of(loaded.version, chosen):
        return False
    return loaded.open_module == (chosen.flavour == "open")


MODULE_BUILD = Step("module-build", "kernel module", "kernel", plan_build, needs=("driver", "headers"), for_driver=True)
MODULE_LOAD = Step("module-load", "loaded driver", "kernel", plan_load, needs=("driver",), for_driver=True)
