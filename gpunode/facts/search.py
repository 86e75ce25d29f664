"""Searching long texts with many patterns: a line is tried only when it holds the words that a pattern needs.

The rules of doctor hold hundreds of patterns, and a kernel log a hundred thousand lines. An alternation of a dozen
messages is tried at every character; that none of its words occurs is known at once.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, Final, TypeAlias

# Shorter texts are searched as they are: the index would cost more than it saves.
_LONG: Final = 16_384
_LETTERS: Final = re.compile(r"[^\W\d_]{2,}")
# What a match must hold: all the words of at least one of these sets, in small letters.
Needs: TypeAlias = "tuple[frozenset[str], ...]"


class Lines:
    """Lines to be searched, by number from 0."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self._counts: dict[str, int] = {}

    def matching(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
        """The lines in which ``pattern`` occurs, in their order, with its first match in each."""
        for number in self._candidates(pattern):
            if match := pattern.search(self.lines[number]):
                yield number, match

    @cached_property
    def is_long(self) -> bool:
        """Whether an index saves time."""
        return sum(map(len, self.lines)) >= _LONG

    def _candidates(self, pattern: re.Pattern[str]) -> Sequence[int]:
        choices = needs(pattern) if self.is_long else ()
        if not choices:
            return range(len(self.lines))
        present = (words for words in choices if all(word in self._vocabulary for word in words))
        rarest = {min(words, key=self._count) for words in present}
        return sorted({number for word in rarest for number in self._with(word)})

    def _count(self, word: str) -> int:
        if word not in self._counts:
            self._counts[word] = self._text.count(word)
        return self._counts[word]

    def _with(self, word: str) -> Iterator[int]:
        """The lines that hold ``word``."""
        text, starts = self._text, self._starts
        at = text.find(word)
        while at >= 0:
            number = bisect_right(starts, at) - 1
            yield number
            if number + 1 == len(starts):
                return
            at = text.find(word, starts[number + 1])

    @cached_property
    def _text(self) -> str:
        return "\n".join(self.lines).lower()

    @cached_property
    def _starts(self) -> list[int]:
        """Where each line starts in the text; small letters may take more characters than capital ones."""
        starts, at = [0], self._text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = self._text.find("\n", at + 1)
        return starts

    @cached_property
    def _vocabulary(self) -> str:
        """Every run of letters of the text, once."""
        return "\n".join(set(_LETTERS.findall(self._text)))


@lru_cache(maxsize=4096)
def needs(pattern: re.Pattern[str]) -> Needs:
    """What every match of ``pattern`` holds; empty where its structure does not tell."""
    return _of_sequence(_parser.parse(pattern.pattern, pattern.flags))


# The standard library's own reading of a regular expression, which has had no public name since Python 3.11.
try:
    _parser: Any = import_module("re._parser")
except ModuleNotFoundError:
    _parser = import_module("sre_parse")


def _of_sequence(sequence: Any) -> Needs:
    """Of a sequence, all that it must hold where there is no choice, else its most telling choice."""
    plain: set[str] = set()
    choices: list[Needs] = []
    run = ""
    for name, value in [*((str(node[0]), node[1]) for node in sequence), ("END", None)]:
        if name == "LITERAL":
            run += chr(value)
            continue
        plain.update(_telling(run))
        run = ""
        found = _of_node(name, value)
        if len(found) == 1:
            plain |= found[0]
        elif found:
            choices.append(found)
    best = max(choices, key=_weight, default=())
    return (frozenset(plain),) if plain and _weight((frozenset(plain),)) >= _weight(best) else best


def _telling(run: str) -> Iterator[str]:
    """The words of a run of literals."""
    yield from _LETTERS.findall(run.lower())


def _of_node(name: str, value: Any) -> Needs:
    if name == "SUBPATTERN":
        return _of_sequence(value[-1])
    if name == "BRANCH":
        branches = [_of_sequence(branch) for branch in value[1]]
        return tuple(words for branch in branches for words in branch) if all(branches) else ()
    if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"} and value[0] > 0:
        return _of_sequence(value[2])
    return _of_sequence(value) if name == "ATOMIC_GROUP" else ()


def _weight(choices: Needs) -> int:
    """How much the least telling of ``choices`` tells: the length of its longest word."""
    return min((max(map(len, words)) for words in choices), default=0)
