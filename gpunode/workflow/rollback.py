"""rollback: undo what a run changed, its configuration or all of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial

from gpunode.change import Change, FileChange, FileState, PackageChange
from gpunode.errors import Conflict, GpunodeError, RebootRequired, UsageError, VerifyFailed
from gpunode.facts.model import Facts
from gpunode.host.port import Host, TriggerResult
from gpunode.journal.footprint import ChangeSpan
from gpunode.journal.history import RunRecord, intents_to_undo, run_number
from gpunode.journal.record import MAKING
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.runtimes import RUNTIMES, DesiredConfig, Edit
from gpunode.steps.table import find_needed_steps
from gpunode.wording import join_names
from gpunode.workflow import live_state
from gpunode.workflow.apply import Applier, recording_failure
from gpunode.workflow.events import Observer
from gpunode.workflow.recovery import still_pending
from gpunode.workflow.undo import RestoredFile, UndoExecutor, UndoPlan, installed_packages, recorded_edit
from gpunode.workflow.undo_plan import UndoRequest, edit_conflict, plan_configuration_undo, plan_undo


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """The result of a rollback or a removal; ``run`` is itself a run that can be rolled back."""

    plan: UndoPlan
    run: str
    settled: tuple[TriggerResult, ...]


def plan_rollback(
    store: Store, host: Host, run_id: str, facts: Facts | None = None, *, force: bool = False, disrupt: bool = False
) -> UndoPlan:
    """Return what undoes the run, compared with the node as it is.

    Args:
        store: the journal.
        host: the node.
        run_id: of the run.
        facts: of the node, where packages, sources, units and all else are undone, too; None for configuration alone.
        force: whether files come back that somebody edited since; the edit is backed up as any other version.
        disrupt: whether containers may be stopped, and the driver taken from processes that use a GPU.

    Raises:
        Conflict: a later run touched something of it or needs it, or somebody edited a file since.
        DrainRequired: containers would be stopped, or processes lose the driver.
        Undetermined: a file, or what docker runs, cannot be read.
        Refused: the package manager would do something else.
    """
    footprint = store.footprint_of(run_id)
    runs = {run.run: run for run in store.runs()}
    purged = {span.change.path for span in footprint.conffiles}

    def resolve_edit(span: ChangeSpan[FileChange], now: FileState | None) -> RestoredFile:
        if force or (now is None and span.change.path in purged):  # it went with its package
            return RestoredFile(span.change.before)
        back = span.change.inverse()
        assert back is not None, "a footprint holds what is settled"
        raise edit_conflict(back, now, _unconfigure_command(back, now, str(store.root)))

    request = UndoRequest(run_id, footprint, resolve_edit, restores_packages=True, force=force, disrupt=disrupt)
    if facts is None:
        refuse_shared(store, run_id, runs[run_id].configuration & footprint.subjects)
        undone = plan_configuration_undo(replace(request, owed=tuple(store.pending_triggers())), host)
        return replace(undone, left=tuple(sorted(runs[run_id].standing & runs[run_id].other_subjects)))
    refuse_shared(store, run_id, footprint.subjects)
    request = replace(
        request, owed=still_pending(store.pending_triggers(), facts), is_redo=not _goes_backward(runs, run_id)
    )
    undone = plan_undo(request, host, facts, store.objects.path_of_content)
    going = removals_by_step((step.step_id, step.change) for step in undone.steps)
    refuse_needed(store, run_id, going, partial(_is_there, host, installed_packages(facts)))
    return undone


def _is_there(host: Host, packages: Collection[PackageId], change: Change) -> bool:
    """Return whether the file or package of ``change`` is on the node; anything else is never missing."""
    match change:
        case FileChange(path=path):
            return live_state.read_file_state(host, path) is not None
        case PackageChange(id=package):
            return package in packages
        case _:
            return True


def _goes_backward(runs: Mapping[str, RunRecord], run: str) -> bool:
    """Return whether undoing ``run`` removes what was made; undoing an undo makes it again."""
    if runs[run].verb in MAKING:
        return True
    of = runs[run].begin.undoes
    return of in runs and not _goes_backward(runs, of)


def _unconfigure_command(change: FileChange, now: FileState | None, root: str) -> str:
    """Return the command that removes gpunode's runtimes from ``now``; empty if it added none."""
    row = next((row for row in RUNTIMES if change.path in {row.config, row.drop_in}), None)
    if row is None or row.unit == "" or now is None:
        return ""
    from gpunode.runtimes.reversal import changed_handlers  # few rollbacks meet an edited file

    edits = (recorded_edit(change), Edit(change.path, None, now.content))
    ours, present = (changed_handlers(edit) - {"runc"} for edit in edits)
    command = ["gpunode", "ctk", "runtime", "unconfigure", f"--runtime={row.id}"]
    command += ["--root", root] if root != "/" else []
    commands = (
        shlex.join([*command, *([] if name == DesiredConfig().handler else [f"--nvidia-runtime-name={name}"])])
        for name in sorted(ours & present)
    )
    return "\n".join(commands)


def rollback(
    plan: UndoPlan,
    host: Host,
    store: Store,
    *,
    version: str,
    argv: tuple[str, ...],
    on_event: Observer,
    pause: Callable[[], None] = lambda: None,
) -> RollbackResult:
    """Carry out ``plan`` in a run of its own, and have the daemons read the files again.

    Raises:
        ChangeFailed: something could not be restored; every backup is kept.
    """
    run = store.begin(plan.verb, version=version, argv=argv, undoes=plan.undone_run, with_packages=plan.whole)
    reason = f"as it was before {plan.undone_run or 'gpunode'}"
    applier = Applier(host, run, on_event, pause)
    executor = UndoExecutor(applier, host, reason, plan.owed)
    with recording_failure(applier):
        executor.carry_out(plan.steps)
    plan = replace(plan, reboot=plan.reboot or live_state.pending_mig_switch(host, plan.changes))
    run.commit("waiting" if plan.reboot else "done", plan.reboot)
    return RollbackResult(plan, run.id, tuple(executor.settled))


def mark_undone(store: Store, run: RunRecord, *, version: str, argv: tuple[str, ...], whole: bool) -> None:
    """Record that ``run`` is undone: nothing of it is left on the node.

    Raises:
        ChangeFailed: it could not be written.
    """
    if not run.is_undone(whole=whole):
        store.begin("rollback", version=version, argv=argv, undoes=run.run, with_packages=whole).commit("done")


def incomplete_undo(plan: UndoPlan) -> VerifyFailed:
    """Return the error for what cannot come back although everything else did."""
    also = (f"a reboot is needed, too: {plan.reboot}",) if plan.reboot else ()
    return VerifyFailed(
        "not everything was restored",
        why="\n".join((*plan.remarks, *also)),
        hint="install the missing packages in a version that an archive still has",
    )


def failure_of(done: RollbackResult) -> GpunodeError | None:
    """Return what a rollback or removal that is through could not do; None if it did it all."""
    if done.plan.incomplete:
        return incomplete_undo(done.plan)
    if done.plan.reboot:
        return RebootRequired(
            "a reboot is needed; everything before it is done", why=done.plan.reboot, hint="systemctl reboot"
        )
    return None


def preview_rollback(store: Store, host: Host, run: RunRecord) -> str:
    """Return in a few words what a rollback of ``run`` would do now; packages are not compared."""
    by = f"undone by run {run_number(run.undone_by)}" if run.undone_by else ""
    if run.forgotten:
        return "cannot be undone: its backups are forgotten"
    if run.is_fully_undone:
        return by
    beyond = "needs --packages" if run.other_subjects else ""
    if not run.configuration:
        return f"can be undone now: {beyond}" if beyond else "changed nothing that can be undone"
    rest = f"; the rest {beyond}" if beyond else ""
    if by:
        return by + rest
    try:
        back = plan_rollback(store, host, run.run, disrupt=True)
    except GpunodeError as error:
        return f"cannot be undone now: {error.what}"
    return "can be undone now" if back.steps else f"its files are already restored or gone{rest}"


_SHOWN = 6


@dataclass(frozen=True, slots=True)
class NothingToUndo:
    """A run of which nothing is left to undo.

    Attributes:
        why: how that is known.
        standing: the newest run that is not undone; None when there is none.
        command: what undoes that one.
        notes: what stays of it, and why.
    """

    run: RunRecord
    why: str
    standing: RunRecord | None = None
    command: str = ""
    notes: tuple[str, ...] = ()


def find_newest_run(store: Store, *, whole: bool = False) -> RunRecord:
    """Return the newest run that made something which can be undone, whether it has been undone or not.

    Args:
        store: the journal.
        whole: whether packages, archives and units are undone, too, and not the configuration alone.

    Raises:
        UsageError: if there is none.
    """
    if found := _undoable_runs(store, whole=whole):
        return found[0]
    made = _undoable_runs(store, whole=True)
    why = "no recorded run can be undone" if store.runs() else "no run of gpunode is recorded on this node"
    if made:
        why = "no recorded run changed a container runtime's configuration"
    raise UsageError(
        "there is nothing to roll back",
        why=why,
        hint=rollback_command(store, made[0], whole=True) if made else "gpunode log shows the recorded runs",
    )


def _undoable_runs(store: Store, *, whole: bool) -> list[RunRecord]:
    """Return the runs that a rollback without RUN may undo, newest first."""
    # A rollback is undone by its name alone: else two of them would go to and fro.
    made = (one for one in reversed(store.runs()) if one.verb in MAKING and not one.forgotten)
    return [one for one in made if one.configuration or (whole and one.other_subjects)]


def explain_undone(store: Store, run: RunRecord, why: str, *, whole: bool) -> NothingToUndo:
    """Return that ``run`` is undone, with the command for the newest run that is not."""
    left = (one for one in _undoable_runs(store, whole=whole) if one.run != run.run and not one.is_undone(whole=whole))
    standing = next(left, None)
    return NothingToUndo(run, why, standing, rollback_command(store, standing, whole=whole) if standing else "")


def find_run(store: Store, run: str, *, whole: bool = True) -> RunRecord:
    """Return the run with this id or number.

    Raises:
        UsageError: if there is none, or if only ``--packages`` can undo what it changed and ``whole`` is false.
    """
    (found,) = store.find_runs(run)
    if not whole and found.other_subjects and not found.configuration:
        raise UsageError(
            f"run {run} changed no container runtime's configuration",
            why="a rollback without --packages undoes the configuration alone",
            hint=rollback_command(store, found, whole=True),
        )
    return found


def refuse_shared(store: Store, run_id: str, touched: AbstractSet[str]) -> None:
    """Refuse if a later run that stands changed one of ``touched``, which undoing ``run_id`` would change.

    Raises:
        Conflict: naming the runs to undo first, newest first.
    """
    later = {run: shared for run in _later_runs(store, run_id) if (shared := touched & run.standing)}
    if later:
        both = ", ".join(sorted(frozenset().union(*later.values()))[:_SHOWN])
        raise Conflict(
            f"later runs changed the same things: {', '.join(run.run for run in later)}",
            why=f"undoing {run_id} alone would mix their versions of {both}",
            hint=_undo_first(store, later),
        )


def refuse_needed(
    store: Store, run_id: str, removed: Mapping[str, Collection[str]], is_there: Callable[[Change], bool]
) -> None:
    """Refuse if a later run that stands needs something that undoing ``run_id`` would remove.

    Args:
        store: the journal.
        run_id: of the run to undo.
        removed: what would be taken away, by the step that brought it.
        is_there: whether the subject of a change is still on the node.

    Raises:
        Conflict: naming the runs to undo first, newest first.
    """
    needing: dict[RunRecord, frozenset[str]] = {}
    lines: list[str] = []
    for run in _later_runs(store, run_id) if removed else ():
        for step, made in _remaining_additions(store, run, is_there):
            if missed := sorted(name for need in find_needed_steps(step) for name in removed.get(need, ())):
                needing[run] = needing.get(run, frozenset()) | {made.subject}
                lines.append(f"{made.subject}, of run {run.number}, needs {join_names(missed, _SHOWN)}")
    if needing:
        raise Conflict(
            f"a later run needs what this would remove: {', '.join(run.run for run in needing)}",
            why="\n".join(lines[:_SHOWN]),
            hint=_undo_first(store, needing),
        )


def _remaining_additions(
    store: Store, run: RunRecord, is_there: Callable[[Change], bool]
) -> Iterator[tuple[str, Change]]:
    """Yield what ``run`` added to the node and is still there, each with its step."""
    if run.verb not in MAKING or run.verb == "unconfigure":
        return  # what takes something back needs nothing
    for intent in intents_to_undo(store.entries(run.run)):
        back = intent.change  # from what the run made to what was there before
        if back.is_there_before and back.subject in run.standing and is_there(back):
            yield intent.step, back


def removals_by_step(changes: Iterable[tuple[str, Change]]) -> dict[str, list[str]]:
    """Return the subjects that ``changes`` remove, by the step of each."""
    found: dict[str, list[str]] = {}
    for step, change in changes:
        if not change.is_there_after:
            found.setdefault(step, []).append(change.subject)
    return found


def _later_runs(store: Store, run_id: str) -> list[RunRecord]:
    """Return the runs after ``run_id``, without rollbacks that undo one of them or ``run_id`` itself."""
    runs = store.runs()
    since = runs[[run.run for run in runs].index(run_id) :]
    here = {run.run for run in since}
    return [run for run in since[1:] if run.begin.undoes not in here]


def _undo_first(store: Store, runs: Mapping[RunRecord, AbstractSet[str]]) -> str:
    """Return the commands that undo ``runs`` as far as their subjects here need it, newest first."""
    return "\n".join(
        rollback_command(store, run, whole=not subjects <= run.configuration)
        for run, subjects in reversed(list(runs.items()))
    )


def rollback_command(store: Store, run: RunRecord, *, whole: bool) -> str:
    """Return the command that undoes ``run`` in the same root folder."""
    words = ["gpunode", "rollback", run.number, *(["--packages"] if whole else [])]
    if str(store.root) != "/":
        words += ["--root", str(store.root)]
    return shlex.join(words)
