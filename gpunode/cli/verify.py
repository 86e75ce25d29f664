"""verify and status: what this node is, and whether it works."""

from __future__ import annotations

import sys
from dataclasses import replace

from gpunode.cli.compose import Wanted, left_undone, see, unknown, unread
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions


def verify(wanted: Wanted, how: OutputOptions, *, cuda: bool, container: bool) -> None:
    """Proves that the node works."""
    from gpunode.cli.screen.checks import report_lines
    from gpunode.cli.screen.commands import setup_command
    from gpunode.cli.screen.plans import note
    from gpunode.host.local import LocalHost
    from gpunode.workflow.container import container_check
    from gpunode.workflow.converge import survey
    from gpunode.workflow.verify import ExtraChecks
    from gpunode.workflow.verify import verify as look

    recipe, screen, host = wanted.read(), how.screen(), LocalHost("/")
    with screen:
        facts = survey(host, recipe=recipe)
        check = container_check(host.runner, host.effective) if container else None
        left = left_undone("", "/", facts)
        again = str(setup_command(sys.argv[1:]))
        extra = ExtraChecks(files=True, cuda=cuda, container=check)
        report = look(recipe, facts, host, host.effective, extra, left=left, setup_command=again)
        screen.put(*report_lines(recipe, report), *map(note, left.notes))
    result = {"checks": report.checks, "gpus": report.gpus}
    notes = (*report.notes, *left.notes)
    answer = Envelope("verify", notes=notes, unknown=[*unknown(facts), *unread(left)], result=result)
    how.answer(answer.ending_in(report.failure()))


def status(how: OutputOptions, node: str) -> None:
    """Shows the node."""
    from gpunode.cli.screen.node import status_lines
    from gpunode.cli.screen.plans import note
    from gpunode.workflow.status import status as look

    seen = see(node, "/", "")
    left = left_undone(node, "/", seen.facts)
    found = look(seen.facts, seen.host, left)
    how.screen().put(*status_lines(seen.facts, found), *map(note, left.notes))
    notes = (*found.notes, *left.notes)
    answer = Envelope("status", notes=notes, unknown=[*unknown(seen.facts), *unread(left)])
    how.answer(replace(answer, result={"status": found}))
