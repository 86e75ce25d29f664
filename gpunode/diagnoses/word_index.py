"""Index the words of a node's texts, so that a pattern is searched only in lines that have one of its words.

doctor has a thousand patterns, and most of their words are nowhere in a node's evidence. The index is made once and
shared by all patterns: a word that is known to be absent costs nothing, and one that is present is looked up once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Final

from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz"
_LETTERS_ONLY: Final = bytes(code if code in _LETTERS else 0x20 for code in range(256))
# Shorter ones are part of some word in every text.
_MIN_LETTERS: Final = 3


@cache
def _longest_letters(word: str) -> str:
    """Return the longest run of ASCII letters in the word."""
    runs = word.encode("ascii", "replace").translate(_LETTERS_ONLY).split()
    return max(runs, key=len, default=b"").decode()


class Vocabulary:
    """The runs of letters in some texts: a text without any that contains a word's own run lacks the word."""

    def __init__(self, runs: Iterable[bytes]) -> None:
        self.runs = frozenset(runs)
        self.text = b"\n".join(self.runs).decode()
        self._lacking: dict[str, bool] = {}

    def lacks(self, word: str) -> bool:
        """Return whether the lower-case ``word`` is certainly in none of the texts."""
        if word not in self._lacking:
            letters = _longest_letters(word)
            self._lacking[word] = len(letters) >= _MIN_LETTERS and letters not in self.text
        return self._lacking[word]


def vocabulary_of(items: Iterable[EvidenceItem]) -> Vocabulary:
    """Return the vocabulary of the texts of ``items``."""
    return Vocabulary(run for item in items for run in item.view(LineIndex).vocabulary.runs)


class SharedVocabulary:
    """The vocabularies of several items side by side, to find in one pass the items that may have a word."""

    def __init__(self, items: Sequence[EvidenceItem]) -> None:
        self._items = items
        texts = [item.view(LineIndex).vocabulary.text for item in items]
        self._text = "\n".join(texts)
        self._line_offsets = tuple(accumulate((len(text) + 1 for text in texts), initial=0))

    def items_that_may_have(self, word: str) -> Iterable[EvidenceItem]:
        """Yield the items whose vocabulary does not lack the lower-case ``word``."""
        letters = _longest_letters(word)
        if len(letters) < _MIN_LETTERS:
            yield from self._items
            return
        at = self._text.find(letters)
        while at >= 0:
            place = bisect_right(self._line_offsets, at) - 1
            yield self._items[place]
            at = self._text.find(letters, self._line_offsets[place + 1])


class LineIndex:
    """The lines of one item in which a word stands."""

    def __init__(self, item: EvidenceItem) -> None:
        self._lowered = item.lowered
        self.vocabulary = Vocabulary(self._lowered.encode("ascii", "replace").translate(_LETTERS_ONLY).split())
        self._line_offsets: dict[str, tuple[int, ...]] = {}

    def line_starts(self, word: str) -> tuple[int, ...]:
        """Return where the lines begin that have the lower-case ``word``."""
        if word not in self._line_offsets:
            self._line_offsets[word] = () if self.vocabulary.lacks(word) else tuple(self._find_lines(word))
        return self._line_offsets[word]

    def line_starts_of(self, pattern: Pattern) -> tuple[int, ...]:
        """Return where the lines begin that have one of the pattern's words."""
        found = [starts for word in pattern.words if (starts := self.line_starts(word))]
        if len(found) <= 1:
            return found[0] if found else ()
        return tuple(sorted(frozenset().union(*found)))

    def _find_lines(self, word: str) -> Iterable[int]:
        text = self._lowered
        at = text.find(word)
        while at >= 0:
            yield text.rfind("\n", 0, at) + 1
            end = text.find("\n", at)
            at = text.find(word, end) if end >= 0 else -1
