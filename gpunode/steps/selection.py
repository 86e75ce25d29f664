"""Decisions that several steps share: which driver the GPUs get."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from gpunode.catalog import branches
from gpunode.catalog.branches import ModuleFlavour
from gpunode.catalog.conflicts import BY_THEMSELVES, STANDS_ALONE, driver_packages, parts, upstream
from gpunode.catalog.driver import Choice, Impossible, choose
from gpunode.catalog.gpus import GpuModel
from gpunode.change import PackageState
from gpunode.command import gpunode
from gpunode.distros import family, supported
from gpunode.distros.family import Family
from gpunode.facts.model import Facts, Known, LoadedDriver, known, need
from gpunode.outcome import Planned, Refusal
from gpunode.packages import system
from gpunode.packages.version import without_epoch
from gpunode.recipe import Flavour, Recipe, VersionLock
from gpunode.steps.gpus import models, own_gpus

_PINNING = "nvidia-driver-pinning-"
_REVISION = re.compile(r"-[^-]*\Z")
_DRIVER_VERSION = re.compile(r"(\d{3})\.(?:\d|\Z)")
# What programs reach a GPU by: Debian's and NVIDIA's names, and Ubuntu's (libnvidia-compute-580-server).
_LIBRARIES = re.compile(r"libcuda1|libnvidia-ml1|libnvidia-compute(?:-\d{3}(?:-server)?)?")
# Several versions of its firmware may be there side by side, and nothing on a GPU needs the others at its version.
_MAY_DIFFER = (STANDS_ALONE, "nvidia-firmware-", "nvidia-fabricmanager", "nvidia-persistenced", "cuda-compat")
MACHINE = "whether this is bare metal, a virtual machine or a container, in which no driver is installed"


def wants_driver(recipe: Recipe, facts: Facts) -> bool:
    """Whether the driver is gpunode's to install here: the recipe asks for it, and the kernel is this machine's own."""
    return recipe.driver.version != "none" and need(facts.platform, MACHINE).owns_kernel


def family_of(facts: Facts) -> Family | Refusal:
    """The distribution's family, or why gpunode does not work on it."""
    distro = need(facts.distro, "which distribution this is")
    found = family(distro)
    if found is None:
        return Refusal(
            what=f"{distro.name} is not supported",
            why=f"NVIDIA's repositories and package names are known for {supported()}; "
            f"/etc/os-release says ID={distro.id} VERSION_ID={distro.version_id}",
            hint='use one of these, or install the driver by hand and run gpunode with driver.version = "none"',
        )
    return found


@dataclass(frozen=True, slots=True)
class WantedDriver:
    """The driver that this node is to have, in the words of its distribution."""

    family: Family
    chosen: Choice

    @property
    def rival(self) -> str:
        """The package that builds the modules of the other flavour."""
        other: ModuleFlavour = "proprietary" if self.chosen.flavour == "open" else "open"
        return self.family.dkms_package(replace(self.chosen, flavour=other))

    def packages(self, recipe: Recipe) -> tuple[str, ...]:
        """The packages that the package manager is asked for."""
        return self.family.driver_packages(self.chosen, recipe.driver.scope)


def wanted_driver(recipe: Recipe, facts: Facts) -> WantedDriver | Planned | Refusal:
    """The driver; else what every driver step answers where it is not gpunode's, or where none can be chosen."""
    if not wants_driver(recipe, facts):
        return Planned((), "this driver is not managed by gpunode")
    if standing := standing_driver(recipe, facts):
        return Planned((), standing.reason)
    found, chosen = family_of(facts), choice(recipe, facts)
    if isinstance(found, Refusal):
        return found
    return chosen if isinstance(chosen, Refusal) else WantedDriver(found, chosen)


@dataclass(frozen=True, slots=True)
class StandingDriver:
    """A whole driver that is not of NVIDIA's repository, such as Ubuntu's own, and stays as it is.

    Attributes:
        version: of its libraries, and of its modules on disk.
        loaded: what the running kernel has; of the same branch.
        prebuilt: whether a package brought the modules, so that none is built here.
    """

    version: str
    loaded: LoadedDriver
    chosen: Choice
    prebuilt: bool

    @property
    def reason(self) -> str:
        """Why nothing is done to it, and how to have another."""
        return self.chosen.reason


def standing_driver(recipe: Recipe, facts: Facts) -> StandingDriver | None:
    """The driver of somebody else's packages that works, is maintained and drives every GPU; nobody asked for another.

    Its packages have other names than NVIDIA's. To complete it by those would be to replace it, under Secure Boot by
    modules whose key the firmware may not know.
    """
    if recipe.driver.version == "none" or not (isinstance(facts.platform, Known) and facts.platform.value.owns_kernel):
        return None
    loaded, pinned = known(facts.loaded_driver, None), pinned_by_package(known(facts.packages, {}))
    branch = branch_of(loaded.version) if loaded else 0
    if loaded is None or not _is_active(branch) or recipe.upgrade or recipe.lock is not None or pinned:
        return None
    if known(facts.run_installer, default=False) or not isinstance(found := family_of(facts), Family):
        return None
    flavour: ModuleFlavour = "open" if loaded.open_module else "proprietary"
    chosen = _answering(recipe, facts, branch, flavour)
    version = _library_version(known(facts.packages, {}))
    modules = _modules_on_disk(version, facts) if branch_of(version) == branch else ()
    if chosen is None or not modules or not is_version_of(version, chosen):
        return None
    # Of prebuilt modules the branch alone is known: they were upgraded with the libraries, and wait for a reboot.
    if version != loaded.version and any(modules):
        return None
    flavours: tuple[ModuleFlavour, ...] = ("open", "proprietary")
    theirs = (replace(chosen, flavour=one) for one in flavours)
    if any(_builds(found.dkms_package(one), one, facts) or is_installed(facts, one, recipe) for one in theirs):
        return None
    reason = (
        f"driver {version}, from other packages than those of NVIDIA's repository, is maintained and drives every GPU, "
        "so it stays as it is; --driver with another branch, or --upgrade, replaces it"
    )
    return StandingDriver(version, loaded, replace(chosen, reason=reason), not any(modules))


def _answering(recipe: Recipe, facts: Facts, branch: int, flavour: ModuleFlavour) -> Choice | None:
    """What the loaded driver is as a choice, if it drives all GPUs and is what the recipe asks for."""
    devices = known(facts.devices, ())
    if flavour not in _flavours(recipe) or any(one.driver not in {None, "nvidia"} for one in own_gpus(devices)):
        return None
    version = str(branch)
    if recipe.driver.version != "auto":
        asked = choose(models(devices), replace(recipe.driver, flavour=flavour))
        if not isinstance(asked, Choice) or asked.branch != branch:
            return None
        version = asked.exact or version
    chosen = choose(models(devices), replace(recipe.driver, version=version, flavour=flavour))
    return chosen if isinstance(chosen, Choice) else None


def _library_version(packages: Mapping[str, PackageState]) -> str:
    """The one version of the installed driver, its libraries included; empty where there are none, or two versions."""
    found = {
        name: version
        for name in driver_packages(packages)
        if not packages[name].config_files_only
        and name.partition(":")[0] not in BY_THEMSELVES
        and not name.startswith(_MAY_DIFFER)
        and (version := upstream(packages[name].version))
    }
    versions = set(found.values())
    has_library = any(_LIBRARIES.fullmatch(name.partition(":")[0]) for name in found)
    return versions.pop() if has_library and len(versions) == 1 else ""


def _modules_on_disk(version: str, facts: Facts) -> tuple[bool, ...]:
    """Of each module of ``version`` for the running kernel, whether DKMS built it."""
    running = facts.kernels.value.running if isinstance(facts.kernels, Known) else None
    files = (file for file in known(facts.module_files, ()) if file.kernel == running)
    return tuple(one.dkms for one in files if one.version and f"{version}.".startswith(f"{one.version}."))


def choice(recipe: Recipe, facts: Facts) -> Choice | Refusal:
    """The driver for this node's GPUs.

    A lock has the first word. Where the recipe leaves the branch to gpunode, NVIDIA's pinning package follows, then the
    installed driver: a branch that is still maintained and fits is kept, also by an upgrade, which brings the newest of
    it. An upgrade of a branch that has ended goes on to a newer one, not back.
    """
    present = models(need(facts.devices, "which PCI devices there are"))
    if recipe.lock is not None:
        return _locked(recipe, recipe.lock, facts, present)
    if standing := standing_driver(recipe, facts):
        return standing.chosen
    if recipe.driver.version == "auto":
        pinned = pinned_by_package(known(facts.packages, {}))
        if pinned and isinstance(found := choose(present, replace(recipe.driver, version=pinned)), Choice):
            return replace(found, reason=f"{_PINNING}{pinned} is installed and respected")
        if not pinned and (kept := _kept(recipe, facts, present)) is not None:
            return kept
        if not pinned and recipe.upgrade and (onward := _onward(recipe, facts, present)) is not None:
            return onward
    return _as_refusal(choose(present, recipe.driver))


def pinned_by_package(packages: Mapping[str, PackageState]) -> str:
    """The branch or version that NVIDIA's pinning package holds; empty when none is installed."""
    names = sorted(name for name in packages if matches(packages[name], ""))
    return next(
        (n.removeprefix(_PINNING) for n in names if n.startswith(f"{_PINNING}") and n[len(_PINNING)].isdigit()), ""
    )


def _kept(recipe: Recipe, facts: Facts, present: tuple[GpuModel, ...]) -> Choice | None:
    """The choice that the installed driver already is: all of it, else what builds its kernel modules.

    A driver that lacks a package is completed; only for that, nobody wants another branch or other modules.
    """
    found = family_of(facts)
    fitting = [] if isinstance(found, Refusal) else list(_fitting(recipe, facts, present))
    whole = (chosen for chosen in fitting if is_installed(facts, chosen, recipe))
    begun = (
        chosen for chosen in fitting if isinstance(found, Family) and _builds(found.dkms_package(chosen), chosen, facts)
    )
    chosen = next(chain(whole, begun), None)
    if chosen is None:
        return None
    kept = f"branch {chosen.branch} with {chosen.flavour} modules is installed, maintained and suitable, so it is kept"
    if not recipe.upgrade and isinstance(found, Family) and (exact := _held_by_file(found, chosen, facts)):
        return replace(chosen, exact=exact, reason=f"{system(facts).pin_file} pins it to {exact}, as requested earlier")
    return replace(chosen, reason=kept)


def _onward(recipe: Recipe, facts: Facts, present: tuple[GpuModel, ...]) -> Choice | None:
    """The next maintained branch, where the installed one ended and is newer than the one that would be chosen."""
    best, found = choose(present, recipe.driver), family_of(facts)
    if not isinstance(best, Choice) or isinstance(found, Refusal):
        return None
    may_be = (replace(best, branch=n, flavour=f) for n in installed_branches(facts) for f in ("open", "proprietary"))
    former = next((one.branch for one in may_be if _builds(found.dkms_package(one), one, facts)), 0)
    newer = [row for row in branches.known() if row.active and row.number > former > best.branch]
    for row in sorted(newer, key=lambda row: (row.kind == "new-feature", row.number)):
        chosen = choose(present, replace(recipe.driver, version=str(row.number)))
        if isinstance(chosen, Choice):
            reason = f"branch {former} has ended, and an upgrade does not go back to {best.branch}"
            return replace(chosen, reason=reason)
    return None


def _held_by_file(found: Family, chosen: Choice, facts: Facts) -> str:
    """The exact version at which gpunode's own pin holds the driver; empty when it holds a branch.

    A lock or ``--driver VERSION`` wrote it. Without them a later run leaves it so, else it would undo what was asked.
    """
    packages = system(facts)
    present = known(facts.file(packages.pin_file), None)
    version = packages.pinned_version(present.content) if present else ""
    if present is None or not version:
        return ""
    is_own = present.content == packages.pin(replace(chosen, exact=version), found.origins)
    return version if is_own and is_version_of(version, chosen) else ""


def _locked(recipe: Recipe, lock: VersionLock, facts: Facts, present: tuple[GpuModel, ...]) -> Choice | Refusal:
    """The driver that the lock holds, if it serves this node's GPUs and agrees with what the recipe asks for."""
    found = family_of(facts)
    if isinstance(found, Refusal):
        return found
    version = locked_driver(lock)
    if not version:
        return _no_driver_in(lock)
    asked = recipe.driver.version
    if asked[0].isdigit() and not f"{version}.".startswith(f"{asked}."):
        return Refusal(
            what=f"{lock.file} pins driver {version}, but {asked} is requested",
            why="a lock and another driver version contradict each other",
            hint="leave one of them out",
        )
    wishes = [replace(recipe.driver, version=version, flavour=flavour) for flavour in _flavours(recipe)]
    outcomes = [choose(present, wish) for wish in wishes]
    fitting = [outcome for outcome in outcomes if isinstance(outcome, Choice)]
    if not fitting:
        return _as_refusal(outcomes[0])
    for chosen in fitting:
        if set(found.driver_packages(chosen, recipe.driver.scope)) <= lock.packages.keys():
            return replace(chosen, reason=f"{lock.file} holds it")
    lacking = next(n for n in found.driver_packages(fitting[0], recipe.driver.scope) if n not in lock.packages)
    return not_locked(lock, lacking)


def locked_driver(lock: VersionLock) -> str:
    """The driver's own version that a lock holds (``580.178.04``); empty when it holds none, or more than one."""
    versions = {lock.packages[name] for name in driver_packages(lock.packages)}
    found = {_REVISION.sub("", without_epoch(version)) for version in versions if branch_of(version)}
    return found.pop() if len(found) == 1 else ""


def _no_driver_in(lock: VersionLock) -> Refusal:
    return Refusal(
        what=f"{lock.file} has no driver, or more than one version of it",
        why="the recipe requests a driver, and with a lock its version comes from the lock",
        hint=f"write the lock with this recipe on a node that has the driver:\n{gpunode('plan', '--lock', lock.file)}",
    )


def not_locked(lock: VersionLock, name: str) -> Refusal:
    """The refusal of a package that is asked for and has no version in the lock."""
    return Refusal(
        what=f"{lock.file} names no version of {name}, which this node needs",
        why=f"it was written with recipe {lock.recipe} on a node that needed other packages",
        hint="use a lock of a node with the same recipe, GPUs and scope, or write one for this kind of node",
    )


def _fitting(recipe: Recipe, facts: Facts, present: tuple[GpuModel, ...]) -> Iterator[Choice]:
    """What the installed branches that are maintained can be for these GPUs, in either flavour that may be used."""
    for branch in installed_branches(facts):
        for flavour in _flavours(recipe) if _is_active(branch) else ():
            chosen = choose(present, replace(recipe.driver, version=str(branch), flavour=flavour))
            if isinstance(chosen, Choice):
                yield chosen


def _flavours(recipe: Recipe) -> tuple[Flavour, ...]:
    return ("open", "proprietary") if recipe.driver.flavour == "auto" else (recipe.driver.flavour,)


def _builds(dkms_package: str, chosen: Choice, facts: Facts) -> bool:
    return matches(known(facts.packages, {}).get(dkms_package), prefix(chosen))


def _is_active(number: int) -> bool:
    row = branches.find(number)
    return row is not None and row.active


def _as_refusal(chosen: Choice | Impossible) -> Choice | Refusal:
    if isinstance(chosen, Impossible):
        return Refusal(chosen.what, chosen.why, chosen.hint)
    return chosen


def installed_driver_packages(facts: Facts) -> dict[str, PackageState]:
    """Every package of any driver that is on the node, the residue of removed ones included."""
    packages = need(facts.packages, "which packages are installed")
    return {name: packages[name] for name in sorted(driver_packages(packages))}


def installed_branches(facts: Facts) -> tuple[int, ...]:
    """The branches that installed driver packages are of, newest first."""
    states = installed_driver_packages(facts).values()
    found = {branch_of(state.version) for state in states if not state.config_files_only} - {0}
    return tuple(sorted(found, reverse=True))


def branch_of(version: str) -> int:
    """The driver branch that a package version is of; 0 when the package has versions of its own."""
    match = _DRIVER_VERSION.match(without_epoch(version))
    return int(match[1]) if match else 0


def is_installed(facts: Facts, chosen: Choice, recipe: Recipe) -> bool:
    """Whether every package of the chosen driver is installed, in the chosen version."""
    found = family_of(facts)
    if isinstance(found, Refusal):
        return False
    packages = known(facts.packages, {})
    return all(
        matches(packages.get(name), prefix(chosen)) for name in found.driver_packages(chosen, recipe.driver.scope)
    )


def kept_version(recipe: Recipe, facts: Facts, driver: WantedDriver) -> str:
    """The version of the driver that stays, as the package of its kernel modules has it; empty where none does.

    In the other flavour, too: who changes that asked for no other version.
    """
    return "" if recipe.upgrade or recipe.lock is not None else installed_version(facts, driver)


def installed_version(facts: Facts, driver: WantedDriver) -> str:
    """The installed version of the chosen driver, as the package of its kernel modules has it; empty where none is."""
    packages = known(facts.packages, {})
    modules = (packages.get(name) for name in (driver.family.dkms_package(driver.chosen), driver.rival))
    return next((upstream(state.version) for state in modules if state and matches(state, prefix(driver.chosen))), "")


def apart_from(recipe: Recipe, facts: Facts, driver: WantedDriver) -> tuple[str, ...]:
    """The installed packages of the driver that are not, or will not be, of the version of its kernel modules.

    They work in one version alone. With a lock each has a version to be compared with; where one exact version takes
    the place of another, what is of the old one conflicts with it.
    """
    version = kept_version(recipe, facts, driver)
    if recipe.lock is not None or (driver.chosen.exact and not version):
        return ()
    branch = driver.chosen.branch
    found = parts(known(facts.packages, {}), branch)
    # What is of another branch leaves with that one, unless it strayed into a driver that stays.
    fitting = (name for name, own in found.items() if own != version and (version or own.startswith(f"{branch}.")))
    return tuple(name for name in fitting if name != driver.rival)


def moved_along(strays: Sequence[str], packages: Mapping[str, PackageState]) -> tuple[str, ...]:
    """The tools that came with what has strayed, in its version: NVIDIA's packages want them in their own."""
    theirs = {upstream(packages[name].version) for name in strays}
    installed = ((name, packages[name]) for name in sorted(BY_THEMSELVES & packages.keys()))
    return tuple(n for n, state in installed if not state.config_files_only and upstream(state.version) in theirs)


def prefix(chosen: Choice) -> str:
    """What the version of each driver package starts with, epoch left out."""
    return f"{chosen.exact}-" if chosen.exact else f"{chosen.branch}."


def is_version_of(version: str, chosen: Choice) -> bool:
    """Whether a driver's own version (``580.95.05``) is the chosen one; of a prebuilt module it is the branch alone."""
    return f"{version}.".startswith(f"{chosen.exact or chosen.branch}.")


def matches(state: PackageState | None, wanted: str) -> bool:
    """Whether a package is installed in a version that starts with ``wanted``."""
    return state is not None and not state.config_files_only and version_matches(state.version, wanted)


def version_matches(version: str, wanted: str) -> bool:
    """Whether a package version starts with ``wanted``, its epoch left out."""
    return without_epoch(version).startswith(wanted)
