"""A node's exact versions as a lock, and why a lock cannot be installed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpunode.change import KnownAfter
from gpunode.errors import Refused, Undetermined
from gpunode.facts.model import Facts, require
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe, VersionLock
from gpunode.steps.installed_driver import is_at_version
from gpunode.steps.table import STEPS
from gpunode.workflow.converge import StagePlan, project_stage


def create_lock(recipe: Recipe, facts: Facts, plans: Sequence[StagePlan], file: str, hint: str = "") -> VersionLock:
    """Return the versions after ``plans``: of requested packages, and of the dependencies of driver and toolkit.

    Packages that depend on a node's kernel are left out: headers and prebuilt modules. ``hint`` says how
    missing versions become known.

    Raises:
        Undetermined: a version is known only once the package index has been read.
    """
    for plan in plans:
        pending = ", ".join(str(change.id) for change in plan.packages if isinstance(change.after, KnownAfter))
        if problem := plan.unresolved or (pending and f"{pending}: known after the package index is read"):
            raise Undetermined(
                "the versions to lock are not yet known",
                why=problem,
                hint=hint,
            )
        facts = project_stage(facts, plan)
    packages = require(facts.packages, "which packages are installed")
    distro = require(facts.distro, "which distribution this is")
    wanted = sorted(
        package for package in {*_lockable_packages(recipe, facts)} if not package.name.startswith("linux-")
    )
    return VersionLock(
        file=file,
        recipe=recipe.name,
        distribution=distro.id,
        release=distro.version_id,
        architecture=require(facts.architecture, "the architecture of this system"),
        packages={package: packages[package].version for package in wanted if is_at_version(packages.get(package), "")},
    )


def _lockable_packages(recipe: Recipe, facts: Facts) -> Iterator[PackageId]:
    """Yield the packages that steps request by name, and those that came with them."""
    for step in STEPS:
        if step.packages and step.id not in recipe.skip:
            yield from step.packages.list_wanted(recipe, facts)
            yield from step.packages.list_companions(recipe, facts)


def missing_versions_error(
    missing_versions: Iterable[tuple[PackageId, str]], problem: str, lock: VersionLock
) -> Refused | None:
    """Return the refusal of a lock if no archive has some of its versions; None if all are available."""
    missing = [f"{package} {version}" for package, version in missing_versions if lock.packages.get(package) == version]
    if not missing:
        return None
    return Refused(
        f"the archive has no {', '.join(missing)}, which {lock.file} requires; no package was changed",
        why=problem,
        hint="archives drop old versions: take the packages from a mirror that keeps them ([repositories] in the\n"
        "recipe), or upgrade one node (gpunode setup --upgrade) and write the lock again there",
    )
