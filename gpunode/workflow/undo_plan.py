"""Plan an undo, compared with the node as it is: one plan for rollback and remove.

A rollback undoes the footprint of one run, remove that of all runs. They differ in the handling of files that
somebody edited since, and in whether packages that were installed before are restored.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile

from gpunode.catalog.conflicts import driver_packages, upstream_version
from gpunode.catalog.driver import DriverChoice
from gpunode.change import (
    GPU_SERVICES,
    OVERWRITTEN_STEP_ID,
    FileChange,
    FileState,
    MigChange,
    ModuleChange,
    PackageChange,
    PackageState,
    RuntimeExpectation,
    ServiceChange,
    ServiceState,
    Trigger,
)
from gpunode.distros import family
from gpunode.errors import Conflict, Refused
from gpunode.facts.model import Facts, Known, LoadedDriver, Unit, Unknown, value_or
from gpunode.facts.project import UNINSTALL_RUN_DRIVER
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import Host
from gpunode.journal.footprint import FileTrail, Footprint, NetChange
from gpunode.journal.history import collect_changes
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.redaction.evidence import redact_change
from gpunode.runtimes import RUNTIMES, DesiredConfig, find_reader
from gpunode.steps.daemons import GPU_SERVICES_STEP, plan_service_stops
from gpunode.steps.installed_driver import branch_of
from gpunode.steps.kernel import CONFLICTING_MODULES
from gpunode.steps.leftovers import find_unremovable_modules_refusal
from gpunode.steps.table import list_served_packages
from gpunode.wording import join_names
from gpunode.workflow import live_state
from gpunode.workflow.converge import DEPENDENCIES_STEP_ID, survey
from gpunode.workflow.disruption import DOCKER_SERVICE, any_removed_or_replaced, refuse_disruptive_undo
from gpunode.workflow.packages_in_use import find_packages_in_use
from gpunode.workflow.recovery import still_pending_triggers
from gpunode.workflow.undo import (
    KeptItem,
    ResolveEdit,
    RestoredFile,
    UndoPlan,
    UndoStep,
    drop_source_conflicts,
    installed_packages,
    recorded_edit,
    restore_file,
    with_dependencies_to_install,
)

_RUN_DRIVER_NOT_RESTORED_NOTE = (
    "the driver of NVIDIA's .run installer, which the run removed with its own uninstaller, is not restored: "
    "run its installer again if you want it back"
)


@dataclass(frozen=True, slots=True)
class UndoRequest:
    """The scope and the options of an undo.

    Attributes:
        undone_run: the run's id. Empty for all runs: then packages that gpunode purged or changed are not restored.
        resolve_edit: called for a file that is in none of the states in which gpunode left it.
        is_redo: whether it undoes a rollback, so that changes are made in the order of a setup.
        force: whether a GPU gets its former MIG layout although somebody has changed it since.
        allow_disruption: whether containers may be stopped, and the driver taken from processes that use a GPU.
        allow_loss: whether packages may stay away if no archive has their former version.
    """

    store: Store
    undone_run: str
    footprint: Footprint
    resolve_edit: ResolveEdit
    is_redo: bool = False
    force: bool = False
    allow_disruption: bool = False
    allow_loss: bool = False


@dataclass(frozen=True, slots=True)
class _PackagePlan:
    """The packages of an undo.

    Attributes:
        leaving: the names of those that are purged.
        staying: those that gpunode installed and that stay, since others need them.
        kept: why these stay, and which former versions are lost.
    """

    changes: tuple[PackageChange, ...]
    leaving: frozenset[str]
    staying: frozenset[PackageId]
    kept: tuple[KeptItem, ...]


@dataclass(frozen=True, slots=True)
class _Restores:
    """The steps that restore one kind of thing; what cannot be restored, a sentence each; and what stays as it is."""

    steps: tuple[UndoStep, ...] = ()
    lost: tuple[str, ...] = ()
    kept: tuple[KeptItem, ...] = ()


def plan_undo(request: UndoRequest, host: Host, facts: Facts) -> UndoPlan:
    """Return the plan that undoes the whole footprint.

    Raises:
        Conflict: somebody edited what gpunode wrote.
        DrainRequired: containers would be stopped, or processes lose the driver.
        Refused: the package manager would do something else, or a package's former version is lost.
    """
    footprint = request.footprint
    packages = _plan_packages(request, host, facts)
    files = _plan_file_restores(request, host, footprint.files, packages.leaving)
    conffiles = _plan_conffile_restores(request, host, packages.leaving, files.steps)
    layouts = _plan_layout_restores(host, footprint.layouts, force=request.force)
    units = _plan_unit_restores(request, facts, packages, files.steps)
    steps = (*conffiles, *files.steps, *layouts.steps, *_package_undo_steps(footprint, packages.changes), *units.steps)
    steps, rivals = _load_returning_driver(steps, packages.changes, facts, is_redo=request.is_redo)
    steps, serving = _keep_what_packages_need(steps, packages.staying)
    # Dependents go before what they use: a daemon's configuration before the packages that it names, the blacklist of
    # nouveau after the driver. Archives and pins go last, so that packages can be fetched and simulated until then.
    # Undoing a rollback follows the order of a setup.
    ordered = sorted(
        steps,
        key=lambda undo_step: undo_step.change.undo_rank(undo_step.stage, undo_step.step_id, is_redo=request.is_redo),
    )
    kept = (*packages.kept, *files.kept, *units.kept, *serving)
    steps, kept = drop_source_conflicts(ordered, kept, facts, request.store.objects.path_of_content)
    steps = (*_plan_service_stops(steps, facts), *steps)
    pending = still_pending_triggers(request.store.find_pending_triggers(), facts)
    pending_triggers = tuple(dict.fromkeys((*pending, *_plan_service_starts(request, facts, packages.changes))))
    if not request.allow_disruption:
        refuse_disruptive_undo([step.change for step in steps], pending_triggers, facts.unit(DOCKER_SERVICE), host)
    is_uninstalled = any(change.argv == UNINSTALL_RUN_DRIVER for change in footprint.commands)
    notes = (note for step in steps for note in step.notes)
    lost = (*layouts.lost, *([_RUN_DRIVER_NOT_RESTORED_NOTE] if is_uninstalled else []))
    return UndoPlan(
        request.undone_run,
        steps,
        (*notes, *lost, *_describe_exceptions(request, facts, packages)),
        is_incomplete=bool(lost),
        reboot_reason=rivals or reboot_reason(request.store, facts, packages.changes),
        pending_triggers=pending_triggers,
        kept=kept,
        with_packages=True,
    )


def plan_configuration_undo(request: UndoRequest, host: Host) -> UndoPlan:
    """Return the plan that undoes only the configuration of runtimes and the MIG layouts. Raises like ``plan_undo``."""
    footprint = request.footprint.part(is_configuration=True)
    files = _plan_file_restores(request, host, footprint.files)
    layouts = _plan_layout_restores(host, footprint.layouts, force=request.force)
    pauses = _plan_service_stops(layouts.steps, survey(host)) if layouts.steps else ()
    steps = (*pauses, *files.steps, *layouts.steps)
    pending_triggers = tuple(request.store.find_pending_triggers())
    if not request.allow_disruption:
        refuse_disruptive_undo([step.change for step in steps], pending_triggers, Unknown("not asked", "units"), host)
    notes = (*(note for step in steps for note in step.notes), *layouts.lost)
    is_incomplete = bool(layouts.lost)
    return UndoPlan(request.undone_run, steps, notes, is_incomplete, pending_triggers=pending_triggers, kept=files.kept)


def _plan_packages(request: UndoRequest, host: Host, facts: Facts) -> _PackagePlan:
    """Return the packages' way back to their former states. Raises Refused like ``plan_undo``."""
    installed, database = installed_packages(facts), live_state.read_package_database(host)
    wanted = _list_wanted_packages(request, installed)
    in_use = find_packages_in_use(host, wanted, installed, request.footprint)
    changes, kept = plan_package_restore(
        {package: state for package, state in wanted.items() if package not in in_use}, installed, database
    )
    kept = (*kept, *(KeptItem(str(package), reason) for package, reason in in_use.items()))
    if not request.is_redo:
        # In a redo, the archives that have the packages have yet to be restored.
        changes, lost = drop_unavailable_versions(host, changes)
        if lost and not request.allow_loss:
            raise Refused(
                "packages cannot get their former versions back; nothing was changed",
                why="\n".join(map(str, lost)),
                hint="refresh the package index, or add a source that has them; to undo the rest:\n"
                "add --allow-loss to the same command",
            )
        if lost:  # what cannot be restored cannot satisfy others, either
            again = {change.id: change.known_final_state for change in changes}
            changes, serving = plan_package_restore(again, installed, database)
            kept = (*lost, *kept, *serving)
        changes = with_dependencies_to_install(host, changes)
    if refused := find_unremovable_modules_refusal(changes, facts):
        raise refused.as_error()
    going = {change.id for change in changes}
    staying = {
        package for package, state in wanted.items() if state is None and package in installed and package not in going
    }
    leaving = {change.id.name for change in changes if not change.exists_after}
    return _PackagePlan(changes, frozenset(leaving), frozenset(staying), kept)


def _describe_exceptions(request: UndoRequest, facts: Facts, packages: _PackagePlan) -> Iterator[str]:
    """Yield notes on the key that stays with the machine, and on holds that the undo overrides."""
    if facts.module_key is not None and not request.is_redo:
        from gpunode.steps.enrolment import describe_kept_key  # loaded on use: only with Secure Boot on

        yield from describe_kept_key(facts)
    if held := [
        str(change.id) for change in packages.changes if not change.is_mark and change.before and change.before.held
    ]:
        yield f"held packages that are changed anyway, because the undo includes them: {', '.join(held)}"


def _load_returning_driver(
    steps: tuple[UndoStep, ...], packages: Iterable[PackageChange], facts: Facts, *, is_redo: bool
) -> tuple[tuple[UndoStep, ...], str]:
    """Return ``steps`` with the loading of a restored driver's module if none is loaded: its services need it.

    If a rival driver has the GPU, only a reboot loads the module: the services wait, and the second value says why.
    """
    builds_or_contains = (deb.builds_driver, deb.parse_prebuilt_name)
    is_restored = any(
        change.exists_after and any(test(change.id) for test in builds_or_contains) for change in packages
    )
    if not is_restored or facts.is_image or not isinstance(facts.loaded_driver, Known) or facts.loaded_driver.value:
        return steps, ""
    if not (rivals := sorted(value_or(facts.modules, frozenset()) & CONFLICTING_MODULES)):
        load = UndoStep("kernel", "module-load", ModuleChange("nvidia", before=False, after=True))
        return ((*steps, load) if is_redo else steps), ""  # an undone setup leaves its services before its packages
    waiting = tuple(
        replace(step, change=step.change.without_start()) if step.change.unit_running_after in GPU_SERVICES else step
        for step in steps
    )
    return waiting, f"{', '.join(rivals)} drives the GPU until the next boot"


def _plan_service_stops(steps: Sequence[UndoStep], facts: Facts) -> tuple[UndoStep, ...]:
    """Return the stops for NVIDIA's services before ``steps`` take the GPUs from them."""
    pauses = plan_service_stops([step.change for step in steps], facts)
    return tuple(UndoStep(GPU_SERVICES_STEP.stage, GPU_SERVICES_STEP.id, change) for change in pauses)


def _plan_service_starts(request: UndoRequest, facts: Facts, packages: Collection[PackageChange]) -> Iterator[Trigger]:
    """Yield the starts of services that the undone run stopped for its packages and that have not started since.

    After an upgrade they wait for its reboot, which an undo makes unnecessary.
    """
    entries = request.store.entries(request.undone_run) if request.undone_run and packages else ()
    for change in ServiceChange.of_kind(record.change for record in collect_changes(entries)):
        fact = facts.unit(change.unit)
        if not change.is_temporary_stop or not isinstance(fact, Known) or fact.value.state.active:
            continue
        # Skip a unit that was enabled and that somebody has disabled since.
        if not fact.value.exists or (not fact.value.masked and fact.value.state.enabled >= change.before.enabled):
            yield Trigger("start", change.unit)


def _plan_file_restores(
    request: UndoRequest, host: Host, trails: Mapping[str, FileTrail], leaving: Collection[str] = ()
) -> _Restores:
    """Return the steps that restore the files of ``trails``.

    A file that is as an installed package shipped it stays, unless the package is ``leaving``: NVIDIA's cuda-keyring
    ships the same list and keyring that gpunode writes. Undoing an undo edits such a file again, as setup would, since
    the first undo restored the package's version.
    """
    present, kept = _read_present_files(host, trails, is_removal=not request.undone_run)
    is_changed = {path: bool(trails[path]) and now != trails[path][0].change.before for path, now in present.items()}
    going = {path: now for path, now in present.items() if now and is_changed[path]}
    packaged = {} if request.is_redo else live_state.find_packaged_files(host, going, leaving)
    restored: dict[str, RestoredFile] = {}
    for path, now in present.items():
        if not (trail := trails[path]):
            kept += [KeptItem(path, "stays as it is: a backup of it was deleted")] if now else []
        elif path in packaged:
            former = trail[0].change.before
            where = request.store.objects.path_of_content(former.content) if former else ""
            backup = f"; what was there before gpunode is in {where}" if former else ""
            kept.append(KeptItem(path, f"stays: it belongs to the package {packaged[path]} now{backup}"))
        else:
            restored[path] = restore_file(trail, now, request.resolve_edit)
    removed = {path for path, restored_file in restored.items() if restored_file.state is None}
    steps = (
        _file_undo_step(trails[path], present[path], restored_file)
        for path, restored_file in restored.items()
        if restored_file.state != present[path]
        or (restored_file.state is None and live_state.has_empty_folder(host, _list_folders(trails[path]), removed))
    )
    return _Restores(tuple(steps), kept=tuple(kept))


def _read_present_files(
    host: Host, paths: Collection[str], *, is_removal: bool
) -> tuple[dict[str, FileState | None], list[KeptItem]]:
    """Return the present states of the files, newest first, and what a removal leaves in the place of a file."""
    present: dict[str, FileState | None] = {}
    kept: list[KeptItem] = []
    for path in reversed(tuple(paths)):
        try:
            now = live_state.read_file_state(host, path)
        except live_state.NotAFileError as error:
            if not is_removal:
                raise
            kept.append(KeptItem(path, f"stays as it is: {error.why}, in the place of the file that gpunode wrote"))
            continue
        present[path] = now
    return present, kept


def _file_undo_step(trail: FileTrail, now: FileState | None, restored: RestoredFile) -> UndoStep:
    """Return the step from the present state to the restored one."""
    first, path = trail[0], trail[0].change.path
    triggers = frozenset[Trigger]().union(*(span.change.triggers for span in trail))
    change, notes = _with_needed_restart(FileChange(path, now, restored.state, triggers, _list_folders(trail)))
    reader = find_reader(path) if restored.is_merged else None
    expectation = RuntimeExpectation(reader.id, reader.config) if reader else None
    return UndoStep(first.stage, first.step, change, expectation, (*restored.notes, *notes))


def _list_folders(trail: FileTrail) -> tuple[str, ...]:
    """Return the folders that were made for the file."""
    return tuple(dict.fromkeys(folder for span in trail for folder in span.folders))


def _plan_layout_restores(host: Host, spans: Mapping[str, NetChange[MigChange]], *, force: bool) -> _Restores:
    """Return the steps that restore the GPUs' former layouts."""
    if not spans:
        return _Restores()
    try:
        present = live_state.list_gpus(host)
    except ValueError as error:
        return _Restores(lost=tuple(f"the MIG layout of {gpu} is not restored: {error}" for gpu in spans))
    steps: list[UndoStep] = []
    lost: list[str] = []
    for uuid, span in reversed(tuple(spans.items())):
        gpu, back = present.get(uuid), span.change.inverse()
        if gpu is None or gpu.layout is None:
            lost.append(f"the MIG layout of {uuid} is not restored: NVML does not list the GPU")
        elif (gpu.layout, gpu.pending) != (back.after, back.after.enabled):
            # A kill may leave part of the old or the new layout.
            is_part = any(gpu.layout.is_part_of(mig_layout) for mig_layout in (span.change.before, span.change.after))
            is_ours = span.may_have_left(gpu.layout) or gpu.layout == back.after or (not span.is_known and is_part)
            # The driver forgets instances at each boot: nobody has partitioned a GPU that has none.
            if gpu.layout.instances and not is_ours and not force:
                raise Conflict(
                    f"{uuid} no longer has the MIG layout that gpunode set",
                    why=f"gpunode left it with {back.before}; now it has {gpu.layout}",
                    hint="add --force to restore its former layout anyway",
                )
            steps.append(UndoStep(span.stage, span.step, replace(back, before=gpu.layout)))
    return _Restores(tuple(steps), lost=tuple(lost))


def _with_needed_restart(change: FileChange) -> tuple[FileChange, tuple[str, ...]]:
    """Return ``change`` with a restart instead of a reload if the running daemon would not take it over on reload.

    SIGHUP may not undo what SIGHUP applied: dockerd keeps a default runtime that its file no longer names.

    Returns:
        The change, and a note if dockerd keeps runtimes because it only reloads the file.
    """
    reloads = frozenset(trigger for trigger in change.triggers if trigger.kind == "reload")
    if not reloads:
        return change, ()
    from gpunode.runtimes import docker  # loaded on use: only if a file of docker's is restored

    edit, desired = recorded_edit(change), DesiredConfig(config=change.path)
    before, after = ({} if content is None else {edit.path: content} for content in (edit.before, edit.after))
    with suppress(Refused):  # one of them is not a valid configuration, so the daemon's state is unknown
        if docker.applies_on_reload(before, after, desired):
            return change, tuple(filter(None, [docker.explain_kept_runtimes(before, after, desired)]))
    restarts = {Trigger("restart", trigger.target) for trigger in reloads}
    return replace(change, triggers=(change.triggers - reloads) | restarts), ()


def _plan_conffile_restores(
    request: UndoRequest, host: Host, leaving: Collection[str], files: Iterable[UndoStep]
) -> Iterator[UndoStep]:
    """Yield the restores of purged packages' configuration files, and of files that packages replaced.

    ``leaving`` names the purged packages; ``files`` are the restores of files that gpunode changed.
    """
    footprint, restored = request.footprint, {step.file.path: step.file.after for step in files if step.file}
    backed_up = [(span, back) for span in footprint.conffiles if (back := span.change.inverse())]
    shipped = live_state.read_package_database(host).shipped_conffiles() if backed_up else {}
    owners = live_state.find_owners(host, [back.path for span, back in backed_up if span.step == OVERWRITTEN_STEP_ID])
    for span, back in backed_up:
        now, trail = live_state.read_file_state(host, back.path), footprint.files.get(back.path)
        is_as_shipped = now is not None and live_state.package_checksum(now.content) == shipped.get(back.path)
        if names := owners.get(back.path):
            # Restored after the packages are gone, in the state of that time; a user's own file as it is now.
            is_kept_as_it_is = trail is not None or (back.path in shipped and not is_as_shipped)
            state = restored.get(back.path, now if is_kept_as_it_is else back.after)
            if isinstance(state, FileState) and {name.partition(":")[0] for name in names} <= {*leaving}:
                yield UndoStep(span.stage, span.step, replace(back, after=state))
            continue
        if now == back.after:
            continue
        is_nobodys = now is None or is_as_shipped or (trail and trail[-1].may_have_left(now))
        if not is_nobodys and not request.force:
            raise edit_conflict_error(back, now)
        yield UndoStep(span.stage, span.step, back)


def edit_conflict_error(change: FileChange, current: FileState | None, keep: str = "") -> Conflict:
    """Return the error for a file that somebody edited or deleted, or wrote where gpunode had removed it.

    It shows two diffs from the file as gpunode wrote it: to the ``current`` one, and to the previous one by ``change``.
    ``keep`` is the command that removes gpunode's part and keeps the edits; empty if there is none.
    """
    edit, back = (
        "\n".join(redact_change(change).diff()) or "(only secrets differ)"
        for change in (FileChange(change.path, change.before, current), change)
    )
    if current is None:
        return Conflict(
            f"{change.path} was deleted since gpunode wrote it",
            why=f"what a rollback of gpunode's version would do:\n{back}",
            hint="add --force to restore it to its state before the run",
        )
    by_hand = "make the second change by hand and keep the first"
    return Conflict(
        f"{change.path} was {'edited since gpunode wrote it' if change.before else 'created again since the run'}",
        why=f"the edit of gpunode's version:\n{edit}\nwhat a rollback of gpunode's version would do:\n{back}",
        hint=(f"remove what gpunode added and keep the edits:\n{keep}\n" if keep else f"{by_hand};\n")
        + "or add --force: the edited file is backed up first, and rolling that run back restores it",
    )


def plan_package_restore(
    wanted: Mapping[PackageId, PackageState | None], installed: Mapping[PackageId, PackageState], database: deb.Database
) -> tuple[tuple[PackageChange, ...], tuple[KeptItem, ...]]:
    """Plan the packages' return to ``wanted`` (None: not installed); also return the packages that others need."""
    changes = [
        PackageChange(package, installed.get(package), state)
        for package, state in wanted.items()
        if not _is_package_as_wanted(installed.get(package), state)
    ]
    leaving = [change.id for change in changes if not change.exists_after]
    changing = [change.id for change in changes if change.exists_after and not change.is_mark]
    staying = database.find_needed(leaving, changing)
    kept = tuple(KeptItem(str(package), f"stays: {by} needs it now") for package, by in sorted(staying.items()))
    return tuple(change for change in changes if change.id not in staying), kept


def _list_wanted_packages(
    request: UndoRequest, installed: Mapping[PackageId, PackageState]
) -> dict[PackageId, PackageState | None]:
    """Return the states that packages should get: their former ones.

    In a removal, packages installed before gpunode only get back their marks (automatic or manual, held or not); marks
    that somebody changed since stay.
    """
    wanted: dict[PackageId, PackageState | None] = {}
    for package, span in request.footprint.packages.items():
        before, now, after = span.change.before, installed.get(package), span.change.known_final_state
        if request.undone_run or before is None or before.config_files_only:
            wanted[package] = before
        elif now is not None and not now.config_files_only:
            is_gpunodes = after is None or not span.is_known or (now.auto, now.held) == (after.auto, after.held)
            wanted[package] = replace(now, auto=before.auto, held=before.held) if is_gpunodes else now
    return wanted


def _package_undo_steps(footprint: Footprint, packages: Iterable[PackageChange]) -> Iterator[UndoStep]:
    for change in packages:
        span = footprint.packages.get(change.id)
        if span is None:
            yield UndoStep("packages", DEPENDENCIES_STEP_ID, change)
        else:
            yield UndoStep(span.stage, span.step, replace(change, triggers=span.change.triggers))


def _keep_what_packages_need(
    steps: Sequence[UndoStep], staying: Collection[PackageId]
) -> tuple[tuple[UndoStep, ...], tuple[KeptItem, ...]]:
    """Return ``steps`` without what the ``staying`` packages need, and what stays with them.

    Each step's row names the packages that its files and units serve: a driver needs its blacklist and its archive.
    Of the runtimes' packages, a daemon's unit serves only that daemon's.
    """
    removing = (step for step in steps if step.change.removes_what_packages_need(step.stage, step.step_id))
    packages_by_unit = {runtime.unit: runtime.packages for runtime in RUNTIMES}
    users = {
        step: [
            package
            for package in list_served_packages(step.step_id, staying)
            if package.name in packages_by_unit.get(step.change.subject, (package.name,))
        ]
        for step in removing
    }
    kept = (KeptItem(step.change.subject, f"stays with {names[0]}") for step, names in users.items() if names)
    return tuple(step for step in steps if not users.get(step)), tuple(kept)


def _is_package_as_wanted(present: PackageState | None, wanted_state: PackageState | None) -> bool:
    """Return whether a package is in the wanted state; leftover configuration files alone are never restored."""
    if wanted_state is None or wanted_state.config_files_only:
        return present is None or (wanted_state is not None and present.config_files_only)
    return present == wanted_state


def drop_unavailable_versions(
    host: Host, changes: Sequence[PackageChange]
) -> tuple[tuple[PackageChange, ...], tuple[KeptItem, ...]]:
    """Return ``changes`` without versions that no archive has any more, and those packages, joined by version.

    If a remaining change needs one of them, nothing is restored: a removal must not depend on that.
    """
    restored = [change for change in changes if change.exists_after and change.states[0] != change.states[1]]
    offered = host.list_offered_versions([change.id for change in restored])
    gone = [change for change in restored if change.states[1] not in offered.get(change.id, ())]
    if not gone:
        return tuple(changes), ()
    names: dict[str, list[str]] = {}
    for change in gone:
        others = f" (but {', '.join(sorted(offered[change.id]))})" if offered.get(change.id) else ""
        reason = f"cannot get version {change.states[1]} back: no archive in the package index has it{others}"
        names.setdefault(reason, []).append(str(change.id))
    lost = tuple(KeptItem(join_names(sorted(same)), reason) for reason, same in names.items())
    rest = tuple(change for change in changes if change not in gone)
    simulation = host.simulate(rest) if rest else None
    if simulation is None or not simulation.problem:
        return rest, lost
    available = [change for change in restored if change not in gone]
    dependents = KeptItem(
        join_names(sorted(str(change.id) for change in available)), "cannot be restored without these"
    )
    return tuple(change for change in rest if change not in available), (*lost, dependents)


def _plan_unit_restores(
    request: UndoRequest, facts: Facts, packages: _PackagePlan, files: Iterable[UndoStep]
) -> _Restores:
    """Return the steps that restore the units' former states; units whose state is unknown stay.

    A unit that is gone is restored only by a redo that restores its file, or a package that may contain it, first.
    """
    restored = {posixpath.basename(step.file.path) for step in files if step.file and step.file.after}
    are_packages_coming = any(change.known_final_state is not None for change in packages.changes)
    steps: list[UndoStep] = []
    kept: list[KeptItem] = []
    for unit, span in request.footprint.units.items():
        change, fact = span.change, facts.unit(unit)
        if isinstance(fact, Unknown):
            kept.append(KeptItem(unit, f"stays as it is: {fact.reason}"))
            continue
        now, wanted = fact.value.state, _former_unit_state(change, fact.value)
        if not fact.value.exists:
            now = ServiceState(enabled=False, active=False)
            wanted = change.before if request.is_redo and (are_packages_coming or unit in restored) else now
        if wanted != now:
            steps.append(UndoStep(span.stage, span.step, replace(change, before=now, after=wanted)))
    return _Restores(tuple(steps), kept=tuple(kept))


def _former_unit_state(change: ServiceChange, unit: Unit) -> ServiceState:
    """Return the state of ``unit`` without ``change``.

    What somebody has changed since stays: a unit that was disabled or stopped is not enabled or started again. A masked
    one cannot be.
    """
    now, left, former = unit.state, change.after, change.before
    enabled = former.enabled if now.enabled == left.enabled else now.enabled
    is_started_by_boot = now.active and left.enabled  # as setup had it enabled for
    active = former.active if now.active == left.active or is_started_by_boot else now.active
    return ServiceState(now.enabled, active and now.active) if unit.masked else ServiceState(enabled, active)


def reboot_reason(store: Store, facts: Facts, packages: Iterable[PackageChange]) -> str:
    """Return why a reboot is needed: the driver is removed, but its module stays loaded until then; else empty.

    ``packages`` are not the only cause: an earlier run since the boot may have removed the driver and failed before it
    reported this, and no run since has reported it.
    """
    loaded = facts.loaded_driver.value if isinstance(facts.loaded_driver, Known) else None
    if loaded is None:
        return ""
    boot, installed = value_or(facts.boot_id, ""), value_or(facts.packages, {})
    if _is_loaded_module_installed(loaded, facts, packages):
        return ""
    here = (run for run in reversed(store.read_runs()) if boot and run.begin.boot_id == boot)
    runs = takewhile(lambda run: run.ending != "waiting", here)
    gone = [
        change
        for run in runs
        for change in PackageChange.of_kind(run.changes("done", "unknown"))
        if change.before is not None
        and upstream_version(change.before.version) == loaded.version
        and (change.id not in installed or installed[change.id].version != change.before.version)
    ]
    states = ((change, change.known_final_state) for change in (*packages, *gone))
    changes = [change for change, after in states if after is None or upstream_version(after.version) != loaded.version]
    if not any_removed_or_replaced(changes, driver_packages(change.id for change in changes)):
        return ""
    return f"the kernel keeps the module of driver {loaded.version} until the next boot"


def _is_loaded_module_installed(loaded: LoadedDriver, facts: Facts, packages: Iterable[PackageChange]) -> bool:
    """Return whether the loaded kernel module is the installed one, once ``packages`` are changed."""
    distro_family = family(facts.distro.value) if isinstance(facts.distro, Known) else None
    if distro_family is None:
        return False
    chosen = DriverChoice(
        branch_of(loaded.version), loaded.version, "open" if loaded.open_module else "proprietary", ""
    )
    builder = PackageId(distro_family.dkms_package(chosen))
    final_states = {change.id: change.known_final_state for change in packages}
    state = final_states[builder] if builder in final_states else value_or(facts.packages, {}).get(builder)
    return state is not None and not state.config_files_only and upstream_version(state.version) == loaded.version
