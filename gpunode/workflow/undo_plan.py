"""Plan an undo, compared with the node as it is: one plan for rollback and remove.

A rollback undoes the footprint of one run, remove that of all runs. They differ in the handling of files that
somebody edited since, and in whether packages that were installed before are restored.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from gpunode.catalog.conflicts import driver_packages, upstream
from gpunode.catalog.driver import Choice
from gpunode.change import (
    GPU_SERVICES,
    OVERWRITTEN_STEP_ID,
    RUNTIME_CONFIG_STAGE,
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
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import Conflict, Refused
from gpunode.facts.evidence import Probe, decode_matches
from gpunode.facts.model import Facts, Known, LoadedDriver, Unknown, known
from gpunode.facts.project import UNINSTALL_RUN_DRIVER
from gpunode.host.port import Host
from gpunode.journal.footprint import FileTrail, Footprint, NetChange
from gpunode.journal.history import collect_changes
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages import Database, system
from gpunode.redaction.evidence import redact_change
from gpunode.runtimes import RUNTIMES, DesiredConfig, find_reader
from gpunode.steps.daemons import GPU_SERVICES_STEP, plan_service_stops
from gpunode.steps.installed_driver import branch_of
from gpunode.steps.kernel import HEADERS_STEP, RIVAL_MODULES
from gpunode.steps.leftovers import refuse_modules_without_source
from gpunode.steps.packages import CUDA_REPOSITORY_STEP, CUDA_TOOLKIT_STEP, TOOLKIT_REPOSITORY_STEP
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP
from gpunode.wording import join_names
from gpunode.workflow import live_state
from gpunode.workflow.converge import DEPENDENCIES_STEP_ID, RESUME_STEP_ID, survey
from gpunode.workflow.disruption import DOCKER_SERVICE, any_removed_or_replaced, refuse_disruptive_undo
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

_DKMS: Final = PackageId("dkms")
_DKMS_SOURCES: Final = "/var/lib/dkms/*/*/source"
# The driver's, GPUDirect Storage's and GDRCopy's, as NVIDIA and the distributions name them.
_OWN_DKMS_MODULES: Final = ("nvidia", "gdrdrv")
_RUNTIME_PACKAGES = frozenset(name for row in RUNTIMES for name in row.packages)


@dataclass(frozen=True, slots=True)
class UndoRequest:
    """The scope and the options of an undo.

    Attributes:
        store: the journal.
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


def plan_undo(request: UndoRequest, host: Host, facts: Facts) -> UndoPlan:
    """Return the plan that undoes the whole footprint.

    Raises:
        Conflict: somebody edited what gpunode wrote.
        DrainRequired: containers would be stopped, or processes lose the driver.
        Refused: the package manager would do something else, or a package's former version is lost.
    """
    footprint, there = request.footprint, installed_packages(facts)
    layouts, unchanged = _plan_layout_restores(host, footprint.layouts, force=request.force)
    wanted, database = _list_wanted_packages(request, there), live_state.read_package_database(host)
    going = {package for package, state in wanted.items() if state is None and package in there}
    in_use = {**_find_packages_with_data(host, going, facts), **_find_builders_in_use(host, going, footprint)}
    packages, needed = plan_package_restore(
        {package: state for package, state in wanted.items() if package not in in_use}, there, database
    )
    needed = (*needed, *(KeptItem(str(package), reason) for package, reason in in_use.items()))
    lost: tuple[KeptItem, ...] = ()
    if not request.is_redo:
        # In a redo, the archives that have the packages have yet to be restored.
        packages, lost = drop_unavailable_versions(host, packages)
        if lost and not request.allow_loss:
            raise Refused(
                "packages cannot get their former versions back; nothing was changed",
                why="\n".join(map(str, lost)),
                hint="refresh the package index, or add a source that has them; to undo the rest:\n"
                "add --allow-loss to the same command",
            )
        if lost:  # what cannot be restored cannot satisfy others, either
            packages, serving = plan_package_restore(
                {one.id: one.known_final_state for one in packages}, there, database
            )
            needed = (*needed, *serving)
        packages = with_dependencies_to_install(host, packages)
    if refused := refuse_modules_without_source(packages, facts):
        raise Refused(refused.what, why=refused.why, hint=refused.hint)
    leaving = {change.id.name for change in packages if not change.exists_after}
    files, notes, unknown = _plan_file_restores(request, host, footprint.files, leaving)
    restored = {step.file.path: step.file.after for step in files if step.file}
    conffiles = tuple(_plan_conffile_restores(footprint, host, leaving, restored, force=request.force))
    held = [str(one.id) for one in packages if not one.is_mark and one.before is not None and one.before.held]
    overridden = (f"held, and changed all the same, because the undo includes them: {', '.join(held)}",) if held else ()
    with_packages = request.is_redo and any(change.known_final_state is not None for change in packages)
    with_files = {posixpath.basename(path) for path, after in restored.items() if after and request.is_redo}
    gone = (
        (_RUN_DRIVER_NOT_RESTORED_NOTE,) if any(one.argv == UNINSTALL_RUN_DRIVER for one in footprint.commands) else ()
    )
    kept_keys: tuple[str, ...] = ()
    if facts.module_key is not None and not request.is_redo:
        from gpunode.steps.enrolment import describe_kept_key  # loaded on use: only with Secure Boot on

        kept_keys = tuple(describe_kept_key(facts))
    unread = (
        KeptItem(unit, f"stays as it is: {fact.reason}")
        for unit in footprint.units
        if isinstance(fact := facts.unit(unit), Unknown)
    )
    units = (
        _plan_unit_restore(facts, span, is_coming=with_packages or unit in with_files)
        for unit, span in footprint.units.items()
    )
    steps = (*conffiles, *files, *layouts, *_package_undo_steps(footprint, packages), *filter(None, units))
    steps, rivals = _load_returning_driver(steps, packages, facts, is_redo=request.is_redo)
    steps, serving = keep_what_packages_need(steps, packages, wanted, there)
    # Dependents go before what they use: a daemon's configuration before the packages that it names, the blacklist of
    # nouveau after the driver. Archives and pins go last, so that packages can be fetched and simulated until then.
    # Undoing a rollback follows the order of a setup.
    ordered = sorted(steps, key=lambda one: one.change.undo_rank(one.stage, one.step_id, is_redo=request.is_redo))
    steps, kept = drop_source_conflicts(
        ordered, (*lost, *unknown, *unread, *needed, *serving), facts, request.store.objects.path_of_content
    )
    steps = (*_plan_service_stops(steps, facts), *steps)
    pending_triggers = still_pending_triggers(request.store.find_pending_triggers(), facts)
    starts = _plan_service_starts(request, facts) if packages else ()
    pending_triggers = (*pending_triggers, *(one for one in starts if one not in pending_triggers))
    if not request.allow_disruption:
        refuse_disruptive_undo([step.change for step in steps], pending_triggers, facts.unit(DOCKER_SERVICE), host)
    return UndoPlan(
        request.undone_run,
        steps,
        (*notes, *unchanged, *gone, *kept_keys, *overridden),
        is_incomplete=bool(unchanged or gone),
        reboot_reason=rivals or reboot_reason(request.store, facts, packages),
        pending_triggers=pending_triggers,
        kept=kept,
        with_packages=True,
    )


def plan_configuration_undo(request: UndoRequest, host: Host) -> UndoPlan:
    """Return the plan that undoes only the configuration of runtimes and the MIG layouts, newest first.

    Raises:
        the same errors as ``plan_undo``.
    """
    footprint = request.footprint
    trails = {path: trail for path, trail in footprint.files.items() if trail[0].stage == RUNTIME_CONFIG_STAGE}
    spans = {gpu: span for gpu, span in footprint.layouts.items() if span.stage == RUNTIME_CONFIG_STAGE}
    files, notes, kept = _plan_file_restores(request, host, trails)
    layouts, unchanged = _plan_layout_restores(host, spans, force=request.force)
    pauses = tuple(_plan_service_stops(layouts, survey(host))) if layouts else ()
    steps = (*pauses, *files, *layouts)
    pending_triggers = tuple(request.store.find_pending_triggers())
    if not request.allow_disruption:
        refuse_disruptive_undo([step.change for step in steps], pending_triggers, Unknown("not asked", "units"), host)
    notes = (*notes, *unchanged)
    return UndoPlan(request.undone_run, steps, notes, bool(unchanged), pending_triggers=pending_triggers, kept=kept)


def _load_returning_driver(
    steps: tuple[UndoStep, ...], packages: Iterable[PackageChange], facts: Facts, *, is_redo: bool
) -> tuple[tuple[UndoStep, ...], str]:
    """Return ``steps`` with the loading of a restored driver's module if none is loaded: its services need it.

    If a rival driver has the GPU, only a reboot loads the module: the services wait, and the second value says why.
    """
    brings = (system(facts).builds_driver, system(facts).parse_prebuilt_name)
    comes = any(one.exists_after and any(brings_module(one.id) for brings_module in brings) for one in packages)
    if not comes or facts.is_image or not isinstance(facts.loaded_driver, Known) or facts.loaded_driver.value:
        return steps, ""
    if not (rivals := sorted(known(facts.modules, frozenset()) & RIVAL_MODULES)):
        load = UndoStep("kernel", "module-load", ModuleChange("nvidia", before=False, after=True))
        return ((*steps, load) if is_redo else steps), ""  # an undone setup leaves its services before its packages
    waiting = tuple(
        replace(step, change=step.change.without_start()) if step.change.unit_running_after in GPU_SERVICES else step
        for step in steps
    )
    return waiting, f"{', '.join(rivals)} drives the GPU until the next boot"


def _plan_service_stops(steps: Sequence[UndoStep], facts: Facts) -> Iterator[UndoStep]:
    """Yield the stops for NVIDIA's services before ``steps`` take the GPUs from them."""
    pauses = plan_service_stops([step.change for step in steps], facts)
    yield from (UndoStep(GPU_SERVICES_STEP.stage, GPU_SERVICES_STEP.id, change) for change in pauses)


def _plan_service_starts(request: UndoRequest, facts: Facts) -> Iterator[Trigger]:
    """Yield the starts of services that the undone run stopped for its packages and that have not started since.

    After an upgrade they wait for its reboot, which an undo makes unnecessary.
    """
    entries = request.store.entries(request.undone_run) if request.undone_run else ()
    for change in ServiceChange.of_kind(one.change for one in collect_changes(entries)):
        fact = facts.unit(change.unit)
        if not change.is_temporary_stop or not isinstance(fact, Known) or fact.value.state.active:
            continue
        # Skip a unit that was enabled and that somebody has disabled since.
        if not fact.value.exists or (not fact.value.masked and fact.value.state.enabled >= change.before.enabled):
            yield Trigger("start", change.unit)


def _plan_file_restores(
    request: UndoRequest, host: Host, trails: Mapping[str, FileTrail], leaving: Collection[str] = ()
) -> tuple[tuple[UndoStep, ...], tuple[str, ...], tuple[KeptItem, ...]]:
    """Return the steps that restore the files of ``trails``, notes, and what stays.

    A file that is as an installed package shipped it stays, unless the package is ``leaving``: NVIDIA's cuda-keyring
    ships the same list and keyring that gpunode writes. Undoing an undo edits such a file again, as setup would, since
    the first undo restored the package's version.
    """
    backup_of, kept = request.store.objects.path_of_content, list[KeptItem]()
    found: list[tuple[str, FileTrail, FileState | None, RestoredFile]] = []
    states: dict[str, FileState | None] = {}
    for path in reversed(tuple(trails)):
        try:
            now = live_state.read_file_state(host, path)
        except live_state.NotAFileError as error:
            if request.undone_run:
                raise
            kept.append(KeptItem(path, f"stays as it is: {error.why}, in the place of the file that gpunode wrote"))
            continue
        states[path] = now
    going = {path: now for path, now in states.items() if now and trails[path] and now != trails[path][0].change.before}
    packaged = {} if request.is_redo else live_state.find_packaged_files(host, going, leaving)
    for path, now in states.items():
        if not (trail := trails[path]):
            kept += [KeptItem(path, "stays as it is: a backup of it was deleted")] if now else []
        elif path in packaged:
            former = trail[0].change.before
            backup = f"; what was there before gpunode is in {backup_of(former.content)}" if former else ""
            kept.append(KeptItem(path, f"stays: it belongs to the package {packaged[path]} now{backup}"))
        else:
            found.append((path, trail, now, restore_file(trail, now, request.resolve_edit)))
    removed = frozenset(path for path, _, _, restored in found if restored.state is None)
    steps: list[UndoStep] = []
    notes: list[str] = []
    for path, trail, now, restored in found:
        first, folders = trail[0], tuple(dict.fromkeys(folder for span in trail for folder in span.folders))
        if restored.state == now and not (now is None and live_state.has_empty_folder(host, folders, removed)):
            continue
        owes = frozenset[Trigger]().union(*(span.change.triggers for span in trail))
        change, kept_runtimes = _with_needed_restart(FileChange(path, now, restored.state, owes, folders))
        reader = find_reader(path) if restored.is_merged else None
        expectation = RuntimeExpectation(reader.id, reader.config) if reader else None
        steps.append(UndoStep(first.stage, first.step, change, expectation))
        notes += (*restored.notes, *kept_runtimes)
    return tuple(steps), tuple(notes), tuple(kept)


def _plan_layout_restores(
    host: Host, spans: Mapping[str, NetChange[MigChange]], *, force: bool
) -> tuple[tuple[UndoStep, ...], tuple[str, ...]]:
    """Return the steps that restore the GPUs' former layouts, and a note for each that cannot be restored."""
    if not spans:
        return (), ()
    try:
        present = live_state.list_gpus(host)
    except ValueError as error:
        return (), tuple(f"the MIG layout of {gpu} is not restored: {error}" for gpu in spans)
    found: list[UndoStep] = []
    notes: list[str] = []
    for uuid, span in reversed(tuple(spans.items())):
        gpu, back = present.get(uuid), span.change.inverse()
        if gpu is None or gpu.layout is None:
            notes.append(f"the MIG layout of {uuid} is not restored: NVML does not list the GPU")
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
            found.append(UndoStep(span.stage, span.step, replace(back, before=gpu.layout)))
    return tuple(found), tuple(notes)


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
    footprint: Footprint, host: Host, leaving: Collection[str], restored: Mapping[str, object], *, force: bool
) -> Iterator[UndoStep]:
    """Yield the restores of purged packages' configuration files, and of files that packages replaced.

    ``leaving`` names the purged packages; ``restored`` has the restored states of files that gpunode changed.
    """
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
        if not is_nobodys and not force:
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
            hint="add --force: it becomes as it was before the run",
        )
    by_hand = "make the second change by hand and keep the first"
    return Conflict(
        f"{change.path} was {'edited since gpunode wrote it' if change.before else 'written anew since the run'}",
        why=f"the edit of gpunode's version:\n{edit}\nwhat a rollback of gpunode's version would do:\n{back}",
        hint=(f"remove what gpunode added and keep the edits:\n{keep}\n" if keep else f"{by_hand};\n")
        + "or add --force: the edited file is backed up first, and rolling that run back restores it",
    )


def plan_package_restore(
    wanted: Mapping[PackageId, PackageState | None], installed: Mapping[PackageId, PackageState], database: Database
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


def _find_packages_with_data(host: Host, going: Collection[PackageId], facts: Facts) -> dict[PackageId, str]:
    """Return the packages whose purge would delete their users' data, and their clients, with the reason to keep them.

    A setup could install the package again, but nothing could bring the data back.
    """
    kept: dict[PackageId, str] = {}
    for row in RUNTIMES:
        package = PackageId(row.packages[0])
        probes = [Probe(pattern, glob=pattern, contents=False) for pattern in row.data_lost_by_purge]
        if package not in going or not any(host.run_probe(probe).data for probe in probes):
            continue
        loss = (
            f"a purge deletes {posixpath.commonpath(row.data_lost_by_purge)}, which has containers, images or volumes"
        )
        if installed_packages(facts)[package].config_files_only:
            kept[package] = f"keeps its configuration files: {loss}"
            continue
        kept[package] = f"stays: {loss} (`sudo {system(facts).remove((str(package),))}` leaves them)"
        clients = sorted(map(PackageId, row.client_packages.values()))
        kept |= {one: f"stays with {package}" for one in clients if one in going}
    return kept


def _find_builders_in_use(host: Host, going: Collection[PackageId], footprint: Footprint) -> dict[PackageId, str]:
    """Return DKMS and the kernel headers with the reason to keep them, if DKMS builds modules of others.

    No package need depend on them: a vendor's installer adds a module by itself, and DKMS only recommends headers.
    Without them the next kernel would lack that module, such as its network card's or ZFS.
    """
    found = decode_matches(host.run_probe(Probe(_DKMS_SOURCES, glob=_DKMS_SOURCES, contents=False)).data)
    modules = {match.path.split("/")[4] for match in found}
    others = sorted(name for name in modules if not name.startswith(_OWN_DKMS_MODULES))
    if not others:
        return {}
    builders = (one for one in sorted(going) if one == _DKMS or footprint.packages[one].step == HEADERS_STEP.id)
    return {one: f"stays: DKMS builds {join_names(others)} for the next kernel" for one in builders}


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


def keep_what_packages_need(
    steps: Sequence[UndoStep],
    packages: Sequence[PackageChange],
    wanted_states: Mapping[PackageId, PackageState | None],
    installed: Collection[PackageId],
) -> tuple[tuple[UndoStep, ...], tuple[KeptItem, ...]]:
    """Return ``steps`` without what a remaining package needs, and the reasons.

    A driver needs its blacklist, archive, key, pin and units; a CUDA toolkit its archive, key, pin and PATH; the
    container toolkit its archive and key; a runtime its unit.
    """
    from gpunode.catalog.cuda import release_of_toolkit_package  # loaded on use: a plan undoes nothing

    going = {change.id for change in packages}
    staying = {one for one, state in wanted_states.items() if state is None and one in installed and one not in going}
    drivers = sorted(driver_packages(staying))
    toolkits = sorted(package for package in staying if release_of_toolkit_package(package.name))
    users_by_step = {
        CUDA_TOOLKIT_STEP.id: toolkits,
        CUDA_REPOSITORY_STEP.id: [*drivers, *toolkits],
        TOOLKIT_REPOSITORY_STEP.id: sorted(staying.intersection(TOOLKIT_PACKAGES)),
        RESUME_STEP_ID: [],
        RUNTIME_CONFIG_STEP.id: sorted(package for package in staying if package.name in _RUNTIME_PACKAGES),
    }
    left: list[UndoStep] = []
    kept: list[KeptItem] = []
    for step in steps:
        users = users_by_step.get(step.step_id, drivers)
        if users and step.change.removes_what_packages_need(step.stage, step.step_id):
            kept.append(KeptItem(step.change.subject, f"stays with {users[0]}"))
        else:
            left.append(step)
    return tuple(left), tuple(kept)


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
    coming = [change for change in changes if change.exists_after and change.states[0] != change.states[1]]
    offered = host.list_offered_versions([change.id for change in coming])
    gone = [change for change in coming if change.states[1] not in offered.get(change.id, ())]
    if not gone:
        return tuple(changes), ()
    names: dict[str, list[str]] = {}
    for one in gone:
        others = f" (but {', '.join(sorted(offered[one.id]))})" if offered.get(one.id) else ""
        reason = f"cannot get version {one.states[1]} back: no archive in the package index has it{others}"
        names.setdefault(reason, []).append(str(one.id))
    lost = tuple(KeptItem(join_names(sorted(same)), reason) for reason, same in names.items())
    rest = tuple(change for change in changes if change not in gone)
    simulation = host.simulate(rest) if rest else None
    if simulation is None or not simulation.problem:
        return rest, lost
    left = [change for change in coming if change not in gone]
    dependents = KeptItem(join_names(sorted(str(one.id) for one in left)), "cannot be restored without these")
    return tuple(change for change in rest if change not in left), (*lost, dependents)


def _plan_unit_restore(facts: Facts, span: NetChange[ServiceChange], *, is_coming: bool) -> UndoStep | None:
    """Return the step that restores a unit's former state; None if it has that state, or the unit is gone.

    What somebody has changed since stays: a unit that was disabled or stopped is not enabled or started again. A masked
    one cannot be.

    ``is_coming``: whether this undo restores the unit's file, or a package that may contain it, first.
    """
    change, fact = span.change, facts.unit(span.change.unit)
    if is_coming and isinstance(fact, Known) and not fact.value.exists:
        return UndoStep(
            span.stage, span.step, replace(change.inverse(), before=ServiceState(enabled=False, active=False))
        )
    if not isinstance(fact, Known) or not fact.value.exists:
        return None
    now, left, former = fact.value.state, change.after, change.before
    enabled = former.enabled if now.enabled == left.enabled else now.enabled
    is_started_by_boot = now.active and left.enabled  # as setup had it enabled for
    active = former.active if now.active == left.active or is_started_by_boot else now.active
    if fact.value.masked:
        enabled, active = now.enabled, active and now.active
    wanted = ServiceState(enabled, active)
    return None if wanted == now else UndoStep(span.stage, span.step, replace(change, before=now, after=wanted))


def reboot_reason(store: Store, facts: Facts, packages: Iterable[PackageChange]) -> str:
    """Return why a reboot is needed: the driver is removed, but its module stays loaded until then; else empty.

    ``packages`` are not the only cause: an earlier run since the boot may have removed the driver and failed before it
    reported this, and no run since has reported it.
    """
    loaded = facts.loaded_driver.value if isinstance(facts.loaded_driver, Known) else None
    if loaded is None:
        return ""
    boot, installed = known(facts.boot_id, ""), known(facts.packages, {})
    if _is_loaded_module_installed(loaded, facts, packages):
        return ""
    here = (run for run in reversed(store.read_runs()) if boot and run.begin.boot_id == boot)
    runs = takewhile(lambda run: run.ending != "waiting", here)
    gone = [
        change
        for run in runs
        for change in PackageChange.of_kind(run.changes("done", "unknown"))
        if change.before is not None
        and upstream(change.before.version) == loaded.version
        and (change.id not in installed or installed[change.id].version != change.before.version)
    ]
    states = ((change, change.known_final_state) for change in (*packages, *gone))
    changes = [change for change, after in states if after is None or upstream(after.version) != loaded.version]
    if not any_removed_or_replaced(changes, driver_packages(change.id for change in changes)):
        return ""
    return f"the kernel keeps the module of driver {loaded.version} until the next boot"


def _is_loaded_module_installed(loaded: LoadedDriver, facts: Facts, packages: Iterable[PackageChange]) -> bool:
    """Return whether the loaded kernel module is the installed one, once ``packages`` are changed."""
    found = family(facts.distro.value) if isinstance(facts.distro, Known) else None
    if found is None:
        return False
    chosen = Choice(branch_of(loaded.version), loaded.version, "open" if loaded.open_module else "proprietary", "")
    builder = PackageId(found.dkms_package(chosen))
    coming = {one.id: one.known_final_state for one in packages}
    state = coming[builder] if builder in coming else known(facts.packages, {}).get(builder)
    return state is not None and not state.config_files_only and upstream(state.version) == loaded.version
