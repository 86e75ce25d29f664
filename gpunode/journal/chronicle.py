"""Records of what a run did, from its journal: each change and each trigger with its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpunode.change import Change, Trigger
from gpunode.errors import UsageError
from gpunode.journal.history import ChangeRecord, RequiredTrigger, collect_changes, collect_triggers
from gpunode.journal.record import Begin, Commit, Entry, Forget, Result
from gpunode.journal.store import Store

Ending: TypeAlias = Result | Literal["running", "incomplete"]


@dataclass(frozen=True, slots=True)
class TriggerRecord:
    """A trigger that a run left pending, or settled for an earlier one.

    Attributes:
        required_by: the numbers of the changes that require it; empty for a trigger of an earlier run.
        completed_at: None while it is pending.
        note: what did its work, or why it was not needed.
    """

    trigger: Trigger
    required_by: tuple[int, ...] = ()
    completed_at: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as its journal tells it.

    Attributes:
        is_running: whether a gpunode process still works on it; never with ``commit``.
        undone_by: the rollback that undid it.
    """

    begin: Begin
    change_records: tuple[ChangeRecord, ...] = ()
    trigger_records: tuple[TriggerRecord, ...] = ()
    commit: Commit | None = None
    forgotten: Forget | None = None
    is_running: bool = False
    undone_by: str = ""

    @property
    def ending(self) -> Ending:
        """The way in which the run ended, if it has."""
        if self.commit is None:
            return "running" if self.is_running else "incomplete"
        return self.commit.result

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that were made, or may have been."""
        return tuple(record.intent.change for record in self.change_records if record.outcome != "failed")


def record_of_run(entries: Sequence[Entry], *, is_running: bool = False, undone_by: str = "") -> RunRecord | None:
    """Return the record of the run with ``entries``; None if it was interrupted before its first entry."""
    begin = next((entry for entry in entries if isinstance(entry, Begin)), None)
    if begin is None:
        return None
    commit = next((entry for entry in entries if isinstance(entry, Commit)), None)
    forgotten = next((entry for entry in entries if isinstance(entry, Forget)), None)
    is_open = is_running and commit is None
    records = tuple(map(_record_trigger, collect_triggers(entries)))
    return RunRecord(begin, collect_changes(entries), records, commit, forgotten, is_open, undone_by)


def _record_trigger(required: RequiredTrigger) -> TriggerRecord:
    numbers, settled = tuple(seq for _, seq in required.required_by), required.settled
    return TriggerRecord(required.trigger, numbers, settled.at if settled else None, settled.note if settled else "")


def list_runs(store: Store, run: str = "") -> tuple[RunRecord, ...]:
    """Return every recorded run, oldest first, or the one with that id or number. Needs no backups.

    Raises:
        UsageError: there is no such run.
        JournalDamaged: a journal is.
    """
    runs = store.runs()
    wanted = [one for one in runs if not run or run in {one.run, one.number}]
    if run and not wanted:
        known = ", ".join(one.number for one in runs)
        raise UsageError(f"there is no run {run}", why=f"recorded: {known or 'none'}", hint="gpunode log")
    newest = runs[-1].run if runs else ""
    found = (
        record_of_run(
            store.entries(one.run),
            is_running=one.run == newest and store.at_work() is not None,
            undone_by=one.undone_by,
        )
        for one in wanted
    )
    return tuple(one for one in found if one is not None)
