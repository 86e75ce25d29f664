"""Index the words of a node's texts, so that a pattern is only tried on lines that contain its words.

doctor has a thousand patterns, and most of their words occur nowhere in a node's evidence. The index is built once and
shared by all patterns: an absent word costs nothing, and a present one is looked up once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Final

from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import SourceKind

# Digits would double the vocabulary: most belong to times and addresses.
_RUN_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyz_-"
_RUNS_ONLY_TABLE: Final = bytes(one if one in _RUN_CHARACTERS else ord(" ") for one in bytes(range(256)).lower())
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
    """Return the runs of ASCII letters, ``_`` and ``-`` in the lower-case form of ``text``."""
    return text.replace(_KELVIN_SIGN, "k").encode("ascii", "replace").translate(_RUNS_ONLY_TABLE).split()


@cache
def _indexed_runs(word: str) -> tuple[str, ...]:
    """Return the letter runs of ``word`` that are long enough to tell texts apart, the longest first."""
    runs = (run.decode() for run in _letter_runs(word) if len(run) >= _MIN_INDEXED_LETTERS)
    return tuple(sorted(runs, key=len, reverse=True))


class Vocabulary:
    """The letter runs of some texts: a word is absent if one of its runs is in none of them."""

    def __init__(self, runs: Iterable[bytes]) -> None:
        self.runs = frozenset(runs)
        self.text = b"\n".join(self.runs).decode()
        self._lacking: dict[str, bool] = {}

    def lacks(self, word: str) -> bool:
        """Return whether the lower-case ``word`` is certainly in none of the texts."""
        if word not in self._lacking:
            text, is_lacking = self.text, False
            for run in _indexed_runs(word):  # a loop, because this runs thousands of times per node
                if run not in text:
                    is_lacking = True
                    break
            self._lacking[word] = is_lacking
        return self._lacking[word]


def _places_of_words(pattern: Pattern, find: Callable[[str], frozenset[int]]) -> tuple[int, ...]:
    """Return the places with all words of an alternative of the pattern, in order; ``find`` returns those of a word."""
    places = set[int]()
    for words in pattern.word_sets:  # loops, because this runs thousands of times per node
        having = find(words[0])
        for word in words[1:]:
            if not having:
                break
            having &= find(word)
        places |= having
    return tuple(sorted(places)) if places else ()


def vocabulary_of(items: Iterable[EvidenceItem]) -> Vocabulary:
    """Return the vocabulary of the texts of ``items``, without package databases."""
    indexes = (item.view(LineIndex) for item in items if not item.is_package_database)
    return Vocabulary(run for index in indexes for run in index.vocabulary.runs)


class ItemGroup:
    """Items that are searched together for those with a pattern's words; each word is looked up once."""

    def __init__(self, items: Iterable[EvidenceItem]) -> None:
        self.items = tuple(item for item in items if not item.is_package_database)
        texts = [item.view(LineIndex).vocabulary.text for item in self.items]
        self._text = "\n".join(texts)
        self._offsets = tuple(accumulate((len(text) + 1 for text in texts), initial=0))
        self._all = frozenset(range(len(texts)))
        self._numbers: dict[str, frozenset[int]] = {}
        self._numbers_by_run: dict[str, frozenset[int]] = {}

    def items_with_words(self, pattern: Pattern) -> tuple[EvidenceItem, ...]:
        """Return the items that contain the words of the pattern, in their order; all if it has no words."""
        if not pattern.word_sets:
            return self.items
        return tuple(self.items[number] for number in _places_of_words(pattern, self._find_word))

    def _find_word(self, word: str) -> frozenset[int]:
        """Return the numbers of the items that contain the lower-case ``word``, with wrapped lines joined."""
        if word in self._numbers:
            return self._numbers[word]
        numbers = self._all
        for run in _indexed_runs(word):
            if run not in self._numbers_by_run:
                self._numbers_by_run[run] = frozenset(self._find_run(run))
            numbers &= self._numbers_by_run[run]
            if not numbers:
                break
        self._numbers[word] = found = frozenset(number for number in numbers if _has_word(self.items[number], word))
        return found

    def _find_run(self, run: str) -> Iterable[int]:
        """Yield the numbers of the items whose vocabulary has the letter run."""
        at = self._text.find(run)
        while at >= 0:
            number = bisect_right(self._offsets, at) - 1
            yield number
            at = self._text.find(run, self._offsets[number + 1])


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
        self._line_offsets: dict[str, frozenset[int]] = {}

    def line_starts(self, word: str) -> frozenset[int]:
        """Return the offsets of the lines that contain the lower-case ``word``."""
        if word not in self._line_offsets:
            found = () if self.vocabulary.lacks(word) else self._find_lines(word)
            self._line_offsets[word] = frozenset(found)
        return self._line_offsets[word]

    def candidate_line_starts(self, pattern: Pattern) -> tuple[int, ...]:
        """Return the offsets of the lines that contain the words of the pattern and may thus match."""
        return _places_of_words(pattern, self.line_starts)

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
