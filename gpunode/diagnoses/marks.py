"""Words without which a pattern matches nowhere: they are looked for before a long text is searched.

Some hundred patterns are asked of logs of megabytes, and nearly all of them occur nowhere. Whether its words occur is
told by the list of a text's words at once, and where they do, only the lines that have one of them are searched. So a
pattern is taken not to match over a line's end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from gpunode.facts.items import Item

try:  # The parser of the standard library; where it is not to be had, every text is searched.
    from re import _parser  # type: ignore[attr-defined]
except ImportError:  # before Python 3.11
    import sre_parse as _parser

# Ways to match, with the words that each of them needs; none where a match may do without.
Marks: TypeAlias = frozenset[frozenset[str]]

_NONE: Final[Marks] = frozenset()
_SHORTEST: Final = 3
# With so many ways, one of them is nearly always there.
_MOST: Final = 60
# A text of so few characters is searched sooner than its words are gathered.
_SHORT: Final = 4096


@cache
def marks(pattern: re.Pattern[str]) -> Marks:
    """Sets of parts of words, in lower case: whatever ``pattern`` matches has all of one of the sets."""
    try:
        tree = _parser.parse(pattern.pattern, pattern.flags)
    except (re.error, AttributeError, RecursionError):
        return _NONE
    found = _of_sequence(list(tree))
    return found if len(found) <= _MOST else _NONE


def may_occur(pattern: re.Pattern[str], item: Item) -> bool:
    """Whether ``pattern`` may occur in the text of ``item``; in a short one it always may."""
    if len(item.text) < _SHORT:
        return True
    ways = marks(pattern)
    return not ways or any(all(word in item.words for word in way) for way in ways)


def search(pattern: re.Pattern[str], item: Item) -> re.Match[str] | None:
    """The first match of ``pattern`` in the text of ``item``."""
    return pattern.search(item.text) if may_occur(pattern, item) else None


def finditer(pattern: re.Pattern[str], item: Item) -> Iterator[re.Match[str]]:
    """The matches of ``pattern`` in the text of ``item``."""
    return pattern.finditer(item.text) if may_occur(pattern, item) else iter(())


def numbers(pattern: re.Pattern[str], item: Item) -> Iterator[int]:
    """The numbers of the lines of ``item`` in which ``pattern`` occurs, counted from 1."""
    if not may_occur(pattern, item):
        return
    text, lowered = item.text, item.lowered
    ways = marks(pattern)
    if not ways or len(text) < _SHORT or len(lowered) != len(text):
        last = 0
        for match in pattern.finditer(text):
            number = text.count("\n", 0, match.start()) + 1
            if number != last:
                last = number
                yield number
        return
    number, before = 1, 0
    for start in _starts(lowered, {max(way, key=len) for way in ways}):
        end = text.find("\n", start)
        if pattern.search(text[start : end if end >= 0 else len(text)]):
            number += text.count("\n", before, start)
            before = start
            yield number


def _starts(text: str, words: set[str]) -> Iterator[int]:
    """The offsets of the lines that have one of ``words``, in order."""
    next_at = {word: text.find(word) for word in words}
    while next_at := {word: at for word, at in next_at.items() if at >= 0}:
        first = min(next_at.values())
        yield text.rfind("\n", 0, first) + 1
        end = text.find("\n", first)
        if end < 0:
            return
        next_at = {word: at if at > end else text.find(word, end) for word, at in next_at.items()}


def _of_sequence(nodes: Sequence[tuple[Any, Any]]) -> Marks:
    """What every match of the sequence needs: its own words, and those of the part that says most beside them."""
    words: set[str] = set()
    parts: list[Marks] = []
    literal = ""
    for operation, argument in nodes:
        if str(operation) == "LITERAL":
            literal += chr(argument)
            continue
        words |= _words(literal)
        literal = ""
        parts.append(_of_node(str(operation), argument))
    words |= _words(literal)
    part = max(parts, key=_worth, default=_NONE)
    return frozenset(frozenset(way | words) for way in part) if part else frozenset({frozenset(words)} if words else ())


def _worth(found: Marks) -> tuple[int, int]:
    """The longer the words of the least demanding way, and the fewer ways, the fewer texts may have a match."""
    return (min(sum(map(len, way)) for way in found), -len(found)) if found else (0, 0)


def _words(text: str) -> set[str]:
    # Letters of other scripts may be written in more ways than one.
    found = (word for word in text.lower().split() if len(word) >= _SHORTEST and word.isascii())
    return {word for word in found if word.upper() != word}


def _of_node(operation: str, argument: Any) -> Marks:
    if operation in {"SUBPATTERN", "ATOMIC_GROUP"}:
        return _of_sequence(list(argument[-1] if operation == "SUBPATTERN" else argument))
    if operation in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"} and argument[0] > 0:
        return _of_sequence(list(argument[2]))
    if operation == "BRANCH":
        found = [_of_sequence(list(alternative)) for alternative in argument[1]]
        return frozenset().union(*found) if all(found) else _NONE
    return _NONE
