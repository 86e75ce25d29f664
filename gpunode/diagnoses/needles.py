"""The plain words of which every match of a regular expression holds one: a log without them need not be searched.

Most patterns are of one program's message, and most logs are of others. Looking for a plain string is a hundred times
faster than for a pattern, so the pattern's own words are asked for first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

# Python's own parser of patterns, under the name that each version gives it.
_PARSER: Final[Any] = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
# A shorter word stands in almost every line.
_LEAST: Final = 3
_MOST_WORDS: Final = 40


@lru_cache(maxsize=4096)
def needles(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """The words of which every match holds one, lower-case where case does not matter; none where none is sure."""
    try:
        found = _of_sequence(_PARSER.parse(pattern.pattern, pattern.flags))
    except (re.error, AttributeError, TypeError, ValueError, RecursionError):
        return ()
    words = tuple(word.lower() for word in found) if pattern.flags & re.IGNORECASE else tuple(found)
    # Some letters change their number when their case does; those patterns are searched for as they are.
    return words if all(word.isascii() for word in words) else ()


def may_match(pattern: re.Pattern[str], text: str, lowered: str) -> bool:
    """Whether ``text`` holds one of the pattern's words; ``lowered`` is the same in lower case."""
    words = needles(pattern)
    place = lowered if pattern.flags & re.IGNORECASE else text
    return not words or any(word in place for word in words)


def _of_sequence(parts: Iterable[tuple[Any, Any]]) -> tuple[str, ...]:
    """The best words of a sequence: those of the one part whose shortest word is the longest."""
    best: tuple[str, ...] = ()
    run = ""
    for operation, value in parts:
        name = str(operation)
        if name == "LITERAL":
            run += chr(value)
            continue
        if name == "AT":
            continue
        best = _better(best, (run,))
        run = ""
        best = _better(best, _of_part(name, value))
    best = _better(best, (run,))
    return best if _worth(best) else ()


def _of_part(name: str, value: Any) -> tuple[str, ...]:
    if name == "SUBPATTERN":
        _, added, removed, parts = value
        return () if added or removed else _of_sequence(parts)
    if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        least, _, parts = value
        return _of_sequence(parts) if least else ()
    if name == "ATOMIC_GROUP":
        return _of_sequence(value)
    if name == "BRANCH":
        each = [_of_sequence(parts) for parts in value[1]]
        words = tuple(dict.fromkeys(word for one in each for word in one))
        return words if all(each) and len(words) <= _MOST_WORDS else ()
    return ()


def _better(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return max(one, other, key=_worth)


def _worth(words: tuple[str, ...]) -> int:
    shortest = min((len(word) for word in words), default=0)
    return shortest if shortest >= _LEAST else 0
