"""Evidence on the page: proving lines in their context, the whole piece folded, a list of all there was. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.facts.items import Item
from gpunode.page.excerpt import Detail, Excerpt, Gap, Row, excerpts
from gpunode.page.markup import Markup, element
from gpunode.page.words import count

_MOST_LISTED: Final = 300
_OUTCOMES: Final = {
    "absent": "not there",
    "denied": "not allowed",
    "failed": "failed",
    "timeout": "took too long",
}


def shown(citations: Sequence[Citation], snapshot: Snapshot, detail: Detail) -> Iterator[Markup]:
    """The pieces that ``citations`` are from."""
    found = excerpts(citations, snapshot, detail)
    for excerpt in found[: detail.pieces]:
        yield _figure(excerpt)
    if (more := len(found) - detail.pieces) > 0:
        yield element("p", f"and {count(more, 'piece')} of evidence more", class_="legend")


def _figure(excerpt: Excerpt) -> Markup:
    length = element("span", count(excerpt.lines, "line"), class_="length") if excerpt.lines else None
    return element(
        "figure",
        element("figcaption", element("code", excerpt.source), length),
        element("div", (_said(text) for text in excerpt.said), _lines(excerpt.rows), class_="lines"),
        element("p", f"{count(excerpt.more, 'line')} more of the same", class_="legend") if excerpt.more else None,
        _whole(excerpt),
    )


def _said(text: str) -> Markup:
    return _row("", text, proves=True)


def _whole(excerpt: Excerpt) -> Markup | None:
    if not excerpt.whole:
        return None
    is_part = any(isinstance(row, Gap) for row in excerpt.whole)
    title = "More of it" if is_part else "All of it"
    return element("details", element("summary", title), element("div", _lines(excerpt.whole), class_="lines"))


def _lines(rows: Iterable[Row | Gap]) -> Iterator[Markup]:
    for row in rows:
        if isinstance(row, Gap):
            yield element("div", f"⋯ {count(row.lines, 'line')}", class_="gap")
        else:
            yield _row(str(row.number or ""), row.text, proves=row.proves)


def _row(number: str, text: str, *, proves: bool) -> Markup:
    mark = "▸" if proves else ""
    told = element("mark", text) if proves else element("span", text)
    return element("div", element("span", f"{mark}{number}", class_="number"), told, class_="line")


def looked_at(items: Sequence[Item]) -> Markup | None:
    """Everything that the diagnosis was made of, by name."""
    if not items:
        return None
    rows = (
        element(
            "li",
            element("code", item.written[:200]),
            element("span", _OUTCOMES.get(item.outcome) or count(len(item.lines), "line"), class_="length"),
        )
        for item in items[:_MOST_LISTED]
    )
    more = len(items) - _MOST_LISTED
    return element(
        "details",
        element("summary", f"What was looked at ({len(items)})"),
        element("ul", rows, element("li", f"and {more} more") if more > 0 else None, class_="plain looked"),
        class_="card",
    )
