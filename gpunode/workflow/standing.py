"""The recorded runs that are not undone: the one to undo next, and those that block undoing another."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpunode.change import Change
from gpunode.errors import Conflict, UsageError
from gpunode.journal.history import RunSummary, intents_to_undo
from gpunode.journal.record import MAKING
from gpunode.journal.store import Store
from gpunode.steps.table import find_needed_steps

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

    of: RunSummary
    why: str
    standing: RunSummary | None = None
    command: str = ""
    notes: tuple[str, ...] = ()


def find_newest_run(store: Store, *, whole: bool = False) -> RunSummary:
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


def _undoable_runs(store: Store, *, whole: bool) -> list[RunSummary]:
    """Return the runs that a rollback without RUN may undo, newest first."""
    # A rollback is undone by its name alone: else two of them would go to and fro.
    made = (one for one in reversed(store.runs()) if one.verb in MAKING and not one.forgotten)
    return [one for one in made if one.configuration or (whole and one.other_subjects)]


def explain_undone(store: Store, of: RunSummary, why: str, *, whole: bool) -> NothingToUndo:
    """Return that ``of`` is undone, with the command for the newest run that is not."""
    left = (one for one in _undoable_runs(store, whole=whole) if one.run != of.run and not one.is_undone(whole=whole))
    standing = next(left, None)
    return NothingToUndo(of, why, standing, rollback_command(store, standing, whole=whole) if standing else "")


def find_run(store: Store, run: str, *, whole: bool = True) -> RunSummary:
    """Return the run with this id or number.

    Raises:
        UsageError: if there is none, or if only ``--packages`` can undo what it changed and ``whole`` is false.
    """
    runs = store.runs()
    found = next((one for one in runs if run in {one.run, one.number}), None)
    if found is None:
        raise UsageError(
            f"there is no run {run}",
            why=f"recorded: {', '.join(one.run for one in runs) or 'none'}",
            hint="gpunode rollback --list",
        )
    if not whole and found.other_subjects and not found.configuration:
        raise UsageError(
            f"run {run} changed no container runtime's configuration",
            why="a rollback without --packages undoes the configuration alone",
            hint=rollback_command(store, found, whole=True),
        )
    return found


def refuse_shared(store: Store, of: str, touched: AbstractSet[str]) -> None:
    """Refuse if a later run that stands changed one of ``touched``, which undoing ``of`` would change.

    Raises:
        Conflict: naming the runs to undo first, newest first.
    """
    later = {run: shared for run in _later_runs(store, of) if (shared := touched & run.standing)}
    if later:
        both = ", ".join(sorted(frozenset().union(*later.values()))[:_SHOWN])
        raise Conflict(
            f"later runs changed the same things: {', '.join(run.run for run in later)}",
            why=f"undoing {of} alone would mix their versions of {both}",
            hint=_undo_first(store, later),
        )


def refuse_needed(
    store: Store, of: str, going: Mapping[str, Collection[str]], is_there: Callable[[Change], bool]
) -> None:
    """Refuse if a later run that stands needs something that undoing ``of`` would remove.

    Args:
        store: the journal.
        of: the run to undo.
        going: what would be taken away, by the step that brought it.
        is_there: whether the subject of a change is still on the node.

    Raises:
        Conflict: naming the runs to undo first, newest first.
    """
    needing: dict[RunSummary, frozenset[str]] = {}
    lines: list[str] = []
    for run in _later_runs(store, of) if going else ():
        for step, made in _remaining_additions(store, run, is_there):
            if missed := sorted(name for need in find_needed_steps(step) for name in going.get(need, ())):
                needing[run] = needing.get(run, frozenset()) | {made.subject}
                lines.append(f"{made.subject}, of run {run.number}, needs {_join_names(missed)}")
    if needing:
        raise Conflict(
            f"a later run needs what this would remove: {', '.join(run.run for run in needing)}",
            why="\n".join(lines[:_SHOWN]),
            hint=_undo_first(store, needing),
        )


def _remaining_additions(
    store: Store, run: RunSummary, is_there: Callable[[Change], bool]
) -> Iterator[tuple[str, Change]]:
    """Yield what ``run`` added to the node and is still there, each with its step."""
    if run.verb not in MAKING or run.verb == "unconfigure":
        return  # what takes something back needs nothing
    for intent in intents_to_undo(store.entries(run.run), whole=True):
        back = intent.change  # from what the run made to what was there before
        if back.is_there_before and back.subject in run.standing and is_there(back):
            yield intent.step, back


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def removals_by_step(changes: Iterable[tuple[str, Change]]) -> dict[str, list[str]]:
    """Return the subjects that ``changes`` remove, by the step of each."""
    found: dict[str, list[str]] = {}
    for step, change in changes:
        if not change.is_there_after:
            found.setdefault(step, []).append(change.subject)
    return found


def _later_runs(store: Store, of: str) -> list[RunSummary]:
    """Return the runs after ``of``, without rollbacks that undo one of them or ``of`` itself."""
    runs = store.runs()
    since = runs[[run.run for run in runs].index(of) :]
    here = {run.run for run in since}
    return [run for run in since[1:] if run.begin.undoes not in here]


def _undo_first(store: Store, runs: Mapping[RunSummary, AbstractSet[str]]) -> str:
    """Return the commands that undo ``runs`` as far as their subjects here need it, newest first."""
    return "\n".join(
        rollback_command(store, run, whole=not subjects <= run.configuration)
        for run, subjects in reversed(list(runs.items()))
    )


def rollback_command(store: Store, run: RunSummary, *, whole: bool) -> str:
    """Return the command that undoes ``run`` in the same root folder."""
    words = ["gpunode", "rollback", run.number, *(["--packages"] if whole else [])]
    if str(store.root) != "/":
        words += ["--root", str(store.root)]
    return shlex.join(words)
