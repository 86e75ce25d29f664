"""setup: apply the plan through the journal, and verify it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from gpunode.change import Deferred, FileChange, Trigger, settle_order
from gpunode.errors import ChangeFailed, Refused
from gpunode.facts.model import Facts, known
from gpunode.host.port import Host, Settled
from gpunode.journal.run import Run
from gpunode.journal.store import Store
from gpunode.outcome import Planned, Waits, reboot_suffices
from gpunode.packages import system
from gpunode.recipe import Recipe
from gpunode.steps.table import STAGES
from gpunode.workflow.apply import Applier, at_the_end, failure_recorded
from gpunode.workflow.converge import Advance, StagePlan, plan_stage, raise_refusal, walk
from gpunode.workflow.disruption import refuse_setup
from gpunode.workflow.events import Observer, Previewed, StageBegun, Surveyed, Told
from gpunode.workflow.locking import lacked
from gpunode.workflow.loss import loss_note, lost_packages, refuse_loss
from gpunode.workflow.origins import archives_behind, with_origins
from gpunode.workflow.plan import plan
from gpunode.workflow.reboot import UNIT, Resume, arrange, resume_unit
from gpunode.workflow.recovery import Backlog, backlog, marks_missing, told
from gpunode.workflow.transaction import beyond, news, resolved


def _agree(plans: Sequence[StagePlan]) -> None:
    del plans


def _go_on() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Asked:
    """How setup was asked for.

    Attributes:
        version: of gpunode; likewise ``argv`` and ``recipe_sha256`` for the journal alone.
        allow_loss: whether packages may go that no archive has.
        confirm: asked once, after the plan is told and before anything is done.
        pause: called between changes; raises Interrupted when the end was asked for.
        started: when the command began, by the monotonic clock; 0 when it begins now.
        resume: how the next boot continues when a reboot is needed; None reboots nothing.
    """

    version: str
    argv: tuple[str, ...] = ()
    recipe_sha256: str = ""
    only: Collection[str] = ()
    allow_disruption: bool = False
    allow_loss: bool = False
    confirm: Callable[[Sequence[StagePlan]], None] = _agree
    pause: Callable[[], None] = _go_on
    resume: Resume | None = None
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class SetupResult:
    """What setup did.

    Attributes:
        run: the journal's name for it; empty when there was nothing to do.
        facts: of the node afterwards.
    """

    preview: tuple[StagePlan, ...]
    applied: tuple[StagePlan, ...]
    settled: tuple[Settled, ...]
    waits: tuple[Waits, ...]
    run: str
    seconds: float
    facts: Facts

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        return bool(self.run)


def setup(
    recipe: Recipe, host: Host, store: Store, facts: Facts, *, advance: Advance, asked: Asked, tell: Observer
) -> SetupResult:
    """The node is as ``recipe`` wants it, as far as it can be without a reboot; what remains is in ``waits``.

    Args:
        recipe: the wanted state.
        host: the node.
        store: its journal; the caller holds its lock.
        facts: of the node now.
        advance: how the facts after a stage are had: by looking again, or by projection in a rehearsal.
        asked: how setup was asked for.
        tell: hears what happens.

    Raises:
        Refused, DrainRequired, Undetermined: before anything was touched.
        ChangeFailed, Conflict, Busy, Interrupted: in the middle; the journal holds what was done.
    """
    started = asked.started or time.monotonic()
    tell(Surveyed(recipe, facts))
    preview = _previewed(recipe, facts, host, asked)
    lost = lost_packages(preview, facts, host.offered)
    if not asked.allow_loss:
        refuse_loss(lost)
    left = backlog(store, facts)
    tell(Previewed(preview))
    if lost:
        tell(Told(loss_note(lost)))
    nothing_to_do = not left and not any(stage.changes for stage in preview)
    _tell_of(left, tell, nothing_to_do=nothing_to_do)
    waits = tuple(wait for stage in preview for wait in stage.waits)
    if nothing_to_do and not (asked.resume and reboot_suffices(waits)):
        if left.cut is not None:
            store.conclude(left.cut.begin.run, "cut short; a later run found nothing left to do")
        return SetupResult(preview, (), (), waits, "", time.monotonic() - started, facts)
    if not asked.allow_disruption:
        refuse_setup(preview, left.owed, facts, host)
    host.vet([change for stage in preview for change in stage.changes])
    started += _waited_for(lambda: asked.confirm(preview))
    unsettled = tuple(change for change in store.unsettled() if change.triggers & set(left.owed))
    run = _begun(store, recipe, facts, asked)
    applier = Applier(host, run, tell, asked.pause, unsettled, left.owed)
    course = _Course(recipe, host, applier, advance, asked, preview, left, knows_losses=lost is not None)
    waits, seconds = _carried_out(course, run, facts), time.monotonic() - started
    return SetupResult(preview, tuple(course.applied), tuple(course.settled), waits, run.id, seconds, course.facts)


def _previewed(recipe: Recipe, facts: Facts, host: Host, asked: Asked) -> tuple[StagePlan, ...]:
    """The plan; for an upgrade with a fresh index.

    Raises:
        Refused: a step refuses, or what the next boot is to run cannot stand in a unit.
    """
    preview = plan(recipe, facts, host, asked.only)
    raise_refusal(preview)
    if asked.resume:
        resume_unit(asked.resume.command(""))  # what cannot stand in a unit is told now, not after the changes
    if recipe.upgrade and preview[0].changes == ():
        host.trigger((Trigger("index-refresh"),))
        preview = plan(recipe, facts, host, asked.only)
    return preview


def _tell_of(left: Backlog, tell: Observer, *, nothing_to_do: bool) -> None:
    """What earlier runs left undone is told."""
    if left.cut is not None:
        tell(Told(told(left.cut, "nothing is left to do" if nothing_to_do else "this run finishes it")))
    if left:
        tell(Told(f"{left}; this run does it"))


def _begun(store: Store, recipe: Recipe, facts: Facts, asked: Asked) -> Run:
    return store.begin(
        "setup",
        version=asked.version,
        recipe=recipe.name,
        recipe_sha256=asked.recipe_sha256,
        boot_id=known(facts.boot_id, ""),
        argv=asked.argv,
    )


def _carried_out(course: _Course, run: Run, facts: Facts) -> tuple[Waits, ...]:
    """The course is through and the run committed, however it ended; returns what the node now waits for."""
    with failure_recorded(run):
        course.go(facts)
    run.commit("waiting" if course.waits else "done", "; ".join(wait.reason for wait in course.waits))
    return course.waits


def _waited_for(answer: Callable[[], None]) -> float:
    """How many seconds a person took to answer: no time of setup's."""
    asked_at = time.monotonic()
    answer()
    return time.monotonic() - asked_at


@dataclass(slots=True)
class _Course:
    """The walk that applies; it gathers what was done.

    Attributes:
        knows_losses: whether the plan has been compared with what archives have.
    """

    recipe: Recipe
    host: Host
    applier: Applier
    advance: Advance
    asked: Asked
    agreed: tuple[StagePlan, ...]
    left: Backlog
    knows_losses: bool
    applied: list[StagePlan] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    waits: tuple[Waits, ...] = ()
    facts: Facts = field(init=False)

    def go(self, facts: Facts) -> None:
        """Every stage is applied, everything owed is settled, by this run or an earlier one."""
        self.facts = facts
        self.applier.settle([trigger for trigger in self.left.owed if trigger.ends_stage])
        for stage in walk(self.recipe, facts, self._exact, self._enact, self.asked.only):
            raise_refusal([stage])
            self.applied.append(stage)
        self._mark()
        late = {trigger for trigger in self.left.owed if not trigger.ends_stage}
        ending = self.applier.settle(settle_order({*late, *at_the_end(self.applied)}))
        self.settled += ending
        if ending:
            # Daemons have been started anew since the node was looked at.
            self.facts = self.advance(self.facts, self.applied[-1])
        # Asked again at the end: what came last, such as a module that something else loaded, may call for a reboot.
        left = (plan_stage(self.recipe, self.facts, stage, self.asked.only) for stage in STAGES)
        self.waits = tuple(wait for stage in left for wait in stage.waits)
        if self.asked.resume and reboot_suffices(self.waits):
            arrange(self.applier, self.asked.resume, known(self.facts.file(UNIT), None))

    def _mark(self) -> None:
        """Packages that a run that was cut short has brought are marked as it would have marked them."""
        if self.left.cut is not None and (missing := marks_missing(self.left.cut, known(self.facts.packages, {}))):
            self.applier.transaction("packages", missing, lambda _: "marks")
            self.facts = self.advance(self.facts, self.applied[-1])

    def _exact(self, facts: Facts, stage: StagePlan) -> StagePlan:
        exact = self._resolved(facts, stage)
        if exact.unresolved:
            # A fresh image has no index of its distribution at all, and an old one names what is gone.
            self.applier.tell(Told("the package index lacks packages of the plan; refreshing the whole index"))
            self.settled += self.applier.settle([Trigger("index-refresh")])
            exact = self._resolved(facts, stage)
        lacking = system(facts).versions_not_found(exact.unresolved)
        if self.recipe.lock and (refused := lacked(lacking, exact.unresolved, self.recipe.lock)):
            raise refused
        if exact.unresolved:
            raise ChangeFailed(
                f"{system(facts).manager} cannot install what the plan asks for; no package was touched",
                why="\n".join(filter(None, (exact.unresolved, archives_behind(exact.unresolved, facts, self.host)))),
                hint=system(facts).hint(exact.unresolved),
            )
        self._hold_to_agreed(exact, system(facts).manager)
        if not self.knows_losses and not self.asked.allow_loss:
            # There was no package index when the plan was made.
            refuse_loss(lost_packages([exact], facts, self.host.offered))
        return with_origins(exact, self.host, facts)

    def _hold_to_agreed(self, exact: StagePlan, manager: str) -> None:
        """Nothing is removed that the plan did not name; what turned out to be upgraded instead is told.

        Raises:
            Refused: the package manager would remove more, now that it has read the index.
        """
        agreed = next((plan for plan in self.agreed if plan.stage == exact.stage), exact)
        if more := beyond(agreed, exact):
            raise Refused(
                f"{manager} would also remove {', '.join(more)}, which the plan did not name; no package was touched",
                why="the plan was made before the package index was read",
                hint="run the same command again: the index is read, so its plan is exact",
            )
        for text in news(agreed, exact, manager):
            self.applier.tell(Told(text))

    def _resolved(self, facts: Facts, stage: StagePlan) -> StagePlan:
        return resolved(stage, facts, self.host.simulate, self.recipe.lock)

    def _enact(self, facts: Facts, stage: StagePlan) -> Facts:
        if stage.changes:
            self.applier.tell(StageBegun(stage))
            self.applier.stage(stage)
            facts = self.advance(facts, stage)
            self._prove(facts, stage)
        self.facts = facts
        return facts

    def _prove(self, facts: Facts, stage: StagePlan) -> None:
        """Planned again, a stage that was applied has nothing left to do; else a tool said yes and did not do it."""
        # An upgrade asks for the newest every time; what it must leave behind is what a plain setup wants.
        left = plan_stage(replace(self.recipe, upgrade=False), facts, stage.stage, self.asked.only)
        for step in left.steps:
            changes = [change for change in step.changes if not _is_unsettled(change)]
            if changes and isinstance(step.outcome, Planned):
                listed = ", ".join(dict.fromkeys(change.subject for change in changes))
                raise ChangeFailed(
                    f"{step.step.title}: every command succeeded, but the result is not as planned",
                    why=f"still to do: {listed}: {step.outcome.reason}",
                    hint="the log has the tools' output; `gpunode plan` shows what is missing",
                )


def _is_unsettled(change: object) -> bool:
    """Whether a stage's end leaves a change open: what a package brings, and a daemon that reads at the run's end."""
    return isinstance(change, FileChange) and (isinstance(change.after, Deferred) or change.before == change.after)
