"""A runtime's configuration, edited by itself: what is to be written, what was, what the daemon has. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpunode.change import bare_unit
from gpunode.cli.screen.changes import diff_lines
from gpunode.cli.screen.commands import SHOWN_HOW, rollback_command, without
from gpunode.cli.screen.events import downtime
from gpunode.cli.screen.plans import note
from gpunode.cli.screen.results import fact
from gpunode.cli.screen.text import BLANK, Line, indented, line, span
from gpunode.cli.screen.words import MARKS, sentence
from gpunode.command import Command, command, sudo_gpunode
from gpunode.container_runtimes import takes_only_cdi

if TYPE_CHECKING:
    from gpunode.workflow.ctk import CtkVerb, Done, Verdict
    from gpunode.workflow.edits import CtkPlan


def plan_lines(verb: CtkVerb, plan: CtkPlan, *, verbose: bool) -> Iterator[Line]:
    """What is to be written and why there, as a diff of each file; one line when nothing is."""
    if not plan.files:
        yield line(MARKS["waits" if plan.lacks else "nothing"], f"nothing to do: {_as_asked(verb, plan)}", hang=2)
    elif not plan.written:
        yield line(span(plan.about, "bold"), f"  its files are correct, but {_reader(plan)} has not read them yet")
    else:
        yield line(span(plan.about, "bold"), "  ", span(plan.planned.reason), hang=len(plan.about) + 2)
        for change in plan.written:
            yield from indented(tuple(diff_lines(change, whole=verbose)), 4)
    yield from (note(text) for text in plan.planned.all_notes)


def _as_asked(verb: CtkVerb, plan: CtkPlan) -> str:
    if verb == "unconfigure":
        return f"{plan.main or plan.about} names no such runtime"
    if takes_only_cdi(plan.about) or plan.finds_itself:
        return f"{plan.about}: {plan.planned.reason}"  # its own file says nothing of it
    return f"{plan.about} is configured as requested ({plan.main})"


def _reader(plan: CtkPlan) -> str:
    return bare_unit(plan.trigger.target) if plan.trigger else plan.about


def done_lines(
    verb: CtkVerb, plan: CtkPlan, done: Done, argv: Sequence[str], following: str, *, is_unread: bool = False
) -> Iterator[Line]:
    """That it is done, the command that makes the daemon read it, if ``following`` is one, and what undoes it.

    ``is_unread``: the daemon was to read the files and did not, so only that they are written is done.
    """
    yield BLANK
    outcome = f"{sentence([change.path for change in plan.files])} written" if is_unread else _outcome(verb, plan)
    yield line(MARKS["waits" if plan.lacks else "done"], outcome, hang=2)
    if down := downtime(done.settled):
        yield fact("took", down)
    if following:
        yield fact("next", following)
        if plan.planned.disrupts:
            yield fact("", f"it stops all {plan.planned.disrupts}, since live-restore is off")
    if any(not change.is_generated for change in plan.written):
        yield fact("undo", rollback_command(argv, done.run))


def _outcome(verb: CtkVerb, plan: CtkPlan) -> str:
    if plan.planned.expectation is None and verb == "configure":
        return f"{plan.about} written: {sentence([change.path for change in plan.files])}"
    if verb == "unconfigure":
        return f"{plan.about}: what configure added is gone"
    assert plan.planned.expectation is not None, "what is configured without one has been told"
    default = ", its default" if plan.planned.expectation.default else ""
    runs = sentence(
        [f"{name}{default}, which runs {binary}" for name, binary in sorted(plan.planned.expectation.handlers)]
    )
    return f"{plan.about} has the runtime {runs}{'; install that first' if plan.lacks else ''}"


def read_again_command(plan: CtkPlan, *, failed: bool, systemd: bool = True) -> str:
    """What makes the daemon read its files, one that has ``failed``, too; empty where there is none.

    ``systemd``: whether it runs here; else what is said works without it.
    """
    if plan.trigger is None:
        return ""
    kind, name = plan.trigger.kind, bare_unit(plan.trigger.target)
    if systemd:
        return str(command("sudo", "systemctl", "restart" if failed else kind, name))
    return "sudo kill -HUP $(pidof dockerd)" if kind == "reload" else f"restart {name} in the way it was started"


def verdict_lines(
    plan: CtkPlan, verdict: Verdict, argv: Sequence[str], following: str, *, verbose: bool
) -> Iterator[Line]:
    """Whether files and daemon are as asked; ``following`` makes a daemon that is not read its files."""
    if verdict.pending:
        yield from plan_lines("configure", plan, verbose=verbose)
        yield line("next: ", span(str(configure_command(plan, argv)), "command"), hang=6)
        return
    if plan.lacks:
        yield line(MARKS["failed"], f"{plan.main} names {plan.lacks.program}, which is not installed", hang=2)
        yield line("next: ", span(str(plan.lacks.install), "command"), hang=6)
        return
    is_told = not takes_only_cdi(plan.about) or not verdict.untold
    yield line(MARKS["passed" if is_told else "not run"], _as_asked("configure", plan), hang=2)
    if verdict.otherwise:
        yield line(MARKS["failed"], f"{_reader(plan)} does not have it: {verdict.otherwise}", hang=2)
        if following:
            yield line("next: ", span(following, "command"), hang=6)
    elif verdict.untold:
        yield line(MARKS["not run"], f"{_reader(plan)} was not asked: {verdict.untold}", hang=2)
    else:
        yield line(MARKS["passed"], f"{_reader(plan)} reads it so", hang=2)
    yield from (note(text) for text in plan.planned.all_notes)


def configure_command(plan: CtkPlan, argv: Sequence[str]) -> Command:
    """The command that makes what ``argv``, a check, looked for; first what a default runtime needs to be one."""
    if plan.lacks and plan.lacks.install and plan.planned.expectation and plan.planned.expectation.default:
        return plan.lacks.install
    words = ["configure" if word == "check" else word for word in without(argv, SHOWN_HOW, ())]
    return sudo_gpunode(*words)
