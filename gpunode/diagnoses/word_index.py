"""Index the words of a node's texts, so that a pattern is only tried on lines that contain one of its words.

doctor has a thousand patterns, and most of their words occur nowhere in a node's evidence. The index is built once and
shared by all patterns: an absent word costs nothing, and a present one is looked up once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Final

from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourceKind

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz"
_LETTERS_ONLY_TABLE: Final = b" " * 65 + _LETTERS + b" " * 6 + _LETTERS + b" " * 133
# The only other character whose lower case is one of these letters. Lowering a text of many alphabets is slow.
_KELVIN_SIGN: Final = "\u212a"
# Shorter words are part of some word in every text.
_MIN_INDEXED_LETTERS: Final = 3
# Pasted messages may be wrapped; such pastes are short, and their lines no longer than a wide screen.
_MAX_WRAPPED_LINES: Final = 400
_MAX_SCREEN_WIDTH: Final = 400
JOINED_LINE_COUNT: Final = 3
# In these kinds each line is a row of its own.
_KINDS_WITH_ROWS: Final[frozenset[SourceKind]] = frozenset({"packages", "listing", "lsmod"})
_KERNEL_MESSAGE_PREFIX: Final = Pattern(r"^[ \t]*(?:\[[^\]]{1,40}\]\s*)*(?:NVRM:)?\s*")


def _letter_runs(text: str) -> list[bytes]:
    """Return the runs of ASCII letters in the lower-case form of ``text``."""
    return text.replace(_KELVIN_SIGN, "k").encode("ascii", "replace").translate(_LETTERS_ONLY_TABLE).split()


@cache
def _longest_letter_run(word: str) -> str:
    return max(_letter_runs(word), key=len, default=b"").decode()


class Vocabulary:
    """The letter runs of some texts: a word is absent if no run contains the word's longest run."""

    def __init__(self, runs: Iterable[bytes]) -> None:
        self.runs = frozenset(runs)
        self.text = b"\n".join(self.runs).decode()
        self._lacking: dict[str, bool] = {}

    def lacks(self, word: str) -> bool:
        """Return whether the lower-case ``word`` is certainly in none of the texts."""
        if word not in self._lacking:
            letters = _longest_letter_run(word)
            self._lacking[word] = len(letters) >= _MIN_INDEXED_LETTERS and letters not in self.text
        return self._lacking[word]


def vocabulary_of(items: Iterable[EvidenceItem]) -> Vocabulary:
    """Return the vocabulary of the texts of ``items``."""
    return Vocabulary(run for item in items for run in item.view(LineIndex).vocabulary.runs)


class ItemGroup:
    """Items that are searched together for those with a pattern's words; each word is looked up once."""

    def __init__(self, items: Iterable[EvidenceItem]) -> None:
        self.items = tuple(items)
        texts = [item.view(LineIndex).vocabulary.text for item in self.items]
        self._text = "\n".join(texts)
        self._offsets = tuple(accumulate((len(text) + 1 for text in texts), initial=0))
        self._numbers: dict[str, frozenset[int]] = {}

    def items_with_words(self, pattern: Pattern) -> tuple[EvidenceItem, ...]:
        """Return the items that contain one of the pattern's words, in their order; all if it has no words."""
        if not pattern.words:
            return self.items
        numbers = set[int]()
        for word in pattern.words:  # a loop, because this runs thousands of times per node
            numbers |= self._numbers[word] if word in self._numbers else self._find_word(word)
        return tuple(self.items[number] for number in sorted(numbers)) if numbers else ()

    def _find_word(self, word: str) -> frozenset[int]:
        """Return the numbers of the items that contain the lower-case ``word``, with wrapped lines joined."""
        found = frozenset(number for number in self._numbers_that_may_have(word) if _has_word(self.items[number], word))
        self._numbers[word] = found
        return found

    def _numbers_that_may_have(self, word: str) -> Iterable[int]:
        """Yield the numbers of the items whose vocabulary does not rule out the lower-case ``word``."""
        letters = _longest_letter_run(word)
        if len(letters) < _MIN_INDEXED_LETTERS:
            yield from range(len(self.items))
            return
        at = self._text.find(letters)
        while at >= 0:
            number = bisect_right(self._offsets, at) - 1
            yield number
            at = self._text.find(letters, self._offsets[number + 1])


def _has_word(item: EvidenceItem, word: str) -> bool:
    """Return whether ``item`` contains the lower-case ``word``, with wrapped lines joined by a space."""
    if word in item.lowered:
        return True
    parts = word.split(" ")
    is_wrapped = len(parts) > 1 and all(part in item.lowered for part in parts)
    return is_wrapped and word in item.view(join_nearby_lines).lowered


class LineIndex:
    """An index of one item's lines by word."""

    def __init__(self, item: EvidenceItem) -> None:
        self._item = item
        self.vocabulary = Vocabulary(_letter_runs(item.text))
        self._line_offsets: dict[str, tuple[int, ...]] = {}

    def line_starts(self, word: str) -> tuple[int, ...]:
        """Return the offsets of the lines that contain the lower-case ``word``."""
        if word not in self._line_offsets:
            self._line_offsets[word] = () if self.vocabulary.lacks(word) else tuple(self._find_lines(word))
        return self._line_offsets[word]

    def candidate_line_starts(self, pattern: Pattern) -> tuple[int, ...]:
        """Return the offsets of the lines that contain one of the pattern's words and may thus match."""
        known = self._line_offsets
        starts_by_word = [
            starts
            for word in pattern.words  # the look-up comes first, because this runs thousands of times per node
            if (starts := known[word] if word in known else self.line_starts(word))
        ]
        if len(starts_by_word) <= 1:
            return starts_by_word[0] if starts_by_word else ()
        return tuple(sorted(frozenset().union(*starts_by_word)))

    def _find_lines(self, word: str) -> Iterable[int]:
        text = self._item.lowered
        at = text.find(word)
        while at >= 0:
            yield text.rfind("\n", 0, at) + 1
            end = text.find("\n", at)
            at = text.find(word, end) if end >= 0 else -1


def join_nearby_lines(item: EvidenceItem) -> EvidenceItem:
    """Return a short item with each line joined to the next two, without kernel prefixes; any other emptied."""
    if not 2 <= len(item.lines) <= _MAX_WRAPPED_LINES or item.kind in _KINDS_WITH_ROWS:
        return replace(item, text="")
    lines = [
        _KERNEL_MESSAGE_PREFIX.sub("", line).rstrip() if len(line) <= _MAX_SCREEN_WIDTH else "" for line in item.lines
    ]
    return replace(
        item, text="\n".join(" ".join(lines[start : start + JOINED_LINE_COUNT]) for start in range(len(lines)))
    )
