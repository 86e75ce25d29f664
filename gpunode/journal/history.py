"""Summaries of journals: the changes that runs made, what is pending, and what can be undone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from gpunode.change import CONFIGURATION, Change, FileChange, Trigger, settle_order, triggers
from gpunode.journal.record import (
    MAKING,
    Begin,
    Commit,
    Done,
    Entry,
    Failed,
    Forget,
    Intent,
    TriggerCompleted,
    TriggerPending,
    Verb,
)

Outcome: TypeAlias = Literal["done", "failed", "unknown"]
# All of it was done; a reboot may be due.
_THROUGH = frozenset({"done", "waiting"})


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A change of a run.

    Attributes:
        begin: of the run; None if its entry is missing.
        outcome: ``unknown`` if neither its success nor its failure was recorded: it may have been made.
        ended_at: when that was recorded; None for one that was only intended.
        error: why it failed.
    """

    intent: Intent
    outcome: Outcome
    ended_at: float | None = None
    error: str = ""
    begin: Begin | None = None

    @property
    def change(self) -> Change:
        """The change itself."""
        return self.intent.change

    @property
    def may_be_made(self) -> bool:
        """False if the node is known to be without it; what a package transaction that failed never touched is."""
        return self.outcome != "failed" or not self.change.is_undone_by_failure


def collect_changes(entries: Iterable[Entry]) -> tuple[ChangeRecord, ...]:
    """Return the changes of one run, or of several, in their order."""
    found: list[ChangeRecord] = []
    places: dict[int, int] = {}
    begin: Begin | None = None
    for entry in entries:
        match entry:
            case Begin():
                begin, places = entry, {}  # each run counts its entries anew
            case Intent(seq=seq):
                places[seq] = len(found)
                found.append(ChangeRecord(entry, "unknown", begin=begin))
            case Done(seq=seq, at=at) if seq in places:
                found[places[seq]] = replace(found[places[seq]], outcome="done", ended_at=at)
            case Failed(seq=seq, error=error, at=at) if seq in places:
                found[places[seq]] = replace(found[places[seq]], outcome="failed", ended_at=at, error=error)
            case _:
                pass
    return tuple(found)


def made_changes(entries: Iterable[Entry]) -> tuple[Change, ...]:
    """Return the changes of a run that are known to have been made, in their order."""
    return tuple(one.change for one in collect_changes(entries) if one.outcome == "done")


def open_intents(entries: Iterable[Entry]) -> tuple[Intent, ...]:
    """Return the intents of a run of which nobody recorded whether their changes were made."""
    return tuple(one.intent for one in collect_changes(entries) if one.outcome == "unknown")


def steps_by_change(entries: Iterable[Entry]) -> dict[Change, str]:
    """Return by change of a run the id of its step."""
    return {entry.change: entry.step for entry in entries if isinstance(entry, Intent)}


def inverse_intents(entries: Iterable[Entry]) -> tuple[Intent, ...]:
    """Return the intents of a run, newest first, each with its inverse change; those without one are left out.

    A change that failed or was only intended counts: undoing what did not happen finds the node as it should be.
    """
    # What a transaction that failed never touched may have been installed by somebody since.
    made = [one for one in collect_changes(entries) if one.may_be_made]
    back = ((one.intent, one.change.inverse()) for one in reversed(made))
    return tuple(replace(intent, change=change) for intent, change in back if change is not None)


def intents_to_undo(entries: Iterable[Entry]) -> tuple[Intent, ...]:
    """Return ``inverse_intents`` that change something.

    A file that was only read again is left out, and a unit that stopped for the sake of other changes.
    """
    return tuple(
        intent for intent in inverse_intents(entries) if not (intent.change.is_reread or intent.change.is_pause)
    )


def is_configuration(intent: Intent) -> bool:
    """Return whether a plain rollback restores the change."""
    return intent.stage == CONFIGURATION and intent.change.is_configuration


@dataclass(slots=True)
class RequiredTrigger:
    """A trigger that changes require or required; without any it is an earlier run's.

    Attributes:
        required_by: by run and number, the entry of each change that requires it, dated from when the change was made.
        settled: the entry that ended it; None while it is pending.
    """

    trigger: Trigger
    required_by: dict[tuple[int, int], Intent | TriggerPending] = field(default_factory=dict)
    settled: TriggerCompleted | None = None


def collect_triggers(entries: Iterable[Entry]) -> list[RequiredTrigger]:
    """Return the triggers in order of appearance; one that is needed again after it was settled is listed again.

    An intended file change leaves its triggers pending, since a crash may have come right after it. A failed one does
    not: the file is as it was. A restart settles a reload of the same unit.

    Args:
        entries: of one run, or of several in their order: a later run may settle what an earlier one left pending.
    """
    ledger = _TriggerLedger()
    run = 0  # each run counts its entries anew
    for entry in entries:
        match entry:
            case Begin():
                run += 1
            case Intent() | TriggerPending():
                ledger.add((run, entry.seq), entry)
            case Done() | Failed():
                ledger.end((run, entry.seq), entry)
            case TriggerCompleted():
                ledger.settle(entry)
            case Commit() | Forget():
                pass
    return [each for each in ledger.seen if each.required_by or each.settled]


@dataclass(slots=True)
class _TriggerLedger:
    """The triggers so far; ``pending`` are those that nothing has settled."""

    seen: list[RequiredTrigger] = field(default_factory=list)
    pending: dict[Trigger, RequiredTrigger] = field(default_factory=dict)

    def add(self, key: tuple[int, int], entry: Intent | TriggerPending) -> None:
        """Note that a change requires its triggers, or one more."""
        for trigger in (entry.trigger,) if isinstance(entry, TriggerPending) else triggers((entry.change,)):
            if trigger not in self.pending:
                self.seen.append(self.pending.setdefault(trigger, RequiredTrigger(trigger)))
            required_by = self.pending[trigger].required_by
            required_by[key] = replace(required_by.get(key, entry), at=entry.at)

    def end(self, key: tuple[int, int], entry: Done | Failed) -> None:
        """Date what a change left pending from when it was made, or drop it if the change failed."""
        for required_by in (each.required_by for each in self.pending.values() if key in each.required_by):
            if isinstance(entry, Failed):
                del required_by[key]
            else:
                required_by[key] = replace(required_by[key], at=entry.at)

    def settle(self, entry: TriggerCompleted) -> None:
        """Settle the pending triggers that ``entry`` settles, or record it as an earlier run's if there is none."""
        paid = [self.pending.pop(one) for one in triggers_settled_by(entry.trigger) if one in self.pending]
        self.seen += [] if paid else [RequiredTrigger(entry.trigger, settled=entry)]
        for each in paid:
            each.settled = entry


def triggers_settled_by(trigger: Trigger) -> tuple[Trigger, ...]:
    """Return the triggers that ``trigger`` settles: a restart does a reload's work, too."""
    return (trigger, Trigger("reload", trigger.target)) if trigger.kind == "restart" else (trigger,)


def pending_since(entries: Iterable[Entry]) -> dict[Trigger, float]:
    """Return the unsettled triggers in settle order, each with the time when it last became pending."""
    pending = {each.trigger: each for each in collect_triggers(entries) if each.settled is None}
    return {one: max(entry.at for entry in pending[one].required_by.values()) for one in settle_order(pending)}


def untriggered_changes(entries: Iterable[Entry]) -> tuple[FileChange, ...]:
    """Return the file changes, newest first, with a trigger not settled since."""
    pending = (each.required_by for each in collect_triggers(entries) if each.settled is None)
    intents = {key: entry for required_by in pending for key, entry in required_by.items() if isinstance(entry, Intent)}
    return FileChange.among(intents[key].change for key in sorted(intents, reverse=True))


def pending_triggers(entries: Iterable[Entry]) -> tuple[Trigger, ...]:
    """Return the unsettled triggers in settle order; see ``pending_since``."""
    return tuple(pending_since(entries))


def run_number(run: str) -> str:
    """Return a run's id as a person types it: ``000003-20261121T081932Z`` is 3."""
    return run.partition("-")[0].lstrip("0")


def run_label(run: str, verb: Verb) -> str:
    """Return ``run_number``, after a ``k`` for a run in a cluster, since those are counted apart."""
    return f"k{run_number(run)}" if verb.startswith("k8s ") else run_number(run)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run as a list shows it.

    Attributes:
        subjects: what it changed, or may have changed when it was cut short; once each, in order.
        commit: None while the run goes on, and if it was interrupted.
        configuration: the files that a rollback puts back.
        other_subjects: what else ``rollback --packages`` puts back: packages, archives, units.
        undone_by: the rollback or removal that undid it and was not undone itself; empty when there is none.
        is_fully_undone: whether that undid all of it.
        forgotten: whether somebody had its backups forgotten.
    """

    begin: Begin
    subjects: tuple[str, ...] = ()
    commit: Commit | None = None
    undone_by: str = ""
    is_fully_undone: bool = False
    forgotten: bool = False
    configuration: frozenset[str] = frozenset()
    other_subjects: frozenset[str] = frozenset()

    @property
    def standing(self) -> frozenset[str]:
        """The subjects that no rollback has put back."""
        if self.is_fully_undone:
            return frozenset()
        return self.other_subjects if self.undone_by else frozenset(self.subjects)

    def is_undone(self, *, whole: bool) -> bool:
        """Return whether its configuration was undone, or all of it if ``whole``."""
        return self.is_fully_undone if whole else bool(self.undone_by)

    @property
    def run(self) -> str:
        """The run's id."""
        return self.begin.run

    @property
    def number(self) -> str:
        """The run's id as a person types it."""
        return run_number(self.run)

    @property
    def verb(self) -> Verb:
        """The command that started the run."""
        return self.begin.verb


def summarize_run(entries: Iterable[Entry]) -> RunSummary | None:
    """Return a summary of one run; None if it was interrupted before its first entry."""
    known = tuple(entries)
    begin = next((entry for entry in known if isinstance(entry, Begin)), None)
    if begin is None:
        return None
    back = intents_to_undo(known)
    return RunSummary(
        begin,
        tuple(dict.fromkeys(entry.change.subject for entry in known if isinstance(entry, Intent))),
        next((entry for entry in reversed(known) if isinstance(entry, Commit)), None),
        forgotten=any(isinstance(entry, Forget) for entry in known),
        configuration=frozenset(intent.change.subject for intent in back if is_configuration(intent)),
        other_subjects=frozenset(intent.change.subject for intent in back if not is_configuration(intent)),
    )


@dataclass(frozen=True, slots=True)
class InterruptedRun:
    """A run that has no end: it was killed, or the power went.

    Attributes:
        made: the changes that are known to have been made, in their order.
        begun: those of which nobody knows whether they were, wholly or in part.
        failed: those that are known not to have been made.
    """

    begin: Begin
    made: tuple[Change, ...] = ()
    begun: tuple[Change, ...] = ()
    failed: tuple[Change, ...] = ()


def find_interrupted_run(entries: Iterable[Entry]) -> InterruptedRun | None:
    """Return how far a run without an end came; None if it has one, or has no entry at all."""
    known = tuple(entries)
    begin = next((entry for entry in known if isinstance(entry, Begin)), None)
    if begin is None or any(isinstance(entry, Commit) for entry in known):
        return None
    changes = collect_changes(known)
    made, begun, failed = (
        tuple(one.change for one in changes if one.outcome == outcome) for outcome in ("done", "unknown", "failed")
    )
    return InterruptedRun(begin, made, begun, failed)


def find_standing_undos(ends: Sequence[tuple[Begin, Commit | None]]) -> tuple[Begin, ...]:
    """Return the rollbacks and removals that were done and not undone themselves, newest first.

    Args:
        ends: the beginning and the end of each run, oldest first; None for the end of one that was cut short.
    """
    undone: set[str] = set()
    standing: list[Begin] = []
    for begin, commit in reversed(ends):
        if begin.run in undone or commit is None or commit.result not in _THROUGH:
            continue
        undone.add(begin.undoes)
        standing += [begin] if begin.undoes or begin.verb == "remove" else []
    return tuple(standing)


def mark_undone_runs(runs: Sequence[RunSummary]) -> tuple[RunSummary, ...]:
    """Return ``runs`` with ``undone_by`` filled in; a removal undoes every run before it that made something."""
    undone: dict[str, str] = {}
    whole: set[str] = set()
    names = [run.run for run in runs]
    for undo in find_standing_undos([(run.begin, run.commit) for run in runs]):
        is_removal, earlier = undo.verb == "remove", runs[: names.index(undo.run)]
        taken = [one.run for one in earlier if one.verb in MAKING] if is_removal else [undo.undoes]
        undone = dict.fromkeys(taken, undo.run) | undone
        whole.update(taken if undo.with_packages or is_removal else ())
    return tuple(
        replace(
            run,
            undone_by=undone.get(run.run, ""),
            is_fully_undone=run.run in whole or (run.run in undone and not run.other_subjects),
        )
        for run in runs
    )
