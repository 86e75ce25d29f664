"""Render a fleet: nodes by condition, and each cause with its nodes and the first step. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.cli.screen.text import BLANK, Line, Span, Style, cell_width, line, pad_right, span
from gpunode.cli.screen.words import join_names
from gpunode.command import gpunode
from gpunode.page.words import (
    CONDITIONS,
    DISRUPTIONS,
    collapse_ranges,
    condition_of,
    count,
    describe_outlier,
    group_digits,
    node_name,
)

if TYPE_CHECKING:
    from gpunode.page.words import Condition
    from gpunode.workflow.fleet import CauseTally, FleetRow, FleetSummary, OutlierGroup, SkippedNodes

_WIDEST = 48
_MARKS: Final[dict[Condition, tuple[str, Style]]] = {
    "healthy": ("✓", "good"),
    "broken": ("✗", "bad"),
    "at risk": ("!", "warn"),
    "undetermined": ("?", "warn"),
    "unread": ("!", "warn"),
}
_NAMES = 6
# Beyond so many of a kind, the page and --json have them.
_MOST = 12


def row_line(row: FleetRow, names: Sequence[str]) -> Line:
    """Return ``✗ node17.tar.gz  cause  title``."""
    width = min(max(map(cell_width, names)), _WIDEST)
    mark, style = _MARKS[condition_of(row)]
    name = span(pad_right(row.report, width))
    return line(span(f"{mark} ", style), name, "  ", *_row_summary(row, style), hang=width + 4)


def _row_summary(row: FleetRow, style: Style) -> tuple[str | Span, ...]:
    if row.error:
        return (span("not read: ", style), row.error)
    if row.cause:
        likely = "" if row.confidence == "certain" else " (likely)"
        more = f"; also {join_names(row.other_causes)}" if row.other_causes else ""
        more += f"; not explained by this, perhaps {join_names(row.unexplained)}" if row.unexplained else ""
        return (span(row.cause, style), span(f"  {row.title}{likely}{more}", "dim"))
    if row.unknown:
        return (row.unknown[0],)
    return ("no fault detected, but nothing shows that the driver works",) if row.status == "unknown" else ("healthy",)


def fleet_lines(seen: FleetSummary, *, verbose: bool = False) -> Iterator[Line]:
    """Yield the nodes by condition and cause, the most frequent first, with the first step for each."""
    how = Counter(map(condition_of, seen.rows))
    said = [f"{group_digits(how[one])} {one}" for one in CONDITIONS if how[one]]
    yield line(span(f"{count(len(seen.rows), 'node')}: ", "bold"), ", ".join(said))
    kinds = (
        *(_cause_lines(one) for one in seen.causes),
        *(_outlier_lines(one) for one in seen.differences),
        *(_skipped_lines("undetermined", one) for one in seen.unknown),
        *(_skipped_lines("unread", one) for one in seen.unreadable),
    )
    yield from _block_lines(kinds, verbose=verbose)
    if seen.drift or seen.not_compared:
        yield BLANK
        yield line(span("drifted from the recipe", "bold"))
        drift = [_counted_lines(each.reports, f"{each.drift.title}: {each.drift.reason}") for each in seen.drift]
        left = [_skipped_lines("not compared with the recipe", each) for each in seen.not_compared]
        yield from _block_lines((*drift, *left), verbose=verbose, blank=False)
    yield from _next_lines(seen)


_CountedLines = tuple[int, tuple[Line, ...]]


def _counted_lines(reports: Sequence[str], what: str, *more: str, style: Style = "bold") -> _CountedLines:
    where = join_names(tuple(collapse_ranges(map(node_name, reports))), _NAMES)
    head = line(span(what, style), "".join(f": {one}" for one in more), "  ", span(where, "dim"))
    return len(reports), (head,)


def _cause_lines(one: CauseTally) -> _CountedLines:
    number, lines = _counted_lines(one.reports, one.cause, one.title)
    what = span(one.command, "command") if one.command else span(one.advice)
    words = f" ({DISRUPTIONS[one.disruption]})" if one.disruption != "none" else ""
    return number, (*lines, line("next: ", what, span(words, "dim")))


def _outlier_lines(one: OutlierGroup) -> _CountedLines:
    more = f", and {count(one.other_differences, 'other difference')}" if one.other_differences else ""
    return _counted_lines(one.reports, "differs from its group", describe_outlier(one.difference) + more, style="warn")


def _skipped_lines(what: str, one: SkippedNodes) -> _CountedLines:
    return _counted_lines(one.reports, what, one.why or "nothing shows that the driver works", style="warn")


def _block_lines(kinds: Iterable[_CountedLines], *, verbose: bool, blank: bool = True) -> Iterator[Line]:
    found = list(kinds)
    digits = max((len(group_digits(number)) for number, _ in found), default=0)
    if found and blank:
        yield BLANK
    for number, (head, *rest) in found if verbose else found[:_MOST]:
        yield Line((Span(f"  {group_digits(number):>{digits}} × "), *head.spans), digits + 5)
        for one in rest:
            yield Line((Span(" " * (digits + 5)), *one.spans), digits + 11)
    if len(found) > _MOST and not verbose:
        yield line(f"  and {count(len(found) - _MOST, 'other')}; -v, --html and --json have all")


def _next_lines(seen: FleetSummary) -> Iterator[Line]:
    """Yield the next command: for a broken node."""
    if seen.causes:
        first = next(row for row in seen.rows if row.report in seen.causes[0].reports)
        yield BLANK
        yield line("next: ", span(str(gpunode("doctor", first.path)), "command"))
