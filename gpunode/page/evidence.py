"""Evidence on the page: cited lines in their context, the whole piece folded, a list of all there was. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import kernel
from gpunode.facts.items import Item
from gpunode.page.markup import Markup, tag
from gpunode.page.words import count
from gpunode.redaction.secrets import text as redact

AROUND: Final = 3
_LONGEST_LINE: Final = 600
_LONGEST_READ: Final = 4 * _LONGEST_LINE
_WHOLE_LINES: Final = 400
_WHOLE_CHARACTERS: Final = 48_000
_MOST_LISTED: Final = 300
_OUTCOMES: Final = {
    "absent": "not there",
    "denied": "not allowed",
    "failed": "failed",
    "timeout": "took too long",
}


@dataclass(frozen=True, slots=True)
class Detail:
    """How much is shown of the evidence for one finding.

    Attributes:
        pieces: of evidence.
        proofs: lines that prove something, of each piece.
        whole: whether each piece is there beside its excerpt.
    """

    pieces: int
    proofs: int
    whole: bool


FULL: Final = Detail(24, 30, whole=True)
BRIEF: Final = Detail(4, 5, whole=False)


def shown(citations: Iterable[Citation], snapshot: Snapshot, detail: Detail = FULL) -> Iterator[Markup]:
    """The pieces that ``citations`` are from, each once, in the order in which they are cited."""
    grouped: dict[tuple[str, str], list[Citation]] = {}
    for citation in citations:
        grouped.setdefault((citation.key, citation.source), []).append(citation)
    pieces = {(item.key, item.written): item for item in reversed(snapshot.all_items)}
    wrapped = {place: message.lines for place, message in snapshot.view(kernel.wrapped_messages).items()}
    for place, cited in [*grouped.items()][: detail.pieces]:
        yield _figure(cited, pieces.get(place), wrapped, detail)
    if (more := len(grouped) - detail.pieces) > 0:
        yield tag("p.legend", f"and {count(more, 'piece')} of evidence more")


def _figure(
    cited: Sequence[Citation], item: Item | None, wrapped: Mapping[tuple[str, int], int], detail: Detail
) -> Markup:
    lines = item.lines if item is not None else ()
    begins = sorted({c.line_number for c in cited if c.line_number and _stands_there(c, lines)})
    # A message that goes on over the next lines proves with all of them.
    ends = ((first, first + wrapped.get((cited[0].key, first), 1)) for first in begins[: detail.proofs])
    proving = {at for first, end in ends for at in range(first, end)}
    # What follows from facts, and that there is nothing, stands in no piece of evidence.
    said = tuple(dict.fromkeys(cut(c.line) for c in cited if not _stands_there(c, lines)))
    near = _near(proving, len(lines))
    more = max(len(begins) - detail.proofs, 0) + max(len(said) - detail.proofs, 0)
    length = tag("span.length", count(len(lines), "line")) if lines else None
    return tag(
        "figure",
        tag("figcaption", tag("code", cited[0].source), length),
        tag("div.lines", (_row("", one, proves=True) for one in said[: detail.proofs]), _rows(lines, near, proving)),
        tag("p.legend", f"{count(more, 'line')} more of the same") if more else None,
        _folded(lines, proving) if detail.whole and 0 < len(near) < len(lines) else None,
    )


def _stands_there(citation: Citation, lines: Sequence[str]) -> bool:
    number = citation.line_number or 0
    return 0 < number <= len(lines) and citation.line.strip() in lines[number - 1]


def _near(proving: Collection[int], last: int) -> set[int]:
    """The lines around those that prove; a gap of one line is that line."""
    near = {0, last + 1} | {at for one in proving for at in range(one - AROUND, one + AROUND + 1) if 0 <= at <= last}
    near |= {at + 1 for at in near if at + 2 in near}
    return near - {0, last + 1} if proving else set()


def _rows(lines: Sequence[str], wanted: Collection[int], proving: Collection[int]) -> Iterator[Markup]:
    """The wanted lines, and how many lie between them."""
    before = 0
    for number in (*sorted(wanted), len(lines) + 1) if wanted else ():
        if missing := number - before - 1:
            yield tag("div.gap", f"⋯ {count(missing, 'line')}")
        if number <= len(lines):
            yield _row(str(number), cut(lines[number - 1]), proves=number in proving)
        before = number


def _row(number: str, text: str, *, proves: bool = False) -> Markup:
    mark = "▸" if proves else ""
    return tag("div.line", tag("span.number", f"{mark}{number}"), tag("mark" if proves else "span", text))


def _folded(lines: Sequence[str], proving: Collection[int]) -> Markup:
    """Around the first proving line as many lines as there is room for."""
    start = max(0, min(min(proving) - _WHOLE_LINES // 2, len(lines) - _WHOLE_LINES))
    wanted: list[int] = []
    room = _WHOLE_CHARACTERS
    for number in range(start + 1, min(start + _WHOLE_LINES, len(lines)) + 1):
        room -= len(cut(lines[number - 1]))
        if room < 0:
            break
        wanted.append(number)
    title = "All of it" if len(wanted) == len(lines) else "More of it"
    return tag("details", tag("summary", title), tag("div.lines", _rows(lines, wanted, proving)))


@lru_cache(maxsize=8192)
def cut(line: str) -> str:
    """``line`` as far as a page shows one; also of the system's own tables, which a capture holds as they are."""
    line = redact(line[:_LONGEST_READ]) + line[_LONGEST_READ:]
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}… ({len(line) - _LONGEST_LINE} more)"


def looked_at(items: Sequence[Item]) -> Markup | None:
    """Everything that the diagnosis was made of, by name."""
    if not items:
        return None
    lengths = ((one, _OUTCOMES.get(one.outcome) or count(len(one.lines), "line")) for one in items[:_MOST_LISTED])
    rows = (tag("li", tag("code", item.written[:200]), tag("span.length", length)) for item, length in lengths)
    more = len(items) - _MOST_LISTED
    rest = tag("li", f"and {more} more") if more > 0 else None
    return tag("details.card", tag("summary", f"What was looked at ({len(items)})"), tag("ul.plain looked", rows, rest))
