"""Show diagnoses and comparisons on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpunode.cli.screen.live import LiveLine
from gpunode.cli.screen.printer import standard_output
from gpunode.cli.screen.text import BLANK, Line, line, span
from gpunode.errors import GpunodeError

if TYPE_CHECKING:
    from types import TracebackType

    from gpunode.catalog.xids import Xid
    from gpunode.diagnoses.cause_texts import CauseText
    from gpunode.diagnoses.model import Fix, Rule
    from gpunode.workflow.doctor import Examination
    from gpunode.workflow.fleet import FleetRow, FleetSummary


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
            self._mark_stopped()
            if self._has_output:
                self.put(BLANK)
        self._live.close()

    def raw(self, text: str) -> None:
        """Print ``text`` byte for byte."""
        if not self._silent:
            self._printer.raw(text)

    def put(self, *lines: Line) -> None:
        """Print ``lines``."""
        if not self._silent:
            self._has_output = True
            self._printer.put(lines)

    def put_after(self, *lines: Line) -> None:
        """Print ``lines`` after ending the progress line."""
        self._mark_stopped()
        self.put(*lines)

    def _mark_stopped(self) -> None:
        """End the progress line."""
        self._live.end()

    def show_progress(self) -> None:
        """Show on a terminal that the node is being examined."""
        if not self._silent and self._printer.is_terminal:
            self._live.begin("looking at this machine")

    def show_diagnosis(self, examined: Examination, *, page: str = "") -> None:
        """Show the diagnosis; ``page`` is the file that it was also written to."""
        from gpunode.cli.screen.doctor import diagnosis_lines

        self._live.close()
        if not self._silent:
            self.put(*diagnosis_lines(examined, verbose=self.verbose))
        if page:
            self.put(line("page:  ", span(page, "command"), hang=7))

    def show_bugs(self, tracebacks: Sequence[str]) -> str:
        """Show where tracebacks of crashed rules are kept, with --verbose the tracebacks; return the file."""
        from gpunode.host.bugs import save_rule_tracebacks

        place = save_rule_tracebacks(tracebacks)
        if tracebacks:
            said = f"the traceback is in {place}; please report it with that file" if place else "please report it"
            self.put(line("bug:   ", f"a rule failed; {said}", hang=7))
            if self.verbose or not place:
                self.put(*(line(f"  {row}") for text in tracebacks for row in text.splitlines()))
        return place

    def show_fleet_row(self, row: FleetRow, done: int, names: Sequence[str]) -> None:
        """Show one report of a fleet with --verbose, else the progress."""
        if self.verbose:
            from gpunode.cli.screen.fleet import row_line

            self.put(row_line(row, names))
        elif not self._silent and self._printer.is_terminal:
            self._live.begin(f"diagnosing: {done} of {len(names)} reports")

    def show_fleet(self, seen: FleetSummary, *, page: str = "") -> None:
        """Show the fleet; ``page`` is the file that it was also written to."""
        from gpunode.cli.screen.fleet import fleet_lines

        self._live.close()
        self.put(*([BLANK] if self.verbose else []), *fleet_lines(seen, verbose=self.verbose))
        if page:
            self.put(line("page: ", span(page, "command"), hang=6))

    def show_xid(self, xid: Xid, cause: str) -> None:
        """Show the meaning of an Xid and its cause."""
        from gpunode.cli.screen.doctor import xid_lines

        self.put(*xid_lines(xid, cause))

    def show_story(self, rule: Rule, text: CauseText, remedy: Sequence[Fix], explained_by: Sequence[str]) -> None:
        """Show the whole story of a cause."""
        from gpunode.cli.screen.doctor import story_lines

        self.put(*story_lines(rule, text, remedy, explained_by, verbose=self.verbose, width=self._printer.width))
