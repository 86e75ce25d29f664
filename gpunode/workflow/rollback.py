"""rollback: the runtime and toolkit configuration of a run is put back, byte for byte, through the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpunode.change import Change, FileChange, FileState, Trigger, diff, subject, triggers
from gpunode.errors import Conflict, GpunodeError, Interrupted, Undetermined, UsageError
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Unknown
from gpunode.host.port import Host, Settled
from gpunode.host.redact import without_secrets
from gpunode.journal.record import RunSummary, undo
from gpunode.journal.store import Store
from gpunode.workflow.apply import Applier
from gpunode.workflow.events import Observer
from gpunode.workflow.setup import refuse_while_running

_RESTARTS_DOCKER = Trigger("restart", "docker.service")


@dataclass(frozen=True, slots=True)
class Undoing:
    """What a rollback will do, shown before it is done.

    Attributes:
        of: the run that is undone.
        changes: newest first; those already as they were left out.
    """

    of: str
    changes: tuple[FileChange, ...]


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """What a rollback did; ``run`` is itself a run that can be rolled back."""

    of: str
    run: str
    changes: tuple[FileChange, ...]
    settled: tuple[Settled, ...]


def choose(store: Store, run: str = "") -> RunSummary:
    """The run to undo: the one named, by its id or number, else the newest setup that stands with configuration.

    Raises:
        UsageError: there is none.
    """
    runs = store.runs()
    if not run:
        # A rollback is undone by its name alone: asked twice, the command goes back, and not to and fro.
        standing = (one for one in reversed(runs) if one.verb == "setup" and one.subjects and not one.undone_by)
        if (newest := next((one for one in standing if undo(store.read(one.run))), None)) is not None:
            return newest
        none_left = "every recorded setup is rolled back already, or wrote no configuration"
        why = none_left if runs else "no run of gpunode is recorded on this node"
        hint = "gpunode rollback --list" if runs else "nothing; a run of gpunode setup is what can be rolled back"
        raise UsageError("there is nothing to roll back", why=why, hint=hint)
    for candidate in runs:
        if run in (candidate.run, candidate.run.partition("-")[0].lstrip("0")):
            return candidate
    raise UsageError(
        f"there is no run {run}",
        why=f"recorded: {', '.join(r.run for r in runs) or 'none'}",
        hint="gpunode rollback --list",
    )


def undoing(store: Store, host: Host, of: str, *, force: bool = False) -> Undoing:
    """What undoes ``of``, compared with the node as it is.

    Raises:
        Conflict: a later run touched a file of it, or somebody edited one since; ``force`` overrules the latter, the
            present version being backed up as any other.
        DrainRequired: docker would be restarted while containers run; ``force`` overrules that, too.
        Undetermined: a file, or what docker runs, cannot be read.
    """
    back = tuple(change for change in undo(store.read(of)) if isinstance(change, FileChange))
    _refuse_later(store, of, back)
    changes: list[FileChange] = []
    states: dict[str, FileState | None] = {}
    for change in back:
        now = states[change.path] if change.path in states else _present(host, change.path)
        states[change.path] = now
        if now == change.after:
            continue
        if now != change.before and not force:
            raise _edited(change, now)
        changes.append(FileChange(change.path, now, change.after, change.triggers))
        states[change.path] = change.after if isinstance(change.after, FileState) else None
    if _RESTARTS_DOCKER in triggers(changes) and not force:
        refuse_while_running(Unknown("not asked", "units"), host, "go on with --force")
    return Undoing(of, tuple(changes))


def _present(host: Host, path: str) -> FileState | None:
    capture: Capture = host.look(Probe(path, path=path, limit_bytes=64 << 20))
    if capture.outcome == "absent":
        return None
    if capture.outcome != "ok" or capture.ownership is None:
        raise Undetermined(
            f"{path} cannot be read, so whether somebody edited it is not known",
            why=capture.error or capture.outcome,
            hint=f"look at it with `ls -l {path}`, then run the command again",
        )
    owner = capture.ownership
    return FileState(capture.data, owner.mode, owner.uid, owner.gid)


def _refuse_later(store: Store, of: str, back: Sequence[Change]) -> None:
    paths = {subject(change) for change in back}
    runs = store.runs()
    since = runs[[run.run for run in runs].index(of) :]
    # A rollback takes a run back, and neither counts: not the one that is undone, not the one that undid it.
    cancelled = {run.run for run in since if run.undone_by or run.begin.of in {one.run for one in since}}
    later = [run for run in since[1:] if run.run not in cancelled and paths & set(run.subjects)]
    if later:
        touched = ", ".join(sorted(paths & {s for r in later for s in r.subjects}))
        raise Conflict(
            f"later runs changed the same files: {', '.join(r.run for r in later)}",
            why=f"undoing {of} alone would mix their versions of {touched}",
            hint="\n".join(f"gpunode rollback {r.run}" for r in reversed(later)),
        )


def _edited(change: FileChange, now: FileState | None) -> Conflict:
    shown = "\n".join(diff(without_secrets(FileChange(change.path, change.before, now)))) or "(secrets alone differ)"
    return Conflict(
        f"{change.path} was edited since gpunode wrote it",
        why=f"the edit:\n{shown}",
        hint="keep the edit and leave the file as it is, or add --force: the present version is backed up first and "
        "comes back by rolling back the rollback",
    )


def rollback(
    undone: Undoing,
    host: Host,
    store: Store,
    *,
    version: str,
    argv: tuple[str, ...],
    tell: Observer,
    pause: Callable[[], None] = lambda: None,
) -> RollbackResult:
    """The files are as they were before the run, and the daemons that read them have read them again.

    Raises:
        ChangeFailed: one could not be restored; every backup is kept.
    """
    run = store.begin("rollback", version=version, argv=argv, of=undone.of)
    applier = Applier(host, run, tell, pause)
    try:
        for change in undone.changes:
            applier.pause()
            applier.one("runtime", "rollback", change, f"as it was before {undone.of}")
        settled = applier.settle(triggers(undone.changes))
    except GpunodeError as error:
        run.commit("interrupted" if isinstance(error, Interrupted) else "failed", error.what)
        raise
    run.commit("done")
    return RollbackResult(undone.of, run.id, undone.changes, settled)
