"""The screen of node commands: prints plans, progress and results, and asks for consent."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from gpunode.cli.output_options import ReportScreen
from gpunode.cli.screen.commands import repeat_command
from gpunode.cli.screen.events import applied_lines, change_title, trigger_line, trigger_title
from gpunode.cli.screen.failures import error_lines
from gpunode.cli.screen.node import node_line
from gpunode.cli.screen.plans import setup_summary_lines, stage_lines
from gpunode.cli.screen.printer import standard_error
from gpunode.cli.screen.text import BLANK_LINE, STATE_MARK, Line, Span, escape_controls, line, span, warning_line
from gpunode.command import gpunode_command
from gpunode.errors import GpunodeError, RebootRequired, UsageError
from gpunode.wording import format_seconds
from gpunode.workflow.events import Applied, Applying, Event, Notice, PlanCompleted, Surveyed, Triggered, Triggering

if TYPE_CHECKING:
    from gpunode.facts.model import Facts
    from gpunode.host.port import Progress
    from gpunode.recipe import Recipe
    from gpunode.workflow.converge import StagePlan


class Screen(ReportScreen):
    """The screen of a node command; prints nothing if silent.

    Args:
        argv: the words after ``gpunode``, for suggested commands.

    Attributes:
        place: what is changed: this machine, or the root folder of an image.
        image: the root folder whose programs a yes lets run as root; empty for none.
    """

    def __init__(self, *, verbose: bool, silent: bool, argv: Sequence[str] | None = None) -> None:
        super().__init__(verbose=verbose, silent=silent)
        self.argv = tuple(sys.argv[1:] if argv is None else argv)
        self.place = "this machine"
        self.image = ""
        self._node: tuple[Facts, Recipe] | None = None
        self._is_rehearsal = False

    def __enter__(self) -> Screen:
        return self

    def update_progress(self, progress: Progress) -> None:
        """Show the progress of the running command."""
        if not self._silent:
            self._live.update(progress)

    def end_wait(self) -> None:
        """End a completed wait, so that later output does not report it as stopped."""
        self._live.end()

    def show_event(self, event: Event) -> None:
        """Show an event of the workflow."""
        if self._silent:
            return
        match event:
            case Surveyed(recipe=recipe, facts=facts):
                self._node = (facts, recipe)
            case PlanCompleted(stages=stages) if self._is_rehearsal and any(stage.ordered_changes for stage in stages):
                self._show_preview(stages)
                self.put(BLANK_LINE, line(span("setup", "bold"), span("  what would be done", "dim")))
            case Applying(step=step, changes=changes):
                if step == "put-back":
                    self._end_progress_line()
                self._show_running(change_title(step, changes), announce=len(changes) > 1)
            case Triggering(triggers=triggers):
                self._show_running(trigger_title(triggers))
            case _:
                self._show_finished_event(event)

    def _show_finished_event(self, event: Event) -> None:
        match event:
            case Applied():
                self._live.end()
                self.put(*applied_lines(event, rehearsed=self._is_rehearsal))
            case Triggered(result=result):
                self._live.end()
                self.put(trigger_line(result, rehearsed=self._is_rehearsal))
            case Notice(text=text):
                self._end_progress_line()
                self.put(line(Span("  ! ", "warn"), text, hang=4))
            case _:
                pass

    def announce_stopping(self) -> None:
        """Show that the run stops after the change in progress."""
        self.put(warning_line("stopping after the change in progress"))

    def _end_progress_line(self) -> None:
        if stopped := self._live.end():
            title, elapsed = stopped
            took = span(f"  after {format_seconds(elapsed)}", "dim")
            self.put(line(Span("  "), STATE_MARK["failed"], span(title, "bad"), took, hang=4))

    def _show_running(self, title: str, *, announce: bool = False) -> None:
        """Show ``title`` as running; without a terminal only if ``announce``."""
        if self._is_rehearsal:
            return
        self._printer.keep_going = True
        if announce and not self._printer.is_terminal:
            self.put(line(f"  {title} ..."))
        self._live.begin(title)

    def _show_preview(self, plans: Sequence[StagePlan]) -> None:
        if self._node:
            self.put(node_line(*self._node))
        self.put(*stage_lines(plans, verbose=self.verbose), BLANK_LINE)
        is_image = self._node is not None and self._node[0].is_image
        self.put(*setup_summary_lines(plans, image=is_image, verbose=self.verbose))

    def confirm(self, plans: Sequence[StagePlan], *, yes: bool) -> None:
        """Show the plan and ask for consent.

        Raises:
            UsageError: if nobody can answer, or the answer is no; nothing was changed.
            Interrupted: on a signal instead of an answer.
        """
        self._show_preview(plans)
        self._require_consent("setup", yes=yes)
        self.put(BLANK_LINE, line(span("setup", "bold")))

    def ask_for_consent(self, verb: str, *, yes: bool, does: str = "") -> None:
        """Ask for consent to changes that were already shown; see ``confirm``."""
        self._require_consent(verb, yes=yes, does=does)
        self.put(BLANK_LINE)

    def _why_nobody_answers(self) -> str:
        """Return why nobody can answer questions; empty if somebody can."""
        if self._silent:
            return "--json and --quiet never ask"
        if not sys.stdin.isatty():
            return "standard input is not a terminal, so nobody can answer"
        return "" if _may_reach_person(sys.stdout) else "standard output is a file, so nobody would see the question"

    def image_consent(self, verb: str, root: str, *, yes: bool) -> Callable[[], None]:
        """Return a function that asks whether the image's programs may run; raises like ``confirm``.

        It asks nothing once the user has said yes to anything: each question names the programs. In the middle of a run
        a question would come too late to change nothing.
        """
        self.image = "" if yes or root == "/" else root

        def ask() -> None:
            if self.image:  # no answer to a plan yet
                self._require_consent(verb, yes=False, does=f"runs programs of {root}")

        return ask

    def _require_consent(self, verb: str, *, yes: bool, does: str = "") -> None:
        if yes:
            return
        hint = str(repeat_command((*self.argv, "--yes")))
        if why := self._why_nobody_answers():
            does = does or f"changes {self.place}"
            raise UsageError(f"{verb} asks before it {does}", why=f"{why}; nothing was changed", hint=hint)
        self.put(BLANK_LINE)
        if self.image:
            what = (
                f"{verb} runs programs of {self.image} as root, in namespaces: its package manager, packages' scripts"
            )
            self.put(warning_line(what, "warn"), BLANK_LINE)
        answer = self._ask_person("Continue? [y/N] ")
        if answer.lower() not in {"y", "yes"}:
            raise UsageError("nothing was changed", why=f"the answer was {answer or 'no'}, not yes", hint=hint)
        self.image = ""

    def show_result(self, lines: Iterable[Line], failure: GpunodeError | None = None) -> None:
        """Print the result; a needed reboot is part of it, any other failure is an error."""
        self.print_result(*lines)
        if failure and not self._silent and not isinstance(failure, RebootRequired):
            standard_error().put(error_lines(failure))

    def begin_rehearsal(self, header: Iterable[Line]) -> None:
        """Print ``header``, and from now on show what a rehearsal would do instead of what is done."""
        self._is_rehearsal = True
        self.put(*header)

    def confirm_overwrite(self, file: str) -> None:
        """Ask whether ``file`` may be overwritten.

        Raises:
            UsageError: if nobody can answer, or the answer is no.
        """
        hint = f"name another file, or overwrite this one:\n{gpunode_command('capture', '--force', file)}"
        if why := self._why_nobody_answers():
            raise UsageError(f"{file} exists", why=f"{why}; nothing was written", hint=hint)
        if self._ask_person(f"{escape_controls(file)} exists. Overwrite it? [y/N] ").lower() not in {"y", "yes"}:
            raise UsageError("nothing was written", why=f"{file} exists, and the answer was not yes", hint=hint)

    def _ask_person(self, question: str) -> str:
        self._live.close()  # each redraw of the progress line would erase the question and what is typed
        if not _print_on_keyboard_terminal(self._printer.encode_text(question)):
            self._printer.print_raw(question)  # input() would write it to standard error, which may be a file
        from gpunode.cli.signals import interruptible_wait  # a plan asks nothing

        with interruptible_wait():
            try:
                return input().strip()
            except EOFError:
                return ""


def _may_reach_person(stream: TextIO) -> bool:
    """Return whether a person may see ``stream``: it is a terminal, or a pipe to a program such as tee."""
    try:
        kind = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return True  # not a file of the operating system
    return stream.isatty() or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)


def _print_on_keyboard_terminal(question: str) -> bool:
    """Print ``question`` where it is answered if standard output is a pipe; return whether that was done.

    A program such as grep would hold back the unfinished line, and gpunode would seem to hang.
    """
    try:
        if sys.stdout.isatty():
            return False
        terminal = os.open(os.ttyname(sys.stdin.fileno()), os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False  # standard input is not a terminal of the operating system
    with os.fdopen(terminal, "w", encoding="utf-8") as stream:
        stream.write(question)
    return True
