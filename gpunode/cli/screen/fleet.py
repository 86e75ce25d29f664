"""A fleet as a person reads it: how many nodes are how, and each cause with its nodes and what to do. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.cli.screen.text import BLANK, Line, Span, Style, cells, line, padded, span
from gpunode.cli.screen.words import listed
from gpunode.command import gpunode
from gpunode.page.words import CONDITIONS, DISRUPTIONS, called, condition_of, count, grouped, odd_words, ranges

if TYPE_CHECKING:
    from gpunode.page.words import Condition
    from gpunode.workflow.fleet import Row
    from gpunode.workflow.picture import Left, OddOnes, Picture, Tally

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


def row_line(row: Row, names: Sequence[str]) -> Line:
    """``✗ node17.tar.gz  cause  title``."""
    width = min(max(map(cells, names)), _WIDEST)
    mark, style = _MARKS[condition_of(row)]
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


def fleet_lines(seen: Picture, *, verbose: bool = False) -> Iterator[Line]:
    """How many nodes are how, and why; the most frequent first, the first thing to do about it beneath."""
    how = Counter(map(condition_of, seen.rows))
    said = [f"{grouped(how[one])} {one}" for one in CONDITIONS if how[one]]
    yield line(span(f"{count(len(seen.rows), 'node')}: ", "bold"), ", ".join(said))
    kinds = (
        *(_cause(one) for one in seen.causes),
        *(_odd(one) for one in seen.odd),
        *(_left("undetermined", one) for one in seen.unknown),
        *(_left("unread", one) for one in seen.unread),
    )
    yield from _block(kinds, verbose=verbose)
    if seen.drift or seen.undrifted:
        yield BLANK
        yield line(span("not as the recipe has it", "bold"))
        drift = [_counted(each.reports, f"{each.drift.title}: {each.drift.reason}") for each in seen.drift]
        left = [_left("not compared with the recipe", each) for each in seen.undrifted]
        yield from _block((*drift, *left), verbose=verbose, blank=False)
    yield from _next(seen)


_Counted = tuple[int, tuple[Line, ...]]


def _counted(reports: Sequence[str], what: str, *more: str, style: Style = "bold") -> _Counted:
    where = listed(tuple(ranges(map(called, reports))), _NAMES)
    head = line(span(what, style), "".join(f": {one}" for one in more), "  ", span(where, "dim"))
    return len(reports), (head,)


def _cause(one: Tally) -> _Counted:
    number, lines = _counted(one.reports, one.cause, one.title)
    what = span(one.command, "command") if one.command else span(one.advice)
    words = f" ({DISRUPTIONS[one.disruption]})" if one.disruption != "none" else ""
    return number, (*lines, line("next: ", what, span(words, "dim")))


def _odd(one: OddOnes) -> _Counted:
    more = f", and {count(one.more, 'other difference')}" if one.more else ""
    return _counted(one.reports, "differs from its group", odd_words(one.odd) + more, style="warn")


def _left(what: str, one: Left) -> _Counted:
    return _counted(one.reports, what, one.why or "nothing shows that the driver works", style="warn")


def _block(kinds: Iterable[_Counted], *, verbose: bool, blank: bool = True) -> Iterator[Line]:
    found = list(kinds)
    digits = max((len(grouped(number)) for number, _ in found), default=0)
    if found and blank:
        yield BLANK
    for number, (head, *rest) in found if verbose else found[:_MOST]:
        yield Line((Span(f"  {grouped(number):>{digits}} × "), *head.spans), digits + 5)
        for one in rest:
            yield Line((Span(" " * (digits + 5)), *one.spans), digits + 11)
    if len(found) > _MOST and not verbose:
        yield line(f"  and {count(len(found) - _MOST, 'other')}; -v, --html and --json have all")


def _next(seen: Picture) -> Iterator[Line]:
    """The likeliest next look: at a broken node, else at what makes an odd one odd."""
    if seen.causes:
        first = next(row for row in seen.rows if row.report in seen.causes[0].reports)
        yield BLANK
        yield line("next: ", span(str(gpunode("doctor", first.path)), "command"))
