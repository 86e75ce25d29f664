"""Interpret journals: the changes that runs made, what is pending, and what can be undone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Literal, TypeAlias

from gpunode.change import (
    RUNTIME_CONFIG_STAGE,
    Change,
    FileChange,
    Trigger,
    sort_triggers,
    triggers_of,
)
from gpunode.fast_dataclass import dataclass
from gpunode.journal.record import (
    APPLYING_VERBS,
    Begin,
    Commit,
    Done,
    Entry,
    Failed,
    Intent,
    Result,
    TriggerCompleted,
    Verb,
)

ChangeOutcome: TypeAlias = Literal["done", "failed", "unknown"]
RunEnding: TypeAlias = Result | Literal["running", "incomplete"]
# Everything was done; a reboot may be due.
COMPLETED_RESULTS = frozenset({"done", "waiting"})


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A change of a run.

    Attributes:
        outcome: ``unknown`` if neither success nor failure was recorded: it may have been made.
        ended_at: when its outcome was recorded; None if it was only intended.
        error: why it failed.
    """

    intent: Intent
    outcome: ChangeOutcome
    ended_at: float | None = None
    error: str = ""

    @property
    def change(self) -> Change:
        """The change itself."""
        return self.intent.change

    @property
    def may_have_been_made(self) -> bool:
        """False if it is known to be missing on the node, as with a package that a failed transaction never touched."""
        return self.outcome != "failed" or not self.change.leaves_node_unchanged_on_failure


def collect_changes(entries: Iterable[Entry]) -> tuple[ChangeRecord, ...]:
    """Return the changes of a run, in order."""
    records: list[ChangeRecord] = []
    places: dict[int, int] = {}
    for entry in entries:
        match entry:
            case Intent(seq=seq):
                places[seq] = len(records)
                records.append(ChangeRecord(entry, "unknown"))
            case Done(seq=seq, at=at) if seq in places:
                records[places[seq]] = replace(records[places[seq]], outcome="done", ended_at=at)
            case Failed(seq=seq, error=error, at=at) if seq in places:
                records[places[seq]] = replace(records[places[seq]], outcome="failed", ended_at=at, error=error)
            case _:
                pass
    return tuple(
        record for record in records if record.outcome == "unknown" or not record.change.records_unchanged_state
    )


def inverse_intents(entries: Iterable[Entry]) -> tuple[Intent, ...]:
    """Return the intents of a run, newest first, each with its inverse change; omit those without one.

    A change that failed or was only intended counts: undoing what did not happen finds the node as it should be.
    """
    # Somebody may since have installed a package that a failed transaction never touched.
    made = [change for change in collect_changes(entries) if change.may_have_been_made]
    back = ((record.intent, record.change.inverse()) for record in reversed(made))
    return tuple(replace(intent, change=change) for intent, change in back if change is not None)


def intents_to_undo(entries: Iterable[Entry]) -> tuple[Intent, ...]:
    """Return the ``inverse_intents`` that an undo carries out."""
    return tuple(intent for intent in inverse_intents(entries) if intent.change.is_undoable)


def is_configuration_change(intent: Intent) -> bool:
    """Return whether a plain rollback restores the change."""
    return intent.stage == RUNTIME_CONFIG_STAGE and intent.change.is_undone_by_plain_rollback


@dataclass(slots=True)
class RequiredTrigger:
    """A trigger that changes require or required; without any, an earlier run required it.

    Attributes:
        required_by: by run and number, the entry of each change that requires it, dated when the change was made.
        completion: the entry that ended it; None while it is pending.
    """

    trigger: Trigger
    required_by: dict[tuple[int, int], Intent] = field(default_factory=dict)
    completion: TriggerCompleted | None = None

    def end_change(self, key: tuple[int, int], entry: Done | Failed) -> None:
        """Record the end time of change ``key``. A failed change no longer requires the trigger."""
        if isinstance(entry, Failed):
            self.required_by.pop(key, None)
        elif key in self.required_by:
            self.required_by[key] = replace(self.required_by[key], at=entry.at)


def collect_triggers(entries: Iterable[Entry]) -> list[RequiredTrigger]:
    """Return the triggers in order of appearance; one that is needed again after it was settled is listed again.

    An intended file change leaves its triggers pending, since a crash may have come right after it. A failed one does
    not: the file is unchanged. A restart settles a reload of the same unit.

    Args:
        entries: the entries of one run, or of several in order: a later run may settle the triggers of an earlier one.
    """
    triggers: list[RequiredTrigger] = []
    pending: dict[Trigger, RequiredTrigger] = {}
    run = 0  # each run numbers its entries from the start
    for entry in entries:
        run += isinstance(entry, Begin)
        match entry:
            case Intent():
                key = (run, entry.seq)
                for trigger in triggers_of((entry.change,)):
                    if trigger not in pending:
                        triggers.append(pending.setdefault(trigger, RequiredTrigger(trigger)))
                    required_by = pending[trigger].required_by
                    required_by[key] = replace(required_by.get(key, entry), at=entry.at)
            case Done() | Failed():
                for each in pending.values():
                    each.end_change((run, entry.seq), entry)
            case TriggerCompleted():
                settled = [pending.pop(trigger) for trigger in triggers_done_by(entry.trigger) if trigger in pending]
                triggers += [] if settled else [RequiredTrigger(entry.trigger)]  # an earlier run required it
                for each in settled or triggers[-1:]:
                    each.completion = entry
            case Begin() | Commit():
                pass
    return [trigger for trigger in triggers if trigger.required_by or trigger.completion]


def triggers_done_by(trigger: Trigger) -> tuple[Trigger, ...]:
    """Return the triggers that ``trigger`` settles: a restart also does the work of a reload."""
    return (trigger, Trigger("reload", trigger.target)) if trigger.kind == "restart" else (trigger,)


def pending_trigger_times(entries: Iterable[Entry]) -> dict[Trigger, float]:
    """Return the unsettled triggers in settle order, each with the time when it last became pending."""
    pending = {trigger.trigger: trigger for trigger in collect_triggers(entries) if trigger.completion is None}
    return {
        trigger: max(entry.at for entry in pending[trigger].required_by.values()) for trigger in sort_triggers(pending)
    }


def untriggered_changes(entries: Iterable[Entry]) -> tuple[FileChange, ...]:
    """Return the file changes, newest first, whose triggers were not settled since, without restored ones."""
    pending = (trigger.required_by for trigger in collect_triggers(entries) if trigger.completion is None)
    intents = {key: intent for required_by in pending for key, intent in required_by.items()}
    waiting: list[FileChange] = []
    for change in FileChange.of_kind(intents[key].change for key in sorted(intents)):
        back = change.inverse()
        waiting = [change for change in waiting if change != back] if back in waiting else [*waiting, change]
    return tuple(reversed(waiting))


def pending_triggers(entries: Iterable[Entry]) -> tuple[Trigger, ...]:
    """Return the unsettled triggers in settle order; see ``pending_trigger_times``."""
    return tuple(pending_trigger_times(entries))


def run_label(run: str, verb: Verb) -> str:
    """Return a run's id as a person types it: ``000003-20261121T081932Z`` is 3.

    A run in a cluster has a ``k`` before its number, since those are counted separately.
    """
    number = run.partition("-")[0].lstrip("0")
    return f"k{number}" if verb.startswith("k8s ") else number


@dataclass(frozen=True)
class RunRecord:
    """A run as recorded in its journal.

    Attributes:
        entries: the first of them is its begin.
        is_running: whether a gpunode process still works on it.
        undone_by: the rollback or removal that undid it and was not undone itself; empty if there is none.
        is_fully_undone: whether that undid all of it.
    """

    entries: tuple[Entry, ...]
    is_running: bool = False
    undone_by: str = ""
    is_fully_undone: bool = False

    @property
    def begin(self) -> Begin:
        """The entry with which it began."""
        begin = self.entries[0]
        assert isinstance(begin, Begin), "whoever reads a journal checks that"
        return begin

    @property
    def id(self) -> str:
        """The run's id."""
        return self.begin.run

    @property
    def label(self) -> str:
        """The run's id as a person types it: ``3``, or ``k3`` for a run that changed a cluster."""
        return run_label(self.id, self.verb)

    @property
    def verb(self) -> Verb:
        """The command that started the run."""
        return self.begin.verb

    @cached_property
    def commit(self) -> Commit | None:
        """The entry with which it ended; None while it is running, and if it was interrupted."""
        return next((entry for entry in reversed(self.entries) if isinstance(entry, Commit)), None)

    @property
    def ending(self) -> RunEnding:
        """The way in which the run ended, if it has."""
        if self.commit is None:
            return "running" if self.is_running else "incomplete"
        return self.commit.result

    @cached_property
    def change_records(self) -> tuple[ChangeRecord, ...]:
        """Its changes, in order."""
        return collect_changes(self.entries)

    @property
    def trigger_records(self) -> list[RequiredTrigger]:
        """The triggers that it left pending, or settled for an earlier run; see ``collect_triggers``."""
        return collect_triggers(self.entries)

    def changes(self, *outcomes: ChangeOutcome) -> tuple[Change, ...]:
        """Return its changes with one of these ``outcomes``, in order."""
        return tuple(record.change for record in self.change_records if record.outcome in outcomes)

    @property
    def steps_by_change(self) -> dict[Change, str]:
        """The id of the step of each change."""
        return {record.change: record.intent.step for record in self.change_records}

    @property
    def subjects(self) -> tuple[str, ...]:
        """The distinct things that it changed, in order; includes changes that an interrupted run may have made.

        A file that it only triggered to be reread was not changed, nor were packages of a transaction that failed.
        """
        changes = (record.change for record in self.change_records if record.may_have_been_made)
        return tuple(dict.fromkeys(change.subject for change in changes if not change.only_triggers_reread))

    @cached_property
    def configuration_subjects(self) -> frozenset[str]:
        """The subjects that a plain rollback restores."""
        return frozenset(
            intent.change.subject for intent in intents_to_undo(self.entries) if is_configuration_change(intent)
        )

    @cached_property
    def other_subjects(self) -> frozenset[str]:
        """The subjects that only ``rollback --packages`` restores: packages, archives, units."""
        return frozenset(
            intent.change.subject for intent in intents_to_undo(self.entries) if not is_configuration_change(intent)
        )

    @property
    def remaining_subjects(self) -> frozenset[str]:
        """The subjects that no rollback has restored."""
        if self.is_fully_undone:
            return frozenset()
        return self.other_subjects if self.undone_by else frozenset(self.subjects)

    def is_undone(self, *, with_packages: bool) -> bool:
        """Return whether its configuration was undone, or all of it if ``with_packages``."""
        return self.is_fully_undone if with_packages else bool(self.undone_by)


def find_effective_undos(runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """Return the completed rollbacks and removals that were not undone, newest first; ``runs`` are oldest first."""
    undone: set[str] = set()
    standing: list[RunRecord] = []
    for run in reversed(runs):
        if run.id in undone or run.commit is None or run.commit.result not in COMPLETED_RESULTS:
            continue
        undone.add(run.begin.undoes)
        standing += [run] if run.begin.undoes or run.verb == "remove" else []
    return tuple(standing)


def mark_undone_runs(runs: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """Return ``runs`` with ``undone_by`` set; a removal undoes what is left of every run before it."""
    undone: dict[str, str] = {}
    whole: set[str] = set()
    # Oldest first: what is fully undone cannot be undone again.
    for undo in reversed(find_effective_undos(runs)):
        is_removal, earlier = undo.verb == "remove", runs[: runs.index(undo)]
        taken = [run for run in earlier if run.verb in APPLYING_VERBS and run.subjects] if is_removal else earlier
        left = [run for run in taken if run.id not in whole and (is_removal or run.id == undo.begin.undoes)]
        undone.update((run.id, undo.id) for run in left)
        is_whole = undo.begin.with_packages or is_removal
        whole.update(run.id for run in left if is_whole or not run.other_subjects)
    return tuple(replace(run, undone_by=undone.get(run.id, ""), is_fully_undone=run.id in whole) for run in runs)
