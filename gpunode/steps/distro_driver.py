"""The distribution's own driver: its archive, the packages that it replaces, and its prebuilt modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpunode.catalog.conflicts import STANDALONE_TOOL_PACKAGES, driver_packages, upstream_version
from gpunode.catalog.distro_drivers import list_distro_drivers
from gpunode.change import PackageState
from gpunode.distros.distro_driver import is_foreign_driver_package
from gpunode.facts.model import Facts, Kernels, require, value_or
from gpunode.facts.project import PLAN_PROBE_KEY
from gpunode.outcome import Planned, Refusal, StepOutcome
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.recipe import Recipe
from gpunode.steps.kernel import kernels_without_module
from gpunode.steps.packages import plan_cuda_repository, wants_cuda_toolkit
from gpunode.steps.selection import WantedDriver, choose_driver_for_node


def plan_repository_for_own_driver(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan NVIDIA's repository only for packages that the distribution's own archive lacks beside the driver."""
    chosen = choose_driver_for_node(recipe, facts)
    if isinstance(chosen, Refusal):
        return chosen
    distro_drivers = list_distro_drivers(require(facts.distro, "which distribution this is"))
    components = next((driver.components for driver in distro_drivers if driver.branch == chosen.branch), ())
    if refused := deb.find_missing_components_refusal(facts, components):
        return refused
    others = {"CUDA toolkit": wants_cuda_toolkit(recipe), "GPUDirect Storage": recipe.gpudirect.gds}
    requested = [name for name, is_requested in others.items() if is_requested]
    where = f"the driver comes from the distribution's own archive ({', '.join(components)})"
    if not requested:
        return Planned((), f"{where}; nothing else needs NVIDIA's repository", is_requested=False)
    outcome = plan_cuda_repository(recipe, facts)
    what = f"{where}; {' and '.join(requested)} from NVIDIA's, whose driver packages are pinned out"
    return replace(outcome, reason=f"{what}; {outcome.reason}") if isinstance(outcome, Planned) else outcome


def find_foreign_packages(packages: Iterable[PackageId], driver: WantedDriver) -> tuple[PackageId, ...]:
    """Return those of ``packages`` that belong to another packager's driver, not the distribution's own."""
    candidates = sorted(driver_packages(packages))
    return tuple(
        package for package in candidates if is_foreign_driver_package(driver.family, driver.chosen, package.name)
    )


def find_packages_of_other_origin(
    installed: Mapping[PackageId, PackageState], old: Iterable[PackageId], driver: WantedDriver
) -> dict[PackageId, PackageState]:
    """Return the packages of another packager's driver, and the tools that came with it or with those of ``old``."""
    foreign = find_foreign_packages(installed, driver)
    versions = {upstream_version(installed[package].version) for package in (*foreign, *old)} - {""}
    tools = (
        package
        for package in installed
        if package.name in STANDALONE_TOOL_PACKAGES and upstream_version(installed[package].version) in versions
    )
    return {package: installed[package] for package in (*foreign, *tools)}


def require_prebuilt_modules(driver: WantedDriver, kernels: Kernels, facts: Facts) -> StepOutcome:
    """Plan nothing, since packages contain the modules; refuse if one is missing."""
    if lacking := kernels_without_module(driver.chosen, kernels, facts):
        packages = value_or(facts.packages, {})
        installed = {package: packages[package] for package in map(PackageId, driver.modules) if package in packages}
        return Refusal(
            what=f"there is no prebuilt NVIDIA module of branch {driver.chosen.branch} for kernel {', '.join(lacking)}",
            why="its package is installed, but the module file is missing: the package links it when it is configured, "
            "and checks its signature",
            hint=f"sudo {deb.reinstall_command(installed)}\nthen run the same command again",
        )
    is_planned = facts.module_files.probe == PLAN_PROBE_KEY
    by = "a package contains it" if is_planned else "prebuilt"
    return Planned((), f"{by} for {' and '.join(kernels.wanted)}", is_deferred=is_planned)
