"""verify: check this node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import RecipeOptions, list_unknown_facts, load_backlog
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.checks import check_lines, state_note_lines, verdict_line
from gpunode.cli.screen.text import BLANK_LINE, Line

if TYPE_CHECKING:
    from gpunode.recipe import Recipe
    from gpunode.workflow.verify import VerifyReport


def verify(recipe_options: RecipeOptions, output: OutputOptions, *, cuda: bool, container: bool) -> None:
    """Check that the node works."""
    from gpunode.cli.screen.commands import setup_command
    from gpunode.cli.screen.plans import note_line
    from gpunode.host.local import LocalHost
    from gpunode.workflow.converge import survey
    from gpunode.workflow.extra_checks import make_container_check
    from gpunode.workflow.verify import ExtraChecks
    from gpunode.workflow.verify import verify as verify_node

    recipe, screen, host = recipe_options.load(), output.open_screen(), LocalHost("/")
    with screen:
        facts = survey(host, recipe=recipe)
        check = make_container_check(host.runner, host.read_effective_config) if container else None
        backlog = load_backlog("", "/", facts)
        again = str(setup_command(sys.argv[1:]))
        extra = ExtraChecks(files=True, cuda=cuda, container=check)
        report = verify_node(
            recipe, facts, host, host.read_effective_config, extra, backlog=backlog, setup_command=again
        )
        screen.put(*report_lines(recipe, report), *map(note_line, backlog.notes))
    result = {"checks": report.checks, "gpus": report.gpus}
    notes = (*report.notes, *backlog.notes)
    answer = Envelope("verify", notes=notes, unknown=list_unknown_facts(facts, backlog), result=result)
    output.emit(answer.with_failure(report.failure()))


def report_lines(recipe: Recipe, report: VerifyReport) -> Iterator[Line]:
    """Yield the checks, then the verdict."""
    yield from check_lines(report.checks)
    yield BLANK_LINE
    yield from state_note_lines(report.notes)
    yield verdict_line(report, f"this node works and matches recipe {recipe.name}")
