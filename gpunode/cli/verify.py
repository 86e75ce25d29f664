"""verify and status: check and show this node."""

from __future__ import annotations

import sys
from dataclasses import replace

from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import RecipeOptions, list_unknown_facts, list_unread_backlog, load_backlog, view_node
from gpunode.cli.output_options import OutputOptions


def verify(recipe_options: RecipeOptions, output: OutputOptions, *, cuda: bool, container: bool) -> None:
    """Check that the node works."""
    from gpunode.cli.screen.checks import report_lines
    from gpunode.cli.screen.commands import setup_command
    from gpunode.cli.screen.plans import note_line
    from gpunode.host.local import LocalHost
    from gpunode.workflow.container import container_check
    from gpunode.workflow.converge import survey
    from gpunode.workflow.verify import ExtraChecks
    from gpunode.workflow.verify import verify as look

    recipe, screen, host = recipe_options.load(), output.open_screen(), LocalHost("/")
    with screen:
        facts = survey(host, recipe=recipe)
        check = container_check(host.runner, host.read_effective_config) if container else None
        backlog = load_backlog("", "/", facts)
        again = str(setup_command(sys.argv[1:]))
        extra = ExtraChecks(files=True, cuda=cuda, container=check)
        report = look(recipe, facts, host, host.read_effective_config, extra, backlog=backlog, setup_command=again)
        screen.put(*report_lines(recipe, report), *map(note_line, backlog.notes))
    result = {"checks": report.checks, "gpus": report.gpus}
    notes = (*report.notes, *backlog.notes)
    answer = Envelope(
        "verify", notes=notes, unknown=[*list_unknown_facts(facts), *list_unread_backlog(backlog)], result=result
    )
    output.emit(answer.with_failure(report.failure()))


def status(output: OutputOptions, node: str) -> None:
    """Show the node on one screen."""
    from gpunode.cli.screen.node import status_lines
    from gpunode.cli.screen.plans import note_line
    from gpunode.workflow.status import status as look

    view = view_node(node, "/", "")
    backlog = load_backlog(node, "/", view.facts)
    found = look(view.facts, view.host, backlog)
    output.open_screen().put(*status_lines(view.facts, found), *map(note_line, backlog.notes))
    notes = (*found.notes, *backlog.notes)
    answer = Envelope("status", notes=notes, unknown=[*list_unknown_facts(view.facts), *list_unread_backlog(backlog)])
    output.emit(replace(answer, result={"status": found}))
