"""Lines of styled text: built from untrusted words, wrapped to a width, written in ASCII where need be. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from gpunode.redaction.secrets import redact_known_shapes

Style: TypeAlias = Literal["", "dim", "bold", "good", "change", "warn", "bad", "add", "remove", "hunk", "command"]

# What a terminal or a log without Unicode gets in place of each sign that gpunode itself writes.
_ASCII = str.maketrans(
    {
        "✓": "+", "●": "*", "○": "o", "✗": "x", "–": "-", "·": "|", "×": "x", "→": "->", "…": "...", "━": "=", "─": "-",
        "’": "'", "“": '"', "”": '"',
    }
)  # fmt: skip
# Printable to Python, and nothing on a screen: joiners, fillers and selectors of Unicode that no word here needs.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0") | {
    chr(code) for first, last in ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF)) for code in range(first, last + 1)
}
_COMMAND = re.compile(r"`[^`\n]+`")


@dataclass(frozen=True, slots=True)
class Span:
    """Words in one style."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it is meant; a narrow screen breaks it.

    Attributes:
        hang: the column at which its continuation begins.
        fold: whether it breaks anywhere, as a diff must, and not at blanks alone.
        solid: whether it never breaks: a command that is copied must not bring line ends along.
    """

    spans: tuple[Span, ...] = ()
    hang: int = 0
    fold: bool = False
    solid: bool = False

    @property
    def text(self) -> str:
        """Its words without their styles."""
        return "".join(span.text for span in self.spans)


BLANK = Line()


def clean(text: str) -> str:
    """``text`` on one line, and nothing left in it that a terminal would obey instead of show.

    Words from outside have lost their secrets where they came in; what is one wherever it stands, is taken out here.
    """
    text = redact_known_shapes(text)
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char == "\t":
        return "    "
    if "\udc80" <= char <= "\udcff":  # a byte that was not UTF-8, as Python carries it
        return f"\\x{ord(char) - 0xDC00:02x}"
    # Cf turns the direction of writing or hides; Cs is half a character.
    hidden = (not char.isprintable() and char != " ") or char in _INVISIBLE
    return char.encode("unicode_escape").decode() if hidden else char


def span(text: str, style: Style = "") -> Span:
    """``text``, cleaned, in ``style``."""
    return Span(clean(text), style)


def line(*parts: str | Span, hang: int = 0) -> Line:
    """A line of ``parts``; what is no span yet is cleaned."""
    return Line(tuple(part if isinstance(part, Span) else span(part) for part in parts if part != ""), hang)


def prose(text: str, style: Style = "") -> tuple[Span, ...]:
    """``text`` with the commands in it, which stand in backticks, set off.

    For gpunode's own advice alone. What quotes a file or a tool is a plain span: its backticks are no command of ours.
    """
    text = clean(text)
    found: list[Span] = []
    end = 0
    for match in _COMMAND.finditer(text):
        found += [Span(text[end : match.start()], style), Span(match[0], "command")]
        end = match.end()
    return tuple(one for one in (*found, Span(text[end:], style)) if one.text)


def indented(lines: Sequence[Line], by: int) -> tuple[Line, ...]:
    """``lines``, ``by`` columns to the right."""
    return tuple(
        replace(one, spans=(Span(" " * by), *one.spans), hang=one.hang + by) if one.spans else one for one in lines
    )


def cells(text: str) -> int:
    """How many columns ``text`` takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_cell, text))


def _cell(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def padded(text: str, width: int) -> str:
    """``text`` with blanks up to ``width`` columns."""
    return text + " " * max(0, width - cells(text))


def wrap(one: Line, width: int) -> Iterator[Line]:
    """``one`` in as many rows as ``width`` columns ask for; 0 leaves it whole."""
    if one.solid:
        yield one
        return
    marked = [(char, part.style) for part in one.spans for char in part.text]
    hang = min(one.hang, width // 2)
    first = True
    while marked:
        lead = 0 if first else hang
        cut = len(marked) if width <= 0 else _cut(marked, width - lead, one.hang if first else 0, fold=one.fold)
        row, marked = marked[:cut], marked[cut:]
        if not one.fold:
            row, marked = _stripped(row, marked)
        yield Line((*((Span(" " * lead),) if lead else ()), *_spans(row)))
        first = False
    if first:
        yield one


def _stripped(row: list[tuple[str, Style]], rest: list[tuple[str, Style]]) -> tuple[list[tuple[str, Style]], ...]:
    """Without the blanks at which the row was broken."""
    if rest:
        while row and row[-1][0] == " ":
            row = row[:-1]
        while rest and rest[0][0] == " ":
            rest = rest[1:]
    return row, rest


def _cut(marked: Sequence[tuple[str, Style]], room: int, start: int, *, fold: bool) -> int:
    """How many characters go on a row of ``room`` columns; a blank before column ``start`` is no place to break."""
    used = 0
    last_blank = 0
    for index, (char, _) in enumerate(marked):
        used += _cell(char)
        if char == " " and index >= start:
            last_blank = index
        if used > room:
            at_blank = last_blank if not fold else 0
            return at_blank or max(index, 1)
    return len(marked)


def _spans(marked: Sequence[tuple[str, Style]]) -> Iterator[Span]:
    begin = 0
    for index in range(1, len(marked) + 1):
        if index == len(marked) or marked[index][1] != marked[begin][1]:
            yield Span("".join(char for char, _ in marked[begin:index]), marked[begin][1])
            begin = index


def in_ascii(text: str) -> str:
    """``text`` where only ASCII can be shown: gpunode's own signs become plain ones, the rest is escaped."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()
