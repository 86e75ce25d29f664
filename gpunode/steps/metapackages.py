"""Metapackages of CUDA (``cuda-12-6``) and of a driver: which are removed, and which packages stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpunode.catalog.conflicts import is_cuda_metapackage, purge_reason
from gpunode.change import PackageChange, PackageState
from gpunode.facts.model import Facts, Unknown, value_or
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId
from gpunode.steps.installed_driver import installed_driver_packages, is_at_version, plan_manual_marks


@dataclass(frozen=True, slots=True)
class DependentRemoval:
    """The packages that are removed because they need the driver, and the marks that keep their other dependencies."""

    packages: Mapping[PackageId, PackageState]
    marks: tuple[PackageChange, ...]

    @property
    def reason(self) -> str:
        """Why they are removed, and which packages stay."""
        depend, are = ("depend", "are") if len(self.packages) > 1 else ("depends", "is")
        reason = f"{', '.join(map(str, self.packages))} {depend} on removed packages, and {are} removed with them"
        stays = ", ".join(change.subject for change in self.marks)
        return (
            f"{reason}; other packages that they installed stay, marked as manually installed: {stays}"
            if stays
            else reason
        )


def plan_dependent_removal(
    leaving: Collection[PackageId], kept_packages: Collection[PackageId], facts: Facts
) -> DependentRemoval | None:
    """Return the removal of packages that need, directly or not, a driver's package that is ``leaving``.

    ``kept_packages`` stay, or are replaced.
    """
    if isinstance(facts.dependencies, Unknown):
        return None
    packages, installed = value_or(facts.packages, {}), installed_driver_packages(facts)
    metapackages = {
        package: state
        for package, state in packages.items()
        if is_cuda_metapackage(package.name) and is_at_version(state, "")
    }
    locked = (
        package for package, state in installed.items() if purge_reason(package.name, state.version) != "relation"
    )
    candidates = {*metapackages, *locked} - {*kept_packages, *leaving}
    needs = facts.dependencies.value.satisfying_packages(packages, candidates)
    removed = {*leaving}
    while new := {
        package for package in candidates - removed if any(met and met <= removed for met in needs.get(package, ()))
    }:
        removed |= new
    dependents = {package: packages[package] for package in sorted(removed & candidates)}
    parts = {part for package in dependents.keys() & metapackages for met in needs[package] for part in met}
    return (
        DependentRemoval(dependents, plan_manual_marks(packages, sorted(parts - {*dependents, *installed})))
        if dependents
        else None
    )
