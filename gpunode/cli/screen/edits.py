"""A runtime's configuration, edited by itself: what is to be written, what was, what the daemon has. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpunode.change import is_generated
from gpunode.cli.screen.changes import diff_lines
from gpunode.cli.screen.commands import SHOWN_HOW, rollback_command, without
from gpunode.cli.screen.events import downtime
from gpunode.cli.screen.plans import note
from gpunode.cli.screen.results import fact
from gpunode.cli.screen.text import BLANK, Line, indented, line, span
from gpunode.cli.screen.words import MARKS, bare, sentence
from gpunode.command import Command, command, sudo_gpunode

if TYPE_CHECKING:
    from gpunode.workflow.ctk import CtkVerb, Done, Verdict
    from gpunode.workflow.edits import Draft


def draft_lines(verb: CtkVerb, draft: Draft, *, verbose: bool) -> Iterator[Line]:
    """What is to be written and why there, as a diff of each file; one line when nothing is."""
    written = [change for change in draft.changes if change.before != change.after]
    if not draft.changes:
        yield line(MARKS["waits" if draft.missing else "nothing"], f"nothing to do: {_as_asked(verb, draft)}", hang=2)
    elif not written:
        yield line(span(draft.about, "bold"), f"  its files are correct, but {_reader(draft)} has not read them yet")
    else:
        how = draft.how or "removes what configure added"
        yield line(span(draft.about, "bold"), "  ", span(how), hang=len(draft.about) + 2)
        for change in written:
            yield from indented(tuple(diff_lines(change, whole=verbose)), 4)
    yield from (note(text) for text in draft.notes)


def _as_asked(verb: CtkVerb, draft: Draft) -> str:
    if verb == "unconfigure":
        return f"{draft.main or draft.about} names no such runtime"
    if draft.trigger is None and not draft.present:
        return f"{draft.about}: {draft.how}"  # such as podman's, which has no file of its own
    if draft.overlooked:
        return (
            f"{draft.about}: {draft.how}"  # a product that finds the runtime by itself, of which its file says nothing
        )
    return f"{draft.about} is configured as requested ({draft.main})"


def _reader(draft: Draft) -> str:
    return bare(draft.trigger.target) if draft.trigger else draft.about


def drafted_lines(
    verb: CtkVerb, draft: Draft, done: Done, argv: Sequence[str], following: str, *, is_unread: bool = False
) -> Iterator[Line]:
    """That it is done, the command that makes the daemon read it, if ``following`` is one, and what undoes it.

    ``is_unread``: the daemon was to read the files and did not, so only that they are written is done.
    """
    yield BLANK
    outcome = f"{sentence([change.path for change in draft.changes])} written" if is_unread else _outcome(verb, draft)
    yield line(MARKS["waits" if draft.missing else "done"], outcome, hang=2)
    if down := downtime(done.settled):
        yield fact("took", down)
    if following:
        yield fact("next", following)
        if draft.stops:
            yield fact("", f"it stops all {draft.stops}, since live-restore is off")
    if any(change.before != change.after and not is_generated(change) for change in draft.changes):
        yield fact("undo", rollback_command(argv, done.run))


def _outcome(verb: CtkVerb, draft: Draft) -> str:
    if draft.expectation is None and verb == "configure":
        return f"{draft.about} written: {sentence([change.path for change in draft.changes])}"
    if verb == "unconfigure":
        return f"{draft.about}: what configure added is gone"
    assert draft.expectation is not None, "what is configured without one has been told"
    default = ", its default" if draft.expectation.default else ""
    runs = sentence([f"{name}{default}, which runs {binary}" for name, binary in sorted(draft.expectation.handlers)])
    return f"{draft.about} has the runtime {runs}{'; install that first' if draft.missing else ''}"


def read_again_command(draft: Draft, *, failed: bool, systemd: bool = True) -> str:
    """What makes the daemon read its files, one that has ``failed``, too; empty where there is none.

    ``systemd``: whether it runs here; else what is said works without it.
    """
    if draft.trigger is None:
        return ""
    kind, name = draft.trigger.kind, bare(draft.trigger.target)
    if systemd:
        return str(command("sudo", "systemctl", "restart" if failed else kind, name))
    return "sudo kill -HUP $(pidof dockerd)" if kind == "reload" else f"restart {name} in the way it was started"


def verdict_lines(
    draft: Draft, verdict: Verdict, argv: Sequence[str], following: str, *, verbose: bool
) -> Iterator[Line]:
    """Whether files and daemon are as asked; ``following`` makes a daemon that is not read its files."""
    if verdict.pending:
        yield from draft_lines("configure", draft, verbose=verbose)
        yield line("next: ", span(str(configure_command(draft, argv)), "command"), hang=6)
        return
    if draft.missing:
        yield line(MARKS["failed"], f"{draft.main} names {draft.missing}, which is not installed", hang=2)
        yield line("next: ", span(str(draft.install), "command"), hang=6)
        return
    is_told = bool(draft.present) or draft.trigger is not None or not verdict.untold
    yield line(MARKS["passed" if is_told else "not run"], _as_asked("configure", draft), hang=2)
    if verdict.otherwise:
        yield line(MARKS["failed"], f"{_reader(draft)} does not have it: {verdict.otherwise}", hang=2)
        if following:
            yield line("next: ", span(following, "command"), hang=6)
    elif verdict.untold:
        yield line(MARKS["not run"], f"{_reader(draft)} was not asked: {verdict.untold}", hang=2)
    else:
        yield line(MARKS["passed"], f"{_reader(draft)} reads it so", hang=2)
    yield from (note(text) for text in draft.notes)


def configure_command(draft: Draft, argv: Sequence[str]) -> Command:
    """The command that makes what ``argv``, a check, looked for; first what a default runtime needs to be one."""
    if draft.install and draft.expectation and draft.expectation.default:
        return draft.install
    words = ["configure" if word == "check" else word for word in without(argv, SHOWN_HOW, ())]
    return sudo_gpunode(*words)
