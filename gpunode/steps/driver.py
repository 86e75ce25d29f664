"""The driver: pin its branch, remove old drivers, install its packages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpunode.catalog.conflicts import (
    SEPARATELY_VERSIONED_IN_DISTROS,
    STANDALONE_PREFIX,
    STANDALONE_TOOL_PACKAGES,
    driver_packages,
    driver_versioned_packages,
    is_cuda_metapackage,
    purge_reason,
    upstream_version,
)
from gpunode.catalog.driver import DriverChoice
from gpunode.change import FileState, KnownAfter, PackageChange, PackageState
from gpunode.facts.model import Facts, Unknown, plan_file, require, value_or
from gpunode.facts.probes import LD_SO_CONFIG_FILE
from gpunode.outcome import Planned, Refusal, Step, StepOutcome, StepPackageRules
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.packages.version import has_prefix
from gpunode.recipe import Recipe
from gpunode.steps.fabric import FABRIC_STEP, wanted_fabric_packages
from gpunode.steps.gpus import find_own_gpus
from gpunode.steps.installed_driver import (
    branch_of,
    explain_manual_marks,
    installed_driver_packages,
    is_at_version,
    package_version_prefix,
    pinned_by_nvidia_package,
    plan_manual_marks,
    version_prefix,
)
from gpunode.steps.kernel import is_chosen_driver_loaded
from gpunode.steps.packages import desired_state, find_packages_off_lock, held_packages_refusal, locked_driver_packages
from gpunode.steps.secure_boot import lacks_enrolment
from gpunode.steps.selection import (
    WantedDriver,
    kept_driver_version,
    mismatched_packages,
    module_package_version,
    packages_built_for_ubuntu,
    tools_of_mismatched,
    wanted_driver,
)
from gpunode.wording import count_noun

if TYPE_CHECKING:
    from gpunode.steps.metapackages import DependentRemoval


def plan_driver_pin(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the pin that excludes packages of other branches; keep a pinning package that agrees.

    NVIDIA's pinning package cannot be installed together with the driver: pins are read before a transaction starts, so
    the newest branch would be installed.
    """
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    chosen = driver.chosen
    pinned = pinned_by_nvidia_package(value_or(facts.packages, {}))
    if pinned and not _are_compatible(pinned, chosen):
        return Refusal(
            what=f"nvidia-driver-pinning-{pinned} pins another driver",
            why=f"this node needs {_describe_pin(chosen.branch, chosen.exact)}: {chosen.reason}",
            hint=f"sudo {deb.purge_command((f'nvidia-driver-pinning-{pinned}',))}\nthen run the same command again",
        )
    pin = deb.render_driver_pin(chosen, driver.family.origins, driver.foreign_archives)
    changes = plan_file(facts, deb.PIN_FILE, FileState(pin))
    names = dict.fromkeys(
        (*(package.name for package in driver.packages(recipe)), *driver_versioned_packages(chosen.branch))
    )
    notes = (*chosen.warnings, *deb.note_overriding_records(facts, chosen, names))
    if not changes:
        return Planned((), f"held at {_describe_pin(chosen.branch, chosen.exact)}", notes)
    reason = f"driver {_describe_pin(chosen.branch, chosen.exact)}, {chosen.flavour} kernel modules: {chosen.reason}"
    return Planned(changes, reason, notes)


def _describe_pin(branch: int, exact: str) -> str:
    return exact or f"branch {branch}"


def _are_compatible(pinned: str, chosen: DriverChoice) -> bool:
    """Return whether some version satisfies both: one is the other, or the branch of it."""
    wanted = chosen.exact or str(chosen.branch)
    return f"{pinned}.".startswith(f"{wanted}.") or f"{wanted}.".startswith(f"{pinned}.")


DRIVER_PIN_STEP = Step("driver-pin", "driver branch", "sources", plan_driver_pin, serves=("driver",), for_driver=True)


def plan_run_driver_removal(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the uninstallation of a .run driver if the command line requests it."""
    if not recipe.remove_runfile_driver:
        return Planned((), "not requested (--remove-runfile-driver)", is_requested=False)
    from gpunode.steps.leftovers import plan_run_driver_uninstall  # loaded on use

    return plan_run_driver_uninstall(facts)


RUN_DRIVER_STEP = Step("run-driver", ".run driver", "sources", plan_run_driver_removal, serves=(), for_driver=True)


# It replaces files of packages silently; only its own uninstaller knows which.
_RUN_INSTALLER_REFUSAL = Refusal(
    what="NVIDIA's .run installer has installed a driver over or beside the packages",
    why="/usr/bin/nvidia-installer or /usr/bin/nvidia-uninstall exists; two drivers in the same folders do not work",
    hint="add --remove-runfile-driver to let setup run its uninstaller first; or run it yourself:\n"
    "sudo nvidia-installer --uninstall\nthen run the same command again (if only these two are left, remove them)",
)


def plan_conflicting_driver_purge(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the purge of exactly the installed driver packages of another version: no pattern, not the toolkit.

    Each has its reason, see ``purge_reason``: it builds the same kernel module, or works with only one version of it.
    The package manager decides what leaves because it needs one of these, or conflicts with new packages.

    A package of the same name in NVIDIA's repository is replaced rather than purged; only the index tells which these
    are, so the transaction's resolution settles it.
    """
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    if value_or(facts.run_installer, default=False):
        return _RUN_INSTALLER_REFUSAL
    leftovers, notes = _check_foreign_files(driver, facts)
    if leftovers:
        return leftovers
    chosen = driver.chosen
    installed, strays = installed_driver_packages(facts), mismatched_packages(recipe, facts, driver)
    # Packages that a lock names, or that are of the installed driver in another version, are not purged but replaced.
    kept = {*driver.packages(recipe), *locked_driver_packages(recipe), *strays, *tools_of_mismatched(strays, installed)}
    # The fabric manager moves with the driver.
    of_fabric = wanted_fabric_packages(recipe, facts)
    kept.update(of_fabric)
    # The other flavour's modules show which version the driver keeps, so the step that installs it removes them.
    kept.add(driver.other_flavour_package)
    purged = {
        package: state
        for package, state in installed.items()
        if package not in kept and _is_conflicting(package.name, state.version, chosen)
    }
    if chosen.source == "distro":
        from gpunode.steps.distro_driver import find_packages_of_other_origin  # loaded on use

        purged |= find_packages_of_other_origin(installed, purged, driver)
    foreign = packages_built_for_ubuntu(facts, driver)
    rebuilt = [package for package in foreign if package not in kept and package.name not in STANDALONE_TOOL_PACKAGES]
    purged |= {package: installed[package] for package in rebuilt}
    fabric_changes: tuple[PackageChange, ...] = ()
    if of_fabric:
        from gpunode.steps import fabric_packages  # only on a machine with a fabric

        purged |= {
            package: installed[package] for package in fabric_packages.find_conflicting_packages(recipe, facts, driver)
        }
        fabric_changes = fabric_packages.plan_fabric_version_changes(recipe, facts, driver)
    dependent_removal = _find_dependent_removal(driver, purged, kept, facts)
    if not purged and not fabric_changes and not dependent_removal:
        return Planned((), "no package of another driver is installed", notes)
    moving = {change.id: change.before for change in fabric_changes if change.before}
    dependents = dependent_removal.packages if dependent_removal else {}
    if held_packages := [package for package, state in {**purged, **dependents, **moving}.items() if state.held]:
        return held_packages_refusal(held_packages, f"driver {chosen.branch}", "another version, or none of it")
    purges = [PackageChange(package, state, None) for package, state in {**purged, **dependents}.items()]
    if any(_lacks_module_source(purge, facts) for purge in purges):
        from gpunode.steps.leftovers import find_unremovable_modules_refusal  # loaded on use

        if refused := find_unremovable_modules_refusal(purges, facts):
            return refused
    explanation = _explain_conflicts(chosen, purged, fabric_changes, dependent_removal)
    helpers = sum(package not in kept and _is_helper(package, state) for package, state in installed.items())
    optional_helpers_text = f", maybe {helpers} helpers too" if helpers else ""
    optional_helpers_text += f"; built for Ubuntu: {', '.join(map(str, rebuilt))}" if rebuilt else ""
    return Planned(
        (*purges, *fabric_changes, *(dependent_removal.marks if dependent_removal else ())),
        explanation + optional_helpers_text,
        notes,
    )


def _lacks_module_source(purge: PackageChange, facts: Facts) -> bool:
    """Return whether a package builds a driver's modules, and no folder exists that may be their source."""
    ending = f"-{upstream_version(purge.states[0])}"
    leftovers = value_or(facts.leftovers, frozenset({ending}))
    return deb.builds_driver(purge.id) and not any(path.endswith(ending) for path in leftovers)


def _find_dependent_removal(
    driver: WantedDriver, old: Collection[PackageId], kept_packages: Collection[PackageId], facts: Facts
) -> DependentRemoval | None:
    """Return the removal of what needs one of the ``old`` packages, or the modules of the other flavour."""
    packages = value_or(facts.packages, {})
    if driver.other_flavour_package not in packages and not any(
        is_cuda_metapackage(package.name) for package in packages
    ):
        return None
    from gpunode.steps.metapackages import plan_dependent_removal  # loaded on use: few nodes have one

    return plan_dependent_removal({*old, driver.other_flavour_package}, kept_packages, facts)


def _explain_conflicts(
    chosen: DriverChoice,
    old: Mapping[PackageId, PackageState],
    moves: Sequence[PackageChange],
    departure: DependentRemoval | None,
) -> str:
    """Return why packages are removed, or get another version."""
    # Prebuilt modules have the version of their kernel.
    known_versions = {upstream_version(state.version) for state in old.values()} - {""}
    versions = ", ".join(sorted(known_versions or {state.version for state in old.values()}))
    verb = "conflicts" if len(old) == 1 else "conflict"
    conflict = f"{count_noun(len(old), 'package')} of driver {versions} {verb} with branch {chosen.branch}"
    reasons = [conflict] if old else []
    if moves:
        reasons.append(f"{', '.join(change.subject for change in moves)} must have the driver's version")
    return "; ".join((*reasons, *([departure.reason] if departure else ())))


def _check_foreign_files(driver: WantedDriver, facts: Facts) -> tuple[Refusal | None, tuple[str, ...]]:
    """Return why unpackaged files block the installation, and notes on those that do not."""
    notes = _note_leftovers(facts)
    has_strays = any(not file.dkms for file in value_or(facts.module_files, ()))
    if not has_strays and not value_or(facts.driver_libraries, frozenset()):
        return None, notes
    from gpunode.steps import leftovers  # loaded on use

    refused = leftovers.find_runfile_leftovers_refusal(facts) or leftovers.find_hand_placed_modules_refusal(
        driver, facts
    )
    return refused, (*leftovers.local_library_notes(facts), *notes, *leftovers.note_stray_modules(driver, facts))


def _note_leftovers(facts: Facts) -> tuple[str, ...]:
    """Return the notes on leftovers; most nodes have no sign of any, so their module is loaded on use."""
    installed = value_or(facts.packages, {})
    versions = tuple({f"{sign}{upstream_version(state.version)}" for state in installed.values() for sign in "-/"})
    loader = (value_or(file, None) for path, file in facts.files.items() if path.startswith(LD_SO_CONFIG_FILE))
    signs = (
        any(not path.endswith(versions) for path in value_or(facts.leftovers, frozenset[str]())),
        any(sign in state.content for state in loader if state for sign in (b"/stubs", b"/compat", b"/nvidia")),
        PackageId("nvidia-docker2") in installed,
        value_or(facts.file(deb.COMMON_KEYRING), None) is not None,
    )
    if not any(signs):
        return ()
    from gpunode.steps.leftovers import find_leftovers

    return tuple(find_leftovers(facts))


def _is_helper(package: PackageId, state: PackageState) -> bool:
    """Return whether a package leaves if nothing needs it, which only the package manager knows."""
    is_relation = purge_reason(package.name, state.version) == "relation"
    return is_relation and not state.config_files_only and not package.name.startswith(STANDALONE_PREFIX)


def _is_conflicting(name: str, version: str, chosen: DriverChoice) -> bool:
    """Return whether a package is of another driver version and cannot coexist with the chosen one."""
    if name in STANDALONE_TOOL_PACKAGES and (branch_of(version) == chosen.branch or chosen.source == "distro"):
        return False
    if chosen.source == "distro" and name in SEPARATELY_VERSIONED_IN_DISTROS:
        return branch_of(version) != chosen.branch
    return purge_reason(name, version) not in {None, "relation"} and not has_prefix(version, version_prefix(chosen))


CONFLICTS_STEP = Step("conflicts", "old drivers", "packages", plan_conflicting_driver_purge, serves=(), for_driver=True)


# Parts of the paths of files in a driver's packages.
_DIVERTIBLE_FILES = (
    "libcuda.so",
    "libnvidia-ml.so",
    "libnvidia-ptxjit",
    "nvidia-smi",
    "nvidia-persistenced",
    "nvidia-modprobe",
)
_DISPLAY_KERNEL_DRIVERS = frozenset({"nvidia", "nouveau"})
_DESKTOP_PACKAGES = ("gdm3", "lightdm", "sddm", "xserver-xorg-core", "xwayland")
_SIGNING_WARNING = (
    "the installed modules come prebuilt and signed; if Secure Boot is on (mokutil --sb-state), the kernel refuses "
    "what DKMS builds until its key is enrolled: mokutil --import /var/lib/shim-signed/mok/MOK.der (Debian: "
    "/var/lib/dkms/mok.pub), confirmed at the console during the next boot (MOK manager)"
)
_SKIPPED_ENROLMENT_WARNING = (
    "Secure Boot is on, the firmware does not have the key that DKMS signs modules with, and the recipe leaves out the "
    "step secure-boot: enrol that key before the next boot, or the machine has no driver then, and no nouveau"
)


def plan_driver(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan every driver package of the scope in the chosen branch; upgrade a satisfied one only on request."""
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    chosen = driver.chosen
    packages = require(facts.packages, "which packages are installed")
    names = driver.packages(recipe)
    missing = (
        names
        if recipe.upgrade
        else tuple(n for n in names if not is_at_version(packages.get(n), package_version_prefix(n, chosen)))
    )
    of_fabric = () if FABRIC_STEP.id in recipe.skip else wanted_fabric_packages(recipe, facts)
    strays = tuple(package for package in mismatched_packages(recipe, facts, driver) if package not in of_fabric)
    tools = tools_of_mismatched(strays, packages)
    # Other builds of the same version are named with their revision, because the installed one counts as newer.
    foreign = () if recipe.upgrade else packages_built_for_ubuntu(facts, driver)
    rebuilt = [package for package in foreign if package in names or package.name in STANDALONE_TOOL_PACKAGES]
    # With a lock, also packages that came along with them, each in its own version.
    locked = find_packages_off_lock(recipe, packages, locked_driver_packages(recipe))
    wanted = tuple(dict.fromkeys((*missing, *strays, *tools, *rebuilt, *locked)))
    rival = packages.get(driver.other_flavour_package)
    if held_packages := [
        name for name in (*wanted, driver.other_flavour_package) if name in packages and packages[name].held
    ]:
        return held_packages_refusal(held_packages, f"driver {version_prefix(chosen)}*")
    leaving = () if rival is None else (PackageChange(driver.other_flavour_package, rival, None),)
    away = tuple(deb.note_diversions(facts, _DIVERTIBLE_FILES))
    marked = plan_manual_marks(packages, (name for name in names if name not in wanted))
    if not wanted and not leaving:
        installed = f"driver {packages[names[0]].version} is installed"
        reason = explain_manual_marks(marked) if marked else chosen.reason
        return Planned(marked, f"{installed}; {reason}", away)
    # An installed driver keeps its version: missing packages, and those that strayed from it, get that version.
    version = kept_driver_version(recipe, facts, driver)
    after = KnownAfter(f"{version}-" if version else version_prefix(chosen), "driver")
    states = ((package, packages.get(package)) for package in wanted)
    as_modules = PackageState(module_package_version(facts, driver) or f"{chosen.exact}-1") if rebuilt else after
    changes = tuple(
        PackageChange(
            package, now, _target_state(driver, recipe, package, now, as_modules if package in rebuilt else after)
        )
        for package, now in states
    )
    is_new = any(not is_at_version(packages.get(name), "") for name in wanted)
    about_changes = (
        *(_display_warning(recipe, facts) if is_new else ()),
        *((_SIGNING_WARNING,) if is_new and _may_replace_signed_modules(driver, facts) else ()),
        *((_SKIPPED_ENROLMENT_WARNING,) if lacks_enrolment(recipe, facts) else ()),
        *_reboot_warning(chosen, facts),
    )
    reason = (
        _explain_mismatch(strays, packages, version)
        if version and strays and not missing
        else _describe_choice(chosen, recipe)
    )
    return Planned((*leaving, *changes, *marked), reason, away, about_changes)


def _explain_mismatch(mismatched: Sequence[PackageId], packages: Mapping[PackageId, PackageState], version: str) -> str:
    """Return why packages of another version are changed to the driver's version."""
    first = f"{mismatched[0]} is {upstream_version(packages[mismatched[0]].version)}"
    others = f", and {len(mismatched) - 1} more are not" if mismatched[1:] else ""
    return f"{first}{others} of the installed driver, which is {version}: all must have the same version"


def _target_state(
    driver: WantedDriver,
    recipe: Recipe,
    package: PackageId,
    before: PackageState | None,
    otherwise: PackageState | KnownAfter,
) -> PackageState | KnownAfter:
    """Return the target state; a dependency stays marked as one."""
    if (own_prefix := package_version_prefix(package, driver.chosen)) != version_prefix(driver.chosen):
        otherwise = KnownAfter(own_prefix, "the driver's")
    came_along = before is not None and before.auto and not before.config_files_only
    auto = came_along and package not in driver.packages(recipe)
    return replace(desired_state(recipe, package, otherwise), auto=auto)


def _reboot_warning(chosen: DriverChoice, facts: Facts) -> tuple[str, ...]:
    """Return a warning when the libraries change under a loaded module of another version."""
    loaded = value_or(facts.loaded_driver, None)
    if loaded is None or is_chosen_driver_loaded(loaded, chosen):
        return ()
    return (f"driver {loaded.version} stays loaded until the reboot; programs that start in between find no GPU",)


def _may_replace_signed_modules(driver: WantedDriver, facts: Facts) -> bool:
    """Return whether a distribution has signed the present modules, and it is unknown whether that matters."""
    is_prebuilt = any(not file.dkms for file in value_or(facts.module_files, ()))
    return isinstance(facts.secure_boot, Unknown) and is_prebuilt and not driver.modules


def _display_warning(recipe: Recipe, facts: Facts) -> tuple[str, ...]:
    """Return a warning when a display may hang on a card that gets a driver without display libraries."""
    if recipe.driver.scope == "full":
        return ()
    packages = value_or(facts.packages, {})
    cards = [
        d.address
        for d in find_own_gpus(value_or(facts.devices, ()))
        if d.class_code == "0300" and d.driver in _DISPLAY_KERNEL_DRIVERS
    ]
    desktop = sorted(name for name in _DESKTOP_PACKAGES if is_at_version(packages.get(PackageId(name)), ""))
    if not cards or not desktop:
        return ()
    where, what = ", ".join(cards), ", ".join(desktop)
    return (f'{what}: a display on {where} may turn off; driver.scope = "full" in the recipe keeps it',)


def _describe_choice(chosen: DriverChoice, recipe: Recipe) -> str:
    display = {
        "compute": "without display, NVENC and NVDEC libraries",
        "media": "with video, without a display",
        "full": "with a display",
    }
    version = chosen.exact or f"branch {chosen.branch}"
    own = " from the distribution's own archive" if chosen.source == "distro" else ""
    return f"{version}{own}, {chosen.flavour} modules, {display[recipe.driver.scope]}"


def _wanted_packages(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    driver = wanted_driver(recipe, facts)
    return driver.packages(recipe) if isinstance(driver, WantedDriver) else ()


# These are installed with a driver that has a display; dependencies on them allow any newer version.
_EGL_PACKAGE_PREFIX: Final = "libnvidia-egl-"


def _locked_companions(recipe: Recipe, facts: Facts) -> Iterator[PackageId]:
    """Yield the driver's installed packages: all in its version, and dependencies with versions of their own."""
    driver, packages = wanted_driver(recipe, facts), value_or(facts.packages, {})
    if not isinstance(driver, WantedDriver):
        return
    for package in {
        *driver_packages(packages),
        *(package for package in packages if package.name.startswith(_EGL_PACKAGE_PREFIX)),
    }:
        state = packages[package]
        branch = branch_of(state.version)
        if branch == driver.chosen.branch or (not branch and state.auto):
            yield package


DRIVER_STEP = Step(
    "driver",
    "NVIDIA driver",
    "packages",
    plan_driver,
    serves=(),
    needs=("cuda-repository",),
    for_driver=True,
    packages=StepPackageRules(_wanted_packages, frozenset[PackageId]().__contains__, _locked_companions),
)
