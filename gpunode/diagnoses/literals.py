"""Words without which a pattern cannot match: to look for one in a long log costs little, to run the pattern much."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, Final

# The parser that re itself uses: public as sre_parse before Python 3.11, and nowhere else after.
_parser: Final[Any] = import_module("sre_parse" if sys.version_info < (3, 11) else "re._parser")
_SHORTEST: Final = 3
_MOST: Final = 60

Words = frozenset[str]


@cache
def needed(pattern: re.Pattern[str]) -> Words:
    """Words of which one stands in every text that ``pattern`` matches; none where that cannot be told.

    They hold no blanks, so that a message wrapped between two words has them too; with IGNORECASE they are lower case.
    """
    found = _needed(_parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG))
    if not found or len(found) > _MOST:
        return frozenset()
    return frozenset(word.lower() for word in found) if pattern.flags & re.IGNORECASE else found


def may_match(pattern: re.Pattern[str], text: str, lower: str) -> bool:
    """Whether ``text``, in lower case ``lower``, has a word that ``pattern`` needs."""
    words = needed(pattern)
    searched = lower if pattern.flags & re.IGNORECASE else text
    return not words or any(word in searched for word in words)


def _needed(sequence: Iterable[tuple[Any, Any]]) -> Words:
    """The best of the sets that a sequence's parts need: all parts have to match, so any one set will do."""
    return max(_candidates(sequence), key=_worth, default=frozenset())


def _worth(words: Words) -> tuple[int, int]:
    return min(map(len, words)), -len(words)


def _candidates(sequence: Iterable[tuple[Any, Any]]) -> Iterator[Words]:
    run = ""
    for code, argument in sequence:
        name = str(code)
        if name == "LITERAL" and not chr(argument).isspace():
            run += chr(argument)
            continue
        if len(run) >= _SHORTEST:
            yield frozenset({run})
        run = ""
        if words := _of_part(name, argument):
            yield words
    if len(run) >= _SHORTEST:
        yield frozenset({run})


def _of_part(name: str, argument: Any) -> Words:
    if name == "SUBPATTERN":
        # (?i:…) changes what its letters match.
        return frozenset() if argument[1] or argument[2] else _needed(argument[3])
    if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"} and argument[0] >= 1:
        return _needed(argument[2])
    if name == "BRANCH":
        branches = [_needed(branch) for branch in argument[1]]
        return frozenset().union(*branches) if all(branches) else frozenset()
    return frozenset()
