"""Records of what a run did, from its journal: each change with its end, each trigger with its settlement. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpunode.change import Change, Trigger
from gpunode.journal.history import ChangeRecord, Debt, collect_changes, collect_debts
from gpunode.journal.record import Begin, Commit, Entry, Forget, Result

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
    debts = tuple(map(_record_debt, collect_debts(entries)))
    return RunRecord(begin, collect_changes(entries), debts, commit, forgotten, is_open, undone_by)


def _record_debt(debt: Debt) -> TriggerRecord:
    numbers, settled = tuple(seq for _, seq in debt.owed_by), debt.settled
    return TriggerRecord(debt.trigger, numbers, settled.at if settled else None, settled.note if settled else "")
