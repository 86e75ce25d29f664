"""Package steps: repair of the database, NVIDIA's repositories, locked versions, dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from gpunode.catalog.conflicts import driver_versioned_packages
from gpunode.catalog.repositories import CUDA_KEYRING, TOOLKIT_KEYRING, cuda_repository, toolkit_repository
from gpunode.change import Change, KnownAfter, PackageChange, PackageState
from gpunode.facts.model import Facts, Known, MissingDependency, require
from gpunode.facts.project import PLAN_PROBE_KEY
from gpunode.outcome import Planned, Refusal, Step, StepOutcome, StepPackageRules
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.packages.simulation import ANY_PROVIDER
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import family_of, is_at_version, preexisting_driver, version_prefix, wants_driver
from gpunode.steps.kernel import header_packages
from gpunode.steps.selection import WantedDriver, installed_driver_version, wanted_driver


def plan_repair(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the repair of packages after an interrupted change.

    A driver's module that failed to build is not built again if its package leaves for the wanted driver.
    """
    notes = tuple(deb.note_relaxed_checks(facts))
    if not require(facts.packages_interrupted, "whether a package change was interrupted"):
        return Planned((), "no package change was interrupted", notes)
    if leaving := find_packages_leaving_first(facts, _plan_driver_changes(recipe, facts)):
        names = ", ".join(map(str, sorted(leaving)))
        return Planned(
            (), f"{names} is removed or replaced in this run, and is not configured or built before that", notes
        )
    repair = deb.REPAIR_COMMAND
    return Planned((repair,), repair.purpose, notes)


def find_packages_leaving_first(facts: Facts, changes: Iterable[Change]) -> frozenset[PackageId]:
    """Return the packages that ``changes`` remove before any is configured; none if the repair comes first.

    These are all unconfigured packages, or those of a driver whose modules would be built again: configuring them
    builds the modules, and so does configuring a kernel's packages, which runs DKMS.
    """
    if not facts.unconfigured:
        return frozenset()
    leaving = frozenset(change.id for change in PackageChange.of_kind(changes) if change.removes_or_replaces)
    if facts.unconfigured <= leaving:
        return facts.unconfigured
    builds, builds_all_dkms_modules = deb.builds_driver, deb.builds_all_dkms_modules
    would_build = any(builds(package) or builds_all_dkms_modules(package) for package in facts.unconfigured)
    return frozenset(filter(builds, leaving)) if would_build else frozenset()


def _plan_driver_changes(recipe: Recipe, facts: Facts) -> Iterator[Change]:
    """Yield the changes of driver packages.

    A driver that waits for its key, or for a .run driver to leave, counts as coming: the old modules need no further
    build for it.
    """
    from gpunode.steps.driver import CONFLICTS_STEP, DRIVER_STEP  # both import this module

    # An upgrade would replace the packages of a driver that stays, too.
    desired = replace(recipe, upgrade=False, skip=(*recipe.skip, "secure-boot"))
    projected = replace(facts, run_installer=Known(False, PLAN_PROBE_KEY)) if recipe.remove_runfile_driver else facts
    outcomes = [step.plan(desired, projected) for step in (CONFLICTS_STEP, DRIVER_STEP) if step.id not in recipe.skip]
    yield from chain.from_iterable(outcome.changes for outcome in outcomes if isinstance(outcome, Planned))


REPAIR_STEP = Step("repair", "package database", "sources", plan_repair, serves=())


def plan_driver_repository(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the CUDA repository of this distribution, signed by the key with the pinned fingerprint."""
    if recipe.driver.source == "distro" and wants_driver(recipe, facts):
        from gpunode.steps.distro_driver import plan_repository_for_own_driver  # loaded on use: few recipes take it

        return plan_repository_for_own_driver(recipe, facts)
    return plan_cuda_repository(recipe, facts)


def plan_cuda_repository(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the CUDA repository if the driver or the CUDA toolkit come from it."""
    if not wants_driver(recipe, facts) and not wants_cuda_toolkit(recipe):
        return Planned((), "this driver is not managed by gpunode")
    # With the repository, the next upgrade would replace another packager's packages with NVIDIA's.
    if preexisting := preexisting_driver(recipe, facts):
        return Planned((), preexisting.reason)
    family = family_of(facts)
    if isinstance(family, Refusal):
        return family if wants_driver(recipe, facts) else replace(family, hint=_missing_cuda_repository_hint())
    distro = require(facts.distro, "which distribution this is")
    architecture = require(facts.architecture, "the architecture of this system")
    table = recipe.repositories
    repository = cuda_repository(distro, architecture, table.cuda, table.cuda_key_fingerprint, table.cuda_key_file)
    if repository is None:
        return Refusal(
            what=f"NVIDIA has no repository of drivers and CUDA for {distro.name} on {architecture}",
            why="the table of repositories (gpunode/catalog/cuda_repositories.csv) has no row for them",
            hint='use a release that has one, or set driver.version = "none" and install the driver by hand'
            if wants_driver(recipe, facts)
            else _missing_cuda_repository_hint(),
        )
    return deb.plan_repository(repository, facts)


def _missing_cuda_repository_hint() -> str:
    """Return what to do if only the CUDA toolkit needs NVIDIA's repository, and there is none."""
    return (
        'use a release that has one, or set cuda.version = "none" and take your distribution\'s own toolkit:\n'
        f"sudo {deb.install_command(('nvidia-cuda-toolkit',))}"
    )


def plan_toolkit_repository(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the container toolkit's repository, signed by the key with the pinned fingerprint."""
    if not wants_container_toolkit(recipe):
        return Planned((), "the recipe has no container runtime")
    architecture = require(facts.architecture, "the architecture of this system")
    table = recipe.repositories
    key, key_file = table.toolkit_key_fingerprint, table.toolkit_key_file
    return deb.plan_repository(toolkit_repository(table.toolkit, key, key_file, architecture), facts)


def wants_cuda_toolkit(recipe: Recipe) -> bool:
    """Return whether the recipe requests a CUDA toolkit on the host."""
    return recipe.cuda.version != "none"


def wants_container_toolkit(recipe: Recipe) -> bool:
    """Return whether gpunode installs the container toolkit."""
    return recipe.runtime.name != "none" and recipe.toolkit.version != "none"


CUDA_REPOSITORY_STEP = Step(
    "cuda-repository",
    "driver repository",
    "sources",
    plan_driver_repository,
    serves=("driver", "fabric", "gpudirect", "cuda-toolkit"),
    for_driver=True,
    files=(CUDA_KEYRING,),
)
TOOLKIT_REPOSITORY_STEP = Step(
    "toolkit-repository",
    "toolkit repository",
    "sources",
    plan_toolkit_repository,
    serves=("toolkit",),
    files=(TOOLKIT_KEYRING,),
)


def desired_state(
    recipe: Recipe, package: PackageId, otherwise: PackageState | KnownAfter
) -> PackageState | KnownAfter:
    """Return the state of ``package`` in the locked version, or ``otherwise`` without a lock."""
    version = recipe.lock.packages.get(package) if recipe.lock else None
    return PackageState(version) if version else otherwise


def find_packages_off_lock(
    recipe: Recipe, packages: Mapping[PackageId, PackageState], requested: Iterable[PackageId]
) -> tuple[PackageId, ...]:
    """Return those of ``requested`` whose installed version is not the locked one."""
    locked: Mapping[PackageId, str] = recipe.lock.packages if recipe.lock else {}
    installed = (package for package in requested if package in locked and is_at_version(packages.get(package), ""))
    return tuple(package for package in installed if packages[package].version != locked[package])


def locked_driver_packages(recipe: Recipe) -> tuple[PackageId, ...]:
    """Return the locked packages that belong to no other step: the driver, and its dependencies."""
    from gpunode.steps.table import STEPS  # which imports this module's users

    owners = [step.packages.is_owned for step in STEPS if step.packages]
    locked = recipe.lock.packages if recipe.lock else ()
    return tuple(package for package in sorted(locked) if not any(owns(package) for owns in owners))


def held_packages_refusal(packages: Iterable[PackageId], requester: str, needed: str = "another version") -> Refusal:
    """Return the refusal of packages that somebody holds at a version that is not the wanted one."""
    listed = tuple(packages)
    return Refusal(
        what=f"{', '.join(map(str, listed))} is held, and {requester} needs {needed}",
        why="somebody put it on hold; gpunode breaks no holds",
        hint=f"sudo {deb.unhold_command(listed)}\nthen run the same command again",
        held=listed,
    )


def merge_hold_refusals(refusals: Sequence[Refusal]) -> Refusal:
    """Return the first of ``refusals``; if it is for a hold, with the holds of all others in one command."""
    first, *others = refusals
    held = tuple(dict.fromkeys(chain.from_iterable(refusal.held for refusal in refusals)))
    if not first.held or held == first.held:
        return first
    return replace(
        first,
        what=f"{', '.join(map(str, held))} are held, and this recipe needs them in other versions or not at all",
        why="\n".join((*(refusal.what for refusal in (first, *others) if refusal.held), first.why)),
        hint=f"sudo {deb.unhold_command(held)}\nthen run the same command again",
        held=held,
    )


def plan_missing_dependencies(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan to install what the recipe's packages need, directly or not, and the node lacks.

    Each missing package is named to the package manager, which refuses to do anything to a node with unmet
    dependencies unless all of them are named. Their own dependencies are installed with them.
    """
    packages = require(facts.packages, "which packages are installed")
    if not isinstance(facts.dependencies, Known):
        return Planned((), f"dependencies of packages are unknown: {facts.dependencies.reason}", is_requested=False)
    driver = wanted_driver(recipe, facts)
    chosen = driver if isinstance(driver, WantedDriver) else None
    missing = facts.dependencies.value.missing(packages, tuple(_requested_packages(recipe, facts, chosen)))
    if missing is None:
        return Planned((), "none of the packages that the recipe asks for is installed yet", is_requested=False)
    if not missing:
        return Planned((), "all that the recipe's packages depend on is installed")
    if held_packages := [
        dependency.package
        for dependency in missing
        if dependency.package in packages and packages[dependency.package].held
    ]:
        return held_packages_refusal(held_packages, f"{missing[0].needed_by}")
    changes = tuple(
        PackageChange(
            dependency.package,
            packages.get(dependency.package),
            _missing_dependency_state(recipe, facts, chosen, dependency),
        )
        for dependency in missing
    )
    first = missing[0]
    others = f"; {len(missing) - 1} more of this kind" if missing[1:] else ""
    return Planned(changes, f"{first.needed_by} needs {first.relation}, which is not installed{others}")


def _requested_packages(recipe: Recipe, facts: Facts, driver: WantedDriver | None) -> Iterator[PackageId]:
    """Yield the packages that the other steps request."""
    from gpunode.steps.table import STEPS  # which imports this module's users

    if driver is not None:
        yield from header_packages(driver.family, facts)
    for step in STEPS:
        if step.packages:
            yield from step.packages.list_wanted(recipe, facts)


def _missing_dependency_state(
    recipe: Recipe, facts: Facts, driver: WantedDriver | None, missing: MissingDependency
) -> PackageState | KnownAfter:
    """Return the target state: a dependency, in the locked version, the only one that will do, or any."""
    anyhow: PackageState | KnownAfter = ANY_PROVIDER
    if missing.version:
        anyhow = PackageState(missing.version, auto=True)
    is_nvidias = driver is not None and driver.chosen.source == "nvidia"
    if driver is not None and is_nvidias and missing.package.name in driver_versioned_packages(driver.chosen.branch):
        # A package of the driver has the driver's version, whatever version is needed.
        version = "" if recipe.upgrade else installed_driver_version(facts, driver)
        anyhow = KnownAfter(f"{version}-" if version else version_prefix(driver.chosen), "driver", auto=True)
    return replace(desired_state(recipe, missing.package, anyhow), auto=True)


MISSING_DEPENDENCIES_STEP = Step(
    "missing-dependencies", "dependencies", "packages", plan_missing_dependencies, serves=(), uses_driver=True
)


CUDA_PROFILE_SCRIPT: Final = "/etc/profile.d/gpunode-cuda.sh"


def plan_cuda_toolkit(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the toolkit that the recipe requests; see ``cuda_release``."""
    if not wants_cuda_toolkit(recipe):
        return Planned((), "the recipe asks for no CUDA toolkit", is_requested=False)
    from gpunode.steps.cuda_release import plan_toolkit

    return plan_toolkit(recipe, facts)


def _wanted_cuda_packages(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    if not wants_cuda_toolkit(recipe):
        return ()
    from gpunode.steps.cuda_release import find_chosen_toolkit_packages

    return find_chosen_toolkit_packages(recipe, facts)


def _cuda_components(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    if not wants_cuda_toolkit(recipe):
        return ()
    from gpunode.steps.cuda_release import find_components

    return find_components(recipe, facts)


def _is_cuda_toolkit_package(package: PackageId) -> bool:
    from gpunode.catalog.cuda import release_of_component

    return release_of_component(package.name) is not None


CUDA_TOOLKIT_STEP = Step(
    "cuda-toolkit",
    "CUDA toolkit",
    "packages",
    plan_cuda_toolkit,
    serves=("cuda-toolkit",),
    needs=("cuda-repository",),
    uses_driver=True,
    files=(CUDA_PROFILE_SCRIPT,),
    packages=StepPackageRules(_wanted_cuda_packages, _is_cuda_toolkit_package, _cuda_components),
)
