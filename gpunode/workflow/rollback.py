"""rollback: undo what a run changed, its configuration or all of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from gpunode.change import Change, FileChange, FileState, PackageChange
from gpunode.errors import GpunodeError, RebootRequired, VerifyFailed
from gpunode.facts.model import Facts
from gpunode.host.port import Host, TriggerResult
from gpunode.journal.footprint import ChangeSpan
from gpunode.journal.history import RunSummary
from gpunode.journal.record import MAKING, Verb
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.runtimes import RUNTIMES, DesiredConfig, Edit
from gpunode.workflow import live_state, mig_layouts, standing
from gpunode.workflow.apply import Applier, recording_failure
from gpunode.workflow.events import Observer
from gpunode.workflow.file_restore import RestoredFile, recorded_edit
from gpunode.workflow.recovery import still_pending
from gpunode.workflow.undo import UndoExecutor, UndoPlan, installed_packages
from gpunode.workflow.undo_plan import UndoRequest, edit_conflict, plan_configuration_undo, plan_undo


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """The result of a rollback or a removal; ``run`` is itself a run that can be rolled back.

    Attributes:
        whole: whether packages, archives and units were undone, too.
    """

    plan: UndoPlan
    run: str
    settled: tuple[TriggerResult, ...]
    whole: bool = False

    @property
    def of(self) -> str:
        """The run that was undone."""
        return self.plan.of


def plan_rollback(
    store: Store, host: Host, of: str, facts: Facts | None = None, *, force: bool = False, disrupt: bool = False
) -> UndoPlan:
    """Return what undoes ``of``, compared with the node as it is.

    Args:
        store: the journal.
        host: the node.
        of: the run.
        facts: of the node, where packages, sources, units and all else are undone, too; None for configuration alone.
        force: whether files come back that somebody edited since; the edit is backed up as any other version.
        disrupt: whether containers may be stopped, and the driver taken from processes that use a GPU.

    Raises:
        Conflict: a later run touched something of it or needs it, or somebody edited a file since.
        DrainRequired: containers would be stopped, or processes lose the driver.
        Undetermined: a file, or what docker runs, cannot be read.
        Refused: the package manager would do something else.
    """
    footprint = store.footprint_of(of)
    runs = {run.run: run for run in store.runs()}
    purged = {span.change.path for span in footprint.conffiles}

    def resolve_edit(span: ChangeSpan[FileChange], now: FileState | None) -> RestoredFile:
        if force or (now is None and span.change.path in purged):  # it went with its package
            return RestoredFile(span.change.before)
        back = span.change.inverse()
        assert back is not None, "a footprint holds what is settled"
        raise edit_conflict(back, now, _unconfigure_command(back, now, str(store.root)))

    request = UndoRequest(of, footprint, resolve_edit, restores_packages=True, force=force, disrupt=disrupt)
    if facts is None:
        standing.refuse_shared(store, of, runs[of].configuration & footprint.subjects)
        undone = plan_configuration_undo(replace(request, owed=tuple(store.pending_triggers())), host)
        return replace(undone, left=tuple(sorted(runs[of].standing & runs[of].other_subjects)))
    standing.refuse_shared(store, of, footprint.subjects)
    request = replace(
        request, owed=still_pending(store.pending_triggers(), facts), is_redo=not _goes_backward(runs, of)
    )
    undone = plan_undo(request, host, facts, store.objects.path_of_content)
    going = standing.removals_by_step((step.step_id, step.change) for step in undone.steps)
    standing.refuse_needed(store, of, going, partial(_is_there, host, installed_packages(facts)))
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


def _goes_backward(runs: Mapping[str, RunSummary], run: str) -> bool:
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
    verb: Verb = "rollback",
    whole: bool = False,
) -> RollbackResult:
    """Carry out ``plan`` in a run of its own, and have the daemons read the files again.

    Raises:
        ChangeFailed: something could not be restored; every backup is kept.
    """
    run = store.begin(verb, version=version, argv=argv, undoes=plan.of, with_packages=whole)
    reason = f"as it was before {plan.of or 'gpunode'}"
    applier = Applier(host, run, on_event, pause)
    executor = UndoExecutor(applier, host, reason, plan.owed)
    with recording_failure(applier):
        executor.carry_out(plan.steps)
    plan = replace(plan, reboot=plan.reboot or mig_layouts.pending_mig_switch(host, plan.changes))
    run.commit("waiting" if plan.reboot else "done", plan.reboot)
    return RollbackResult(plan, run.id, tuple(executor.settled), whole)


def mark_undone(store: Store, of: RunSummary, *, version: str, argv: tuple[str, ...], whole: bool) -> None:
    """Record that ``of`` is undone: nothing of it is left on the node.

    Raises:
        ChangeFailed: it could not be written.
    """
    if not of.is_undone(whole=whole):
        store.begin("rollback", version=version, argv=argv, undoes=of.run, with_packages=whole).commit("done")


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
