"""Where a person reads: the lines of ``cli.screen`` printed at the moment at which they are known."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpunode.cli.report_screen import ReportScreen
from gpunode.cli.screen import results
from gpunode.cli.screen.checks import report_lines
from gpunode.cli.screen.commands import again_command
from gpunode.cli.screen.events import applied_lines, applying, settled_line, triggering
from gpunode.cli.screen.failures import error_lines
from gpunode.cli.screen.node import node_line, status_lines
from gpunode.cli.screen.plans import outlook, plan_lines, stage_lines
from gpunode.cli.screen.printer import standard_error
from gpunode.cli.screen.text import BLANK, Span, clean, line, span
from gpunode.command import gpunode
from gpunode.errors import GpunodeError, Interrupted, RebootRequired, Terminated, UsageError
from gpunode.redaction.secrets import text as redact
from gpunode.workflow.events import (
    Applied,
    Applying,
    Event,
    Previewed,
    Surveyed,
    Told,
    Triggered,
    Triggering,
)

if TYPE_CHECKING:
    from types import FrameType

    from gpunode.facts.evidence import Holds
    from gpunode.facts.model import Facts
    from gpunode.host.port import Progress
    from gpunode.journal.chronicle import Chronicle
    from gpunode.journal.history import RunSummary
    from gpunode.lockfile import Moved
    from gpunode.recipe import Recipe, VersionLock
    from gpunode.workflow.converge import StagePlan
    from gpunode.workflow.ctk import CtkVerb, Done, Verdict
    from gpunode.workflow.edits import CtkPlan
    from gpunode.workflow.recovery import Backlog
    from gpunode.workflow.rehearse import Rehearsal
    from gpunode.workflow.rollback import RollbackResult
    from gpunode.workflow.setup import SetupResult
    from gpunode.workflow.standing import Undone
    from gpunode.workflow.status import Status
    from gpunode.workflow.undo import Undoing
    from gpunode.workflow.verify import Report


class Screen(ReportScreen):
    """Where a person reads, of every command; nothing is written when it is silent.

    Args:
        argv: the words after ``gpunode``, for the commands that are proposed.
    """

    def __init__(self, *, verbose: bool, silent: bool, argv: Sequence[str] | None = None) -> None:
        super().__init__(verbose=verbose, silent=silent)
        self._argv = tuple(sys.argv[1:] if argv is None else argv)
        self._node: tuple[Facts, Recipe] | None = None
        self._rehearsed = ""

    def __enter__(self) -> Screen:
        return self

    def progress(self, progress: Progress) -> None:
        """How far the running command is."""
        if not self._silent:
            self._live.progress(progress)

    def tell(self, event: Event) -> None:
        """What happens, as it happens."""
        if self._silent:
            return
        match event:
            case Surveyed(recipe=recipe, facts=facts):
                self._node = (facts, recipe)
            case Previewed(stages=stages) if self._rehearsed and any(stage.changes for stage in stages):
                self._preview(stages)
                self._put(BLANK, line(span("setup", "bold"), span("  what would be done", "dim")))
            case Applying(step=step, changes=changes):
                if step == "put-back":
                    self._mark_stopped()
                self._begin(applying(step, changes), announce=len(changes) > 1)
            case Triggering(triggers=triggers):
                self._begin(triggering(triggers))
            case _:
                self._done(event)

    def _done(self, event: Event) -> None:
        rehearsed = bool(self._rehearsed)
        match event:
            case Applied():
                self._live.end()
                self._put(*applied_lines(event, rehearsed=rehearsed))
            case Triggered(settled=settled):
                self._live.end()
                self._put(settled_line(settled, rehearsed=rehearsed))
            case Told(text=text):
                self._mark_stopped()
                self._put(line(Span("  ! ", "warn"), text, hang=4))
            case _:
                pass

    def stopping(self) -> None:
        """The answer to a signal: what goes on is brought to its next safe end first."""
        self._put(line(Span("! ", "warn"), "stopping after the change in progress", hang=2))

    def _mark_stopped(self) -> None:
        if going_on := self._live.end():
            self._put(results.stopped_line(*going_on))

    def _begin(self, title: str, *, announce: bool = False) -> None:
        """``title`` goes on; where no line moves, only what takes minutes is announced."""
        if self._rehearsed:
            return
        self._printer.keep_going = True
        if announce and not self._printer.is_terminal:
            self._put(line(f"  {title} ..."))
        self._live.begin(title)

    def _preview(self, plans: Sequence[StagePlan]) -> None:
        if self._node:
            self._put(node_line(*self._node))
        self._put(*stage_lines(plans, verbose=self._verbose), BLANK)
        is_image = self._node is not None and self._node[0].is_image
        self._put(*outlook(plans, image=is_image, verbose=self._verbose))

    def confirm(self, plans: Sequence[StagePlan], *, yes: bool) -> None:
        """The plan has been seen and agreed to.

        Raises:
            UsageError: nobody can be asked, or the answer is no; nothing was changed.
            Interrupted: a signal came instead of an answer.
        """
        self._preview(plans)
        self._ask("setup", yes=yes)
        self._put(BLANK, line(span("setup", "bold")))

    def confirm_shown(self, verb: str, *, yes: bool, does: str = "changes this machine") -> None:
        """As ``confirm``, for a verb whose changes have been shown."""
        self._ask(verb, yes=yes, does=does)
        self._put(BLANK)

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there who can answer."""
        return not self._silent and sys.stdin.isatty()

    def consent(self, verb: str, root: str, *, yes: bool) -> Callable[[], None]:
        """What asks once whether programs of the image at ``root`` may run; see ``confirm`` for what it raises."""
        agreed = yes

        def ask() -> None:
            nonlocal agreed
            if not agreed:
                what = f"{verb} runs programs of {root} as root, in namespaces: its package manager, packages' scripts"
                self._put(BLANK, line(span("! ", "warn"), span(what, "warn"), hang=2))
                self._ask(verb, yes=False, does=f"runs programs of {root}")
                agreed = True

        return ask

    def _ask(self, verb: str, *, yes: bool, does: str = "changes this machine") -> None:
        if yes:
            return
        if not self.can_ask:
            why = "--json never asks" if self._silent else "standard input is not a terminal, so nobody can answer"
            raise UsageError(
                f"{verb} {does} and asks first",
                why=f"{why}; nothing was changed",
                hint=str(again_command(self._argv)),
            )
        with answers_to_signals():
            self._put(BLANK)
            try:
                answer = input("Go on? [y/N] ")
            except EOFError:
                answer = ""
        if answer.strip().lower() not in {"y", "yes"}:
            raise UsageError(
                "nothing was changed",
                why=f"the answer was {answer.strip() or 'no'}, not yes",
                hint=str(again_command(self._argv)),
            )

    def plan(self, recipe: Recipe, facts: Facts, plans: Sequence[StagePlan], left: Backlog) -> None:
        """What setup would do, and why."""
        self._put(*plan_lines(recipe, facts, plans, left, self._argv, verbose=self._verbose))

    def locked(self, lock: VersionLock, changed: Sequence[Moved], *, renewed: bool) -> None:
        """Which versions the lock file now holds."""
        from gpunode.cli.screen.locks import lock_lines

        self._put(*lock_lines(lock, changed, self._argv, renewed=renewed))

    def downloaded(self, packages: Sequence[str]) -> None:
        """How many packages are downloaded now."""
        self._live.close()
        self._put(*results.downloaded_lines(packages))

    def setup(
        self, recipe: Recipe, done: SetupResult, report: Report, failure: GpunodeError | None, *, log: str
    ) -> None:
        """How setup ended."""
        self._live.close()
        self._put(*results.setup_lines(recipe, done, report, failure, log, self._argv))
        if failure and not self._silent and not isinstance(failure, RebootRequired):
            standard_error().put(error_lines(failure))

    def report(self, recipe: Recipe, report: Report) -> None:
        """What verify found."""
        self._put(*report_lines(recipe, report))

    def rehearsal_begins(self, recipe: Recipe, node: str) -> None:
        """Says that what follows is a rehearsal."""
        self._rehearsed = node
        self._put(*results.rehearsal_head(recipe, node))

    def rehearsal(self, recipe: Recipe, done: Rehearsal) -> None:
        """How the rehearsal ended."""
        if not done.setup.changed:
            self._put(*stage_lines(done.setup.preview, verbose=self._verbose), BLANK)
            self._put(line(span(f"nothing to do: this node matches recipe {recipe.name}")))
        self._put(*results.rehearsal_lines(done, self._rehearsed, self._argv))

    def status(self, facts: Facts, found: Status) -> None:
        """The node in one screen."""
        self._put(*status_lines(facts, found))

    def runs(self, found: Sequence[RunSummary], prospects: Mapping[str, str], folder: str, file: str) -> None:
        """The recorded runs, of ``file`` alone where it is given, and whether each can be undone now."""
        self._put(*results.runs_lines(found, prospects, folder, file))

    def log(self, found: Sequence[Chronicle], logins: Mapping[int, str], *, whole: bool) -> None:
        """The recorded runs as a table, or one of them whole."""
        from gpunode.cli.screen.log import run_lines, table_lines

        self._put(*(run_lines(found[0], logins) if whole else table_lines(found)))

    def undoing(self, back: Undoing) -> None:
        """What a rollback or a removal will do."""
        self._put(*results.undoing_lines(back, verbose=self._verbose))

    def undone(self, found: Undone) -> None:
        """Of the run that would be undone nothing stands."""
        self._put(*results.undone_lines(found))

    def rollback(self, done: RollbackResult, failure: GpunodeError | None) -> None:
        """What a rollback or a removal did."""
        self._live.close()
        self._put(*results.rollback_lines(done, failure, self._argv))
        if failure and not self._silent and not isinstance(failure, RebootRequired):
            standard_error().put(error_lines(failure))

    def ctk_plan(self, verb: CtkVerb, plan: CtkPlan) -> None:
        """What is to be written into a runtime's files."""
        from gpunode.cli.screen.edits import plan_lines

        self._put(*plan_lines(verb, plan, verbose=self._verbose))

    def ctk_done(
        self, verb: CtkVerb, plan: CtkPlan, done: Done, following: str, failure: GpunodeError | None = None
    ) -> None:
        """That it was, and the command that follows, if one does; ``failure``: why the daemon has not read it."""
        from gpunode.cli.screen.edits import done_lines

        self._live.close()
        unread = failure is not None
        self._put(*done_lines(verb, plan, done, self._argv, "" if unread else following, is_unread=unread))
        if failure and not self._silent:
            standard_error().put(error_lines(failure))

    def verdict(self, plan: CtkPlan, verdict: Verdict, following: str) -> None:
        """Whether a runtime is as asked, and the command that has its daemon read the files, if one does."""
        from gpunode.cli.screen.edits import verdict_lines

        self._put(*verdict_lines(plan, verdict, self._argv, following, verbose=self._verbose))

    def forgetting(self, run: RunSummary) -> None:
        """What stops being undoable."""
        self._put(*results.forgetting_lines(run))

    def forgotten(self, run: RunSummary, objects: int, freed: int) -> None:
        """The run can no longer be undone."""
        self._put(*results.forgotten_lines(run, objects, freed))

    def leftovers(self, path: str, found: Sequence[str]) -> None:
        """What others left beside a file."""
        self._put(*results.leftover_lines(path, found))

    def confirm_overwrite(self, file: str) -> None:
        """The file that is there may go.

        Raises:
            UsageError: nobody can be asked, or the answer is no.
        """
        hint = f"name another file, or overwrite this one:\n{gpunode('capture', '--force', file)}"
        if self._silent or not sys.stdin.isatty():
            raise UsageError(f"{file} exists", why="nothing was written", hint=hint)
        with answers_to_signals():
            try:
                answer = input(f"{clean(file)} exists. Overwrite it? [y/N] ")
            except EOFError:
                answer = ""
        if answer.strip().lower() not in {"y", "yes"}:
            raise UsageError("nothing was written", why=f"{file} exists, and the answer was not yes", hint=hint)

    def capture_holds(self, file: str, contents: Mapping[Holds, tuple[int, int]], *, anonymized: bool) -> None:
        """What will be in the capture, before it is written."""
        self._put(*results.capture_lines(file, contents, anonymized=anonymized))

    def captured(self, file: str, count: int, size: int, missing: Mapping[str, str]) -> None:
        """Where the capture is, and what it lacks."""
        self._put(*results.captured_lines(file, count, size, missing))

    def recipes(self, found: Mapping[str, str]) -> None:
        """The shipped recipes."""
        self._put(*results.recipes_lines(found))

    def recipe(self, name: str, text: str, whole: str) -> None:
        """A recipe's text, secrets redacted, and beneath it what it amounts to with all that it extends."""
        if self._silent:
            return
        self._printer.raw(redact(text if text.endswith("\n") else f"{text}\n"))
        title = f"# {name} with everything that it extends and all defaults:"
        self._put(BLANK, line(span(title, "dim")))
        self._printer.raw(redact(whole))

    def recipe_is_good(self, file: str, found: Recipe) -> None:
        """The recipe can be understood."""
        self._put(line(Span("✓ ", "good"), f"{file}: recipe {found.name} is valid", hang=2))
        self._put(line("next: ", span(str(gpunode("plan", file)), "command")))

    def from_node(self, text: str, output: str) -> None:
        """The recipe itself, or where it now is."""
        if self._silent:
            return
        if not output:
            self._printer.raw(text)
            return
        self._put(line(Span("✓ ", "good"), f"{output} written: the recipe of this node as it is now", hang=2))
        self._put(line("next: ", span(str(gpunode("plan", output)), "command")))


@contextmanager
def answers_to_signals() -> Iterator[None]:
    """While a question or gpunode itself waits nothing is being written, so a signal ends the command at once."""

    def stop(number: int, _: FrameType | None) -> None:
        kind = Interrupted if number == signal.SIGINT else Terminated
        raise kind("stopped before anything was changed", why="a signal came", hint="run the command again")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    former = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
