"""Regular expressions that are compiled when something is first searched with them.

doctor has a thousand. With one node's evidence most are never searched, since a word that they cannot match without is
nowhere in it: compiling and searching them all took four times as long.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

# Plain characters, an escape, a set of characters, what begins a group, what repeats; else one character.
_TOKEN: Final = re.compile(
    r"[^\\.^$*+?{}\[\]()|]+(?![*+?{])|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:P<\w+>|:|<?[=!]|.))?|[*+?][+?]?"
    r"|\{\d*,?\d*\}[?+]?|.",
    re.DOTALL,
)
_MEANS: Final = frozenset(".^$|)([*+?{\\")
# Characters by their numbers, and settings within the expression.
_UNREAD: Final = re.compile(r"\\[xuUN\d]|\(\?[^P:<=!]")
# Shorter words are everywhere and save nothing.
_SHORTEST: Final = 3


def _needed(expression: str, flags: int) -> frozenset[str]:
    """Strings of which every text that ``expression`` matches has one, in lower case; none where nobody knows."""
    pieces = _TOKEN.findall(expression)
    return frozenset() if flags & re.VERBOSE or any(map(_UNREAD.match, pieces)) else _of_alternatives(pieces[::-1])


def _of_alternatives(rest: list[str]) -> frozenset[str]:
    """What one of the alternatives needs that end where their group does; they are taken from the end of ``rest``."""
    every: list[frozenset[str]] = []
    best, run = frozenset[str](), ""
    while True:
        piece = rest.pop() if rest else ")"
        group = _of_alternatives(rest) if piece[0] == "(" else frozenset()
        repeats = rest[-1][0] if rest and rest[-1][0] in "*+?{" else ""
        if not repeats and (plain := _plain(piece)):
            run += plain
            continue
        if len(run) > _shortest(best):
            best = frozenset({run})
        run = ""
        if group and repeats in {"", "+"} and piece[-1] not in "=!" and _shortest(group) > _shortest(best):
            best = group
        if piece in {"|", ")"}:
            every.append(best if _shortest(best) >= _SHORTEST else frozenset())
            best = frozenset()
        if piece == ")":
            return frozenset[str]().union(*every) if all(every) else frozenset()


def _plain(piece: str) -> str:
    """The characters that the piece stands for, in lower case; empty where it may stand for others."""
    if piece[0] == "\\":
        return "" if piece[1].isalnum() else piece[1]
    if piece[0] == "[" and piece[1:2] != "^":
        same = set(piece[1:-1].lower())
        return same.pop() if len(same) == 1 else ""
    return "" if piece[0] in _MEANS else piece.lower()


def _shortest(words: frozenset[str]) -> int:
    return min(map(len, words), default=0)


class Pattern:
    """A regular expression over text; used as what ``re.compile`` returns is."""

    __slots__ = ("_compiled", "_words", "flags", "pattern")

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.pattern, self.flags = pattern, flags
        self._compiled: re.Pattern[str] | None = None
        self._words: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"Pattern({self.pattern!r}, {self.flags})"

    @property
    def compiled(self) -> re.Pattern[str]:
        """The expression as ``re`` has it.

        Raises:
            re.error: it is none; a test compiles them all.
        """
        if self._compiled is None:
            self._compiled = re.compile(self.pattern, self.flags)
        return self._compiled

    @property
    def words(self) -> frozenset[str]:
        """Strings of which every text that it matches has one, in whatever case; none where nobody knows."""
        if self._words is None:
            self._words = _needed(self.pattern, self.flags)
        return self._words

    def may_match(self, lowered: str) -> bool:
        """Whether it can occur in the text that is ``lowered`` in lower case; True does not say that it does."""
        words = self.words
        for word in words:  # a loop: this is asked tens of thousands of times of one node
            if word in lowered:
                return True
        return not words

    def search(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """As of ``re.Pattern``; so are the others."""
        return (self._compiled or self.compiled).search(text, start, end)

    def match(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """The match at ``start``."""
        return (self._compiled or self.compiled).match(text, start, end)

    def fullmatch(self, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
        """The match that is all that stands there."""
        return (self._compiled or self.compiled).fullmatch(text, start, end)

    def finditer(self, text: str, start: int = 0, end: int = sys.maxsize) -> Iterator[re.Match[str]]:
        """Every match, in their order."""
        return (self._compiled or self.compiled).finditer(text, start, end)

    def findall(self, text: str) -> list[Any]:
        """What matched, or its groups."""
        return (self._compiled or self.compiled).findall(text)

    def sub(self, new: str | Callable[[re.Match[str]], str], text: str, count: int = 0) -> str:
        """``text`` with ``new`` for what matches."""
        return (self._compiled or self.compiled).sub(new, text, count)

    def split(self, text: str, maxsplit: int = 0) -> list[str | Any]:
        """What stands between the matches."""
        return (self._compiled or self.compiled).split(text, maxsplit)
