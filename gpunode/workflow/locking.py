"""A node's exact versions as a lock, and why a lock cannot be installed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpunode.catalog.conflicts import driver_packages
from gpunode.change import KnownAfter, PackageState
from gpunode.errors import Refused, Undetermined
from gpunode.facts.model import Facts, need
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe, VersionLock
from gpunode.steps.driver import DRIVER_STEP
from gpunode.steps.installed_driver import branch_of, is_at_version
from gpunode.steps.packages import CUDA_TOOLKIT_STEP, wants_cuda_toolkit
from gpunode.steps.selection import WantedDriver, wanted_driver
from gpunode.steps.table import STEPS
from gpunode.workflow.converge import StagePlan, project_stage

# These are installed with a driver that has a display; dependencies on them allow any newer version.
_EGL_PACKAGE_PREFIX = "libnvidia-egl-"


def create_lock(
    recipe: Recipe, facts: Facts, plans: Sequence[StagePlan], file: str, setup_command: str = "sudo gpunode setup"
) -> VersionLock:
    """Return the versions after ``plans``: of requested packages, and of the dependencies of driver and toolkit.

    Packages that depend on a node's kernel are left out: headers and prebuilt modules. ``setup_command`` is the command
    that sets up the node, for a hint.

    Raises:
        Undetermined: a version is known only once the package index has been read.
    """
    for plan in plans:
        pending = ", ".join(str(change.id) for change in plan.packages if isinstance(change.after, KnownAfter))
        if problem := plan.unresolved or (pending and f"{pending}: known after the package index is read"):
            raise Undetermined(
                "the versions to lock are not yet known",
                why=problem,
                hint=f"set this node up first, or use a node that is; then write the lock there:\n{setup_command}",
            )
        facts = project_stage(facts, plan)
    packages = need(facts.packages, "which packages are installed")
    distro = need(facts.distro, "which distribution this is")
    found = {*_requested_packages(recipe, facts), *_lockable_packages(recipe, facts, packages)}
    wanted = sorted(one for one in {*found, *_cuda_components(recipe, facts)} if not one.name.startswith("linux-"))
    return VersionLock(
        file=file,
        recipe=recipe.name,
        distribution=distro.id,
        release=distro.version_id,
        architecture=need(facts.architecture, "the architecture of this system"),
        packages={package: packages[package].version for package in wanted if is_at_version(packages.get(package), "")},
    )


def _requested_packages(recipe: Recipe, facts: Facts) -> Iterator[PackageId]:
    """Yield the packages that steps request by name."""
    for step in STEPS:
        if step.packages and step.id not in recipe.skip:
            yield from step.packages.list_wanted(recipe, facts)


def _cuda_components(recipe: Recipe, facts: Facts) -> Iterable[PackageId]:
    """Return the packages installed with the CUDA toolkit."""
    if not wants_cuda_toolkit(recipe) or CUDA_TOOLKIT_STEP.id in recipe.skip:
        return ()
    from gpunode.steps.cuda_release import find_components  # loaded on use

    return find_components(recipe, facts)


def _lockable_packages(recipe: Recipe, facts: Facts, packages: Mapping[PackageId, PackageState]) -> Iterator[PackageId]:
    """Yield the driver's packages: all in its version, and dependencies with versions of their own."""
    driver = wanted_driver(recipe, facts) if DRIVER_STEP.id not in recipe.skip else None
    if not isinstance(driver, WantedDriver):
        return
    for package in {*driver_packages(packages), *(one for one in packages if one.name.startswith(_EGL_PACKAGE_PREFIX))}:
        state = packages[package]
        branch = branch_of(state.version)
        if branch == driver.chosen.branch or (not branch and state.auto):
            yield package


def missing_versions_error(
    missing_versions: Iterable[tuple[PackageId, str]], problem: str, lock: VersionLock
) -> Refused | None:
    """Return the refusal of a lock if no archive has some of its versions; None if all are available."""
    missing = [f"{one} {version}" for one, version in missing_versions if lock.packages.get(one) == version]
    if not missing:
        return None
    return Refused(
        f"the archive has no {', '.join(missing)}, which {lock.file} requires; no package was changed",
        why=problem,
        hint="archives drop old versions: take the packages from a mirror that keeps them ([repositories] in the\n"
        "recipe), or upgrade one node (gpunode setup --upgrade) and write the lock again there",
    )
