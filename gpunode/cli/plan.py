"""plan: what setup would do, and why; with --lock the versions of a lock file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gpunode.cli.compose import Wanted, check_steps, explain_default_recipe, left_undone, see, unknown, unread
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.commands import setup_command
from gpunode.cli.screen.plans import plan_lines
from gpunode.errors import ChangesPending
from gpunode.facts.model import Facts
from gpunode.workflow.converge import StagePlan, collect_notes, raise_refusal, step_ids_by_change, triggers_of_plans
from gpunode.workflow.events import Notice
from gpunode.workflow.loss import archive_lookup, loss_note, lost_packages, refuse_loss

if TYPE_CHECKING:
    from gpunode.cli.human import Screen
    from gpunode.host.port import HostView
    from gpunode.recipe import Recipe
    from gpunode.workflow.recovery import Backlog


def plan(
    wanted: Wanted,
    how: OutputOptions,
    only: Sequence[str],
    node: str,
    root: str,
    gpu: str,
    *,
    check: bool,
    allow_loss: bool = False,
) -> None:
    """Shows what setup would do."""
    from gpunode.workflow.plan import has_pending_work
    from gpunode.workflow.plan import plan as make_plan

    check_steps(only)
    writing = _lock_to_write(wanted, only, check=check)
    recipe = (replace(wanted, lock="") if writing else wanted).read()
    seen = see(node, root, gpu, recipe)
    plans = make_plan(recipe, seen.facts, seen.host, only)
    raise_refusal(plans)
    lost = lost_packages(plans, seen.facts, archive_lookup(seen.host, seen.facts))
    if not allow_loss:
        refuse_loss(lost)
    screen = how.screen()
    left = left_undone(node, root, seen.facts)
    if text := explain_default_recipe(wanted):
        screen.tell(Notice(text))
    screen.put(*plan_lines(recipe, seen.facts, plans, left, screen.argv, verbose=how.verbose))
    loss = filter(None, [loss_note(lost)])
    for text in (*left.notes, *loss, *(() if node else _elsewhere(seen.host, plans))):
        screen.tell(Notice(text))
    lock = writing(recipe, seen.facts, plans, screen) if writing else {}
    makes_them = str(setup_command(sys.argv[1:]))
    failure = (
        ChangesPending("changes are pending", hint=makes_them) if check and has_pending_work(plans, left) else None
    )
    how.answer(_envelope(plans, left, seen.facts, lock, loss_note(lost)).ending_in(failure))


def _elsewhere(host: HostView, plans: Sequence[StagePlan]) -> tuple[str, ...]:
    """See ``LocalHost.elsewhere``."""
    from gpunode.host.local import LocalHost

    changes = [change for stage in plans for change in stage.changes]
    return host.elsewhere(changes) if isinstance(host, LocalHost) else ()


Writing: TypeAlias = Callable[["Recipe", Facts, Sequence[StagePlan], "Screen"], Mapping[str, object]]


def _lock_to_write(wanted: Wanted, only: Sequence[str], *, check: bool) -> Writing | None:
    """What writes the lock file once there is a plan; None where one is only read, or none is named.

    A file that is there is read, as setup reads it, unless --upgrade asks for newer versions.
    """
    if not wanted.lock or check:
        return None
    from gpunode.cli.lockfiles import former_lock, refuse_part, there_is, write_lock

    if there_is(wanted.lock) and not wanted.upgrade:
        return None
    refuse_part(only)
    former = former_lock(wanted.lock)

    def write(recipe: Recipe, facts: Facts, plans: Sequence[StagePlan], screen: Screen) -> Mapping[str, object]:
        from gpunode.cli.lockfiles import lock_lines
        from gpunode.workflow.locking import create_lock

        lock = create_lock(recipe, facts, plans, wanted.lock)
        changed = write_lock(lock, former)
        screen.put(*lock_lines(lock, changed, screen.argv, renewed=former is not None))
        return {"lock": {"file": lock.file, "packages": lock.packages, "changed": changed}}

    return write


def _envelope(
    plans: Sequence[StagePlan], left: Backlog, facts: Facts, more: Mapping[str, object], loss: str
) -> Envelope:
    steps = [
        {"id": step.step.id, "stage": stage.stage, "reason": step.outcome.reason, "changes": len(step.changes)}
        for stage in plans
        for step in stage.steps
        if not hasattr(step.outcome, "exit_code")
    ]
    return Envelope(
        "plan",
        changed=bool(left) or any(stage.changes for stage in plans),
        changes=[*(change for stage in plans for change in stage.changes), *left.marks],
        steps=step_ids_by_change(plans),
        notes=[*collect_notes(plans), *left.notes, *filter(None, [loss])],
        unknown=[*unknown(facts), *unread(left)],
        result={
            "steps": steps,
            "waits": [wait.reason for stage in plans for wait in stage.waits],
            "triggers": triggers_of_plans(plans, image=facts.is_image),
            "owed": left.owed,
            **more,
        },
    )
