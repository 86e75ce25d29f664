"""plan: show what setup would do, and why; with --lock write or use a lock file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import (
    RecipeOptions,
    explain_default_recipe,
    is_image_root,
    list_unknown_facts,
    load_backlog,
    validate_steps,
    view_node,
)
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.commands import setup_command
from gpunode.cli.screen.plans import plan_lines
from gpunode.command import sudo_gpunode
from gpunode.errors import ChangesPending, GpunodeError
from gpunode.facts.model import Facts
from gpunode.outcome import Refusal
from gpunode.workflow.converge import StagePlan, collect_notes, raise_refusal, step_ids_by_change, triggers_of_plans
from gpunode.workflow.events import Notice
from gpunode.workflow.plan import Losses, find_losses, has_pending_work, make_version_lookup
from gpunode.workflow.plan import plan as make_plan

if TYPE_CHECKING:
    from gpunode.cli.node_screen import Screen
    from gpunode.host.port import HostView
    from gpunode.recipe import Recipe
    from gpunode.workflow.recovery import Backlog


def plan(
    recipe_options: RecipeOptions,
    output: OutputOptions,
    only: Sequence[str],
    node: str,
    root: str,
    gpu_ids: str,
    *,
    check: bool,
    allow_loss: bool = False,
) -> None:
    """Show what setup would do."""
    validate_steps(only)
    # Without these options the command that a lock names first would set up this machine.
    image = ("--root", root, *(("--gpu", gpu_ids) if gpu_ids else ())) if is_image_root(root) else ()
    write_lock = _prepare_lock_writer(recipe_options, only, node, image, check=check)
    recipe = (replace(recipe_options, lock="") if write_lock else recipe_options).load()
    view = view_node(node, root, gpu_ids, recipe)
    plans = make_plan(recipe, view.facts, view.host, only)
    raise_refusal(plans)
    losses = find_losses(plans, view.facts, make_version_lookup(view.host)) or Losses()
    if not allow_loss:
        losses.refuse_purges()
    screen = output.open_screen()
    backlog = load_backlog(node, root, view.facts)
    if text := explain_default_recipe(recipe_options):
        screen.show_event(Notice(text))
    argv = None if write_lock else screen.argv  # the lock file names its own setup command
    screen.put(*plan_lines(recipe, view.facts, plans, backlog, argv, verbose=output.verbose))
    for text in (*backlog.notes, *filter(None, [losses.note]), *(() if node else _symlink_notices(view.host, plans))):
        screen.show_event(Notice(text))
    lock = write_lock(recipe, view.facts, plans, screen) if write_lock else {}
    failure = _pending_error(plans, backlog) if check and has_pending_work(plans, backlog) else None
    output.emit(_plan_envelope(plans, backlog, view.facts, lock, losses.note).with_failure(failure))


def _pending_error(plans: Sequence[StagePlan], backlog: Backlog) -> GpunodeError:
    """Return the error of a node that does not match the recipe; if setup would change nothing, what it waits for."""
    if backlog or any(stage.ordered_changes for stage in plans):
        return ChangesPending("changes are pending", hint=str(setup_command(sys.argv[1:])))
    from gpunode.cli.setup import blocked_setup_error  # loaded on use: a plan alone does not need it

    return blocked_setup_error([wait for stage in plans for wait in stage.waits])


def _symlink_notices(host: HostView, plans: Sequence[StagePlan]) -> tuple[str, ...]:
    """See ``LocalHost.describe_symlinks``."""
    from gpunode.host.local import LocalHost

    changes = [change for stage in plans for change in stage.ordered_changes]
    return host.describe_symlinks(changes) if isinstance(host, LocalHost) else ()


LockWriter: TypeAlias = Callable[["Recipe", Facts, Sequence[StagePlan], "Screen"], Mapping[str, object]]


def _prepare_lock_writer(
    recipe_options: RecipeOptions, only: Sequence[str], node: str, image: Sequence[str], *, check: bool
) -> LockWriter | None:
    """Return a function that writes the lock file once a plan exists; None if no file has to be written.

    An existing file is only read, as by setup, unless --upgrade requests newer versions. ``node`` names a capture;
    ``image`` are the options that name the image, for the command that sets it up.
    """
    if not recipe_options.lock or check:
        return None
    from gpunode.cli.lockfiles import read_previous_lock, refuse_partial_lock, write_lock

    if os.path.lexists(recipe_options.lock) and not recipe_options.upgrade:
        return None
    refuse_partial_lock(only)
    former = read_previous_lock(recipe_options.lock)

    def write(recipe: Recipe, facts: Facts, plans: Sequence[StagePlan], screen: Screen) -> Mapping[str, object]:
        from gpunode.cli.lockfiles import lock_lines
        from gpunode.workflow.locking import create_lock

        newest = ["--upgrade"] if recipe.upgrade else []
        first = sudo_gpunode("setup", *recipe_options.words, *newest, *image)
        which = f"{node} is a capture: set up a node of its kind" if node else "set this node up"
        hint = f"{which} first, or use one that is; then write the lock there:\n{first}"
        lock = create_lock(recipe, facts, plans, recipe_options.lock, hint)
        changed = write_lock(lock, former)
        screen.put(*lock_lines(lock, changed, screen.argv, renewed=former is not None))
        return {"lock": {"file": lock.file, "packages": lock.packages, "changed": changed}}

    return write


def _plan_envelope(
    plans: Sequence[StagePlan], backlog: Backlog, facts: Facts, extra_result: Mapping[str, object], loss: str
) -> Envelope:
    steps = [
        {"id": step.step.id, "stage": stage.stage, "reason": step.outcome.reason, "changes": len(step.changes)}
        for stage in plans
        for step in stage.steps
        if not isinstance(step.outcome, Refusal)
    ]
    return Envelope(
        "plan",
        changed=bool(backlog) or any(stage.ordered_changes for stage in plans),
        changes=[*(change for stage in plans for change in stage.ordered_changes), *backlog.marks],
        steps=step_ids_by_change(plans),
        notes=[*collect_notes(plans), *backlog.notes, *filter(None, [loss, *(stage.index_note for stage in plans)])],
        unknown=list_unknown_facts(facts, backlog),
        result={
            "steps": steps,
            "blocked": [wait.reason for stage in plans for wait in stage.waits],
            "triggers": triggers_of_plans(plans, image=facts.is_image),
            "pending_triggers": backlog.pending_triggers,
            **extra_result,
        },
    )
