"""Selection of the driver for a node's GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from gpunode.catalog import branches
from gpunode.catalog.branches import ModuleFlavour
from gpunode.catalog.conflicts import (
    SEPARATELY_VERSIONED_IN_DISTROS,
    STANDALONE_TOOL_PACKAGES,
    driver_packages,
    upstream_version,
    version_locked_packages,
)
from gpunode.catalog.driver import DriverChoice, choose_driver
from gpunode.catalog.gpus import GpuModel
from gpunode.change import PackageState
from gpunode.command import gpunode_command
from gpunode.distros.family import Family
from gpunode.facts.model import Facts, Kernels, require, value_or
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.outcome import Planned, Refusal
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.packages.version import without_epoch
from gpunode.recipe import Driver, Recipe, VersionLock
from gpunode.steps.gpus import find_models
from gpunode.steps.installed_driver import (
    BRANCH_KINDS,
    PINNING_PACKAGE_PREFIX,
    allowed_flavours,
    branch_of,
    family_of,
    installed_branches,
    is_at_version,
    is_branch_maintained,
    is_branch_of_kind,
    is_chosen_driver_installed,
    is_dkms_package_installed,
    is_version_of,
    pinned_by_nvidia_package,
    preexisting_driver,
    remember_last,
    version_prefix,
    wants_driver,
)
from gpunode.steps.secure_boot import AWAITS_ENROLMENT_REASON, driver_awaits_enrolment

_UBUNTU_VERSION_MARK = "ubuntu"
_REVISION_SUFFIX = Pattern(r"-[^-]*\Z")


@dataclass(frozen=True, slots=True)
class WantedDriver:
    """The driver chosen for this node, as its distribution packages it.

    Attributes:
        modules: the packages of prebuilt kernel modules for this node's kernels; none if DKMS builds them.
        foreign_archives: those that are never mixed with the distribution's own driver, if it is the chosen one.
    """

    family: Family
    chosen: DriverChoice
    modules: tuple[str, ...] = ()
    foreign_archives: tuple[str, ...] = ()

    @property
    def other_flavour_package(self) -> PackageId:
        """The package that builds the modules of the other flavour."""
        other: ModuleFlavour = "proprietary" if self.chosen.flavour == "open" else "open"
        return PackageId(self.family.dkms_package(replace(self.chosen, flavour=other)))

    def packages(self, recipe: Recipe) -> tuple[PackageId, ...]:
        """Return the packages requested from the package manager."""
        names = self.family.driver_packages(self.chosen, recipe.driver.scope)
        return tuple(map(PackageId, (*names, *self.modules)))


@remember_last
def wanted_driver(recipe: Recipe, facts: Facts) -> WantedDriver | Planned | Refusal:
    """Return the chosen driver; else the outcome of every driver step if gpunode does not or cannot install one."""
    if not wants_driver(recipe, facts):
        return Planned((), "this driver is not managed by gpunode")
    if preexisting := preexisting_driver(recipe, facts):
        return Planned((), preexisting.reason)
    family, chosen = family_of(facts), choose_driver_for_node(recipe, facts)
    if isinstance(family, Refusal):
        return family
    if isinstance(chosen, Refusal):
        return chosen
    if refused := _find_mixed_packagers_refusal(family, chosen, facts):
        return refused
    if driver_awaits_enrolment(recipe, facts):
        return Planned((), AWAITS_ENROLMENT_REASON, is_deferred=True)
    if chosen.source == "nvidia":
        return WantedDriver(family, chosen)
    from gpunode.distros import distro_driver  # loaded on use: few recipes take it

    modules = distro_driver.prebuilt_module_packages(
        family, chosen, value_or(facts.kernels, Kernels(None, ())), value_or(facts.packages, {})
    )
    return WantedDriver(family, chosen, modules, distro_driver.foreign_archives(family))


def _find_mixed_packagers_refusal(family: Family, chosen: DriverChoice, facts: Facts) -> Refusal | None:
    """Return the refusal of the chosen branch if the other packager's driver of it is installed, under the same names.

    Neither would replace the other: installed packages count as the wanted driver, and its other packages join them.
    Debian's nvidia-alternative then keeps replacing and removing the links to NVIDIA's libraries (535.309.01).
    """
    if family.signs_own_modules:  # Ubuntu's own have other names
        return None
    packages, wants_own = value_or(facts.packages, {}), chosen.source == "distro"
    installed = [
        package for package in _PACKAGES_OF_BOTH_SOURCES if is_at_version(packages.get(package), f"{chosen.branch}.")
    ]
    # For a planned package only the branch is known.
    revisions = {package: packages[package].version.partition("-")[2] for package in installed}
    # NVIDIA's packages for Debian have the revision 1; Debian's own have 0+deb12u1 or 2.
    nvidias = {
        package for package, revision in revisions.items() if revision == "1" or _UBUNTU_VERSION_MARK in revision
    }
    others = [package for package, revision in revisions.items() if revision and (package in nvidias) == wants_own]
    if not others:
        return None
    ours, theirs = (family.name, "NVIDIA") if wants_own else ("NVIDIA", family.name)
    named = ", ".join(f"{other} {packages[other].version}" for other in others)
    purge = deb.purge_command(tuple(str(package) for package in sorted(driver_packages(packages))))
    ways = [f"purge the driver first: `sudo {purge}`"]
    if len(others) == len(revisions):  # else the other source would be mixed, too
        ways.insert(0, f"take the driver of the other source (--driver-source {'nvidia' if wants_own else 'distro'})")
    if not wants_own:
        ways.insert(0, f"take another branch ({gpunode_command('gpus')} lists those that fit)")
    return Refusal(
        what=f"{named} of {theirs}'s driver {'is' if len(others) == 1 else 'are'} installed, and {ours}'s driver of "
        f"the same branch {chosen.branch} is wanted",
        why="the packages of both have the same names, so they would be mixed, and Debian's nvidia-alternative removes "
        "links of the libraries that NVIDIA's packages install",
        hint="; or ".join(ways),
    )


_PACKAGES_OF_BOTH_SOURCES = tuple(
    map(
        PackageId,
        ("nvidia-kernel-dkms", "nvidia-kernel-support", "libcuda1", "libnvidia-ml1", "libnvidia-cfg1", "nvidia-smi"),
    )
)


def choose_from_source(
    facts: Facts, models: tuple[GpuModel, ...], request: Driver, because: str = ""
) -> DriverChoice | Refusal:
    """Return the driver that the request's source has for these GPUs, or why there is none; see ``choose``."""
    if request.source == "nvidia":
        return choose_driver(models, request, because)
    from gpunode.catalog.distro_drivers import choose_from_distro  # loaded on use

    return choose_from_distro(models, request, require(facts.distro, "which distribution this is"))


@remember_last
def choose_driver_for_node(recipe: Recipe, facts: Facts) -> DriverChoice | Refusal:
    """Choose the driver for this node's GPUs.

    A lock has priority. If the recipe leaves the branch to gpunode, NVIDIA's pinning package comes next, then the
    installed driver: a branch that is still maintained and fits is kept, also by an upgrade, which installs its newest
    version. An upgrade of a branch that has ended moves to a newer one, never back. With ``lts`` or ``production`` an
    installed branch of that kind is kept even if NVIDIA has a newer one of it.
    """
    present = find_models(require(facts.devices, "which PCI devices there are"))
    if recipe.lock is not None:
        return _choose_locked(recipe, recipe.lock, facts, present)
    if preexisting := preexisting_driver(recipe, facts):
        return preexisting.chosen
    if recipe.driver.version in BRANCH_KINDS and (kept := _choose_installed_driver(recipe, facts, present)) is not None:
        return kept
    if recipe.driver.version == "auto":
        is_nvidias = recipe.driver.source == "nvidia"
        pinned = pinned_by_nvidia_package(value_or(facts.packages, {})) if is_nvidias else ""
        if pinned and isinstance(
            choice := choose_driver(present, replace(recipe.driver, version=pinned)), DriverChoice
        ):
            return replace(choice, reason=f"{PINNING_PACKAGE_PREFIX}{pinned} is installed and respected")
        if not pinned and (kept := _choose_installed_driver(recipe, facts, present)) is not None:
            return kept
        if (
            is_nvidias
            and not pinned
            and recipe.upgrade
            and (onward := _choose_successor_branch(recipe, facts, present)) is not None
        ):
            return onward
    return choose_from_source(facts, present, recipe.driver)


def _choose_installed_driver(recipe: Recipe, facts: Facts, models: tuple[GpuModel, ...]) -> DriverChoice | None:
    """Return the installed driver as a choice: all of it, else the package that builds its kernel modules.

    An incomplete driver is completed; that is no reason for another branch or other modules.
    """
    family = family_of(facts)
    fitting = [] if isinstance(family, Refusal) else list(_fitting_choices(recipe, facts, models))
    complete = (chosen for chosen in fitting if is_chosen_driver_installed(facts, chosen, recipe))
    begun = (
        chosen
        for chosen in fitting
        if isinstance(family, Family) and is_dkms_package_installed(family.dkms_package(chosen), chosen, facts)
    )
    chosen = next(chain(complete, begun), None)
    if chosen is None:
        return None
    status = "newer than what gpunode knows" if branches.is_unlisted(chosen.branch) else "maintained and suitable"
    status = status if chosen.source == "nvidia" else "of the distribution's own archive and suitable"
    kept = f"branch {chosen.branch} with {chosen.flavour} modules is installed, {status}, so it is kept"
    best = choose_from_source(facts, models, recipe.driver)
    if recipe.driver.version in BRANCH_KINDS and isinstance(best, DriverChoice) and best.branch != chosen.branch:
        kept += f" (`--driver {best.branch}` moves to the newest {recipe.driver.version} branch)"
    if not recipe.upgrade and isinstance(family, Family) and (exact := _pinned_version(family, chosen, facts)):
        return replace(chosen, exact=exact, reason=f"{deb.PIN_FILE} pins it to {exact}, as requested earlier")
    return replace(chosen, reason=kept)


def _choose_successor_branch(recipe: Recipe, facts: Facts, models: tuple[GpuModel, ...]) -> DriverChoice | None:
    """Return the next maintained branch if the installed one has ended and is newer than the default."""
    best, family = choose_driver(models, recipe.driver), family_of(facts)
    if not isinstance(best, DriverChoice) or isinstance(family, Refusal):
        return None
    may_be = (replace(best, branch=n, flavour=f) for n in installed_branches(facts) for f in ("open", "proprietary"))
    former = next(
        (choice.branch for choice in may_be if is_dkms_package_installed(family.dkms_package(choice), choice, facts)), 0
    )
    newer = [
        branch for branch in branches.all_branches() if branch.is_maintained and branch.number > former > best.branch
    ]
    for branch in sorted(newer, key=lambda branch: (branch.kind == "new-feature", branch.number)):
        chosen = choose_driver(models, replace(recipe.driver, version=str(branch.number)))
        if isinstance(chosen, DriverChoice):
            reason = f"branch {former} has reached its end of life, and an upgrade does not downgrade to {best.branch}"
            return replace(chosen, reason=reason)
    return None


def _pinned_version(family: Family, chosen: DriverChoice, facts: Facts) -> str:
    """Return the exact version pinned by gpunode; empty if it pins a branch.

    A lock or ``--driver VERSION`` wrote it. A later run without them keeps it, so as not to undo the request.
    """
    present = value_or(facts.file(deb.PIN_FILE), None)
    version = deb.pinned_version(present.content) if present else ""
    if present is None or not version:
        return ""
    foreign: tuple[str, ...] = ()
    if chosen.source == "distro":
        from gpunode.distros.distro_driver import foreign_archives

        foreign = foreign_archives(family)
    is_own = present.content == deb.render_driver_pin(replace(chosen, exact=version), family.origins, foreign)
    return version if is_own and is_version_of(version, chosen) else ""


def _choose_locked(
    recipe: Recipe, lock: VersionLock, facts: Facts, models: tuple[GpuModel, ...]
) -> DriverChoice | Refusal:
    """Return the locked driver, if it supports this node's GPUs and agrees with the recipe."""
    family = family_of(facts)
    if isinstance(family, Refusal):
        return family
    version = locked_driver_version(lock)
    if not version:
        return Refusal(
            what=f"{lock.file} has no driver, or more than one version of it",
            why="the recipe requests a driver, and with a lock its version comes from the lock",
            hint="write the lock with this recipe on a node that has the driver:\n"
            f"{gpunode_command('plan', '--lock', lock.file)}",
        )
    requested = recipe.driver.version
    if requested[0].isdigit() and not f"{version}.".startswith(f"{requested}."):
        return Refusal(
            what=f"{lock.file} pins driver {version}, but {requested} is requested",
            why="a lock and another driver version contradict each other",
            hint="leave one of them out",
        )
    requests = [
        replace(recipe.driver, version=version, kernel_module_type=flavour) for flavour in allowed_flavours(recipe)
    ]
    outcomes = [choose_from_source(facts, models, request, f"{lock.file} has {version}") for request in requests]
    fitting = [outcome for outcome in outcomes if isinstance(outcome, DriverChoice)]
    if not fitting:
        refused, unlocked = outcomes[0], choose_from_source(facts, models, replace(recipe.driver, version="auto"))
        if isinstance(refused, Refusal) and isinstance(unlocked, DriverChoice):
            # The lock would overrule the other version or modules that the refusal advises.
            return replace(refused, hint=_OTHER_GPUS_LOCK_HINT)
        return refused
    # Each kernel has its own prebuilt modules, which no lock contains.
    drivers = [WantedDriver(family, chosen) for chosen in fitting]
    for driver in drivers:
        if lock.packages.keys() >= {*driver.packages(recipe)}:
            return replace(driver.chosen, reason=f"{lock.file} has it")
    return unlocked_package_refusal(
        lock, next(package for package in drivers[0].packages(recipe) if package not in lock.packages)
    )


_OTHER_GPUS_LOCK_HINT: Final = (
    "nodes with other GPUs need a lock of their own: set one of them up without --lock, then write it there:\n"
    f"{gpunode_command('plan', '--lock', 'OTHER.lock')}"
)


def locked_driver_version(lock: VersionLock) -> str:
    """Return a lock's driver version (``580.178.04``); empty if it has none, or several."""
    named = (
        package for package in driver_packages(lock.packages) if package.name not in SEPARATELY_VERSIONED_IN_DISTROS
    )
    versions = {lock.packages[package] for package in named}
    locked_versions = {_REVISION_SUFFIX.sub("", without_epoch(version)) for version in versions if branch_of(version)}
    return locked_versions.pop() if len(locked_versions) == 1 else ""


def unlocked_package_refusal(lock: VersionLock, package: PackageId) -> Refusal:
    """Return the refusal of a requested package without a version in the lock."""
    return Refusal(
        what=f"{lock.file} has no version of {package}, which this node needs",
        why=f"it was written with recipe {lock.recipe}, on a node that needed other packages",
        hint="use a lock of a node with the same recipe, GPUs and scope, or write one for this kind of node",
    )


def _fitting_choices(recipe: Recipe, facts: Facts, models: tuple[GpuModel, ...]) -> Iterator[DriverChoice]:
    """Yield the choices of installed branches that their source maintains for these GPUs, in every allowed flavour."""
    for branch in installed_branches(facts):
        is_offered = recipe.driver.source == "distro" or is_branch_maintained(branch)
        for flavour in (
            allowed_flavours(recipe) if is_offered and is_branch_of_kind(branch, recipe.driver.version) else ()
        ):
            chosen = choose_from_source(
                facts, models, replace(recipe.driver, version=str(branch), kernel_module_type=flavour)
            )
            if isinstance(chosen, DriverChoice):
                yield chosen


def kept_driver_version(recipe: Recipe, facts: Facts, driver: WantedDriver) -> str:
    """Return the kept driver's version, by the package of its kernel modules; empty if none is kept.

    This includes the other flavour: a change of flavour is no request for another version.
    """
    return "" if recipe.upgrade or recipe.lock is not None else installed_driver_version(facts, driver)


def installed_driver_version(facts: Facts, driver: WantedDriver) -> str:
    """Return the chosen driver's installed version, by the package of its kernel modules; empty if none."""
    return upstream_version(module_package_version(facts, driver))


def module_package_version(facts: Facts, driver: WantedDriver) -> str:
    """Return the complete version of the chosen driver's package of kernel modules; empty if there is none.

    If modules built for Ubuntu are replaced by the other flavour on Debian, it is the version of Debian's package.
    """
    packages = value_or(facts.packages, {})
    if driver.chosen.source == "distro":
        from gpunode.steps.distro_driver import find_foreign_packages  # loaded on use

        if find_foreign_packages(packages, driver):
            return ""  # the packages of both packagers have the same names, so nothing tells whose these are
    chosen_flavour, rival = (
        packages.get(package)
        for package in (PackageId(driver.family.dkms_package(driver.chosen)), driver.other_flavour_package)
    )
    if chosen_flavour and is_at_version(chosen_flavour, version_prefix(driver.chosen)):
        return chosen_flavour.version
    if rival is None or not is_at_version(rival, version_prefix(driver.chosen)):
        return ""
    is_rebuilt = driver.family.id == "debian" and _UBUNTU_VERSION_MARK in rival.version
    return f"{upstream_version(rival.version)}-1" if is_rebuilt else rival.version


def packages_built_for_ubuntu(facts: Facts, driver: WantedDriver) -> tuple[PackageId, ...]:
    """Return the installed packages of the driver that NVIDIA built for Ubuntu, where its kernel modules are Debian's.

    They have the same driver version, but come from another folder of the repository, with other dependencies. Only
    Ubuntu's mark their revision (``580.178.04-1ubuntu1``).
    """
    version, packages = module_package_version(facts, driver) or driver.chosen.exact, value_or(facts.packages, {})
    is_debians = driver.family.id == "debian" and driver.chosen.source == "nvidia"
    if not (is_debians and version) or _UBUNTU_VERSION_MARK in version:
        return ()
    of_driver = ((package, packages[package]) for package in sorted(driver_packages(packages)))
    return tuple(
        package
        for package, state in of_driver
        if not state.config_files_only
        and upstream_version(state.version) == upstream_version(version)
        and _UBUNTU_VERSION_MARK in state.version
    )


def mismatched_packages(recipe: Recipe, facts: Facts, driver: WantedDriver) -> tuple[PackageId, ...]:
    """Return the installed driver packages that do not, or will not, match the version of its kernel modules.

    They work in only one version. None with a lock, which has a version for each; none if one exact version replaces
    another, since packages of the old one then conflict.
    """
    version = kept_driver_version(recipe, facts, driver)
    if recipe.lock is not None or (driver.chosen.exact and not version):
        return ()
    branch = driver.chosen.branch
    loose = STANDALONE_TOOL_PACKAGES if driver.chosen.source == "nvidia" else SEPARATELY_VERSIONED_IN_DISTROS
    version_by_package = version_locked_packages(value_or(facts.packages, {}), branch, loose)
    # Packages of another branch leave with that branch, unless they strayed into a driver that stays.
    fitting = (
        package
        for package, package_version in version_by_package.items()
        if package_version != version and (version or package_version.startswith(f"{branch}."))
    )
    return tuple(package for package in fitting if package != driver.other_flavour_package)


def tools_of_mismatched(
    mismatched: Sequence[PackageId], packages: Mapping[PackageId, PackageState]
) -> tuple[PackageId, ...]:
    """Return the tools of mismatched packages, in their version: NVIDIA's packages depend on the same one."""
    versions = {upstream_version(packages[package].version) for package in mismatched}
    installed = (
        (package, packages[package])
        for package in map(PackageId, sorted(STANDALONE_TOOL_PACKAGES))
        if package in packages
    )
    return tuple(
        package
        for package, state in installed
        if not state.config_files_only and upstream_version(state.version) in versions
    )
