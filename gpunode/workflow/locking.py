"""A node's exact versions as a lock, and what keeps a lock from being installed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpunode.catalog.conflicts import driver_packages
from gpunode.change import KnownAfter, PackageState
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import Refused, Undetermined
from gpunode.facts.model import Facts, need
from gpunode.recipe import Recipe, VersionLock
from gpunode.runtimes import runtime
from gpunode.steps.driver import DRIVER
from gpunode.steps.gpudirect import GPUDIRECT, feature_packages
from gpunode.steps.installed_driver import branch_of, matches
from gpunode.steps.repositories import wants_toolkit
from gpunode.steps.runtime_install import RUNTIME_INSTALL
from gpunode.steps.selection import WantedDriver, wanted_driver
from gpunode.steps.toolkit import TOOLKIT
from gpunode.workflow.converge import StagePlan, projected

# They come along with a driver that has a display; their relations allow any newer version.
_OPEN_SOURCE_PARTS = "libnvidia-egl-"


def lock_of(recipe: Recipe, facts: Facts, plans: Sequence[StagePlan], file: str) -> VersionLock:
    """The versions that the node has once ``plans`` are carried out: what steps ask for, and the driver's dependencies.

    Kernel headers are not among them: they follow the kernel of each node.

    Raises:
        Undetermined: a version is known only after the package index was read.
    """
    for plan in plans:
        if problem := plan.unresolved or _unsettled(plan):
            raise Undetermined(
                "the versions to lock are not known yet",
                why=problem,
                hint="run gpunode setup on this node first, or name one that is set up; then write the lock there",
            )
        facts = projected(facts, plan)
    packages = need(facts.packages, "which packages are installed")
    distro = need(facts.distro, "which distribution this is")
    names = sorted({*_asked(recipe, facts, packages), *_driver_parts(recipe, facts, packages)})
    return VersionLock(
        file=file,
        recipe=recipe.name,
        distribution=distro.id,
        release=distro.version_id,
        architecture=need(facts.architecture, "the architecture of this system"),
        packages={name: packages[name].version for name in names if matches(packages.get(name), "")},
    )


def _unsettled(plan: StagePlan) -> str:
    """Why some version is not known; empty when all are."""
    pending = [change.name for change in plan.packages if isinstance(change.after, KnownAfter)]
    return f"{', '.join(pending)}: known after the package index is read" if pending else ""


def _asked(recipe: Recipe, facts: Facts, packages: Mapping[str, PackageState]) -> Iterator[str]:
    """What steps ask for by name."""
    driver = _driver(recipe, facts)
    if driver is not None:
        yield from driver.packages(recipe)
    if GPUDIRECT.id not in recipe.skip:
        yield from feature_packages(recipe)
    if wants_toolkit(recipe) and TOOLKIT.id not in recipe.skip:
        yield from TOOLKIT_PACKAGES
    if recipe.runtime.name != "none" and RUNTIME_INSTALL.id not in recipe.skip:
        names = (name for name in runtime(recipe.runtime.name).packages if matches(packages.get(name), ""))
        yield from (name for name in [next(names, "")] if name)


def _driver(recipe: Recipe, facts: Facts) -> WantedDriver | None:
    driver = wanted_driver(recipe, facts) if DRIVER.id not in recipe.skip else None
    return driver if isinstance(driver, WantedDriver) else None


def _driver_parts(recipe: Recipe, facts: Facts, packages: Mapping[str, PackageState]) -> Iterator[str]:
    """The installed parts of the driver: all of its version, and those with versions of their own that came along."""
    driver = _driver(recipe, facts)
    parts = {*driver_packages(packages), *(name for name in packages if name.startswith(_OPEN_SOURCE_PARTS))}
    for name in parts if driver is not None else ():
        state = packages[name]
        branch = branch_of(state.version)
        if driver is not None and (branch == driver.chosen.branch or (not branch and state.auto)):
            yield name


def lacked(missing_versions: Iterable[tuple[str, str]], problem: str, lock: VersionLock) -> Refused | None:
    """The refusal of a lock some of whose versions, as name and version, no archive has; None where it has all."""
    missing = [f"{name} {version}" for name, version in missing_versions if lock.packages.get(name) == version]
    if not missing:
        return None
    return Refused(
        f"the archive has no {', '.join(missing)}, which {lock.file} requires; no package was touched",
        why=problem,
        hint="archives drop old versions: take the packages from a mirror that keeps them ([repositories] in the\n"
        "recipe), or upgrade one node (gpunode setup --upgrade) and write the lock again there",
    )
