"""setup: apply the plan through the journal, and verify it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from gpunode.change import FileChange, FileState, PackageChange, ServiceChange, ServiceState, Trigger, sort_triggers
from gpunode.errors import ChangeFailed, Refused, UsageError
from gpunode.facts.model import Facts, Known, value_or
from gpunode.facts.probes import RESUME_SERVICE, RESUME_SERVICE_FILE
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import Host, HostView, TriggerResult
from gpunode.journal.store import Store
from gpunode.outcome import Blocked, Planned, reboot_suffices
from gpunode.packages import deb
from gpunode.recipe import Recipe
from gpunode.steps.table import STAGES
from gpunode.workflow.converge import RESUME_STEP_ID, AdvanceFacts, StagePlan, plan_stage, raise_refusal, walk_stages
from gpunode.workflow.events import Notice, Observer, PlanCompleted, Surveyed
from gpunode.workflow.plan import (
    Losses,
    describe_differences,
    find_losses,
    plan,
    resolve_stage,
    resolve_stage_on,
    unplanned_removals,
)
from gpunode.workflow.recovery import Backlog, describe_interrupted_run, find_backlog, find_missing_marks

if TYPE_CHECKING:
    from gpunode.workflow.apply import Applier


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """The options of a setup.

    Attributes:
        recipe_sha256: only for the journal.
        allow_loss: whether packages that no archive has may be removed.
        confirm: called once, after the plan is shown and before anything is done.
        check_interrupt: called between changes; raises Interrupted after a signal.
        started: when the command began, on the monotonic clock; 0 means now.
        resume: how the next boot continues if a reboot is needed; None means no reboot.
    """

    recipe_sha256: str = ""
    only: Collection[str] = ()
    allow_disruption: bool = False
    allow_loss: bool = False
    confirm: Callable[[Sequence[StagePlan]], None] = lambda _: None
    check_interrupt: Callable[[], None] = lambda: None
    resume: Resume | None = None
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class SetupResult:
    """The result of a setup.

    Attributes:
        run: the run's id in the journal; empty if there was nothing to do.
        facts: the node's facts afterwards.
    """

    preview: tuple[StagePlan, ...]
    applied: tuple[StagePlan, ...]
    trigger_results: tuple[TriggerResult, ...]
    waits: tuple[Blocked, ...]
    run: str
    seconds: float
    facts: Facts

    @property
    def changed(self) -> bool:
        """True if anything was done."""
        return bool(self.run)


def setup(
    recipe: Recipe,
    host: Host,
    store: Store,
    facts: Facts,
    *,
    advance: AdvanceFacts,
    options: SetupOptions,
    on_event: Observer,
) -> SetupResult:
    """Apply ``recipe`` to the node as far as possible without a reboot; ``waits`` of the result has the rest.

    ``advance`` returns the facts after a stage, by probing again or, in a rehearsal, by projection. The caller holds
    the lock of ``store``.

    Raises:
        Refused, DrainRequired, Undetermined: before anything was touched.
        ChangeFailed, Conflict, Busy, Interrupted: in the middle; the journal records what was done.
    """
    started = options.started or time.monotonic()
    on_event(Surveyed(recipe, facts))
    preview = _plan_preview(recipe, facts, host, options)
    losses = find_losses(preview, facts, host.list_offered_versions)
    if losses and not options.allow_loss:
        losses.refuse_purges()
    backlog = find_backlog(store, facts)
    on_event(PlanCompleted(preview))
    if losses and losses.note:
        on_event(Notice(losses.note))
    nothing_to_do = not backlog and not any(stage.ordered_changes for stage in preview)
    if backlog.interrupted_run is not None:
        then = "nothing is left to do" if nothing_to_do else "this run finishes it"
        on_event(Notice(describe_interrupted_run(backlog.interrupted_run, then)))
    if backlog:
        on_event(Notice(f"{backlog}; this run does it"))
    for note in backlog.hold_notes:
        on_event(Notice(note))
    waits = tuple(wait for stage in preview for wait in stage.waits)
    if nothing_to_do and not (options.resume and reboot_suffices(waits)):
        if backlog.interrupted_run is not None:
            store.close_interrupted_run(backlog.interrupted_run.id)
        return SetupResult(preview, (), (), waits, "", time.monotonic() - started, facts)
    from gpunode.workflow.apply import Applier, recording_failure  # loaded on use, as all below: often nothing is done

    if not options.allow_disruption:
        from gpunode.workflow.disruption import refuse_disruptive_setup

        refuse_disruptive_setup(preview, backlog.pending_triggers, facts, host)
    host.refuse_unsafe_changes([change for stage in preview for change in stage.ordered_changes])
    prompted = time.monotonic()
    options.confirm(preview)
    started += time.monotonic() - prompted  # the user's time to answer does not count
    untriggered_changes = store.find_untriggered_changes(backlog.pending_triggers)
    run = store.begin("setup", recipe=recipe.name, recipe_sha256=options.recipe_sha256)
    applier = Applier(host, run, on_event, options.check_interrupt, untriggered_changes, backlog.pending_triggers)
    walk = _SetupRun(recipe, host, applier, advance, options, preview, backlog, facts, losses)
    with recording_failure(applier):
        walk.execute()
    run.commit("waiting" if walk.waits else "done", "; ".join(wait.reason for wait in walk.waits))
    seconds = time.monotonic() - started
    return SetupResult(
        preview, tuple(walk.applied), tuple(walk.trigger_results), walk.waits, run.id, seconds, walk.facts
    )


def _plan_preview(recipe: Recipe, facts: Facts, host: Host, options: SetupOptions) -> tuple[StagePlan, ...]:
    """Return the plan; for an upgrade, with a fresh index."""
    preview = plan(recipe, facts, host, options.only)
    raise_refusal(preview)
    if options.resume:
        resume_unit(options.resume.command(""))  # report words that a unit cannot hold before any change
    if recipe.upgrade and preview[0].ordered_changes == ():
        host.run_triggers((Trigger("index-refresh"),))
        preview = plan(recipe, facts, host, options.only)
    return preview


@dataclass(slots=True)
class _SetupRun:
    """A walk that applies the stages, and its results so far.

    Attributes:
        losses: the losses that the plan named; None if there was no package index then.
    """

    recipe: Recipe
    host: Host
    applier: Applier
    advance: AdvanceFacts
    options: SetupOptions
    confirmed_plan: tuple[StagePlan, ...]
    backlog: Backlog
    facts: Facts
    losses: Losses | None
    applied: list[StagePlan] = field(default_factory=list)
    trigger_results: list[TriggerResult] = field(default_factory=list)
    waits: tuple[Blocked, ...] = ()

    def execute(self) -> None:
        """Apply every stage, and run the triggers of this run and of earlier ones."""
        from gpunode.workflow.apply import final_triggers

        self.applier.run_triggers([trigger for trigger in self.backlog.pending_triggers if trigger.runs_at_stage_end])
        for stage in walk_stages(self.recipe, self.facts, self._resolve, self._apply, self.options.only):
            raise_refusal([stage])
            self.applied.append(stage)
        missing = find_missing_marks(self.backlog.interrupted_run, self.facts, self.backlog.holds_at_risk)
        self._restore_marks(missing, self.applied[-1])
        late = {trigger for trigger in self.backlog.pending_triggers if not trigger.runs_at_stage_end}
        ending = self.applier.run_triggers(sort_triggers({*late, *final_triggers(self.applied)}))
        self.trigger_results += ending
        if ending:
            # Daemons have been restarted since the last probe.
            self.facts = self.advance(self.facts, self.applied[-1])
        # Plan again at the end: a late event, such as a module that something else loaded, may require a reboot.
        plans = (plan_stage(self.recipe, self.facts, stage, self.options.only) for stage in STAGES)
        self.waits = tuple(wait for stage in plans for wait in stage.waits)
        if self.options.resume and reboot_suffices(self.waits):
            arrange_resume(self.applier, self.options.resume, self.facts)

    def _restore_marks(self, missing: tuple[PackageChange, ...], stage: StagePlan) -> None:
        """Set marks of packages that interrupted runs did not set; probe again after ``stage``."""
        if missing:
            self.applier.apply_packages("packages", missing, lambda _: "marks")
            self.facts = self.advance(self.facts, stage)

    def _resolve(self, facts: Facts, stage: StagePlan) -> StagePlan:
        """Return ``stage`` with exact package versions."""
        # Loaded on use: a run that finds everything done resolves nothing.
        from gpunode.workflow.locking import missing_versions_error
        from gpunode.workflow.origins import describe_problem_archives, with_origins

        exact = resolve_stage_on(self.host, stage, facts, self.recipe.lock)
        if exact.unresolved:
            # A fresh image has no index of its distribution, and an old index names packages that are gone.
            self.applier.on_event(Notice("the package index lacks packages of the plan; refreshing the whole index"))
            self.trigger_results += self.applier.run_triggers([Trigger("index-refresh")])
            exact = resolve_stage_on(self.host, stage, facts, self.recipe.lock)
        lacking = deb.versions_not_found(exact.unresolved)
        if self.recipe.lock and (refused := missing_versions_error(lacking, exact.unresolved, self.recipe.lock)):
            raise refused
        if exact.unresolved:
            raise ChangeFailed(
                f"{deb.MANAGER} cannot install the planned packages; no package was changed",
                why="\n".join(
                    filter(None, (exact.unresolved, describe_problem_archives(exact.unresolved, facts, self.host)))
                ),
                hint=deb.hint_on_refusal(
                    exact.unresolved, facts, self.host.list_offered_versions([package for package, _ in lacking])
                ),
            )
        self._refuse_unconfirmed_removals(exact)
        self._check_losses(find_losses([exact], facts, self.host.list_offered_versions) or Losses())
        return with_origins(exact, self.host, facts)

    def _check_losses(self, losses: Losses) -> None:
        """Report losses and refuse purges if the plan was made before the package index was read."""
        if self.losses is None and not self.options.allow_loss:
            losses.refuse_purges()
        if losses.note and (self.losses is None or losses.note != self.losses.note):
            self.applier.on_event(Notice(losses.note))

    def _refuse_unconfirmed_removals(self, exact: StagePlan) -> None:
        """Refuse removals that the plan did not name; report what is upgraded instead."""
        confirmed_plan = next((plan for plan in self.confirmed_plan if plan.stage == exact.stage), exact)
        if more := unplanned_removals(confirmed_plan, exact):
            raise Refused(
                f"{deb.MANAGER} would also remove {', '.join(more)}, which the plan did not name; "
                "no package was changed",
                why="the plan was made before the package index was read",
                hint="run the same command again: the index is read, so its plan is exact",
            )
        for text in describe_differences(confirmed_plan, exact):
            self.applier.on_event(Notice(text))

    def _apply(self, facts: Facts, stage: StagePlan) -> Facts:
        if stage.ordered_changes:
            self.applier.apply_stage(stage)
            before, facts = facts, self.advance(facts, stage)
            if before.module_key is not None:
                from gpunode.steps.enrolment import require_same_key  # loaded on use: only with Secure Boot on

                require_same_key(before.module_key, facts.module_key)
            self._check_converged(facts, stage)
        self.facts = facts
        if stage.stage == "sources":
            # Before the packages stage, or an upgrade would move a package whose hold a killed run has lost.
            self._restore_marks(find_missing_marks(None, facts, self.backlog.holds_at_risk), stage)
        return self.facts

    def _check_converged(self, facts: Facts, stage: StagePlan) -> None:
        """Raise if a stage, planned again, still has changes: a tool reported success and did not do its work."""
        # With ``upgrade`` a step always requests the newest version; the result only has to satisfy a plain setup.
        new_plan = plan_stage(replace(self.recipe, upgrade=False), facts, stage.stage, self.options.only)
        for step in new_plan.steps:
            changes = [change for change in step.changes if not change.may_recur_in_stage]
            if changes and isinstance(step.outcome, Planned):
                listed = ", ".join(dict.fromkeys(change.subject for change in changes))
                raise ChangeFailed(
                    f"{step.step.title}: every command succeeded, but the result is not as planned",
                    why=f"still to do: {listed}: {step.outcome.reason}",
                    hint="the log has the tools' output; `gpunode plan` shows what is missing",
                )


@dataclass(frozen=True, slots=True)
class Resume:
    """The continuation of a setup after a reboot.

    Attributes:
        command: returns the command that the next boot runs, for the id of the run to continue.
        request: the recipe and options; stored with the run, where only root can change them.
    """

    command: Callable[[str], tuple[str, ...]]
    request: bytes


def resume_unit(argv: Sequence[str]) -> bytes:
    """Return a unit that runs ``argv`` once, at the next boot; it is removed even if gpunode fails, so nothing loops.

    It waits until the boot is complete: earlier, gpunode would find daemons stopped that are about to start.
    ``argv`` has no --reboot, so a run reboots at most once. The facts of the new boot tell what is left to do.

    Raises:
        UsageError: a word cannot be written into a unit.
    """
    return f"""# Written by gpunode: it continues a setup that needed a reboot, then removes this unit.
[Unit]
Description=gpunode continues after its reboot
Wants=network-online.target
After=network-online.target multi-user.target

[Service]
Type=oneshot
WorkingDirectory=/
ExecStart={" ".join(map(_quote_word, argv))}
ExecStopPost=/bin/systemctl disable {RESUME_SERVICE}
ExecStopPost=/bin/rm -f {RESUME_SERVICE_FILE}
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
""".encode()


def _quote_word(word: str) -> str:
    """Return ``word`` quoted, ``%`` and ``$`` escaped. Source: systemd.syntax(7), systemd.service(5)."""
    # Lone surrogates are non-UTF-8 bytes of an argument; systemd skips lines that are not UTF-8.
    if any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in word):
        raise UsageError(
            f"{word!r} cannot be written into a systemd unit",
            why="it holds a control character, or is not UTF-8",
            hint="run setup without --reboot and reboot by hand",
        )
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def arrange_resume(applier: Applier, resume: Resume, facts: Facts) -> None:
    """Make the next boot continue the run; journaled like every change.

    Raises:
        ChangeFailed: the unit could not be written or enabled.
    """
    why = "setup continues after the reboot"
    reload = frozenset({Trigger("daemon-reload")})
    applier.run.save_request(resume.request)
    unit = FileState(resume_unit(resume.command(applier.run.id)))
    former = value_or(facts.file(RESUME_SERVICE_FILE), None)
    applier.apply_change("kernel", RESUME_STEP_ID, FileChange(RESUME_SERVICE_FILE, former, unit, reload), why)
    applier.run_triggers([Trigger("daemon-reload")])
    fact = facts.unit(RESUME_SERVICE)
    state = fact.value.state if isinstance(fact, Known) else ServiceState(enabled=False, active=False)
    enable = ServiceChange(RESUME_SERVICE, state, replace(state, enabled=True))
    applier.apply_change("kernel", RESUME_STEP_ID, enable, why)


def packages_to_download(
    recipe: Recipe, facts: Facts, host: HostView, only: Collection[str] = ()
) -> list[PackageChange]:
    """Return the package changes that setup would make, with exact versions, dependencies included.

    Raises:
        Refused, Undetermined: setup would refuse, or the packages are not available yet.
    """
    plans = plan(recipe, facts, host, only)
    raise_refusal(plans)
    changes: list[PackageChange] = []
    for stage in plans:
        # Also if sources or pins still have to change: a lock names every version.
        exact = resolve_stage(stage, facts, host.simulate, recipe.lock)
        if exact.unresolved:
            raise Refused(
                f"{deb.MANAGER} cannot get the packages yet; nothing was downloaded",
                why=exact.unresolved,
                hint="setup first adds NVIDIA's repositories, or moves the pin to another branch: on this node, "
                "run it without --download-only",
            )
        changes += exact.packages
    return changes
