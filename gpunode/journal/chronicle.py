"""Records of what a run did, from its journal: each change and each trigger with its end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from gpunode.change import Change, Trigger, triggers
from gpunode.journal.history import triggers_settled_by
from gpunode.journal.record import (
    Begin,
    Commit,
    Done,
    Entry,
    Failed,
    Forget,
    Intent,
    Result,
    TriggerCompleted,
    TriggerPending,
)

Outcome: TypeAlias = Literal["done", "failed", "unknown"]
Ending: TypeAlias = Result | Literal["running", "incomplete"]


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A change of a run.

    Attributes:
        outcome: ``unknown`` if neither its success nor its failure was recorded: it may have been made.
        ended_at: when that was recorded; None for one that was only intended.
        error: why it failed.
    """

    intent: Intent
    outcome: Outcome
    ended_at: float | None = None
    error: str = ""


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
    return RunRecord(
        begin, _collect_changes(entries), _collect_triggers(entries), commit, forgotten, is_open, undone_by
    )


def _collect_changes(entries: Iterable[Entry]) -> tuple[ChangeRecord, ...]:
    found: dict[int, ChangeRecord] = {}
    for entry in entries:
        match entry:
            case Intent(seq=seq):
                found[seq] = ChangeRecord(entry, "unknown")
            case Done(seq=seq, at=at):
                found[seq] = ChangeRecord(found[seq].intent, "done", at)
            case Failed(seq=seq, error=error, at=at):
                found[seq] = ChangeRecord(found[seq].intent, "failed", at, error)
            case _:
                pass
    return tuple(found.values())


def _collect_triggers(entries: Iterable[Entry]) -> tuple[TriggerRecord, ...]:
    """Return the triggers in order of appearance; one that is needed again after it was settled is listed again."""
    found: list[TriggerRecord] = []
    for entry in entries:
        match entry:
            case Intent(seq=seq, change=change):
                for trigger in triggers((change,)):
                    _add_trigger(found, trigger, seq)
            case TriggerPending(trigger=trigger, seq=seq):
                _add_trigger(found, trigger, seq)
            case Failed(seq=seq):
                found = [record for record in (_without_change(record, seq) for record in found) if record is not None]
            case TriggerCompleted():
                _settle(found, entry)
            case _:
                pass
    return tuple(found)


def _add_trigger(found: list[TriggerRecord], trigger: Trigger, seq: int) -> None:
    for index, record in enumerate(found):
        if record.trigger == trigger and record.completed_at is None:
            found[index] = TriggerRecord(trigger, (*record.required_by, seq))
            return
    found.append(TriggerRecord(trigger, (seq,)))


def _without_change(record: TriggerRecord, seq: int) -> TriggerRecord | None:
    """Return ``record`` without the change ``seq``, which failed: its file is as it was, so nothing is pending."""
    if record.completed_at is not None or seq not in record.required_by:
        return record
    left = tuple(one for one in record.required_by if one != seq)
    return replace(record, required_by=left) if left else None


def _settle(found: list[TriggerRecord], settled: TriggerCompleted) -> None:
    paid = [index for index, record in enumerate(found) if record.completed_at is None and _settles(settled, record)]
    for index in paid:
        found[index] = replace(found[index], completed_at=settled.at, note=settled.note)
    if not paid:
        found.append(TriggerRecord(settled.trigger, (), settled.at, settled.note))


def _settles(settled: TriggerCompleted, record: TriggerRecord) -> bool:
    return record.trigger in triggers_settled_by(settled.trigger)
