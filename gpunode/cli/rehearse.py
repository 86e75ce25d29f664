"""rehearse: setup, verify and rollback of a captured node, in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import RecipeOptions, list_unknown_facts, view_node
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.resume import hash_recipe
from gpunode.cli.samples import DEFAULT_SAMPLE, default_sample
from gpunode.cli.screen.checks import check_lines
from gpunode.cli.screen.commands import setup_command
from gpunode.cli.screen.events import RESTORED_PHRASE, trigger_line
from gpunode.cli.screen.plans import stage_lines
from gpunode.cli.screen.text import BLANK_LINE, STATE_MARK, Line, indent_lines, line, next_command_line, span
from gpunode.journal.store import Store
from gpunode.workflow.converge import step_ids_by_change, triggers_of_plans
from gpunode.workflow.rehearse import rehearse as run_rehearsal
from gpunode.workflow.setup import SetupOptions

if TYPE_CHECKING:
    from gpunode.cli.node_screen import Screen
    from gpunode.recipe import Recipe
    from gpunode.workflow.rehearse import Rehearsal


def rehearse(recipe_options: RecipeOptions, output: OutputOptions, node: str, gpu_ids: str) -> None:
    """Rehearse setup, verify and rollback on a captured node."""
    recipe = recipe_options.load()
    view = view_node(node or str(default_sample()), "/", gpu_ids)
    screen = output.open_screen()
    with tempfile.TemporaryDirectory(prefix="gpunode-rehearsal-") as folder, screen:
        screen.begin_rehearsal(rehearsal_header_lines(recipe, node or DEFAULT_SAMPLE))
        options = SetupOptions(recipe_sha256=hash_recipe(recipe))
        rehearsal = run_rehearsal(
            recipe, view.facts, view.evidence, Store(folder), options=options, on_event=screen.show_event
        )
        screen.put(*rehearsal_lines(recipe, rehearsal, node or DEFAULT_SAMPLE, screen))
    output.emit(
        Envelope(
            "rehearse",
            changes=[change for stage in rehearsal.setup.applied for change in stage.ordered_changes],
            steps=step_ids_by_change(rehearsal.setup.applied),
            unknown=list_unknown_facts(view.facts),
            result={
                "rehearsal": True,
                "node": node or DEFAULT_SAMPLE,
                "checks": rehearsal.checks,
                "restored": rehearsal.restored,
                "triggers": triggers_of_plans(rehearsal.setup.applied, image=view.facts.is_image),
            },
        )
    )


def rehearsal_header_lines(recipe: Recipe, node: str) -> Iterator[Line]:
    """Yield the header of a rehearsal, which says that nothing is really changed."""
    yield line(span("REHEARSAL", "warn"), f" of recipe {recipe.name} on the captured node {node}")
    yield line(span("Everything below happens in memory: this machine is not touched, no package is downloaded, no "
                    "driver is loaded.", "dim"))  # fmt: skip
    yield BLANK_LINE


def rehearsal_lines(recipe: Recipe, done: Rehearsal, node: str, screen: Screen) -> Iterator[Line]:
    """Yield the checks, the rollback with each file compared, and the footer; ``screen`` showed the setup."""
    if not done.setup.changed:
        yield from stage_lines(done.setup.preview, verbose=screen.verbose)
        yield BLANK_LINE
        waits = "; ".join(wait.reason for wait in done.setup.waits)
        state = f"a reboot is needed: {waits}" if waits else f"this node matches recipe {recipe.name}"
        yield line(f"nothing to do: {state}")
    yield BLANK_LINE
    yield line(span("verify", "bold"), span("  what needs the real node is not run", "dim"))
    yield from indent_lines(check_lines(done.checks), 2)
    if done.rollback is not None:
        yield BLANK_LINE
        yield line(span("rollback", "bold"), span(f"  of run {done.rollback.plan.undone_run}", "dim"))
        yield from indent_lines(_restore_lines(done.restored), 2)
        yield from (trigger_line(trigger_result, rehearsed=True) for trigger_result in done.rollback.trigger_results)
    yield BLANK_LINE
    ends = f" ends: this machine was not touched and no driver was loaded; the node was the capture {node}"
    yield line(span("REHEARSAL", "warn"), ends, hang=10)
    yield next_command_line(setup_command(screen.argv), "  (on the node itself: this makes the changes)")


def _restore_lines(restored: Mapping[str, bool]) -> Iterator[Line]:
    if not restored:
        yield line(STATE_MARK["nothing"], span("no configuration file to restore", "dim"))
    for path, same in restored.items():
        mark = STATE_MARK["passed" if same else "failed"]
        yield line(
            mark, f"{path} ", span(RESTORED_PHRASE if same else "DIFFERS from what was captured", "" if same else "bad")
        )
