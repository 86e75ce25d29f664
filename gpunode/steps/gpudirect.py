"""GPUDirect RDMA, GPUDirect Storage (GDS) and GDRCopy: what each needs, its packages and its kernel module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpunode.catalog.gpudirect import FEATURES, GDRCOPY_FEATURE, GpuDirectFeature
from gpunode.change import FileState, KnownAfter, ModuleChange, PackageChange, ServiceChange, ServiceState
from gpunode.command import sudo_gpunode
from gpunode.facts.model import Facts, Known, plan_file, require, value_or
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.outcome import Blocked, Planned, Refusal, Step, StepOutcome, StepPackageRules
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import (
    PLATFORM_QUESTION,
    explain_manual_marks,
    is_at_version,
    plan_manual_marks,
    preexisting_driver,
)
from gpunode.steps.kernel import MODULE_LOAD_STEP
from gpunode.steps.packages import desired_state, find_packages_off_lock, held_packages_refusal
from gpunode.steps.selection import WantedDriver, unlocked_package_refusal, wanted_driver

GPUDIRECT_MODULES_FILE: Final = "/etc/modules-load.d/gpunode-gpudirect.conf"
_MODULES_FILE_HEADER: Final = "# Written by gpunode: kernel modules of GPUDirect, loaded at boot.\n"
_KERNEL_MAJOR_MINOR: Final = Pattern(r"(\d+)\.(\d+)")
# Excludes mainline builds for Ubuntu (6.5.13-060513-generic) and self-built kernels.
_UBUNTU_KERNEL: Final = Pattern(r"\d+\.\d+\.0-\d{1,4}-[a-z].*")
# The kernel packages of MLNX_OFED and DOCA-OFED, prebuilt or for DKMS: NVIDIA's, and Ubuntu's own from 26.04 on
# (https://ubuntu.com/server/docs/how-to/networking/install-doca-ofed/).
_OFED_PACKAGE_NAME: Final = Pattern(r"(?:mlnx-ofed-kernel|doca-kernel|linux-modules-doca-ofed)-.+|doca-ofed-.+-dkms")


def wanted_features(recipe: Recipe) -> tuple[GpuDirectFeature, ...]:
    """Return the requested features, in the order of the table."""
    table = recipe.gpudirect
    choices = (table.rdma == "dma-buf", table.rdma == "peermem", table.gds, table.gdrcopy)
    return tuple(feature for feature, wanted in zip(FEATURES, choices, strict=True) if wanted)


def feature_packages(recipe: Recipe) -> tuple[PackageId, ...]:
    """Return the packages that the recipe's features need."""
    return tuple(PackageId(name) for feature in wanted_features(recipe) for name in feature.packages)


# -- what the node must have


@dataclass(frozen=True, slots=True)
class _DriverTraits:
    """The driver that this node has or gets.

    Attributes:
        is_built_by_dkms: whether DKMS builds its modules, so that its source and the kernel's headers are there.
    """

    label: str
    open_modules: bool
    is_built_by_dkms: bool


def _find_driver(recipe: Recipe, facts: Facts) -> _DriverTraits | Refusal:
    driver = wanted_driver(recipe, facts)
    if isinstance(driver, Refusal):
        return driver
    if isinstance(driver, WantedDriver):
        chosen = driver.chosen
        label = f"driver {chosen.exact or chosen.branch}"
        return _DriverTraits(label, chosen.flavour == "open", is_built_by_dkms=not driver.modules)
    preexisting = preexisting_driver(recipe, facts)
    loaded = preexisting.loaded if preexisting else value_or(facts.loaded_driver, None)
    if loaded is None:
        return Refusal(
            what="GPUDirect needs a driver, but none is loaded and the recipe installs none",
            why="what GPUDirect can do depends on the version and the kernel modules of the driver",
            hint="set driver.version in the recipe, or load the driver first (modprobe nvidia)",
        )
    is_prebuilt = (
        preexisting.prebuilt if preexisting else not any(file.dkms for file in value_or(facts.module_files, ()))
    )
    return _DriverTraits(f"driver {loaded.version}", loaded.open_module, is_built_by_dkms=not is_prebuilt)


def _find_unsupported_feature_refusal(
    recipe: Recipe, facts: Facts, features: Sequence[GpuDirectFeature]
) -> Refusal | None:
    """Return why this node cannot have one of ``features``; None if it can have all."""
    driver = _find_driver(recipe, facts)
    if isinstance(driver, Refusal):
        return driver
    return next((obstacle for feature in features if (obstacle := _find_obstacle(feature, facts, driver))), None)


def _find_obstacle(feature: GpuDirectFeature, facts: Facts, driver: _DriverTraits) -> Refusal | None:
    kernels = require(facts.kernels, "which kernels are installed").wanted
    if old := [kernel for kernel in kernels if _parse_kernel_version(kernel) < feature.oldest_kernel]:
        oldest = ".".join(map(str, feature.oldest_kernel))
        return Refusal(
            what=f"{feature.name} needs Linux {oldest} or newer",
            why=f"this node has kernel {', '.join(old)}, and the recipe says {feature.request}",
            hint=f"boot a newer kernel, or {feature.instead}",
        )
    if feature.needs_open_modules and not driver.open_modules:
        return Refusal(
            what=f"{feature.name} needs the open kernel modules of the driver",
            why=f"this node has or gets {driver.label} with proprietary ones, and the recipe says {feature.request}",
            hint=f'set driver.kernel_module_type = "open" if all GPUs are Turing or newer, or {feature.instead}',
        )
    if feature.packages and (refusal := _find_build_obstacle(feature, facts, driver)):
        return refusal
    if feature.needs_ofed and not (_has_ofed_stack(feature, facts) or _have_peer_memory(kernels, facts)):
        return Refusal(
            what=f"{feature.name} needs MLNX_OFED or DOCA-OFED",
            why=f"neither is installed, and {feature.module} cannot use the RDMA stack of this node's kernels",
            hint=f"install one of them, then build the driver's modules again for it; or {feature.instead}",
        )
    return None


def _find_build_obstacle(feature: GpuDirectFeature, facts: Facts, driver: _DriverTraits) -> Refusal | None:
    """Refuse if DKMS could not build the module of ``feature``."""
    if not driver.is_built_by_dkms:
        return Refusal(
            what=f"{feature.name} cannot be built for this driver",
            why=f"DKMS builds {feature.module} from the driver's source, and {driver.label} came as prebuilt modules",
            hint=f"let gpunode replace it with NVIDIA's packages (driver.version and --upgrade), or {feature.instead}",
        )
    built_for = require(facts.headers, "which kernels have headers")
    wanted = require(facts.kernels, "which kernels are installed").wanted
    if bare := [kernel for kernel in wanted if kernel not in built_for]:
        return Refusal(
            what=f"{feature.name} needs the kernel headers of {' and '.join(bare)}",
            why=f"DKMS builds {feature.module} with them, and this run does not install them",
            hint=f"{sudo_gpunode('setup', '--only', 'headers')}, or {feature.instead}",
        )
    return None


def _parse_kernel_version(kernel: str) -> tuple[int, int]:
    match = _KERNEL_MAJOR_MINOR.match(kernel)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _has_ofed_stack(feature: GpuDirectFeature, facts: Facts) -> bool:
    """Return True if an RDMA stack with peer memory is there; a loaded module proves one."""
    packages = require(facts.packages, "which packages are installed")
    is_installed = any(
        is_at_version(state, "") and _OFED_PACKAGE_NAME.fullmatch(package.name) for package, state in packages.items()
    )
    return is_installed or feature.module in value_or(facts.modules, frozenset())


def _have_peer_memory(kernels: Sequence[str], facts: Facts) -> bool:
    """Return whether the RDMA stack of all ``kernels`` has peer memory: Ubuntu's own had it up to 6.5.

    Source: https://discourse.ubuntu.com/t/nvidia-gpudirect-over-infiniband-migration-paths/44425
    """
    is_ubuntu = isinstance(facts.distro, Known) and facts.distro.value.id == "ubuntu"
    is_own = is_ubuntu and all(map(_UBUNTU_KERNEL.fullmatch, kernels))
    return is_own and all("-nvidia" in kernel or _parse_kernel_version(kernel) < (6, 8) for kernel in kernels)


# -- the steps


def _plan_if_unneeded(recipe: Recipe, facts: Facts) -> Planned | None:
    """Plan nothing if GPUDirect is not requested, its kernel modules are another system's, or the driver waits."""
    if not wanted_features(recipe):
        return Planned((), "not requested", is_requested=False)
    if not require(facts.platform, PLATFORM_QUESTION).can_install_kernel_driver:
        return Planned((), "its kernel modules belong to the host of this system", is_deferred=True)
    driver = wanted_driver(recipe, facts)
    return driver if isinstance(driver, Planned) and driver.is_deferred else None


def plan(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the packages of the requested features; installed ones stay."""
    if (nothing := _plan_if_unneeded(recipe, facts)) is not None:
        return nothing
    features = wanted_features(recipe)
    if refusal := _find_unsupported_feature_refusal(recipe, facts, features):
        return refusal
    packages, ids = require(facts.packages, "which packages are installed"), feature_packages(recipe)
    if recipe.lock and (unknown := [package for package in ids if package not in recipe.lock.packages]):
        return unlocked_package_refusal(recipe.lock, unknown[0])
    missing = (
        ids if recipe.upgrade else tuple(package for package in ids if not is_at_version(packages.get(package), ""))
    )
    strays = find_packages_off_lock(recipe, packages, ids)
    if recipe.lock and (held_packages := [stray for stray in strays if packages[stray].held]):
        return held_packages_refusal(held_packages, recipe.lock.file)
    wanted = tuple(dict.fromkeys((*missing, *strays)))
    changes = tuple(
        PackageChange(
            package,
            packages.get(package),
            desired_state(
                recipe, package, KnownAfter(why="gdrcopy" if package.name in GDRCOPY_FEATURE.packages else "gds")
            ),
        )
        for package in wanted
    )
    marked = plan_manual_marks(packages, (package for package in ids if package not in wanted))
    if changes:
        built = _join_feature_names([feature for feature in features if feature.packages])
        return Planned((*changes, *marked), f"{built}: built by DKMS, for the driver and kernel of this node")
    if marked:
        return Planned(marked, explain_manual_marks(marked))
    installed = f"{', '.join(map(str, ids))} installed" if ids else "no package needed"
    return Planned((), f"{_join_feature_names(features)}: {installed}, kernel and driver fit")


def _join_feature_names(features: Sequence[GpuDirectFeature]) -> str:
    return ", ".join(feature.name for feature in features)


def plan_modules(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan to load the modules, now if the driver is loaded, and at each boot."""
    if (nothing := _plan_if_unneeded(recipe, facts)) is not None:
        return nothing
    features = tuple(feature for feature in wanted_features(recipe) if feature.module)
    if refusal := _find_unsupported_feature_refusal(recipe, facts, features):
        return refusal
    modules = tuple(feature.module for feature in features)
    text = "".join((_MODULES_FILE_HEADER, *(f"{module}\n" for module in modules)))
    file = plan_file(facts, GPUDIRECT_MODULES_FILE, FileState(text.encode()) if modules else None)
    if not modules:
        return Planned(file, "DMA-BUF needs no module beside the driver's")
    if not _is_driver_loaded(recipe, facts):
        return Planned(file, f"{', '.join(modules)}: loaded with the driver at the next boot", is_deferred=not file)
    loaded = require(facts.modules, "which kernel modules are loaded")
    loads = tuple(ModuleChange(module, before=False, after=True) for module in modules if module not in loaded)
    starts = tuple(_plan_service_starts(features, facts))
    if not (file or loads or starts):
        return Planned((), f"{', '.join(modules)} loaded, now and at boot")
    return Planned((*file, *loads, *starts), f"{_join_feature_names(features)}: loaded now and at each boot")


def _is_driver_loaded(recipe: Recipe, facts: Facts) -> bool:
    """Return True if the loaded driver is the intended one."""
    if facts.is_image or isinstance(MODULE_LOAD_STEP.plan(recipe, facts), Blocked):
        return False
    return value_or(facts.loaded_driver, None) is not None


def _plan_service_starts(features: Sequence[GpuDirectFeature], facts: Facts) -> Iterator[ServiceChange]:
    """Yield the starts of services that make device nodes; their package starts them once, even without a driver."""
    for feature in features:
        fact = facts.unit(feature.unit)
        if feature.unit and isinstance(fact, Known) and fact.value.exists and not fact.value.masked:
            running = ServiceState(enabled=True, active=fact.value.state.active or facts.can_start(feature.unit))
            if fact.value.state != running:
                yield ServiceChange(feature.unit, fact.value.state, running)


GPUDIRECT_STEP = Step(
    "gpudirect",
    "GPUDirect",
    "packages",
    plan,
    serves=(),
    needs=("driver",),
    packages=StepPackageRules(
        lambda recipe, _: feature_packages(recipe),
        {PackageId(name) for feature in FEATURES for name in feature.packages}.__contains__,
    ),
    folder_files=(GPUDIRECT_MODULES_FILE,),
)
GPUDIRECT_MODULES_STEP = Step(
    "gpudirect-modules",
    "GPUDirect modules",
    "kernel",
    plan_modules,
    serves=("gpudirect",),
    needs=("gpudirect", "module-load"),
)
