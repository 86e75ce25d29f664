"""The words of a command, wherever it is written: as typed, in a unit, a script, a list of YAML or JSON, a log.

A shell's words end at blanks and operators and go on in the line behind a backslash; strings within them keep both.
What is no shell's text gives fewer words, never an error; each text is read in time that grows with its length alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

# Within a string of single quotes a shell is given another so.
_SPLICED: Final = ("'\"'\"'", "'\\''")
_QUOTE: Final = re.compile(r"'\"'\"'|'\\''|\\{0,7}[\"']")
# A line of JSON's string may end as a shell's does.
_GAP: Final = re.compile(r"(?:[ \t]|\\\n|\\\\\\n)*")
_FOLLOWS: Final = re.compile(r"[ \t]|\\{0,2}\\?\n|\\\\\\n|\Z")
_OPERATOR: Final = re.compile(r"\n|;|&(?!>)|\||\)")
_NEXT_COMMAND: Final = re.compile(r"[a-z][a-z-]+[ \t]")
_NEWLINE_WITHIN: Final = re.compile(r"\\[rn]")
_PART: Final = re.compile(
    r"(?P<line>\\\n)|(?P<quote>'\"'\"'|'\\''|\\{0,7}[\"'])|(?P<escaped>\\[^\n]|\\)|(?P<operator>[;&|)`]+)|(?P<blank>\s)"
    r"|(?P<plain>[^\s\"'\\;&|)`]+)"
)
_LINE_END: Final = re.compile(r"[ \t]*(?:#[^\n]*)?\n")
# How the audit log numbers the words of a command.
_AUDITED: Final = re.compile(r"a\d{1,3}=")
_ITEM: Final = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n){1,9}[ \t]*-[ \t]+")
_ITEM_BEGINS: Final = re.compile(r"[ \t]*-[ \t]+[\"']?\Z")
_FLOW_ITEM: Final = re.compile(r",[ \t]{0,80}(?P<quote>[\"']?)(?P<word>[^\s,\]\[\"']+)(?P=quote)")
# An indentation is no longer than this, nor is a path before a program's name.
_LONGEST_LEAD: Final = 200
_LONGEST_STRING: Final = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word without its quotes: where it stands, and the quote around it, with its backslashes."""

    start: int
    end: int
    quote: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command.

    Attributes:
        pieces: what its quotes divide it into.
        end: what is behind it.
        next_command: where another command may begin, if this one ends with the word; it may begin in the word itself,
            since a password holds ``;`` where no shell has read it.
        is_listed: whether it is an item of a list, which is a word whatever its signs.
    """

    pieces: tuple[Piece, ...]
    end: int
    next_command: int = -1
    is_listed: bool = False

    def read(self, text: str) -> str:
        """The word without its quotes; backslashes stay, so that its length is that of its pieces."""
        return "".join(text[piece.start : piece.end] for piece in self.pieces)

    def span(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Where the letters from ``start`` to ``end`` of what was read stand in the text, piece by piece."""
        at = 0
        for piece in self.pieces:
            length = piece.end - piece.start
            first, last = max(start - at, 0), min(end - at, length)
            if first < last:
                yield piece.start + first, piece.start + last
            at += length


@dataclass(frozen=True, slots=True)
class Place:
    r"""Where a command stands: up to which sign, and in how many strings.

    Attributes:
        end: its line's end, or that of the string around it.
        depth: how many strings are around it; in one, a quote with a backslash is a quote.
        is_string: whether the string around it is of double quotes, in which ``\n`` ends a line.
    """

    end: int
    depth: int = 0
    is_string: bool = False


@dataclass(slots=True)
class Lines:
    """The strings that are open in a line, as far as it was read, within a part of a text."""

    text: str
    at: int
    within: Place
    _quotes: list[str] = field(default_factory=list)
    _line_end: int = -1
    _closed: tuple[str, int] = ("", -1)

    def place(self, start: int) -> Place:
        """Where a command stands that begins at ``start``; places are asked for in their order."""
        self._read(start)
        end, depth = self._end(start), self.within.depth
        for quote in reversed(self._quotes):
            closing = self._closing(quote, start, end)
            if closing >= 0 and not self._opens(quote, closing, end):
                return Place(closing, depth + len(self._quotes), quote[-1] == '"')
        return Place(end, depth, self.within.is_string)

    def go_on(self, at: int) -> None:
        """What was read as a command opens nothing for what comes behind it."""
        self.at = max(self.at, at)

    def _read(self, end: int) -> None:
        if newline := self.text.rfind("\n", self.at, end) + 1:
            self.at, self._quotes = newline, []
        for sign in _QUOTE.finditer(self.text, self.at, end):
            quote = _unescaped(sign[0])
            if quote in self._quotes:
                del self._quotes[self._quotes.index(quote) :]
            elif quote in _SPLICED and not self._quotes:
                continue
            elif quote[-1] == '"' or not self.text[sign.start() - 1 : sign.start()].isalnum():
                self._quotes.append(quote)
        self.at = max(self.at, end)

    def _end(self, start: int) -> int:
        """The end of the line, with those that a backslash adds to it."""
        if start >= self._line_end:
            at = start
            while (newline := self.text.find("\n", at, self.within.end)) > 0 and self.text[newline - 1] == "\\":
                at = newline + 1
            self._line_end = newline if newline >= 0 else self.within.end
            self._closed = ("", -1)
        return self._line_end

    def _closing(self, quote: str, start: int, end: int) -> int:
        if self._closed[0] != quote or self._closed[1] < start:
            found = closing(self.text, quote, start, end)
            self._closed = (quote, found[0] if found else end)
        return self._closed[1] if self._closed[1] < end else -1

    def _opens(self, quote: str, at: int, end: int) -> bool:
        """Whether the quote rather opens a value: ``-u bob:'…'`` behind an apostrophe that opened nothing."""
        after = self.text[at + len(quote) : at + len(quote) + 1]
        is_value = self.text[at - 1] in ":=" and after != "" and not after.isspace() and after not in ",;:)}]|&\"'\\"
        return is_value and closing(self.text, quote, at + len(quote), min(end, at + _LONGEST_STRING)) is not None


def _unescaped(quote: str) -> str:
    """A quote with the backslashes that belong to it: of an even number each escapes another."""
    return quote[-1] if len(quote) % 2 and quote not in _SPLICED else quote


def closing(text: str, quote: str, start: int, end: int) -> tuple[int, int] | None:
    """Where the string ends that ``quote`` opened before ``start``: its quote's begin and end."""
    for sign in _QUOTE.finditer(text, start, end):
        if _unescaped(sign[0]) == quote or (quote == "'" == sign[0][-1] and sign[0] not in _SPLICED):
            return sign.end() - len(quote), sign.end()
    return None


def words_behind(text: str, start: int, end: int, lines: Lines) -> Iterator[Word]:
    """The words behind the first of a command, which stands from ``start`` to ``end`` without its quotes."""
    quote = _quote_before(text, start)
    is_quoted = quote != "" and text.startswith(quote, end)
    behind = end + len(quote) if is_quoted else end
    if is_quoted and (item := _next_item(text, behind, quote)):
        return _listed(text, item, quote)
    if not quote and text.startswith(",", end):
        return _flow(text, end) if is_in_brackets(text, start) else iter(())
    line_end = _LINE_END.match(text, behind)
    lead = _lead(text, start) if line_end else None
    if line_end and lead is not None and _ITEM_BEGINS.fullmatch(lead):
        return _items(text, behind)
    if line_end and lead and not lead.strip(" \t"):
        return _lines(text, line_end.end() - 1, lead)
    if not _FOLLOWS.match(text, behind, lines.within.end):
        return iter(())
    place = lines.place(start - len(quote) if is_quoted else start)
    return _Shell(text, place).words(behind)


def _quote_before(text: str, start: int) -> str:
    if text[start - 1 : start] not in ('"', "'"):
        return ""
    before = text[max(start - 8, 0) : start - 1]
    return _unescaped(before[len(before.rstrip("\\")) :] + text[start - 1])


def _lead(text: str, start: int) -> str | None:
    """The line before ``start``, if it is short."""
    newline = text.rfind("\n", max(start - _LONGEST_LEAD, 0), start)
    return text[newline + 1 : start] if newline >= 0 or start < _LONGEST_LEAD else None


class _Shell:
    """Words as a shell reads them, up to the end of their command."""

    def __init__(self, text: str, place: Place) -> None:
        self._text = text
        self._place = place
        self._open = 0  # parentheses within the command
        self._open_before = 0  # those that were open before the word began
        self._pieces: list[Piece] = []
        self._bare = 0
        self._last = -1  # where the word ends among operators
        self._next_command = -1

    def words(self, at: int) -> Iterator[Word]:
        text, end = self._text, self._place.end
        while (at := self._gap(at)) < end:
            if text[at] == ")" and self._open:
                self._open, at = self._open - 1, at + 1
                continue
            if _OPERATOR.match(text, at, end) or self._is_newline(at):
                return
            word = self._word(at)
            yield word
            if word.next_command >= 0 or word.end <= at:
                return
            at = word.end

    def _gap(self, at: int) -> int:
        gap = _GAP.match(self._text, at, self._place.end)
        return gap.end() if gap else at

    def _is_newline(self, at: int) -> bool:
        return self._place.is_string and _NEWLINE_WITHIN.match(self._text, at) is not None

    def _word(self, at: int) -> Word:
        self._pieces, self._bare, self._next_command, self._open_before = [], at, -1, self._open
        start, end = at, self._place.end
        while at < end and (part := _PART.match(self._text, at, end)):
            behind = self._behind(part, start)
            if behind < 0:
                at = max(at, self._last)
                break
            at = behind
        self._add(at)
        pieces = self._pieces
        if len(pieces) == 2 and _AUDITED.fullmatch(self._text, pieces[0].start, pieces[0].end) and pieces[1].quote:
            pieces = pieces[1:]
        return Word(tuple(pieces), at, self._next_command)

    def _behind(self, part: re.Match[str], start: int) -> int:
        """Where the word goes on behind a part of it; negative if it ends before."""
        if part.lastgroup == "blank":
            return -1
        if part.lastgroup == "quote":
            return self._string(part, start)
        if part.lastgroup == "operator":
            return self._operator(part)
        if part.lastgroup == "line":
            self._add(part.start())
            self._bare = part.end()
        elif part.lastgroup == "escaped" and self._is_newline(part.start()):
            self._next_command = part.end()
            return -1
        self._open += part[0].count("(")
        return part.end()

    def _add(self, end: int) -> None:
        if end > self._bare:
            self._pieces.append(Piece(self._bare, end))

    def _string(self, part: re.Match[str], start: int) -> int:
        quote = _unescaped(part[0])
        if len(quote) > 1 and not self._place.depth:
            return part.end()
        begin = part.end() - len(quote)
        if found := closing(self._text, quote, part.end(), self._place.end):
            self._add(begin)
            self._pieces.append(Piece(part.end(), found[0], quote))
            self._bare = found[1]
            return found[1]
        if begin > start and self._text[begin - 1] not in ":=":
            self._next_command = part.end()  # it ends a string of an earlier line
            return -1
        self._add(begin)
        self._bare = part.end()
        return part.end()

    def _operator(self, part: re.Match[str]) -> int:
        signs, at = part[0], part.start()
        while self._open > self._open_before and signs.startswith(")"):
            self._open, signs, at = self._open - 1, signs[1:], at + 1
        if not signs:
            return at
        if self._open and signs.startswith(")"):
            return self._cut(at)
        is_last = (
            part.end() >= self._place.end
            or self._text[part.end()] in " \t\n\"'\\"
            or (signs[-1] in ";|" and _NEXT_COMMAND.match(self._text, part.end()) is not None)
        )
        if (is_last and self._text[at - 1] not in "<>") or "&&" in signs or "||" in signs:
            self._next_command = part.end()
            return self._cut(at)
        if self._next_command < 0 and (";" in signs or "|" in signs):
            self._next_command = part.end()
        return part.end()

    def _cut(self, at: int) -> int:
        """The word ends at ``at``, within or before its operators."""
        self._last = at
        return -1


def _next_item(text: str, at: int, quote: str) -> int:
    """Where the next string of a list of JSON begins; 0 if none follows."""
    comma = _blank(text, at)
    begin = _blank(text, comma + 1) if text[comma : comma + 1] == "," else -1
    return begin + len(quote) if begin > 0 and text.startswith(quote, begin) else 0


def _blank(text: str, at: int) -> int:
    end = min(at + _LONGEST_LEAD, len(text))
    while at < end and text[at].isspace():
        at += 1
    return at


def _listed(text: str, at: int, quote: str) -> Iterator[Word]:
    while at:
        newline = text.find("\n", at, at + _LONGEST_STRING)
        found = closing(text, quote, at, newline if newline >= 0 else min(at + _LONGEST_STRING, len(text)))
        if not found:
            return
        yield Word((Piece(at, found[0], quote),), found[1], is_listed=True)
        at = _next_item(text, found[1], quote)


def is_in_brackets(text: str, start: int) -> bool:
    """Whether a list was opened before ``start`` in its line: YAML's, or one that a program printed."""
    first = max(start - _LONGEST_LEAD, 0)
    return text.rfind("[", first, start) > max(text.rfind("]", first, start), text.rfind("\n", first, start))


def _flow(text: str, at: int) -> Iterator[Word]:
    """The items of a list whose words have no quotes."""
    while item := _FLOW_ITEM.match(text, at):
        yield Word((Piece(item.start("word"), item.end("word")),), item.end(), is_listed=True)
        at = item.end()


def _items(text: str, at: int) -> Iterator[Word]:
    """The items of a list of YAML, one to a line."""
    while item := _ITEM.match(text, at):
        word = _scalar(text, item.end())
        if not word.pieces:
            return
        yield word
        at = word.end


def _scalar(text: str, at: int) -> Word:
    newline = text.find("\n", at)
    end = newline if newline >= 0 else len(text)
    quote = text[at : at + 1]
    if quote in ('"', "'") and (found := closing(text, quote, at + 1, end)):
        return Word((Piece(at + 1, found[0], quote),), found[1], is_listed=True)
    remark = text.find(" #", at, end)
    last = at + len(text[at : remark if remark >= 0 else end].rstrip())
    return Word((Piece(at, last),) if last > at else (), last, is_listed=True)


def _lines(text: str, at: int, lead: str) -> Iterator[Word]:
    """The words of a container as ``kubectl describe`` prints them: one to a line, each as far from its begin."""
    while text.startswith("\n" + lead, at):
        begin = at + 1 + len(lead)
        newline = text.find("\n", begin)
        end = newline if newline >= 0 else len(text)
        if begin >= end or text[begin].isspace():
            return
        yield Word((Piece(begin, begin + len(text[begin:end].rstrip())),), end, is_listed=True)
        at = end
