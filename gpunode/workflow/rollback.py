"""rollback: undo what a run changed, either its configuration or all of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import takewhile

from gpunode.change import FileChange, FileState, PackageChange
from gpunode.command import Command
from gpunode.errors import Conflict, GpunodeError, RebootRequired, UsageError, VerifyFailed
from gpunode.facts.model import Facts
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import Host, TriggerResult
from gpunode.journal.footprint import NetChange
from gpunode.journal.history import COMPLETED_RESULTS, RunRecord, intents_to_undo, run_label
from gpunode.journal.record import APPLYING_VERBS
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.runtimes import RUNTIMES, DesiredConfig, Edit, find_reader
from gpunode.steps.table import find_needed_step_ids
from gpunode.wording import join_names
from gpunode.workflow import live_state
from gpunode.workflow.apply import Applier, recording_failure
from gpunode.workflow.events import Observer
from gpunode.workflow.undo import RestoredFile, UndoPlan, carry_out, installed_packages, recorded_edit
from gpunode.workflow.undo_plan import UndoRequest, edit_conflict_error, plan_configuration_undo, plan_undo


@dataclass(frozen=True, slots=True)
class UndoResult:
    """The result of a rollback or a removal; ``run`` is itself a run that can be rolled back."""

    plan: UndoPlan
    run: str
    trigger_results: tuple[TriggerResult, ...]


def plan_rollback(
    store: Store,
    host: Host,
    run_id: str,
    facts: Facts | None = None,
    *,
    force: bool = False,
    allow_disruption: bool = False,
    allow_loss: bool = False,
) -> UndoPlan:
    """Return the plan that undoes the run, compared with the present node.

    Without ``facts``, only the configuration is undone. With ``force``, files that somebody edited since are restored,
    too; the edited version is backed up. The other options are those of ``UndoRequest``.

    Raises:
        Conflict: a later run touched or needs the same things, somebody edited a file since, or a runtime's program
            is missing.
        DrainRequired: containers would be stopped, or processes lose the driver.
        Undetermined: a file, or docker's list of containers, cannot be read.
        Refused: the package manager would do something else.
    """
    footprint, runs = store.read_run_footprint(run_id), {run.id: run for run in store.read_runs()}
    run = runs[run_id]
    if facts and run.undone_by and not run.is_fully_undone:
        # Its configuration is undone, and that of an earlier run may be, too.
        footprint = footprint.part(is_configuration=False)
    purged = {span.change.path for span in footprint.conffiles}

    def resolve_edit(span: NetChange[FileChange], now: FileState | None) -> RestoredFile:
        if force or (now is None and span.change.path in purged):  # removed with its package
            return RestoredFile(span.change.before)
        if store.read_additions().is_other_own_version(span.change, now):
            return RestoredFile(span.change.before)  # somebody put an earlier version of gpunode's there
        back = span.change.inverse()
        assert back is not None, "a footprint holds what is settled"
        raise edit_conflict_error(back, now, _unconfigure_commands(store, back, now))

    is_redo = _counts_as_undo(runs, run_id)
    request = UndoRequest(store, run_id, footprint, resolve_edit, is_redo, force, allow_disruption, allow_loss)
    touched = footprint.subjects
    refuse_shared_subjects(store, run_id, touched if facts else run.configuration_subjects & touched)
    undone = plan_undo(request, host, facts) if facts else plan_configuration_undo(request, host)
    _refuse_missing_programs(request, host, run, undone)
    if facts is None:
        return replace(undone, not_undone=tuple(sorted(run.remaining_subjects & run.other_subjects)))
    _refuse_needed_removals(store, undone, host, installed_packages(facts))
    return undone


def _refuse_missing_programs(request: UndoRequest, host: Host, run: RunRecord, undone: UndoPlan) -> None:
    """Refuse to register a runtime again if its program is missing, as after a removal, and is not restored.

    Raises:
        Conflict: names the program, and how to install it.
    """
    if not request.is_redo or any(change.exists_after for change in undone.packages):
        return
    from gpunode.runtimes.reversal import added_programs  # loaded on use: few rollbacks undo an undo
    from gpunode.steps.runtime import missing_program
    from gpunode.workflow.ctk_plan import find_missing_program

    for change in undone.files:
        absent = find_missing_program(host, sorted(added_programs(recorded_edit(change))))
        if not absent:
            continue
        runtime = find_reader(change.path) or RUNTIMES[0]
        root = () if str(request.store.root) == "/" else (f"--root={request.store.root}",)
        hint = missing_program(absent, runtime.id, *root).hint
        if not undone.with_packages and any(
            change.before is not None for change in PackageChange.of_kind(run.changes("done"))
        ):
            hint = rollback_command(request.store, run, with_packages=True)
        raise Conflict(
            f"{change.path} would name {absent}, which is not installed",
            why=f"{runtime.id} could not start containers with it",
            hint=hint,
        )


def _counts_as_undo(runs: Mapping[str, RunRecord], run: str) -> bool:
    """Return whether ``run`` removed what another run made; undoing an undo makes it again."""
    if runs[run].verb in APPLYING_VERBS:
        return False
    of = runs[run].begin.undoes
    return of not in runs or not _counts_as_undo(runs, of)


def _unconfigure_commands(store: Store, change: FileChange, current: FileState | None) -> str:
    """Return the commands that remove gpunode's runtimes from ``current``; empty if it added none."""
    runtime = find_reader(change.path)
    if runtime is None or runtime.unit == "" or current is None:
        return ""
    from gpunode.runtimes.reversal import changed_handlers  # loaded on use: few rollbacks meet an edited file

    edits = (recorded_edit(change), Edit(change.path, None, current.content))
    ours, present = (changed_handlers(edit) - {"runc"} for edit in edits)
    words = ("ctk", "runtime", "unconfigure", f"--runtime={runtime.id}")
    names = ((f"--nvidia-runtime-name={name}",) if name != DesiredConfig().handler else () for name in ours & present)
    return "\n".join(store.command(*words, *name) for name in sorted(names))


def execute_undo(
    plan: UndoPlan, host: Host, store: Store, *, on_event: Observer, check_interrupt: Callable[[], None] = lambda: None
) -> UndoResult:
    """Carry out the plan of a rollback or a removal in a run of its own, and make the daemons reread their files.

    Raises:
        ChangeFailed: something could not be restored; every backup is kept.
    """
    run = store.begin(plan.verb, undoes=plan.undone_run, with_packages=plan.with_packages)
    reason = f"as it was before {plan.undone_run or 'gpunode'}"
    applier = Applier(host, run, on_event, check_interrupt)
    with recording_failure(applier):
        trigger_results = carry_out(plan, applier, reason)
    plan = replace(plan, reboot_reason=plan.reboot_reason or live_state.pending_mig_switch(host, plan.changes))
    if plan.is_incomplete and not plan.with_packages:
        run.commit("failed", "\n".join(plan.notes))  # a GPU's layout; so the run does not count as undone
    else:
        run.commit("waiting" if plan.reboot_reason else "done", plan.reboot_reason)
    return UndoResult(plan, run.id, trigger_results)


def mark_undone(store: Store, run: RunRecord, *, with_packages: bool) -> None:
    """Record that ``run`` is undone, because nothing of it is left on the node.

    Raises:
        ChangeFailed: the record could not be written.
    """
    if not run.is_undone(with_packages=with_packages):
        store.begin("rollback", undoes=run.id, with_packages=with_packages).commit("done")


def undo_failure(plan: UndoPlan) -> GpunodeError | None:
    """Return the error for what ``plan`` could not do once carried out; None if it did everything."""
    if plan.is_incomplete:
        also = (f"a reboot is needed, too: {plan.reboot_reason}",) if plan.reboot_reason else ()
        return VerifyFailed(
            "not everything was restored",
            why="\n".join((*plan.remarks, *also)),
            hint="the notes say what can be done by hand",
        )
    if plan.reboot_reason:
        return RebootRequired(
            "a reboot is needed; everything before it is done", why=plan.reboot_reason, hint="sudo systemctl reboot"
        )
    return None


def preview_rollback(store: Store, host: Host, run: RunRecord) -> str:
    """Describe briefly what a rollback of ``run`` would do now; packages are not compared."""
    by = f"undone by run {run_label(run.undone_by, run.verb)}" if run.undone_by else ""
    if run.is_fully_undone:
        return by
    beyond = "with --packages" if run.other_subjects else ""
    if not run.configuration_subjects and not beyond:
        return "changed nothing that can be undone"
    rest = f"; the rest can be undone {beyond}" if beyond else ""
    if by:
        return by + rest
    try:
        if not run.configuration_subjects:
            refuse_shared_subjects(store, run.id, store.read_run_footprint(run.id).subjects)
            return f"can be undone {beyond}"
        back = plan_rollback(store, host, run.id, allow_disruption=True)
    except GpunodeError as error:
        if error.hint == rollback_command(store, run, with_packages=True):
            return f"can be undone {beyond}"
        return f"cannot be undone now: {error.what}"
    return "can be undone now" if back.steps else f"its files are already restored or gone{rest}"


_MAX_SUBJECTS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class NothingToUndo:
    """A run of which nothing is left to undo.

    Attributes:
        why: how that is known.
        newest_not_undone: the newest run that is not undone; None if there is none.
        command: the command that undoes that run.
        notes: what stays of ``run``, and why.
        is_partial: whether only its configuration is undone although it changed more.
    """

    run: RunRecord
    why: str
    newest_not_undone: RunRecord | None = None
    command: str = ""
    notes: tuple[str, ...] = ()
    is_partial: bool = False


def find_newest_run(store: Store, *, with_packages: bool = False) -> RunRecord:
    """Return the newest run whose changes can be undone, whether or not it has been undone.

    ``with_packages``: whether packages, archives and units are undone as well as the configuration.

    Raises:
        UsageError: there is no such run, or a later run failed, so that the user hardly means this one.
    """
    if runs := _undoable_runs(store, with_packages=with_packages):
        _refuse_before_failed_run(store, runs[0], with_packages=with_packages)
        return runs[0]
    made = _undoable_runs(store, with_packages=True)
    why, hint = "no recorded run can be undone", store.command("log")
    if not store.read_runs():
        # remove inspects a node without a record, too.
        why, hint = "no run of gpunode is recorded on this node", store.command("remove")
    elif made:
        why = "no recorded run changed a container runtime's configuration"
        hint = rollback_command(store, made[0], with_packages=True)
    raise UsageError("there is nothing to roll back", why=why, hint=hint)


def _refuse_before_failed_run(store: Store, failed_run: RunRecord, *, with_packages: bool) -> None:
    """Refuse the completed run ``found`` if a later run ended early, before it changed anything that would be undone.

    ``setup --yes || rollback --yes`` should undo the run that failed, not the setup before it, which worked. If that
    one ended early as well, the later run was to complete it, and nothing that worked is undone with it.
    """
    since = list(takewhile(lambda run: run.id != failed_run.id, _applying_runs(store)))
    if not since or failed_run.ending not in COMPLETED_RESULTS or since[0].ending in COMPLETED_RESULTS:
        return
    if since[0].undone_by or failed_run.undone_by:
        return
    part = "anything" if with_packages else "a container runtime's configuration"
    commands = [
        f"undo what run {run.label} did: {rollback_command(store, run, with_packages=True)}"
        for run in since
        if run.other_subjects and not run.is_fully_undone
    ]
    commands.append(f"undo run {failed_run.label}: {rollback_command(store, failed_run, with_packages=with_packages)}")
    raise UsageError(
        f"run {since[0].label} ended early, before it changed {part}",
        why=f"the newest run that did is {failed_run.label}; it completed, so only its number undoes it",
        hint="\n".join(commands),
    )


def explain_newer_runs(store: Store, chosen: RunRecord) -> str:
    """Return why ``chosen`` is not the newest run; empty if it is, or if only undone runs or undos are newer.

    A later run is no reason if ``chosen`` ended early or waits for a reboot: it was to complete ``chosen``.
    """
    if chosen.ending != "done":
        return ""
    since = takewhile(lambda run: run.id != chosen.id, _applying_runs(store))
    newer = [run.id for run in since if not run.undone_by]
    return f"a later run changed nothing that this would undo: {join_names(newer[::-1])}" if newer else ""


def _applying_runs(store: Store) -> Iterator[RunRecord]:
    """Yield the runs other than undos, newest first: two rollbacks without RUN would undo each other in turn."""
    return (run for run in reversed(store.read_runs()) if run.verb in APPLYING_VERBS)


def _undoable_runs(store: Store, *, with_packages: bool) -> list[RunRecord]:
    """Return the runs that a rollback without RUN may undo, newest first."""
    runs = _applying_runs(store)
    return [run for run in runs if run.configuration_subjects or (with_packages and run.other_subjects)]


def explain_undone(store: Store, run: RunRecord, why: str, *, with_packages: bool) -> NothingToUndo:
    """Report that ``run`` is undone, with the command for the newest run that is not, or not completely."""
    done = NothingToUndo(
        run, why, is_partial=not with_packages and bool(run.other_subjects) and not run.is_fully_undone
    )
    # What a plain rollback leaves of the runs can only be undone with the packages.
    for whole in dict.fromkeys((with_packages, True)):
        runs = (run for run in _undoable_runs(store, with_packages=whole) if not run.is_undone(with_packages=whole))
        if left := next((one for one in runs if whole != with_packages or one.id != run.id), None):
            return replace(done, newest_not_undone=left, command=rollback_command(store, left, with_packages=whole))
    return done


def find_run(store: Store, run: str, *, with_packages: bool = True) -> RunRecord:
    """Return the run with this id or number.

    Raises:
        UsageError: there is none, or only ``--packages`` can undo what it changed and ``with_packages`` is false.
    """
    (matching_run,) = store.find_runs(run)
    if not with_packages and matching_run.other_subjects and not matching_run.configuration_subjects:
        raise UsageError(
            f"run {run} changed no container runtime's configuration",
            why="a rollback without --packages undoes the configuration alone",
            hint=rollback_command(store, matching_run, with_packages=True),
        )
    return matching_run


def refuse_shared_subjects(store: Store, run_id: str, touched: AbstractSet[str]) -> None:
    """Refuse if a later run that was not undone changed one of ``touched``, which undoing ``run_id`` would change.

    Raises:
        Conflict: names the runs to undo first, newest first.
    """
    later = {run: shared for run in _later_runs(store, run_id) if (shared := touched & run.remaining_subjects)}
    if later:
        both = join_names(sorted(frozenset().union(*later.values())), _MAX_SUBJECTS_SHOWN)
        raise Conflict(
            f"later runs changed the same things: {', '.join(run.id for run in later)}",
            why=f"undoing {run_id} alone would mix their versions of {both}",
            hint=_undo_commands(store, later),
        )


def _refuse_needed_removals(store: Store, undone: UndoPlan, host: Host, packages: Collection[PackageId]) -> None:
    """Refuse if a later run that was not undone needs something that ``undone`` would remove.

    Raises:
        Conflict: names the runs to undo first, newest first.
    """
    removed: dict[str, list[str]] = {}  # by the step that added it
    for step in undone.steps:
        if not step.change.exists_after:
            removed.setdefault(step.step_id, []).append(step.change.subject)
    needing: dict[RunRecord, frozenset[str]] = {}
    lines: list[str] = []
    for run in _later_runs(store, undone.undone_run) if removed else ():
        for step_id, made in _remaining_additions(run, host, packages):
            if missed := sorted(name for need in find_needed_step_ids(step_id) for name in removed.get(need, ())):
                needing[run] = needing.get(run, frozenset()) | {made}
                lines.append(f"{made}, of run {run.label}, needs {join_names(missed, _MAX_SUBJECTS_SHOWN)}")
    if needing:
        raise Conflict(
            f"a later run needs what this would remove: {', '.join(run.id for run in needing)}",
            why="\n".join(lines[:_MAX_SUBJECTS_SHOWN]),
            hint=_undo_commands(store, needing),
        )


def _remaining_additions(run: RunRecord, host: Host, packages: Collection[PackageId]) -> Iterator[tuple[str, str]]:
    """Yield what ``run`` added to the node and what is still there, each with its step."""
    if run.verb not in APPLYING_VERBS or run.verb == "unconfigure":
        return  # a run that removed something needs nothing
    for intent in intents_to_undo(run.entries):
        back = intent.change  # from the state that the run made to the one before it
        if not back.exists_before or back.subject not in run.remaining_subjects:
            continue
        if isinstance(back, FileChange) and live_state.read_file_state(host, back.path) is None:
            continue
        if not isinstance(back, PackageChange) or back.id in packages:
            yield intent.step, back.subject


def _later_runs(store: Store, run_id: str) -> list[RunRecord]:
    """Return the runs after ``run_id``, without rollbacks that undo one of them or ``run_id`` itself.

    A repair completes what others began, and restores holds: it changes nothing that an undo would mix up.
    """
    runs = store.read_runs()
    since = runs[[run.id for run in runs].index(run_id) :]
    here = {run.id for run in since}
    return [run for run in since[1:] if run.verb != "repair" and run.begin.undoes not in here]


def _undo_commands(store: Store, runs: Mapping[RunRecord, AbstractSet[str]]) -> str:
    """Return the commands that undo ``runs``, with packages where their subjects require it, newest first."""
    return "\n".join(
        rollback_command(store, run, with_packages=not subjects <= run.configuration_subjects)
        for run, subjects in reversed(list(runs.items()))
    )


def rollback_command(store: Store, run: RunRecord, *, with_packages: bool) -> Command:
    """Return the command that undoes ``run`` in the same root folder."""
    return store.command("rollback", run.label, *(["--packages"] if with_packages else []))
