"""The NVIDIA container toolkit: its four packages, always at one version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpunode.change import KnownAfter, PackageChange, PackageState, Trigger
from gpunode.command import sudo_gpunode
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import Refused
from gpunode.facts.model import Facts, Unknown, require, value_or
from gpunode.facts.project import PLAN_PROBE_KEY
from gpunode.outcome import Planned, Refusal, Step, StepOutcome, StepPackageRules
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.packages.version import leading_numbers
from gpunode.recipe import Recipe, VersionLock
from gpunode.runtimes import RUNTIMES, find_runtime
from gpunode.runtimes.file_states import list_toolkit_handlers
from gpunode.runtimes.installations import resolve_runtime_if_possible
from gpunode.steps.installed_driver import explain_manual_marks, is_at_version, plan_manual_marks
from gpunode.steps.packages import held_packages_refusal, wants_container_toolkit
from gpunode.steps.selection import unlocked_package_refusal
from gpunode.wording import join_names

TOOLKIT_CONFIG_FILE = "/etc/nvidia-container-runtime/config.toml"
# The package whose postinst writes it.
CONFIG_PACKAGE = TOOLKIT_PACKAGES[1]
# nvidia-container-toolkit-base was split off then (NVIDIA/nvidia-container-toolkit 8de95932, v1.11.0).
_FIRST_IN_FOUR_PACKAGES = (1, 11)
# kind gives its nodes GPUs through these mounts, which a container cannot make for itself.
VOLUME_MOUNTS_KEY = "accept-nvidia-visible-devices-as-volume-mounts"


def plan(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the four packages at one version: the recipe's, else the installed one, else the newest."""
    if not wants_container_toolkit(recipe):
        leftover_notes = _left_toolkit_notes(facts) if recipe.runtime.name == "none" else ()
        return Planned((), "the recipe has no container runtime", tuple(leftover_notes))
    packages = require(facts.packages, "which packages are installed")
    diverted = tuple(deb.note_diversions(facts, ("nvidia-container", "nvidia-ctk", "nvidia-cdi-hook")))
    # A diverted program would be diverted again.
    lost = tuple(
        path for path in value_or(facts.lost_programs, ()) if not any(note.startswith(f"{path} ") for note in diverted)
    )
    wanted = _choose_version(recipe, packages)
    if isinstance(wanted, Refusal):
        return wanted
    # Without a version none is installed, they differ, or the newest is requested: all of them get one version.
    present = {name for name in TOOLKIT_PACKAGES if is_at_version(packages.get(name), "")} if wanted else set()
    names = tuple(name for name in TOOLKIT_PACKAGES if name not in present or packages[name].version != wanted)
    if held_packages := [name for name in names if name in packages and packages[name].held]:
        return held_packages_refusal(held_packages, "the toolkit", f"all of it in {wanted or 'one version'}")
    notes = (
        *_changed_config_notes(recipe, facts),
        *_hold_notes(recipe, packages),
        *_replaced_program_notes(facts),
        *diverted,
    )
    marked = plan_manual_marks(packages, [name for name in TOOLKIT_PACKAGES[:1] if name not in names])
    anew = _plan_lost_programs(lost, wanted, recipe, facts) if lost else Planned((), "")
    if isinstance(anew, Refusal):
        return anew
    if not names:
        installed = f"toolkit {packages[TOOLKIT_PACKAGES[0]].version} is installed, all four packages"
        reason = anew.reason or (f"{installed}; {explain_manual_marks(marked)}" if marked else installed)
        return Planned((*anew.changes, *marked), reason, notes)
    # Without a pin the newest would be installed, so a known version is requested in full.
    after = PackageState(wanted) if wanted else KnownAfter(why="toolkit")
    states = ((name, packages.get(name)) for name in names)
    changes = tuple(PackageChange(name, now, replace(after, auto=_is_dependency(name, now))) for name, now in states)
    reason = "; ".join(filter(None, (_explain_changes(packages, wanted), anew.reason)))
    return Planned((*changes, *anew.changes, *marked), reason, notes)


def _left_toolkit_notes(facts: Facts) -> Iterator[str]:
    """Yield a note on a toolkit that no runtime of the recipe needs, with the commands that remove it in order."""
    packages = value_or(facts.packages, {})
    installed = [
        package for package in TOOLKIT_PACKAGES if package in packages and not packages[package].config_files_only
    ]
    if all(packages[package].auto for package in installed):
        return  # none, or something else requires it
    rows = (resolve_runtime_if_possible(runtime, facts) for runtime in RUNTIMES)
    edits = [
        sudo_gpunode("ctk", "runtime", "unconfigure", f"--runtime={runtime.id}", f"--nvidia-runtime-name={name}")
        for runtime in rows
        for name in list_toolkit_handlers(facts, runtime)
    ]
    commands = [*map(str, edits), f"sudo {deb.purge_command(list(map(str, installed)))}"]
    removal = ", then ".join(f"`{command_text}`" for command_text in commands)
    yield f"the container toolkit stays installed, though the recipe has no container runtime; to remove it: {removal}"


def _plan_lost_programs(lost: Sequence[str], version: str, recipe: Recipe, facts: Facts) -> Planned | Refusal:
    """Plan to reinstall the four packages in ``version``, since somebody has deleted ``lost``.

    Also beside a change of versions, which does not unpack packages that already have their version.
    """
    purpose = f"{join_names(lost)} {'is' if len(lost) == 1 else 'are'} gone, although the package is installed"
    anew = deb.reinstall_change({package: PackageState(version) for package in TOOLKIT_PACKAGES}, purpose)
    # CRI-O drops a handler whose program is missing when it starts.
    runtime = find_runtime(recipe.runtime.name)
    triggers = frozenset(
        {Trigger("restart", runtime.unit)} if runtime.live_config_source == "crio status" and not facts.is_image else ()
    )
    return Planned((replace(anew, triggers=triggers),), purpose)


def _replaced_program_notes(facts: Facts) -> Iterator[str]:
    """Yield a note for each program of the toolkit that something else replaces, perhaps on purpose."""
    packages = value_or(facts.packages, {})
    anew = deb.reinstall_command(
        {package: packages[package] for package in TOOLKIT_PACKAGES if is_at_version(packages.get(package), "")}
    )
    for path in value_or(facts.replaced_programs, ()):
        yield f"{path} is not the program of its package; it may be a wrapper. To restore the package's program: {anew}"


def _changed_config_notes(recipe: Recipe, facts: Facts) -> Iterator[str]:
    """Yield a note if the toolkit's own configuration is gone, or differs from the toolkit's defaults."""
    fact = facts.file(TOOLKIT_CONFIG_FILE)
    if isinstance(fact, Unknown):
        return
    if (state := fact.value) is None:
        # The postinst of this package writes it (nvidia-ctk config --in-place); without it the defaults apply.
        if fact.probe != PLAN_PROBE_KEY and is_at_version(value_or(facts.packages, {}).get(CONFIG_PACKAGE), ""):
            again = sudo_gpunode("ctk", "config", "--in-place")
            yield f"{TOOLKIT_CONFIG_FILE} is missing, so the toolkit uses its own defaults: `{again}` writes it again"
        return
    from gpunode.runtimes import toolkit  # loaded on use: many nodes have no such file

    try:
        settings = toolkit.non_default_settings(state.content)
        if recipe.toolkit.volume_mounts is not None:
            settings = tuple(one for one in settings if not one.startswith(f"{VOLUME_MOUNTS_KEY} "))
    except Refused as refusal:
        yield f"{refusal.what}: {refusal.why}"
        return
    if settings:
        yield (
            f"{TOOLKIT_CONFIG_FILE} differs from the toolkit's defaults; it is kept, because the difference may be "
            f"intended: {'; '.join(settings)}"
        )


def _hold_notes(recipe: Recipe, packages: Mapping[PackageId, PackageState]) -> Iterator[str]:
    """Yield a note if toolkit packages are on hold and the recipe leaves the version open."""
    held = [name for name in TOOLKIT_PACKAGES if is_at_version(packages.get(name), "") and packages[name].held]
    if held and recipe.toolkit.version == "auto" and recipe.lock is None:
        names, version = ", ".join(map(str, held)), packages[held[0]].version
        yield f"{names} {'is' if len(held) == 1 else 'are'} held at {version}, so upgrades leave that version"


def _is_dependency(package: PackageId, before: PackageState | None) -> bool:
    """Return True if the package stays marked as a dependency; the first of the four installs the others."""
    return package != TOOLKIT_PACKAGES[0] and before is not None and before.auto and not before.config_files_only


def _explain_changes(packages: Mapping[PackageId, PackageState], version: str) -> str:
    """Explain why packages change, with the versions that differ."""
    present = {name: packages[name].version for name in TOOLKIT_PACKAGES if is_at_version(packages.get(name), "")}
    if len(set(present.values())) > 1:
        versions = ", ".join(f"{name} {version}" for name, version in present.items())
        return f"its four packages must have the same version, but they differ: {versions}"
    return "containers need it to use the GPU" + (f"; all four at {version}" if version else "")


def _choose_version(recipe: Recipe, packages: Mapping[PackageId, PackageState]) -> str | Refusal:
    """Return the version for all four; empty if any common one will do.

    NVIDIA's packages have had the revision 1 in every release (1.14.0 to 1.20.1).
    """
    requested = recipe.toolkit.version
    named = "" if requested == "auto" else requested if "-" in requested else f"{requested}-1"
    if recipe.lock is not None:
        return _locked_version(recipe.lock, named)
    if named:
        return named
    if recipe.upgrade:
        return ""
    present = {packages[name].version for name in TOOLKIT_PACKAGES if is_at_version(packages.get(name), "")}
    version = present.pop() if len(present) == 1 else ""
    return "" if (leading_numbers(version) or _FIRST_IN_FOUR_PACKAGES) < _FIRST_IN_FOUR_PACKAGES else version


def _locked_version(lock: VersionLock, requested: str) -> str | Refusal:
    """Return the common version of all four in the lock, unless the recipe names another."""
    if missing := [name for name in TOOLKIT_PACKAGES if name not in lock.packages]:
        return unlocked_package_refusal(lock, missing[0])
    versions = {lock.packages[name] for name in TOOLKIT_PACKAGES}
    if len(versions) > 1 or (requested and requested not in versions):
        return Refusal(
            what=f"{lock.file} pins the toolkit to {', '.join(sorted(versions))}, which is impossible",
            why=f"the recipe asks for {requested}" if requested else "its packages must all have the same version",
            hint="correct the lock, or write it again",
        )
    return versions.pop()


TOOLKIT_STEP = Step(
    "toolkit",
    "container toolkit",
    "packages",
    plan,
    serves=("toolkit",),
    needs=("toolkit-repository", "driver"),
    files=(TOOLKIT_CONFIG_FILE,),
    packages=StepPackageRules(
        lambda recipe, _: TOOLKIT_PACKAGES if wants_container_toolkit(recipe) else (), TOOLKIT_PACKAGES.__contains__
    ),
)
