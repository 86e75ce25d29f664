"""Render evidence: cited lines in context, the full text folded, and a list of all items. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import kernel
from gpunode.facts.items import EvidenceItem
from gpunode.fast_dataclass import dataclass
from gpunode.page.markup import Markup, tag
from gpunode.redaction.secrets import redact_text as redact
from gpunode.wording import count_noun

CONTEXT_LINE_COUNT: Final = 3
_LONGEST_LINE: Final = 600
_MAX_REDACTED_LENGTH: Final = 4 * _LONGEST_LINE
_MAX_FOLDED_LINES: Final = 400
_MAX_FOLDED_CHARACTERS: Final = 48_000
_MAX_LISTED_PIECES: Final = 300
_OUTCOME_TEXTS: Final = {"absent": "missing", "denied": "not allowed", "failed": "failed", "timeout": "took too long"}


@dataclass(frozen=True, slots=True)
class EvidenceDetail:
    """Limits on the evidence shown for one finding.

    Attributes:
        max_pieces: maximum number of pieces.
        max_proofs_per_piece: maximum number of cited lines in each piece.
        includes_whole_pieces: include the full text of each piece beside its excerpt.
    """

    max_pieces: int
    max_proofs_per_piece: int
    includes_whole_pieces: bool


FULL_DETAIL: Final = EvidenceDetail(24, 30, includes_whole_pieces=True)
BRIEF_DETAIL: Final = EvidenceDetail(4, 5, includes_whole_pieces=False)


def render_citations(
    citations: Iterable[Citation], snapshot: Snapshot, detail: EvidenceDetail = FULL_DETAIL
) -> Iterator[Markup]:
    """Yield the cited pieces of evidence, each once, in the order of their first citation."""
    grouped: dict[tuple[str, str], list[Citation]] = {}
    for citation in citations:
        grouped.setdefault((citation.key, citation.source), []).append(citation)
    pieces = {(item.key, item.written): item for item in reversed(snapshot.all_items)}
    wrapped = {place: message.lines for place, message in snapshot.view(kernel.wrapped_messages).items()}
    for place, cited in [*grouped.items()][: detail.max_pieces]:
        yield _render_cited_piece(cited, pieces.get(place), wrapped, detail)
    if (more := len(grouped) - detail.max_pieces) > 0:
        yield tag("p.legend", f"and {count_noun(more, 'piece')} of evidence more")


def _render_cited_piece(
    cited: Sequence[Citation], item: EvidenceItem | None, wrapped: Mapping[tuple[str, int], int], detail: EvidenceDetail
) -> Markup:
    lines = item.lines if item is not None else ()
    begins = sorted({c.line_number for c in cited if c.line_number and _is_in_source(c, lines)})
    # A message that continues on the following lines is proof as a whole.
    ends = ((first, first + wrapped.get((cited[0].key, first), 1)) for first in begins[: detail.max_proofs_per_piece])
    proving = {at for first, end in ends for at in range(first, end)}
    # Conclusions from facts, or from missing output, are not lines of any piece.
    conclusions = tuple(dict.fromkeys(redact_line(c.line) for c in cited if not _is_in_source(c, lines)))
    shown = _context_lines(proving, len(lines))
    more = max(len(begins) - detail.max_proofs_per_piece, 0) + max(len(conclusions) - detail.max_proofs_per_piece, 0)
    length = tag("span.length", count_noun(len(lines), "line")) if lines else None
    return tag(
        "figure",
        tag("figcaption", tag("code", cited[0].source), length),
        tag(
            "div.lines",
            (_render_line("", conclusion, proves=True) for conclusion in conclusions[: detail.max_proofs_per_piece]),
            _render_lines(lines, shown, proving),
        ),
        tag("p.legend", f"{count_noun(more, 'line')} more of the same") if more else None,
        _render_folded(lines, proving) if detail.includes_whole_pieces and 0 < len(shown) < len(lines) else None,
    )


def _is_in_source(citation: Citation, lines: Sequence[str]) -> bool:
    number = citation.line_number or 0
    return 0 < number <= len(lines) and citation.line.strip() in lines[number - 1]


def _context_lines(proving: Collection[int], last: int) -> set[int]:
    """Return the lines around the proving ones; a gap of a single line is filled."""
    shown = {0, last + 1} | {
        at for one in proving for at in range(one - CONTEXT_LINE_COUNT, one + CONTEXT_LINE_COUNT + 1) if 0 <= at <= last
    }
    shown |= {at + 1 for at in shown if at + 2 in shown}
    return shown - {0, last + 1} if proving else set()


def _render_lines(lines: Sequence[str], numbers: Collection[int], proving: Collection[int]) -> Iterator[Markup]:
    """Yield the wanted lines, and the number of lines in each gap."""
    before = 0
    for number in (*sorted(numbers), len(lines) + 1) if numbers else ():
        if missing := number - before - 1:
            yield tag("div.gap", f"⋯ {count_noun(missing, 'line')}")
        if number <= len(lines):
            yield _render_line(str(number), redact_line(lines[number - 1]), proves=number in proving)
        before = number


def _render_line(number: str, text: str, *, proves: bool = False) -> Markup:
    mark = "▸" if proves else ""
    return tag("div.line", tag("span.number", f"{mark}{number}"), tag("mark" if proves else "span", text))


def _render_folded(lines: Sequence[str], proving: Collection[int]) -> Markup:
    """Return a folded part around the first proving line, with as many lines as fit."""
    start = max(0, min(min(proving) - _MAX_FOLDED_LINES // 2, len(lines) - _MAX_FOLDED_LINES))
    wanted: list[int] = []
    room = _MAX_FOLDED_CHARACTERS
    for number in range(start + 1, min(start + _MAX_FOLDED_LINES, len(lines)) + 1):
        room -= len(redact_line(lines[number - 1]))
        if room < 0:
            break
        wanted.append(number)
    title = "All of it" if len(wanted) == len(lines) else "More of it"
    return tag("details", tag("summary", title), tag("div.lines", _render_lines(lines, wanted, proving)))


@lru_cache(maxsize=8192)
def redact_line(line: str) -> str:
    """Return ``line`` redacted and shortened; captures contain unredacted system tables."""
    line = redact(line[:_MAX_REDACTED_LENGTH]) + line[_MAX_REDACTED_LENGTH:]
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}… ({len(line) - _LONGEST_LINE} more)"


def render_evidence_list(items: Sequence[EvidenceItem]) -> Markup | None:
    """Return the list of all items that the diagnosis used."""
    if not items:
        return None
    lengths = (
        (one, _OUTCOME_TEXTS.get(one.outcome) or count_noun(len(one.lines), "line"))
        for one in items[:_MAX_LISTED_PIECES]
    )
    rows = (tag("li", tag("code", item.written[:200]), tag("span.length", length)) for item, length in lengths)
    more = len(items) - _MAX_LISTED_PIECES
    rest = tag("li", f"and {more} more") if more > 0 else None
    return tag("details.card", tag("summary", f"What was looked at ({len(items)})"), tag("ul.plain looked", rows, rest))
