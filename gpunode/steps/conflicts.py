"""Old drivers that conflict with the chosen one leave in the same transaction that brings it."""

from __future__ import annotations

from gpunode.catalog.conflicts import BY_THEMSELVES, STANDS_ALONE, purge_reason, upstream
from gpunode.catalog.driver import Choice
from gpunode.change import PackageChange, PackageState
from gpunode.facts.model import Facts, Unknown, known
from gpunode.outcome import Outcome, Planned, Refusal, Step
from gpunode.package_id import PackageId
from gpunode.packages import system
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import branch_of, installed_driver_packages, prefix, version_matches
from gpunode.steps.locked import beside_driver
from gpunode.steps.selection import WantedDriver, apart_from, built_for_ubuntu, moved_along, wanted_driver

# It replaces files of packages and says so to nobody; its own uninstaller alone knows which.
_RUN_INSTALLER = Refusal(
    what="NVIDIA's .run installer has installed a driver over or beside the packages",
    why="/usr/bin/nvidia-uninstall is its uninstaller; two drivers in the same places do not work",
    hint="sudo nvidia-uninstall\nthen run the same command again (if only that file is left of it, remove the file)",
)


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Purges exactly the installed driver packages of another version; never a pattern, never the toolkit.

    Each has its reason, see ``purge_reason``: a package that builds the same kernel module, or works with one version
    of it alone. What leaves because it needs one of these, or conflicts with what comes, the package manager says.

    A package of the same name in NVIDIA's repository is replaced rather than purged; which these are only the index
    tells, so the transaction's resolution settles it.
    """
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    if known(facts.run_installer, default=False):
        return _RUN_INSTALLER
    leftovers, notes = _foreign_files(facts)
    if leftovers:
        return leftovers
    chosen = driver.chosen
    installed, strays = installed_driver_packages(facts), apart_from(recipe, facts, driver)
    # What a lock names, or is of the installed driver in another version, is brought to its version and not purged.
    kept = {*driver.packages(recipe), *beside_driver(recipe), *strays, *moved_along(strays, installed)}
    # The modules of the other flavour say which version the driver keeps, so they leave with the step that brings it.
    kept.add(driver.rival)
    old = {
        package: state
        for package, state in installed.items()
        if package not in kept and _is_other(package.name, state.version, chosen)
    }
    foreign = built_for_ubuntu(facts, driver)
    rebuilt = [one for one in foreign if one not in kept and one.name not in BY_THEMSELVES]
    old |= {package: installed[package] for package in rebuilt}
    if not old:
        return Planned((), "no package of another driver is installed", notes)
    if held := [package for package, state in old.items() if state.held]:
        return Refusal(
            what=f"{', '.join(map(str, held))} is held at a version that conflicts with driver {chosen.branch}",
            why="somebody put it on hold; gpunode breaks no holds",
            hint=f"{system(facts).unhold(held)}\nthen run the same command again",
            held=tuple(held),
        )
    versions = ", ".join(sorted({upstream(state.version) or state.version for state in old.values()}))
    changes = tuple(PackageChange(package, state, None) for package, state in old.items())
    reason = f"{len(old)} packages of driver {versions} conflict with branch {chosen.branch}"
    helpers = sum(package not in kept and _is_helper(package, state) for package, state in installed.items())
    may_go = f"; {helpers} helpers may go, too" if helpers else ""
    may_go += f"; built for Ubuntu: {', '.join(map(str, rebuilt))}" if rebuilt else ""
    return Planned(changes, reason + may_go, notes)


def _foreign_files(facts: Facts) -> tuple[Refusal | None, tuple[str, ...]]:
    """Return why files that no package brought stand in the way, and what to know of those that do not."""
    if isinstance(facts.driver_libraries, Unknown) or not facts.driver_libraries.value:
        return None, ()
    from gpunode.steps.foreign_files import local_libraries, refuse_leftovers  # loaded on use

    return refuse_leftovers(facts), tuple(local_libraries(facts))


def _is_helper(package: PackageId, state: PackageState) -> bool:
    """Whether a package goes where it is of no use, and only the package manager knows whether it is."""
    is_relation = purge_reason(package.name, state.version) == "relation"
    return is_relation and not state.config_files_only and not package.name.startswith(STANDS_ALONE)


def _is_other(name: str, version: str, chosen: Choice) -> bool:
    """Whether a package is of another driver version and cannot stand beside the chosen one."""
    if name in BY_THEMSELVES and branch_of(version) == chosen.branch:
        return False
    return purge_reason(name, version) not in {None, "relation"} and not version_matches(version, prefix(chosen))


CONFLICTS = Step("conflicts", "old drivers", "packages", plan, for_driver=True)
