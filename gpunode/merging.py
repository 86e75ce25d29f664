"""A change taken out of a text that was edited since: a three-way merge that gives up rather than guesses. Pure."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any, TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_Edit: TypeAlias = tuple[int, int, tuple[bytes, ...]]
_PARSERS: Mapping[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads}


def merged(base: bytes, ours: bytes, theirs: bytes, *, path: str = "") -> bytes | None:
    """``theirs`` with what makes ``ours`` of ``base`` done to it as well; None where both changed the same lines.

    An edit may stand right beside lines that go. For a TOML or JSON file, by the end of its ``path``, the result also
    has to differ from ``theirs`` in exactly those values in which ``ours`` differs from ``base``; else it is None.
    """
    lines = [text.splitlines(keepends=True) for text in (base, ours, theirs)]
    edits = _joined(_edits(lines[0], lines[1]), _edits(lines[0], lines[2]))
    if edits is None:
        return None
    result, place = list[bytes](), 0
    for first, last, new in edits:
        result += (*lines[0][place:first], *new)
        place = last
    text = b"".join((*result, *lines[0][place:]))
    parse = _PARSERS.get(path[path.rfind(".") :]) if "." in path else None
    return text if parse is None or _same_effect(parse, base, ours, theirs, text) else None


def _edits(base: list[bytes], other: list[bytes]) -> list[_Edit]:
    codes = SequenceMatcher(None, base, other, autojunk=False).get_opcodes()
    return [(i, j, tuple(other[k:m])) for tag, i, j, k, m in codes if tag != "equal"]


def _joined(ours: list[_Edit], theirs: list[_Edit]) -> list[_Edit] | None:
    """Both, in order; None when two are about the same lines and not the same edit."""
    both = sorted({*ours, *theirs})
    for one, next_one in pairwise(both):
        if next_one[0] < one[1] or (next_one[0] == one[1] and not _may_touch(one, next_one)):
            return None
    return both


def _may_touch(one: _Edit, next_one: _Edit) -> bool:
    """Lines that go beside lines that come: whichever is first, the result is the same."""
    return any(not a[2] and b[0] == b[1] for a, b in ((one, next_one), (next_one, one)))


def _same_effect(parse: Callable[[str], Any], base: bytes, ours: bytes, theirs: bytes, result: bytes) -> bool:
    try:
        read = [parse(text.decode()) if text.strip() else {} for text in (base, ours, theirs, result)]
        documents = [dict(_leaves(document)) for document in read]
    except (ValueError, RecursionError):
        return False
    return _difference(documents[0], documents[1]) == _difference(documents[2], documents[3])


def _leaves(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every value that is no table, by its path; an empty table is one, too."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*above, key))
        return
    yield above, repr(value)


def _difference(before: Mapping[tuple[str, ...], object], after: Mapping[tuple[str, ...], object]) -> object:
    keys = before.keys() | after.keys()
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}
