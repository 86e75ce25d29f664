"""Cited lines in their context: what stands around them, what lies between, and the whole piece as far as it is short.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import kernel
from gpunode.facts.items import Item
from gpunode.redaction.secrets import text as redact

AROUND: Final = 3
_LONGEST_LINE: Final = 600
_LONGEST_READ: Final = 4 * _LONGEST_LINE
_WHOLE_LINES: Final = 400
_WHOLE_CHARACTERS: Final = 48_000


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


@dataclass(frozen=True, slots=True)
class Row:
    """A line of evidence.

    Attributes:
        number: counted from 1; None for what has no place in a text.
    """

    text: str
    number: int | None
    proves: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """Lines that are left out."""

    lines: int


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is shown of one piece of evidence.

    Attributes:
        said: lines cited that stand in no piece of evidence: what follows from facts, and that there is nothing.
        rows: the cited lines with their context.
        whole: the piece around its first proof; empty where ``rows`` has all of it.
        more: how many lines that prove something are left out.
    """

    source: str
    said: tuple[str, ...]
    rows: tuple[Row | Gap, ...]
    whole: tuple[Row | Gap, ...]
    lines: int
    more: int = 0


def excerpts(citations: Iterable[Citation], snapshot: Snapshot, detail: Detail = FULL) -> tuple[Excerpt, ...]:
    """The pieces that ``citations`` are from, each once, in the order in which they are cited."""
    grouped: dict[tuple[str, str], list[Citation]] = {}
    for citation in citations:
        grouped.setdefault((citation.key, citation.source), []).append(citation)
    pieces = {(item.key, item.written): item for item in reversed(snapshot.whole)}
    wrapped = snapshot.view(kernel.wrapped)

    def excerpt(source: str, cited: Sequence[Citation], item: Item | None) -> Excerpt:
        lengths = {c.number: wrapped[c.key, c.number].lines for c in cited if c.number and (c.key, c.number) in wrapped}
        return _excerpt(source, cited, item, lengths, detail)

    return tuple(excerpt(source, cited, pieces.get((key, source))) for (key, source), cited in grouped.items())


def _excerpt(
    source: str, cited: Sequence[Citation], item: Item | None, lengths: Mapping[int, int], detail: Detail
) -> Excerpt:
    lines = item.lines if item is not None else ()
    begins = sorted({c.number for c in cited if c.number and _stands_there(c, lines)})
    # A message that goes on over the next lines proves with all of them.
    proving = sorted({at for first in begins[: detail.proofs] for at in range(first, first + lengths.get(first, 1))})
    said = tuple(dict.fromkeys(cut(c.line) for c in cited if not _stands_there(c, lines)))
    rows = tuple(_around(lines, proving))
    is_part = detail.whole and any(isinstance(row, Gap) for row in rows)
    whole = tuple(_whole(lines, frozenset(proving))) if is_part else ()
    more = max(len(begins) - detail.proofs, 0) + max(len(said) - detail.proofs, 0)
    return Excerpt(source, said[: detail.proofs], rows, whole, len(lines), more)


def _stands_there(citation: Citation, lines: Sequence[str]) -> bool:
    number = citation.number or 0
    return 0 < number <= len(lines) and citation.line.strip() in lines[number - 1]


def _around(lines: Sequence[str], proving: Sequence[int]) -> Iterable[Row | Gap]:
    """The proving lines, each with its neighbours; a gap of one line is that line."""
    shown = sorted({near for at in proving for near in range(at - AROUND, at + AROUND + 1) if 0 < near <= len(lines)})
    before = 0
    for number in shown:
        yield from _between(lines, before, number)
        yield Row(cut(lines[number - 1]), number, number in proving)
        before = number
    if shown:
        yield from _between(lines, before, len(lines) + 1)


def _between(lines: Sequence[str], before: int, after: int) -> Iterable[Row | Gap]:
    missing = after - before - 1
    if missing == 1:
        yield Row(cut(lines[before]), before + 1)
    elif missing > 0:
        yield Gap(missing)


def _whole(lines: Sequence[str], proving: frozenset[int]) -> Iterable[Row | Gap]:
    """Around the first proving line as many lines as there is room for."""
    first = min(proving)
    start = max(0, min(first - _WHOLE_LINES // 2, len(lines) - _WHOLE_LINES))
    if start:
        yield Gap(start)
    room = _WHOLE_CHARACTERS
    for number, line in enumerate(lines[start : start + _WHOLE_LINES], start + 1):
        shown = cut(line)
        room -= len(shown)
        if room < 0:
            yield Gap(len(lines) - number + 1)
            return
        yield Row(shown, number, number in proving)
    if (rest := len(lines) - start - _WHOLE_LINES) > 0:
        yield Gap(rest)


@lru_cache(maxsize=8192)
def cut(line: str) -> str:
    """``line`` as far as a page shows one; also of the system's own tables, which a capture holds as they are."""
    line = redact(line[:_LONGEST_READ]) + line[_LONGEST_READ:]
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}… ({len(line) - _LONGEST_LINE} more)"
