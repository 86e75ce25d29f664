"""Changes made through the journal: backed up, intended, made, done; then what they owe is settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from gpunode.change import (
    Change,
    FileChange,
    FileState,
    PackageChange,
    RuntimeExpectation,
    Trigger,
    inverse,
    triggers,
)
from gpunode.errors import ChangeFailed, GpunodeError
from gpunode.host.port import Host, Settled
from gpunode.journal.record import Intent
from gpunode.journal.store import Run
from gpunode.workflow.converge import StagePlan
from gpunode.workflow.events import Applied, Applying, Observer, Triggered, Triggering

Pause = Callable[[], None]


@dataclass(slots=True)
class Applier:
    """Applies changes to one node in one journaled run.

    Attributes:
        pause: called between changes; raises Interrupted when a signal has asked for the end.
        unsettled: changes of runs that were cut short, the newest first, whose daemons have not read them yet.
    """

    host: Host
    run: Run
    tell: Observer
    pause: Pause
    unsettled: tuple[FileChange, ...] = ()
    _meant: dict[Trigger, RuntimeExpectation] = field(default_factory=dict)

    def stage(self, plan: StagePlan) -> None:
        """Makes the changes of a stage and settles those triggers that later stages need.

        Raises:
            GpunodeError: a change could not be made; the ones before it stay made, and journaled.
        """
        for batch in _batches(plan.changes):
            self.pause()
            self._batch(plan, batch)
        self.settle([trigger for trigger in plan.triggers if trigger.ends_stage])

    def settle(self, owed: Sequence[Trigger]) -> tuple[Settled, ...]:
        """Carries out ``owed``; a daemon that does not come back gets its former configuration back first.

        Raises:
            ChangeFailed: one of them failed.
        """
        done: list[Settled] = []
        for _, same in groupby(owed, key=_together):
            batch = tuple(same)
            self.tell(Triggering(batch))
            done += self._settled(batch)
        return tuple(done)

    def _settled(self, batch: tuple[Trigger, ...]) -> Iterator[Settled]:
        try:
            settled = self.host.trigger(batch)
            for one in settled:
                if one.trigger in self._meant and not one.skipped:
                    self.host.confirm(self._meant[one.trigger])
        except ChangeFailed as failure:
            if batch[0].kind not in {"reload", "restart"}:
                raise
            self._put_back(batch, failure)
            raise
        for one in settled:
            self.run.settle(one.trigger, one.skipped)
            self.tell(Triggered(one))
            yield one

    def _put_back(self, failed: tuple[Trigger, ...], failure: ChangeFailed) -> None:
        """Restores what the failed daemons read and has them start with it; ``failure`` then says what came of it."""
        restored: list[str] = []
        try:
            for change in self._guilty(failed):
                failure.why += self._keep_rejected(change)
                if (back := inverse(change)) is not None:
                    self.one("recovery", "put-back", back, failure.what)
                    restored.append(change.path)
            for one in self.host.trigger(failed):
                self.run.settle(one.trigger, "with the former configuration")
                self.tell(Triggered(one))
        except GpunodeError as second:
            failure.why += f"\nput back: {', '.join(restored) or 'nothing'}; that did not help: {second.what}"
            failure.why += f"\n{second.why}"
            return
        units = ", ".join(trigger.target for trigger in failed)
        if restored:
            failure.why += f"\nput back: {', '.join(restored)}; {units} runs with it again"
        else:
            failure.why += f"\nno change of gpunode's was to blame; started once more, {units} runs"

    def _guilty(self, failed: tuple[Trigger, ...]) -> Iterator[FileChange]:
        """The changes, newest first, that owe one of the ``failed`` triggers."""
        own = [entry.change for entry in reversed(self.run.entries()) if isinstance(entry, Intent)]
        for change in (*own, *self.unsettled):
            if isinstance(change, FileChange) and change.triggers & set(failed):
                yield change

    def _keep_rejected(self, change: FileChange) -> str:
        if not isinstance(change.after, FileState):
            return ""
        return f"\nthe rejected {change.path} is kept as {self.run.keep(change.path, change.after.content)}"

    def _batch(self, plan: StagePlan, batch: tuple[Change, ...]) -> None:
        if isinstance(batch[0], PackageChange):
            self._transaction(plan, batch)
            return
        for change in batch:
            step = plan.step_of(change)
            assert step is not None, "only packages come along as dependencies"
            expectation = getattr(step.outcome, "expectation", None)
            note = ""
            if expectation is not None and isinstance(change, FileChange):
                note = self.host.check(expectation, change)
                self._meant.update(dict.fromkeys(change.triggers, expectation))
            self.one(
                plan.stage, step.step.id, change, step.outcome.reason if hasattr(step.outcome, "reason") else "", note
            )

    def one(self, stage: str, step: str, change: Change, reason: str, note: str = "") -> None:
        """Makes one change: realized, journaled with its backup, made, done."""
        self.tell(Applying(stage, step, (change,)))
        started = time.monotonic()
        concrete = self.host.realize(change)
        (seq,) = self.run.intend_all(stage, step, (concrete,), reason)
        self._make((concrete,), (seq,))
        self.tell(Applied(stage, step, (concrete,), time.monotonic() - started, note))

    def _transaction(self, plan: StagePlan, batch: tuple[Change, ...]) -> None:
        self.tell(Applying(plan.stage, "packages", batch))
        started = time.monotonic()
        seqs: list[int] = []
        for step, same in groupby(batch, key=plan.step_of):
            seqs += self.run.intend_all(plan.stage, step.step.id if step else "dependencies", tuple(same))
        self._make(batch, tuple(seqs))
        self.tell(Applied(plan.stage, "packages", batch, time.monotonic() - started))

    def _make(self, changes: tuple[Change, ...], seqs: tuple[int, ...]) -> None:
        try:
            self.host.apply(changes)
        except GpunodeError as failure:
            for seq in seqs:
                self.run.failed(seq, failure.what)
            raise
        self.run.done(*seqs)


def _together(trigger: Trigger) -> Trigger | str:
    """What settles in one go: a daemon that fails must not have another one's files put back."""
    return trigger if trigger.kind in {"reload", "restart"} else trigger.kind


def _batches(changes: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    for _, same in groupby(changes, key=type):
        yield tuple(same)


def at_the_end(plans: Sequence[StagePlan]) -> tuple[Trigger, ...]:
    """What is settled only once every stage is through."""
    return tuple(t for t in triggers(change for plan in plans for change in plan.changes) if not t.ends_stage)
