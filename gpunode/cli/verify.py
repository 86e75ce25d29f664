"""verify and status: what this node is, and whether it works."""

from __future__ import annotations

from gpunode.cli.compose import Wanted, left_undone, see, unknown, unread
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions


def verify(wanted: Wanted, how: OutputOptions, *, cuda: bool, container: bool) -> None:
    """Proves that the node works."""
    from gpunode.cli.screen.checks import report_lines
    from gpunode.host.local import LocalHost
    from gpunode.workflow.container import container_check
    from gpunode.workflow.converge import survey
    from gpunode.workflow.verify import Extra
    from gpunode.workflow.verify import verify as look

    recipe, screen, host = wanted.read(), how.screen(), LocalHost("/")
    with screen:
        facts = survey(host, recipe=recipe)
        check = container_check(host.runner, host.effective) if container else None
        left = left_undone("", "/", facts)
        report = look(recipe, facts, host, host.effective, Extra(files=True, cuda=cuda, container=check), left=left)
        screen.put(*report_lines(recipe, report))
    result = {"checks": report.checks, "gpus": report.gpus}
    answer = Envelope("verify", unknown=[*unknown(facts), *unread(left)], result=result)
    how.answer(answer.ending_in(report.shortcoming()))


def status(how: OutputOptions, node: str) -> None:
    """Shows the node."""
    from gpunode.cli.screen.node import status_lines
    from gpunode.workflow.status import status as look

    seen = see(node, "/", "")
    left = left_undone(node, "/", seen.facts)
    found = look(seen.facts, seen.host, left)
    how.screen().put(*status_lines(seen.facts, found))
    how.answer(Envelope("status", unknown=[*unknown(seen.facts), *unread(left)], result={"status": found}))
