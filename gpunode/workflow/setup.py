"""setup: the plan, made true through the journal, and proven."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from gpunode.change import Deferred, FileChange, Trigger, settle_order
from gpunode.errors import ChangeFailed, DrainRequired, GpunodeError, Interrupted
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Facts, Known, known
from gpunode.host.port import Host, Settled
from gpunode.journal.record import Result
from gpunode.journal.store import Store
from gpunode.recipe import Recipe
from gpunode.steps.outcome import Planned, Waits
from gpunode.workflow.apply import Applier, at_the_end
from gpunode.workflow.converge import Advance, StagePlan, plan_stage, raise_refusal, walk
from gpunode.workflow.events import Observer, Previewed, StageBegun, Surveyed, Told
from gpunode.workflow.plan import plan
from gpunode.workflow.reboot import UNIT, Resume, arrange
from gpunode.workflow.transaction import resolved

RUNNING_CONTAINERS = Probe("docker-ps", argv=("docker", "ps", "--format", "{{.ID}} {{.Names}}"), timeout_s=20)


def _agree(plans: Sequence[StagePlan]) -> None:
    del plans


def _go_on() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Asked:
    """How setup was asked for.

    Attributes:
        version: of gpunode; likewise ``argv`` and ``recipe_sha256`` for the journal alone.
        confirm: asked once, after the plan is told and before anything is done.
        pause: called between changes; raises Interrupted when the end was asked for.
        resume: how the next boot goes on when a reboot is needed; None reboots nothing.
    """

    version: str
    argv: tuple[str, ...] = ()
    recipe_sha256: str = ""
    only: Collection[str] = ()
    allow_disruption: bool = False
    confirm: Callable[[Sequence[StagePlan]], None] = _agree
    pause: Callable[[], None] = _go_on
    resume: Resume | None = None


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
    started = time.monotonic()
    tell(Surveyed(recipe, facts))
    preview = plan(recipe, facts, host, asked.only)
    raise_refusal(preview)
    owed = tuple(trigger for trigger, at in store.owed().items() if not _settled_by_a_start(trigger, at, facts))
    tell(Previewed(preview))
    waits = tuple(wait for stage in preview for wait in stage.waits)
    if not owed and not any(stage.changes for stage in preview) and not (waits and asked.resume):
        return SetupResult(preview, (), (), waits, "", time.monotonic() - started, facts)
    if not asked.allow_disruption:
        _refuse_disruption(preview, host)
    asked.confirm(preview)
    unsettled = tuple(change for change in store.unsettled() if change.triggers & set(owed))
    run = store.begin(
        "setup",
        version=asked.version,
        recipe=recipe.name,
        recipe_sha256=asked.recipe_sha256,
        boot_id=known(facts.boot_id, ""),
        argv=asked.argv,
    )
    course = _Course(recipe, host, Applier(host, run, tell, asked.pause, unsettled), advance, asked, owed)
    try:
        course.go(facts)
    except GpunodeError as error:
        run.commit(_result(error), error.what)
        raise
    except BaseException as error:
        run.commit("failed", f"a bug: {type(error).__name__}")
        raise
    waits = tuple(wait for stage in course.applied for wait in stage.waits)
    run.commit("waiting" if waits else "done", "; ".join(wait.reason for wait in waits))
    seconds = time.monotonic() - started
    return SetupResult(preview, tuple(course.applied), tuple(course.settled), waits, run.id, seconds, course.facts)


def _settled_by_a_start(trigger: Trigger, at: float, facts: Facts) -> bool:
    """Whether the unit was started since ``at`` by somebody else, or by a boot: it has read its files then."""
    if trigger.kind not in {"reload", "restart"}:
        return False
    unit = facts.unit(trigger.target)
    started_at = unit.value.started_at if isinstance(unit, Known) else None
    return started_at is not None and started_at > at


def _result(error: GpunodeError) -> Result:
    return "interrupted" if isinstance(error, Interrupted) else "failed"


@dataclass(slots=True)
class _Course:
    """The walk that applies; it gathers what was done."""

    recipe: Recipe
    host: Host
    applier: Applier
    advance: Advance
    asked: Asked
    owed: tuple[Trigger, ...]
    applied: list[StagePlan] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    facts: Facts = field(init=False)

    def go(self, facts: Facts) -> None:
        """Every stage is applied, everything owed is settled, by this run or an earlier one."""
        self.facts = facts
        if self.owed:
            listed = ", ".join(str(trigger) for trigger in self.owed)
            self.applier.tell(Told(f"an earlier run was cut short and still owes: {listed}"))
        self.applier.settle([trigger for trigger in self.owed if trigger.ends_stage])
        for stage in walk(self.recipe, facts, self._exact, self._enact, self.asked.only):
            raise_refusal([stage])
            self.applied.append(stage)
        late = {trigger for trigger in self.owed if not trigger.ends_stage}
        self.settled += self.applier.settle(settle_order({*late, *at_the_end(self.applied)}))
        if self.asked.resume and any(wait.for_ == "reboot" for stage in self.applied for wait in stage.waits):
            arrange(self.applier, self.asked.resume, known(self.facts.file(UNIT), None))

    def _exact(self, facts: Facts, stage: StagePlan) -> StagePlan:
        exact = resolved(stage, known(facts.packages, {}), self.host.simulate)
        if exact.unresolved:
            raise ChangeFailed(
                "apt cannot install what the plan asks for; no package was touched",
                why=exact.unresolved,
                hint="`apt-get update` and the sources of this node first; then run the command again",
            )
        return exact

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
        left = plan_stage(self.recipe, facts, stage.stage, self.asked.only)
        for step in left.steps:
            changes = [change for change in step.changes if not _is_unsettled(change)]
            if changes and isinstance(step.outcome, Planned):
                raise ChangeFailed(
                    f"{step.step.title}: every command succeeded, yet the node is not as it should be",
                    why=f"still to do: {step.outcome.reason}",
                    hint="see the log for what the tools said; `gpunode plan` shows what is missing",
                )


def _is_unsettled(change: object) -> bool:
    return isinstance(change, FileChange) and isinstance(change.after, Deferred)


def _refuse_disruption(preview: Sequence[StagePlan], host: Host) -> None:
    """Raises when going on would stop running containers; they are named."""
    stopping = [
        step.outcome.disrupts
        for stage in preview
        for step in stage.steps
        if isinstance(step.outcome, Planned) and step.outcome.disrupts
    ]
    if not stopping:
        return
    running = host.look(RUNNING_CONTAINERS)
    names = [line.partition(" ")[2] for line in running.text.splitlines() if line.strip()]
    if running.outcome == "ok" and names:
        raise DrainRequired(
            f"going on would stop {len(names)} running {stopping[0]}",
            why=f"running: {', '.join(names)}",
            hint="drain them first, or go on with --allow-disruption",
        )
