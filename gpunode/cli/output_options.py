"""Options for the output of every command, and its screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.cli import CommandExit
from gpunode.cli.envelope import Envelope
from gpunode.cli.screen.printer import LiveLine, standard_output, write_answer
from gpunode.cli.screen.text import BLANK_LINE, Line, line
from gpunode.errors import GpunodeError, ProblemFound, Undetermined
from gpunode.fast_dataclass import dataclass

if TYPE_CHECKING:
    from types import TracebackType

    from gpunode.cli.node_screen import Screen
    from gpunode.workflow.doctor import Verdict


class ReportScreen:
    """The terminal; silent if it must not be written to."""

    def __init__(self, *, verbose: bool, silent: bool) -> None:
        self.verbose, self._silent = verbose, silent
        self._printer = standard_output()
        self._live = LiveLine(self._printer)
        self._has_output = False

    def __enter__(self) -> ReportScreen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, GpunodeError):
            self._end_progress_line()
            if self._has_output:
                self.put(BLANK_LINE)
        self._live.close()

    def print_raw(self, text: str) -> None:
        """Print ``text`` byte for byte."""
        if not self._silent:
            self._printer.print_raw(text)

    def put(self, *lines: Line) -> None:
        """Print ``lines``."""
        if not self._silent:
            self._has_output = True
            self._printer.put(lines)

    def print_after_progress(self, *lines: Line) -> None:
        """Print ``lines`` after ending the progress line."""
        self._end_progress_line()
        self.put(*lines)

    def _end_progress_line(self) -> None:
        self._live.end()

    def show_progress(self, title: str) -> None:
        """Show on a terminal that ``title`` is in progress."""
        if not self._silent and self._printer.is_terminal:
            self._live.begin(title)

    def print_result(self, *lines: Line) -> None:
        """Print ``lines`` in place of the progress line."""
        self._live.close()
        self.put(*lines)

    @property
    def width(self) -> int:
        """The column to wrap lines at; 0 for no wrapping."""
        return self._printer.width

    def show_bugs(self, tracebacks: Sequence[str]) -> str:
        """Show the paths of crashed rules' tracebacks, with --verbose the tracebacks; return the file's path."""
        from gpunode.host.bugs import save_rule_tracebacks

        place = save_rule_tracebacks(tracebacks)
        if tracebacks:
            advice = f"the traceback is in {place}; please report it with that file" if place else "please report it"
            self.put(line("bug:   ", f"a rule failed; {advice}", hang=7))
            if self.verbose or not place:
                self.put(*(line(f"  {row}") for text in tracebacks for row in text.splitlines()))
        return place


# The error class for each verdict of doctor; it defines the exit code.
_ERROR_CLASS_BY_VERDICT: Final[Mapping[Verdict, type[ProblemFound | Undetermined] | None]] = {
    "healthy": None,
    "problem": ProblemFound,
    "unknown": Undetermined,
}


def verdict_status(verdict: Verdict) -> tuple[str, int]:
    """Return the status and the exit code of a verdict."""
    kind = _ERROR_CLASS_BY_VERDICT[verdict]
    return (kind.status, kind.exit_code) if kind else ("ok", 0)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Options for printing the answer; ``quiet`` prints only errors."""

    json: bool = False
    verbose: bool = False
    quiet: bool = False

    def open_screen(self) -> Screen:
        """Return the screen for people; silent with --json and --quiet."""
        from gpunode.cli.node_screen import Screen

        return Screen(verbose=self.verbose, silent=self.json or self.quiet)

    def open_report_screen(self) -> ReportScreen:
        """Return the screen for reports, which loads no code for plans."""
        return ReportScreen(verbose=self.verbose, silent=self.json or self.quiet)

    def emit(self, envelope: Envelope, *, changed_nothing: bool = False) -> None:
        """Print the JSON answer if requested, and exit with its code unless that is 0.

        Args:
            envelope: the answer.
            changed_nothing: whether nothing was changed, so that a lost answer decides the exit code.
        """
        if self.json:
            lost = write_answer(envelope.as_json())
            if lost and (changed_nothing or not envelope.exit_code):
                raise CommandExit(lost)
        if envelope.exit_code:
            raise CommandExit(envelope.exit_code)
