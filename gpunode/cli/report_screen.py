"""Where a person reads what is said of a node or of reports: what doctor and compare need, and no plan does."""

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
    from gpunode.diagnoses.model import Fix, Rule
    from gpunode.workflow.doctor import Examined
    from gpunode.workflow.fleet import Row
    from gpunode.workflow.picture import Picture


class ReportScreen:
    """Where a person reads; nothing is written when it is silent."""

    def __init__(self, *, verbose: bool, silent: bool) -> None:
        self.verbose, self._silent = verbose, silent
        self._printer = standard_output()
        self._live = LiveLine(self._printer)
        self._said = False

    def __enter__(self) -> ReportScreen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, GpunodeError):
            self._mark_stopped()
            if self._said:
                self.put(BLANK)
        self._live.close()

    def raw(self, text: str) -> None:
        """Prints ``text`` byte for byte."""
        if not self._silent:
            self._printer.raw(text)

    def put(self, *lines: Line) -> None:
        """Prints ``lines``."""
        if not self._silent:
            self._said = True
            self._printer.put(lines)

    def put_after(self, *lines: Line) -> None:
        """As ``put``; whatever went on until now goes on no more."""
        self._mark_stopped()
        self.put(*lines)

    def _mark_stopped(self) -> None:
        """What was going on has failed, if anything was: what is told now is no part of it."""
        self._live.end()

    def looking(self) -> None:
        """Says on a terminal that the node is being looked at, until there is something to read."""
        if not self._silent and self._printer.is_terminal:
            self._live.begin("looking at this machine")

    def diagnosis(self, examined: Examined, *, page: str = "") -> None:
        """What is wrong with the node, and how it is put right; ``page`` is the file in which it stands, too."""
        from gpunode.cli.screen.doctor import diagnosis_lines

        self._live.close()
        if not self._silent:
            self.put(*diagnosis_lines(examined, verbose=self.verbose))
        if page:
            self.put(line("page:  ", span(page, "command"), hang=7))

    def bugs(self, tracebacks: Sequence[str]) -> str:
        """Says where the tracebacks of rules that failed are kept, and with --verbose what they are; returns where."""
        from gpunode.host.bugs import keep_those_of_rules

        place = keep_those_of_rules(tracebacks)
        if tracebacks:
            said = f"the traceback is in {place}; please report it with that file" if place else "please report it"
            self.put(line("bug:   ", f"a rule failed; {said}", hang=7))
            if self.verbose or not place:
                self.put(*(line(f"  {row}") for text in tracebacks for row in text.splitlines()))
        return place

    def fleet_row(self, row: Row, done: int, names: Sequence[str]) -> None:
        """One report of a fleet, with --verbose; else how many of ``names`` are done, on a terminal."""
        if self.verbose:
            from gpunode.cli.screen.fleet import row_line

            self.put(row_line(row, names))
        elif not self._silent and self._printer.is_terminal:
            self._live.begin(f"diagnosing: {done} of {len(names)} reports")

    def fleet(self, seen: Picture, *, page: str = "") -> None:
        """A fleet as a whole; ``page`` is the file in which it stands, too."""
        from gpunode.cli.screen.fleet import fleet_lines

        self._live.close()
        self.put(*([BLANK] if self.verbose else []), *fleet_lines(seen, verbose=self.verbose))
        if page:
            self.put(line("page: ", span(page, "command"), hang=6))

    def xid(self, xid: Xid, cause: str) -> None:
        """What an Xid is by its number, and as which cause it is known."""
        from gpunode.cli.screen.doctor import xid_lines

        self.put(*xid_lines(xid, cause))

    def story(self, rule: Rule, remedy: Sequence[Fix], explained_by: Sequence[str]) -> None:
        """The whole story of a cause."""
        from gpunode.cli.screen.doctor import story_lines

        self.put(*story_lines(rule, remedy, explained_by, verbose=self.verbose, width=self._printer.width))
