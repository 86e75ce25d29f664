"""Lines of styled text: untrusted text escaped, wrapped to a width, in ASCII if needed. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.redaction.secrets import redact_known_shapes

Style: TypeAlias = Literal["", "dim", "bold", "good", "change", "warn", "bad", "add", "remove", "hunk", "command"]

# ASCII replacements for the symbols that gpunode writes.
_ASCII_REPLACEMENTS = str.maketrans(
    {
        "✓": "+", "●": "*", "○": "o", "✗": "x", "–": "-", "·": "|", "×": "x", "→": "->", "…": "...", "━": "=", "─": "-",
        "↳": ">", "’": "'", "“": '"', "”": '"',
    }
)  # fmt: skip
# Printable according to Python, but invisible: joiners, fillers and selectors.
_INVISIBLE_CHARACTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0") | {
    chr(code) for first, last in ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF)) for code in range(first, last + 1)
}
_BACKTICKED_COMMAND = Pattern(r"`[^`\n]+`")


@dataclass(frozen=True, slots=True)
class Span:
    """Text in one style."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A logical line; a narrow screen wraps it, but never inside a command, so that a copied one has no line end.

    Attributes:
        hang: indentation of the continuation.
        breaks_anywhere: whether it may break anywhere, as in a diff, instead of only at blanks.
    """

    spans: tuple[Span, ...] = ()
    hang: int = 0
    breaks_anywhere: bool = False

    @property
    def text(self) -> str:
        """The text without styles."""
        return "".join(span.text for span in self.spans)


BLANK_LINE = Line()
DOT = Span(" · ", "dim")
STATE_MARK: dict[str, Span] = {
    "nothing": Span("✓ ", "good"),
    "done": Span("✓ ", "good"),
    "change": Span("● ", "change"),
    "waits": Span("! ", "warn"),
    "refused": Span("✗ ", "bad"),
    "failed": Span("✗ ", "bad"),
    "passed": Span("✓ ", "good"),
    "skipped": Span("– ", "dim"),
}


def escape_controls(text: str) -> str:
    """Escape line ends and control characters that a terminal would execute.

    Secrets were redacted when the text was read; those with a known shape are redacted here again.
    """
    text = redact_known_shapes(text)
    return text if text.isascii() and text.isprintable() else "".join(map(_escape_char, text))


def _escape_char(char: str) -> str:
    if char == "\t":
        return "    "
    if "\udc80" <= char <= "\udcff":  # a byte that is not UTF-8, as a Python surrogate
        return f"\\x{ord(char) - 0xDC00:02x}"
    # Category Cf includes invisible and direction marks; Cs is half a character.
    hidden = (not char.isprintable() and char != " ") or char in _INVISIBLE_CHARACTERS
    return char.encode("unicode_escape").decode() if hidden else char


def span(text: str, style: Style = "") -> Span:
    """Return escaped ``text`` in ``style``."""
    return Span(escape_controls(text), style)


def line(*parts: str | Span, hang: int = 0) -> Line:
    """Build a line of ``parts``; plain strings are escaped."""
    return Line(tuple(part if isinstance(part, Span) else span(part) for part in parts if part != ""), hang)


def next_command_line(command: object, more: str = "") -> Line:
    """Return the line of the next command."""
    return line("next: ", span(str(command), "command"), more, hang=6)


def warning_line(text: str, style: Style = "") -> Line:
    """Return the line of a warning."""
    return line(Span("! ", "warn"), span(text, style), hang=2)


def mark_commands(text: str, style: Style = "") -> tuple[Span, ...]:
    """Split ``text`` into spans, with commands in backticks highlighted.

    Only for gpunode's own advice: backticks in quoted text are not commands.
    """
    text = escape_controls(text)
    spans: list[Span] = []
    end = 0
    for match in _BACKTICKED_COMMAND.finditer(text):
        spans += [Span(text[end : match.start()], style), Span(match[0], "command")]
        end = match.end()
    return tuple(one for one in (*spans, Span(text[end:], style)) if one.text)


def indent_lines(lines: Iterable[Line], by: int) -> tuple[Line, ...]:
    """Indent ``lines`` by ``by`` columns."""
    return tuple(
        replace(one, spans=(Span(" " * by), *one.spans), hang=one.hang + by) if one.spans else one for one in lines
    )


def cell_width(text: str) -> int:
    """Return the columns that ``text`` takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad_right(text: str, width: int) -> str:
    """Pad ``text`` with blanks to ``width`` columns."""
    return text + " " * max(0, width - cell_width(text))


def wrap_line(line_: Line, width: int) -> Iterator[Line]:
    """Wrap a line to ``width`` columns; 0 does not wrap.

    If the hanging indent leaves no room for a word, such as a path or a UUID, rows begin near the line's own start.
    """
    styled_chars = [(char, part.style) for part in line_.spans for char in part.text]
    indent = len(line_.text) - len(line_.text.lstrip(" "))
    longest = max(map(cell_width, line_.text[line_.hang :].split()), default=0)
    is_narrow = line_.hang > width // 2 or width - line_.hang < longest <= width - indent - 4
    hang = min(indent + 4 if is_narrow and not line_.breaks_anywhere else line_.hang, width // 2)
    # A label wider than the screen is broken like the text behind it.
    label = line_.hang if line_.hang <= width else hang
    first = True
    while styled_chars:
        lead = 0 if first else hang
        start, has_label = label if first else 0, first and hang < label
        cut = len(styled_chars)
        if width > 0:
            cut = _find_break(
                styled_chars, width - lead, start, breaks_anywhere=line_.breaks_anywhere, has_label=has_label
            )
        row, styled_chars = styled_chars[:cut], styled_chars[cut:]
        if not line_.breaks_anywhere:
            row, styled_chars = _strip_break(row, styled_chars)
        yield Line((*((Span(" " * lead),) if lead else ()), *_group_spans(row)))
        first = False
    if first:
        yield line_


def _strip_break(row: list[tuple[str, Style]], rest: list[tuple[str, Style]]) -> tuple[list[tuple[str, Style]], ...]:
    """Remove the blanks around a line break."""
    if rest:
        while row and row[-1][0] == " ":
            row = row[:-1]
        while rest and rest[0][0] == " ":
            rest = rest[1:]
    return row, rest


def _find_break(
    styled_chars: Sequence[tuple[str, Style]], room: int, start: int, *, breaks_anywhere: bool, has_label: bool
) -> int:
    """Return how many characters fit on a row of ``room`` columns; never break before column ``start``.

    ``has_label``: whether the text before ``start`` may stay alone on the row.
    """
    used = 0
    last_blank = 0
    after_label = start if has_label and start < len(styled_chars) and styled_chars[start - 1][0] == " " else 0
    for index, (char, style) in enumerate(styled_chars):
        used += _char_width(char)
        is_in_command = style == "command" and not breaks_anywhere
        if char == " " and index >= start and not is_in_command:
            last_blank = index
        if used > room:
            at_blank = 0 if breaks_anywhere else last_blank or (after_label if after_label <= index else 0)
            if at_blank or not is_in_command:
                return at_blank or max(index, 1)
    return len(styled_chars)


def _group_spans(styled_chars: Sequence[tuple[str, Style]]) -> Iterator[Span]:
    begin = 0
    for index in range(1, len(styled_chars) + 1):
        if index == len(styled_chars) or styled_chars[index][1] != styled_chars[begin][1]:
            yield Span("".join(char for char, _ in styled_chars[begin:index]), styled_chars[begin][1])
            begin = index


def to_ascii(text: str) -> str:
    """Convert to ASCII: replace gpunode's symbols, escape other characters."""
    return text.translate(_ASCII_REPLACEMENTS).encode("ascii", "backslashreplace").decode()
