"""Unfinished work of earlier runs: shown to the user, included in the plan, and done by the next setup."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from gpunode.change import Change, PackageChange, PackageState, Trigger
from gpunode.errors import UsageError
from gpunode.facts.model import Facts, Known, value_or
from gpunode.fast_dataclass import dataclass
from gpunode.journal.history import RunRecord
from gpunode.journal.record import Verb
from gpunode.package_id import PackageId
from gpunode.wording import count_noun, join_names

if TYPE_CHECKING:
    from gpunode.journal.store import Store
    from gpunode.workflow.lost_record import LostRecord

# The first line of files that only gpunode writes.
OWN_FILE_MARK: Final = b"# Written by gpunode"
_MAX_SUBJECTS_NAMED = 3


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work that earlier runs left undone on a node; the next setup does it.

    Attributes:
        pending_triggers: triggers that no run has settled.
        marks: packages that an interrupted run installed without marking them as automatic or held.
        holds_at_risk: packages that interrupted runs were reinstalling, and that were on hold.
        changed_since: those of them that somebody else brought to another version since.
        interrupted_run: the newest run, if it was cut short.
        ending_phrase: how the newest run ended: ``was cut short``, ``failed``, ``was interrupted``; empty if it was
            completed.
        verb: the verb of the newest run that set up the node or undid something, else of an edit of a runtime's files.
        unread_reason: why the backlog is unknown; empty if it is known.
        lost: what an unrecorded run left on the node; setup does nothing about it.
        lock_holder: the gpunode that is changing the node right now; what it leaves is known when it ends.
    """

    pending_triggers: tuple[Trigger, ...] = ()
    marks: tuple[PackageChange, ...] = ()
    holds_at_risk: tuple[PackageChange, ...] = ()
    changed_since: tuple[PackageChange, ...] = ()
    interrupted_run: RunRecord | None = None
    ending_phrase: str = ""
    verb: Verb = "setup"
    unread_reason: str = ""
    lost: LostRecord | None = None
    lock_holder: str = ""

    def __bool__(self) -> bool:
        """Return whether work is left."""
        return bool(self.pending_triggers or self.marks)

    @property
    def descriptions(self) -> tuple[str, ...]:
        """The remaining work, a few words for each item."""
        marks = f"mark {_list_subjects(self.marks)} as before"
        return (*map(str, self.pending_triggers), *((marks,) if self.marks else ()))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes beside the remaining work, a sentence each."""
        now = f"another gpunode is changing this node: {self.lock_holder}; this output shows an intermediate state"
        first = (now if self.lock_holder else "", str(self.lost or ""))
        return (*filter(None, first), *self.hold_notes)

    @property
    def hold_notes(self) -> tuple[str, ...]:
        """A sentence for each hold that is not restored, because the package's version is somebody's choice since."""
        return tuple(
            f"{change.id} was on hold in version {change.states[0]} when a run was killed, and somebody has changed it "
            f"to {change.states[1]} since: its hold is not restored; hold it again if it should stay at that version"
            for change in self.changed_since
            if not (change.known_final_state and change.known_final_state.held)
        )

    def __str__(self) -> str:
        who = f"an earlier run {self.ending_phrase} and" if self.ending_phrase else "an earlier run"
        return f"{who} left this pending: {', '.join(self.descriptions)}"


NO_BACKLOG = Backlog()
_ENDING_PHRASES = {"failed": "failed", "interrupted": "was interrupted"}


def find_backlog(store: Store, facts: Facts) -> Backlog:
    """Return the work that the runs of ``store`` left undone on the node with these facts.

    Raises:
        UsageError: only root may read the journals.
        JournalDamaged: a journal is damaged.
    """
    pending_triggers = still_pending_triggers(store.find_pending_triggers(), facts)
    interrupted = store.find_interrupted_run()
    since = store.list_runs_since_completed()
    at_risk = tuple(_find_holds_at_risk(store, since)) if since else ()
    present = ((change, value_or(facts.packages, {}).get(change.id)) for change in at_risk)
    changed = tuple(replace(change, after=now) for change, now in present if now and now.version != change.states[0])
    holds = tuple(change for change in at_risk if change.id not in {change.id for change in changed})
    marks = find_missing_marks(interrupted, facts, holds)
    runs = store.read_runs() if pending_triggers or marks else ()
    ended = next((_ENDING_PHRASES.get(run.commit.result, "") for run in runs[-1:] if run.commit), "")
    verb = interrupted.verb if interrupted else _find_unfinished_verb([run for run in runs if run.verb != "repair"])
    ending_phrase = "was cut short" if interrupted else ended
    lost = find_lost_record(store, facts)
    return Backlog(*(pending_triggers, marks, holds, changed, interrupted, ending_phrase, verb), lost=lost)


def _find_holds_at_risk(store: Store, runs: Collection[str]) -> Iterator[PackageChange]:
    """Yield the holds that interrupted commands of ``runs`` may have lost."""
    for run, intents in store.find_open_intents().items():
        changes = PackageChange.of_kind(intent.change for intent in intents if run in runs)
        yield from (
            change
            for change in changes
            if change.before == change.after and change.before is not None and change.before.held
        )


def _find_unfinished_verb(runs: Sequence[RunRecord]) -> Verb:
    """Return the verb of the run that left work behind; editing a runtime's files does not complete a failed undo."""
    edits = list(takewhile(lambda run: run.verb == "configure", reversed(runs)))
    others = runs[: len(runs) - len(edits)]
    is_edit = any(run.ending != "done" for run in edits) and all(run.ending == "done" for run in others[-1:])
    return "configure" if is_edit else others[-1].verb if others else "setup"


def find_lost_record(store: Store, facts: Facts) -> LostRecord | None:
    """Return the traces of gpunode that no recorded run left; None if there are none.

    Raises:
        UsageError: only root may read the journals.
        JournalDamaged: a journal is damaged.
    """
    states = ((path, value_or(facts.file(path), None)) for path in sorted(facts.files))
    marked = {path: state for path, state in states if state is not None and state.content.startswith(OWN_FILE_MARK)}
    if not marked:
        return None
    from gpunode.workflow.lost_record import (
        assess_lost_record,  # loaded on use: a node that gpunode never changed has no such file
    )

    return assess_lost_record(marked, facts, store.read_additions(), str(store.folder))


def read_backlog(store: Store, facts: Facts) -> Backlog:
    """Return the backlog; for an ordinary user, one that says that it could not be read.

    A run that is still going on leaves no backlog.

    Raises:
        JournalDamaged: a journal is damaged.
    """
    if holder := store.lock_holder():
        return Backlog(lock_holder=str(holder))
    try:
        return find_backlog(store, facts)
    except UsageError as error:
        return Backlog(unread_reason=error.what)


def note_other_run(store: Store) -> tuple[str, ...]:
    """Return the note that another gpunode is changing the node; empty if none is."""
    return Backlog(lock_holder=str(store.lock_holder() or "")).notes


def still_pending_triggers(pending_triggers: Mapping[Trigger, float], facts: Facts) -> tuple[Trigger, ...]:
    """Return the pending triggers, without those of units that started since and so have read the new files."""
    return tuple(
        trigger for trigger, since in pending_triggers.items() if not _was_started_since(trigger, since, facts)
    )


def _was_started_since(trigger: Trigger, since: float, facts: Facts) -> bool:
    unit = facts.unit(trigger.target)
    if trigger.kind not in {"start", "reload", "restart"} or not isinstance(unit, Known):
        return False
    return unit.value.started_at is not None and unit.value.started_at > since


def describe_interrupted_run(run: RunRecord, then: str) -> str:
    """Describe which run was interrupted, who began it and when, and its progress; ``then`` says what follows."""
    begin = run.begin
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(begin.at))
    begun = f"run {begin.run} ({begin.title}, started {when} by {begin.user})"
    return f"{begun} was cut short {_describe_run_progress(run)}; {then}"


def _describe_run_progress(run: RunRecord) -> str:
    made, begun = run.changes("done"), run.changes("unknown")
    if not made and not begun:
        return "before its first change"
    parts = []
    if made:
        parts.append(f"after {count_noun(len(made), 'change')}, the last of them {made[-1].subject}")
    if begun:
        parts.append(f"in the middle of {_list_subjects(begun)}")
    return ", ".join(parts)


def _list_subjects(changes: Sequence[Change]) -> str:
    return join_names(dict.fromkeys(change.subject for change in changes), _MAX_SUBJECTS_NAMED)


def find_missing_marks(
    run: RunRecord | None, facts: Facts, holds_at_risk: Sequence[PackageChange] = ()
) -> tuple[PackageChange, ...]:
    """Return the changes that restore package marks which the run removed, or did not get to set.

    Package managers mark every package that is named as manually installed; setup sets the marks after the transaction.
    They may also forget that a package is automatic as soon as they begin to remove it: if the removal did not happen,
    the package gets its mark back, after any kind of run. A killed one may also leave it selected for removal, which
    somebody's next transaction would then make: such a package is marked as it is. ``run`` is the interrupted one.
    """
    installed = value_or(facts.packages, {})
    begun = PackageChange.of_kind(run.changes("unknown", "failed")) if run is not None else ()
    marks_by_id = {change.id: _intended_marks(run, change, installed) for change in begun if run is not None}
    marks_by_id |= {change.id: change.before for change in holds_at_risk}
    intended = ((package, installed.get(package), marks) for package, marks in marks_by_id.items())
    changes = (
        PackageChange(package, now, replace(now, auto=now.auto or marks.auto, held=now.held or marks.held))
        for package, now, marks in intended
        if now is not None and marks is not None
    )
    return tuple(
        change for change in changes if change.before != change.after or change.id in facts.selected_for_removal
    )


def _intended_marks(
    run: RunRecord, change: PackageChange, installed: Mapping[PackageId, PackageState]
) -> PackageState | None:
    """Return the state whose marks the package of ``change`` should have now; None if that is unknown."""
    now, after = installed.get(change.id), change.after
    if now is None:
        return None
    if run.begin.verb == "setup" and isinstance(after, PackageState) and now.version == after.version:
        return after
    return change.before if after is None and change.before and now.version == change.before.version else None
