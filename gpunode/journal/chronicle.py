"""Records of what a run did, from its journal: each change with its end, each trigger with its settlement. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from gpunode.change import Change, Trigger, triggers
from gpunode.journal.history import ChangeRecord, collect_changes, triggers_settled_by
from gpunode.journal.record import Begin, Commit, Entry, Failed, Forget, Intent, Owe, Result, Settle

Ending: TypeAlias = Result | Literal["going on", "cut short"]


@dataclass(frozen=True, slots=True)
class TriggerRecord:
    """A trigger that a run left pending, or settled for an earlier one.

    Attributes:
        owed_by: the numbers of the changes that owe it; none of this run for an earlier run's.
        settled_at: None while it is owed.
        note: what did its work, or why it was not needed.
    """

    trigger: Trigger
    owed_by: tuple[int, ...] = ()
    settled_at: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as its journal tells it.

    Attributes:
        going_on: whether a gpunode is still at it; only for a run without ``commit`` can it be.
        undone_by: the rollback that undid it.
    """

    begin: Begin
    deeds: tuple[ChangeRecord, ...] = ()
    debts: tuple[TriggerRecord, ...] = ()
    commit: Commit | None = None
    forgotten: Forget | None = None
    going_on: bool = False
    undone_by: str = ""

    @property
    def ending(self) -> Ending:
        """The way in which the run ended, if it has."""
        if self.commit is None:
            return "going on" if self.going_on else "cut short"
        return self.commit.result

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that were made, or may have been."""
        return tuple(deed.intent.change for deed in self.deeds if deed.outcome != "failed")


def record_of_run(entries: Sequence[Entry], *, going_on: bool = False, undone_by: str = "") -> RunRecord | None:
    """Return the record of the run with ``entries``; None if it was interrupted before its first entry."""
    begin = next((entry for entry in entries if isinstance(entry, Begin)), None)
    if begin is None:
        return None
    commit = next((entry for entry in entries if isinstance(entry, Commit)), None)
    forgotten = next((entry for entry in entries if isinstance(entry, Forget)), None)
    is_open = going_on and commit is None
    return RunRecord(begin, collect_changes(entries), _collect_triggers(entries), commit, forgotten, is_open, undone_by)


def _collect_triggers(entries: Iterable[Entry]) -> tuple[TriggerRecord, ...]:
    """Return the triggers in order of appearance; one that is needed again after it was settled is listed again."""
    found: list[TriggerRecord] = []
    for entry in entries:
        match entry:
            case Intent(seq=seq, change=change):
                for trigger in triggers((change,)):
                    _add_debt(found, trigger, seq)
            case Owe(trigger=trigger, seq=seq):
                _add_debt(found, trigger, seq)
            case Failed(seq=seq):
                found = [debt for debt in (_without_change(debt, seq) for debt in found) if debt is not None]
            case Settle():
                _settle(found, entry)
            case _:
                pass
    return tuple(found)


def _add_debt(found: list[TriggerRecord], trigger: Trigger, seq: int) -> None:
    for index, debt in enumerate(found):
        if debt.trigger == trigger and debt.settled_at is None:
            found[index] = TriggerRecord(trigger, (*debt.owed_by, seq))
            return
    found.append(TriggerRecord(trigger, (seq,)))


def _without_change(debt: TriggerRecord, seq: int) -> TriggerRecord | None:
    """Return ``debt`` without the change ``seq``, which failed: its file is as it was, so nothing is pending."""
    if debt.settled_at is not None or seq not in debt.owed_by:
        return debt
    left = tuple(one for one in debt.owed_by if one != seq)
    return replace(debt, owed_by=left) if left else None


def _settle(found: list[TriggerRecord], settled: Settle) -> None:
    paid = [index for index, debt in enumerate(found) if debt.settled_at is None and _settles(settled, debt)]
    for index in paid:
        found[index] = replace(found[index], settled_at=settled.at, note=settled.note)
    if not paid:
        found.append(TriggerRecord(settled.trigger, (), settled.at, settled.note))


def _settles(settled: Settle, debt: TriggerRecord) -> bool:
    return debt.trigger in triggers_settled_by(settled.trigger)
