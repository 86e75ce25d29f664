"""Regular expressions that are compiled when something is first searched with them.

doctor has a thousand. With one node's evidence most are never searched, since a word that they cannot match without is
nowhere in it (``literals``); compiling them all took longer than reading the evidence.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gpunode.facts.literals import Vocabulary, needed


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
            self._words = needed(self.pattern, self.flags)
        return self._words

    def may_match(self, lowered: str | Vocabulary) -> bool:
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
