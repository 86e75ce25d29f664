"""Regular expressions that are compiled on first use, and numbers of any length.

doctor has a thousand. On one node's evidence most are never searched, since it lacks a word that every match contains:
compiling and searching them all took four times as long.

Python refuses integers of thousands of digits. No count in evidence is that high, so such text is not a number here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

# Prefixes that an expression may have instead of flags.
_FLAGS_BY_REGEX_PREFIX: Final = {"(?i": re.IGNORECASE, "(?m": re.MULTILINE, "(?im": re.IGNORECASE | re.MULTILINE}
_REGEX_SPECIAL_CHARACTERS: Final = frozenset(".^$|)([*+?{\\")
# Shorter strings are in every text and save nothing.
_MIN_REQUIRED_STRING_LENGTH: Final = 3


def _required_strings(expression: str, flags: int) -> frozenset[str]:
    """Return lower-case strings, one of which every match of ``expression`` contains; none if undetermined."""
    pieces = _REGEX_TOKEN.findall(expression)
    return (
        frozenset()
        if flags & re.VERBOSE or any(map(_UNSUPPORTED_REGEX_SYNTAX.match, pieces))
        else _strings_of_alternatives(pieces[::-1])
    )


def _strings_of_alternatives(rest: list[str]) -> frozenset[str]:
    """Return the required strings of a group's alternatives, which are popped from the end of ``rest``."""
    every: list[frozenset[str]] = []
    best, run = frozenset[str](), ""
    while True:
        piece = rest.pop() if rest else ")"
        group = _strings_of_alternatives(rest) if piece[0] == "(" else frozenset()
        repeats = rest[-1][0] if rest and rest[-1][0] in "*+?{" else ""
        if not repeats and (plain := _literal_text(piece)):
            run += plain
            continue
        if len(run) > _shortest_length(best):
            best = frozenset({run})
        run = ""
        if (
            group
            and repeats in {"", "+"}
            and piece[-1] not in "=!"
            and _shortest_length(group) > _shortest_length(best)
        ):
            best = group
        if piece in {"|", ")"}:
            every.append(best if _shortest_length(best) >= _MIN_REQUIRED_STRING_LENGTH else frozenset())
            best = frozenset()
        if piece == ")":
            return frozenset[str]().union(*every) if all(every) else frozenset()


def _literal_text(piece: str) -> str:
    """Return the only text that the piece matches, in lower case; empty if it may match others."""
    if piece[0] == "\\":
        return "" if piece[1].isalnum() else piece[1]
    if piece[0] == "[" and piece[1:2] != "^":
        same = set(piece[1:-1].lower())
        return same.pop() if len(same) == 1 else ""
    return "" if piece[0] in _REGEX_SPECIAL_CHARACTERS else piece.lower()


def _shortest_length(words: frozenset[str]) -> int:
    return min(map(len, words), default=0)


class Pattern:
    """A regular expression over text, with the methods of ``re.Pattern``."""

    __slots__ = ("_compiled", "_is_line_based", "_may_span_lines", "_words", "flags", "pattern")

    def __init__(self, pattern: str, flags: int = 0) -> None:
        head, _, rest = pattern.partition(")")
        leading = _FLAGS_BY_REGEX_PREFIX.get(head, 0)
        self.pattern, self.flags = (rest if leading else pattern), flags | leading
        self._compiled: re.Pattern[str] | None = None
        self._is_line_based: bool | None = None
        self._may_span_lines: bool | None = None
        self._words: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"Pattern({self.pattern!r}, {self.flags})"

    @property
    def compiled(self) -> re.Pattern[str]:
        """The compiled expression.

        Raises:
            re.error: if it is invalid; a test compiles them all.
        """
        if self._compiled is None:
            self._compiled = re.compile(self.pattern, self.flags)
        return self._compiled

    @property
    def words(self) -> frozenset[str]:
        """Strings, one of which every match contains, in any case; none if undetermined."""
        if self._words is None:
            self._words = _required_strings(self.pattern, self.flags)
        return self._words

    @property
    def is_line_based(self) -> bool:
        r"""True if no match spans a line end, which takes a ``\n`` outside a negated set."""
        if self._is_line_based is None:
            rest = _NEGATED_CHARACTER_SET.sub("", self.pattern)
            is_anchored = not self.flags & re.MULTILINE and any(one in rest for one in "^$")
            may_cross = any(one in rest for one in (r"\n", r"\A", r"\Z"))
            self._is_line_based = not (is_anchored or may_cross or self.flags & re.DOTALL)
        return self._is_line_based

    @property
    def may_span_lines(self) -> bool:
        r"""True if any part of it can match a line end, ``\s`` included."""
        if self._may_span_lines is None:
            self._may_span_lines = not self.is_line_based or _REGEX_MATCHING_NEWLINE.search(self.pattern) is not None
        return self._may_span_lines

    def may_match(self, lowered: str) -> bool:
        """Return False if it cannot match the text whose lower case is ``lowered``."""
        words = self.words
        for word in words:  # a loop: called tens of thousands of times per node
            if word in lowered:
                return True
        return not words

    def search(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """Return the first match."""
        return (self._compiled or self.compiled).search(text, start, end)

    def match(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """Return the match at ``start``."""
        return (self._compiled or self.compiled).match(text, start, end)

    def fullmatch(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """Return the match of the whole text between ``start`` and ``end``."""
        return (self._compiled or self.compiled).fullmatch(text, start, end)

    def finditer(self, text: str, start: int = 0, end: int = sys.maxsize) -> Iterator[re.Match[str]]:
        """Yield every match, in order."""
        return (self._compiled or self.compiled).finditer(text, start, end)

    def findall(self, text: str) -> list[Any]:
        """Return the matched texts, or their groups."""
        return (self._compiled or self.compiled).findall(text)

    def sub(self, new: str | Callable[[re.Match[str]], str], text: str, count: int = 0) -> str:
        """Replace the matches in ``text`` by ``new``."""
        return (self._compiled or self.compiled).sub(new, text, count)

    def split(self, text: str, maxsplit: int = 0) -> list[str | Any]:
        """Split ``text`` at the matches."""
        return (self._compiled or self.compiled).split(text, maxsplit)


# Only doctor asks for the words and lines of expressions.
# Plain characters, an escape, a character set, the start of a group, a quantifier; else one character.
_REGEX_TOKEN: Final = Pattern(
    r"[^\\.^$*+?{}\[\]()|]+(?![*+?{])|\\\d+|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:P<\w+>|:|<?[=!]|.))?|[*+?][+?]?"
    r"|\{\d*,?\d*\}[?+]?|.",
    re.DOTALL,
)
# Characters given by number, and inline flags.
_UNSUPPORTED_REGEX_SYNTAX: Final = Pattern(r"\\(?:[xuUN0]|\d\d)|\(\?[^P:<=!]")
_REGEX_MATCHING_NEWLINE: Final = Pattern(r"\\[sDW]|\[\^(?![^\]]*\\n)")
_NEGATED_CHARACTER_SET: Final = Pattern(r"\[\^\]?(?:\\.|[^\]\\])*\]")

# Just within 64 bits: no count of bytes, links or restarts is larger.
_MAX_INTEGER_DIGITS: Final = 18


def parse_int(text: str) -> int | None:
    """Parse a whole number; return None for other text or an absurdly long number."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def parse_version(text: str) -> tuple[int, ...]:
    """Parse a version of digits and dots; overlong numbers are shortened.

    Raises:
        ValueError: if it has other parts.
    """
    return tuple(int(part[:_MAX_INTEGER_DIGITS]) for part in text.split("."))
