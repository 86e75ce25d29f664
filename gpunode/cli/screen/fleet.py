"""A fleet as a person reads it: a line for each report, and the causes counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpunode.cli.screen.text import BLANK, Line, Span, Style, cells, line, padded, span
from gpunode.cli.screen.words import count, listed
from gpunode.command import gpunode

if TYPE_CHECKING:
    from gpunode.workflow.fleet import Row, Status, Tally

_WIDEST = 48
_MARKS: dict[Status, tuple[str, Style]] = {
    "healthy": ("✓", "good"),
    "problem": ("✗", "bad"),
    "unknown": ("?", "warn"),
    "unreadable": ("!", "warn"),
}
_NAMES = 6


def row_line(row: Row, names: Sequence[str]) -> Line:
    """``✗ node17.tar.gz  cause  title``."""
    width = min(max(map(cells, names)), _WIDEST)
    mark, style = _MARKS[row.status]
    if row.status == "problem" and row.severity != "error":
        mark, style = "!", "warn"
    name = span(padded(row.report, width))
    return line(span(f"{mark} ", style), name, "  ", *_said(row, style), hang=width + 4)


def _said(row: Row, style: Style) -> tuple[str | Span, ...]:
    if row.error:
        return (span("not read: ", style), row.error)
    if row.cause:
        likely = "" if row.confidence == "certain" else " (likely)"
        more = f"; also {listed(row.others)}" if row.others else ""
        return (span(row.cause, style), span(f"  {row.title}{likely}{more}", "dim"))
    if row.unknown:
        return (row.unknown[0],)
    return ("no fault detected, but nothing shows that the driver works",) if row.status == "unknown" else ("healthy",)


def fleet_lines(rows: Sequence[Row], tallies: Sequence[Tally]) -> Iterator[Line]:
    """The causes, the most frequent first, and how many nodes are how."""
    if tallies:
        yield BLANK
        yield line(span("causes", "bold"))
        digits = len(str(len(tallies[0].reports)))
        for tally in tallies:
            where = listed(tally.reports, _NAMES)
            yield line(f"  {len(tally.reports):{digits}} × ", span(tally.cause, "bold"), f"  {tally.title}: ",
                       span(where, "dim"), hang=digits + 5)  # fmt: skip
    yield BLANK
    by_status = Counter(row.status for row in rows)
    words = {"problem": "with a problem", "unknown": "not told", "unreadable": "not read", "healthy": "healthy"}
    said = [f"{by_status[status]} {word}" for status, word in words.items() if by_status[status]]  # type: ignore[index]
    yield line(f"{count(len(rows), 'report')}: {listed(said)}")
    if tallies:
        first = next(row.path for row in rows if row.report in tallies[0].reports)
        yield line("next: ", span(str(gpunode("doctor", first)), "command"))
