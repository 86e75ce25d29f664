"""The driver that a node has: its packages, branches and versions, and whether it stays although it is not NVIDIA's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Final, Literal, TypeVar

from gpunode.catalog import branches
from gpunode.catalog.branches import ModuleFlavour
from gpunode.catalog.conflicts import (
    SEPARATELY_VERSIONED_IN_DISTROS,
    STANDALONE_PREFIX,
    STANDALONE_TOOL_PACKAGES,
    driver_packages,
    purge_reason,
    upstream_version,
)
from gpunode.catalog.driver import DriverChoice, choose_driver
from gpunode.change import PackageChange, PackageState
from gpunode.distros import family, list_supported_distros
from gpunode.distros.family import Family
from gpunode.facts.model import Facts, Known, LoadedDriver, require, value_or
from gpunode.fast_dataclass import dataclass
from gpunode.outcome import Refusal
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.packages.version import has_prefix, without_epoch
from gpunode.recipe import DriverSource, KernelModuleType, Recipe
from gpunode.steps.gpus import find_models, find_own_gpus

PLATFORM_QUESTION = "whether this is bare metal, a virtual machine or a container (a container gets no driver)"


def wants_driver(recipe: Recipe, facts: Facts) -> bool:
    """Return whether gpunode installs the driver: the recipe requests it, and the kernel is this machine's."""
    return recipe.driver.version != "none" and require(facts.platform, PLATFORM_QUESTION).can_install_kernel_driver


T = TypeVar("T")


def remember_last(find: Callable[[Recipe, Facts], T]) -> Callable[[Recipe, Facts], T]:
    """Return ``find`` with a memory of its last answer, since many steps need it for the same facts."""
    last: tuple[Recipe, Facts, T] | None = None

    @wraps(find)
    def find_or_remember(recipe: Recipe, facts: Facts) -> T:
        nonlocal last
        if last is None or last[0] is not recipe or last[1] is not facts:
            last = recipe, facts, find(recipe, facts)
        return last[2]

    return find_or_remember


def family_of(facts: Facts) -> Family | Refusal:
    """Return the distribution's family, or why gpunode does not support it."""
    distro = require(facts.distro, "which distribution this is")
    known_family = family(distro)
    if known_family is None:
        return Refusal(
            what=f"{distro.name} is not supported",
            why=f"NVIDIA's repositories and package names are known for {list_supported_distros()}; "
            f"/etc/os-release says ID={distro.id} VERSION_ID={distro.version_id}",
            hint='use one of these, or install the driver by hand and run gpunode with driver.version = "none"',
        )
    return known_family


PINNING_PACKAGE_PREFIX = "nvidia-driver-pinning-"
BRANCH_KINDS: Final = frozenset({"lts", "production"})
"""Kinds of branches that a recipe may name instead of a branch."""
_BRANCH_IN_VERSION = re.compile(r"(\d{3})\.(?:\d|\Z)")
# The libraries through which programs reach a GPU: Debian's and NVIDIA's, and Ubuntu's (libnvidia-compute-580-server).
_LIBRARY_PACKAGE_NAME = re.compile(r"libcuda1|libnvidia-ml1|libnvidia-compute(?:-\d{3}(?:-server)?)?")
_CUDA_OR_NVML_PACKAGES = frozenset({"libcuda1", "libnvidia-ml1"})
# Several firmware versions may be installed side by side; nothing on a GPU needs the others at its version.
_PREFIXES_WITH_OWN_VERSION = (STANDALONE_PREFIX, "nvidia-firmware-", "nvidia-fabricmanager", "nvidia-persistenced")


@dataclass(frozen=True, slots=True)
class PreexistingDriver:
    """A complete driver from another source than NVIDIA's repository, such as Ubuntu's, which is kept.

    Attributes:
        version: of its libraries, and of its modules on disk.
        loaded: the driver in the running kernel; of the same branch.
        prebuilt: whether a package contains the modules, so that none is built here.
    """

    version: str
    loaded: LoadedDriver
    chosen: DriverChoice
    prebuilt: bool

    @property
    def reason(self) -> str:
        """Why it is kept, and how to get another."""
        return self.chosen.reason


@remember_last
def preexisting_driver(recipe: Recipe, facts: Facts) -> PreexistingDriver | None:
    """Return the driver of somebody else's packages, if it works, is maintained and drives every GPU.

    Its packages have other names than NVIDIA's. Completing it with NVIDIA's would replace it, under Secure Boot with
    modules whose key the firmware may not know.
    """
    if recipe.driver.version == "none" or not (
        isinstance(facts.platform, Known) and facts.platform.value.can_install_kernel_driver
    ):
        return None
    loaded, pinned = value_or(facts.loaded_driver, None), pinned_by_nvidia_package(value_or(facts.packages, {}))
    branch = branch_of(loaded.version) if loaded else 0
    if loaded is None or not is_branch_maintained(branch) or recipe.upgrade or recipe.lock is not None or pinned:
        return None
    if value_or(facts.run_installer, default=False) or not isinstance(family := family_of(facts), Family):
        return None
    flavour: ModuleFlavour = "open" if loaded.open_module else "proprietary"
    chosen = _loaded_driver_as_choice(recipe, facts, branch, flavour)
    version = _library_version(value_or(facts.packages, {}))
    modules = _dkms_origin_of_running_modules(version, facts) if branch_of(version) == branch else ()
    if chosen is None or not modules or not is_version_of(version, chosen):
        return None
    # For prebuilt modules only the branch is known: they were upgraded with the libraries, and wait for a reboot.
    if version != loaded.version and any(modules):
        return None
    flavours: tuple[ModuleFlavour, ...] = ("open", "proprietary")
    # A recipe that requests the distribution's own driver makes gpunode manage that one, and replace NVIDIA's.
    sources: tuple[DriverSource, ...] = ("nvidia",) if recipe.driver.source == "nvidia" else ("nvidia", "distro")
    candidates = (replace(chosen, flavour=flavour, source=source) for flavour in flavours for source in sources)
    if any(
        is_dkms_package_installed(family.dkms_package(choice), choice, facts)
        or is_chosen_driver_installed(facts, choice, recipe)
        for choice in candidates
    ):
        return None
    reason = (
        f"driver {version}, from other packages than those of NVIDIA's repository, is maintained and drives every GPU, "
        "so it stays as it is; --driver with another branch, or --upgrade, replaces it"
    )
    return PreexistingDriver(version, loaded, replace(chosen, reason=reason), not any(modules))


def _loaded_driver_as_choice(recipe: Recipe, facts: Facts, branch: int, flavour: ModuleFlavour) -> DriverChoice | None:
    """Return the loaded driver as a choice, if it drives all GPUs and satisfies the recipe."""
    devices = value_or(facts.devices, ())
    if flavour not in allowed_flavours(recipe) or any(
        gpu.driver not in {None, "nvidia"} for gpu in find_own_gpus(devices)
    ):
        return None
    version = str(branch)
    if recipe.driver.version in BRANCH_KINDS:
        if not is_branch_of_kind(branch, recipe.driver.version):
            return None
    elif recipe.driver.version != "auto":
        requested = choose_driver(find_models(devices), replace(recipe.driver, kernel_module_type=flavour))
        if not isinstance(requested, DriverChoice) or requested.branch != branch:
            return None
        version = requested.exact or version
    chosen = choose_driver(find_models(devices), replace(recipe.driver, version=version, kernel_module_type=flavour))
    return chosen if isinstance(chosen, DriverChoice) else None


def _library_version(packages: Mapping[PackageId, PackageState]) -> str:
    """Return the common version of the installed driver and its libraries; empty for none, or for two."""
    version_by_package = {
        package: version
        for package in driver_packages(packages)
        if not packages[package].config_files_only
        and package.name not in STANDALONE_TOOL_PACKAGES
        and not package.name.startswith(_PREFIXES_WITH_OWN_VERSION)
        and (version := upstream_version(packages[package].version))
    }
    versions = set(version_by_package.values())
    has_library = any(_LIBRARY_PACKAGE_NAME.fullmatch(package.name) for package in version_by_package)
    return versions.pop() if has_library and len(versions) == 1 else ""


def _dkms_origin_of_running_modules(version: str, facts: Facts) -> tuple[bool, ...]:
    """Return for each module of ``version`` for the running kernel whether DKMS built it."""
    running = facts.kernels.value.running if isinstance(facts.kernels, Known) else None
    files = (file for file in value_or(facts.module_files, ()) if file.kernel == running)
    return tuple(file.dkms for file in files if file.version and f"{version}.".startswith(f"{file.version}."))


def pinned_by_nvidia_package(packages: Mapping[PackageId, PackageState]) -> str:
    """Return the branch or version that NVIDIA's pinning package holds; empty when none is installed."""
    # Filter by name first: a node has a thousand packages, and every step calls this.
    held = (
        package
        for package in packages
        if package.name.startswith(PINNING_PACKAGE_PREFIX) and is_at_version(packages[package], "")
    )
    branches_held = sorted(package.name.removeprefix(PINNING_PACKAGE_PREFIX) for package in held)
    return next((branch for branch in branches_held if branch[:1].isdigit()), "")


def allowed_flavours(recipe: Recipe) -> tuple[KernelModuleType, ...]:
    """Return the flavours of kernel modules that the recipe allows, the preferred one first."""
    return (
        ("open", "proprietary") if recipe.driver.kernel_module_type == "auto" else (recipe.driver.kernel_module_type,)
    )


def is_dkms_package_installed(dkms_package: str, chosen: DriverChoice, facts: Facts) -> bool:
    """Return whether the package that builds the kernel modules is installed in the chosen version."""
    return is_at_version(value_or(facts.packages, {}).get(PackageId(dkms_package)), version_prefix(chosen))


def is_branch_maintained(number: int) -> bool:
    """Return whether NVIDIA still publishes drivers of the branch."""
    branch = branches.find(number)
    return branch is not None and branch.is_maintained


def is_branch_of_kind(number: int, kind: str) -> bool:
    """Return whether a branch is of the kind that a recipe names; one newer than the table may be of any kind.

    True for a ``kind`` that names no kind (``auto``).
    """
    branch = branches.find(number)
    return kind not in BRANCH_KINDS or branches.is_unlisted(number) or (branch is not None and branch.kind == kind)


def installed_driver_packages(facts: Facts) -> dict[PackageId, PackageState]:
    """Return every package of any driver on the node, including leftovers of removed ones."""
    packages = require(facts.packages, "which packages are installed")
    return {package: packages[package] for package in sorted(driver_packages(packages))}


def has_driver(packages: Mapping[PackageId, PackageState]) -> bool:
    """Return whether any of these driver packages is an installed kernel module or library of a driver.

    Other parts do not make a driver: libxnvctrl0 comes with OpenMPI and Chromium.
    """
    return any(
        _LIBRARY_PACKAGE_NAME.fullmatch(package.name) or purge_reason(package.name, state.version) == "same-module"
        for package, state in packages.items()
        if not state.config_files_only
    )


def packages_with_library(
    library: Literal["libcuda1", "libnvidia-ml1"], packages: Mapping[PackageId, PackageState]
) -> dict[PackageId, PackageState]:
    """Return the installed packages with a library: Debian's and NVIDIA's of its name, or Ubuntu's with both."""
    return {
        package: state
        for package, state in sorted(packages.items())
        if _LIBRARY_PACKAGE_NAME.fullmatch(package.name)
        and package.name not in _CUDA_OR_NVML_PACKAGES - {library}
        and not package.arch
        and not state.config_files_only
    }


def installed_branches(facts: Facts) -> tuple[int, ...]:
    """Return the branches of the installed driver packages, newest first."""
    states = installed_driver_packages(facts).values()
    branches_found = {branch_of(state.version) for state in states if not state.config_files_only} - {0}
    return tuple(sorted(branches_found, reverse=True))


def branch_of(version: str) -> int:
    """Return the driver branch of a package version; 0 if the package has its own versions."""
    match = _BRANCH_IN_VERSION.match(without_epoch(version))
    return int(match[1]) if match else 0


def is_chosen_driver_installed(facts: Facts, chosen: DriverChoice, recipe: Recipe) -> bool:
    """Return whether every package of the chosen driver is installed, in the chosen version."""
    family = family_of(facts)
    if isinstance(family, Refusal):
        return False
    packages = value_or(facts.packages, {})
    names = family.driver_packages(chosen, recipe.driver.scope)
    return all(
        is_at_version(packages.get(package), package_version_prefix(package, chosen))
        for package in map(PackageId, names)
    )


def version_prefix(chosen: DriverChoice) -> str:
    """Return the start of the version of each driver package, without its epoch."""
    return f"{chosen.exact}-" if chosen.exact else f"{chosen.branch}."


def package_version_prefix(package: PackageId, chosen: DriverChoice) -> str:
    """Return the start of the version that a package of the chosen driver must have; empty if any will do.

    In a distribution, some tools have their own versions within the branch, and prebuilt modules have a kernel's.
    """
    if chosen.source == "distro" and package.name in SEPARATELY_VERSIONED_IN_DISTROS:
        return f"{chosen.branch}."
    is_module = package.name.startswith("linux-modules-nvidia-")
    return "" if chosen.source == "distro" and is_module else version_prefix(chosen)


def is_version_of(version: str, chosen: DriverChoice) -> bool:
    """Return whether a driver's version (``580.95.05``) is the chosen one, or of its branch for prebuilt modules."""
    return f"{version}.".startswith(f"{chosen.exact or chosen.branch}.")


def is_at_version(state: PackageState | None, version: str) -> bool:
    """Return whether a package is installed in a version that starts with ``version``."""
    return state is not None and not state.config_files_only and has_prefix(state.version, version)


def plan_manual_marks(
    packages: Mapping[PackageId, PackageState], requested: Iterable[PackageId]
) -> tuple[PackageChange, ...]:
    """Return the changes that mark installed packages of ``requested`` as manual if they are marked as automatic."""
    states = ((package, packages.get(package)) for package in requested)
    return tuple(
        PackageChange(package, state, replace(state, auto=False))
        for package, state in states
        if state is not None and state.auto and is_at_version(state, "")
    )


def explain_manual_marks(marked: Iterable[PackageChange]) -> str:
    """Return why marks change."""
    names = ", ".join(str(change.id) for change in marked)
    return f"{deb.AUTOREMOVE_COMMAND} may remove {names}, marked as automatically installed"
