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

    Edits may stand side by side. For a TOML or JSON file, by the end of its ``path``, the result has to differ from
    ``theirs`` in exactly those values in which ``ours`` differs from ``base``; else it is None.
    """
    parse = _PARSERS.get(path[path.rfind(".") :]) if "." in path else None
    text = merged_lines(base, ours, theirs, is_checked=parse is not None)
    return text if text is None or parse is None or _same_effect(parse, base, ours, theirs, text) else None


def merged_lines(base: bytes, ours: bytes, theirs: bytes, *, is_checked: bool) -> bytes | None:
    """``theirs`` with the lines that make ``ours`` of ``base`` changed as well; None where both changed the same lines.

    Args:
        base: what both began with.
        ours: the change.
        theirs: what it is made to.
        is_checked: whether the caller makes sure of what the result means; then lines may stand beside a changed one.
    """
    lines = [text.splitlines(keepends=True) for text in (base, ours, theirs)]
    edits = _joined(_edits(lines[0], lines[1]), _edits(lines[0], lines[2]), is_checked=is_checked)
    if edits is None:
        return None
    result, place = list[bytes](), 0
    for first, last, new in edits:
        result += (*lines[0][place:first], *new)
        place = last
    result += lines[0][place:]
    if any(not line.endswith((b"\n", b"\r")) for line in result[:-1]):
        return None  # the last line of one, without its end, would run into the next of the other
    return b"".join(result)


def _edits(base: list[bytes], other: list[bytes]) -> list[_Edit]:
    # Cut to the part that differs: matching takes long over lines that recur, as blank ones do.
    head = next((n for n, (one, two) in enumerate(zip(base, other, strict=False)) if one != two), None)
    head = min(len(base), len(other)) if head is None else head
    tail = 0
    while tail < min(len(base), len(other)) - head and base[-1 - tail] == other[-1 - tail]:
        tail += 1
    middle, theirs = base[head : len(base) - tail], other[head : len(other) - tail]
    codes = SequenceMatcher(None, middle, theirs, autojunk=False).get_opcodes()
    return [(head + i, head + j, tuple(theirs[k:m])) for tag, i, j, k, m in codes if tag != "equal"]


def _joined(ours: list[_Edit], theirs: list[_Edit], *, is_checked: bool) -> list[_Edit] | None:
    """Both, in order; None when two are about the same lines and not the same edit.

    Of two that begin at the same line, new lines come first: that may be wrong, unless what it means ``is_checked``.
    """
    both = sorted({*ours, *theirs})
    for one, next_one in pairwise(both):
        begin_together = one[0] == next_one[0]
        both_add = begin_together and one[1] == next_one[1]
        is_deletion = not next_one[2]
        if next_one[0] < one[1] or both_add or (begin_together and not is_deletion and not is_checked):
            return None
    return both


def _same_effect(parse: Callable[[str], Any], base: bytes, ours: bytes, theirs: bytes, result: bytes) -> bool:
    try:
        read = [parse(text.decode()) if text.strip() else {} for text in (base, ours, theirs, result)]
        documents = [dict(_leaves(document)) for document in read]
    except (ValueError, RecursionError):
        return False
    return _difference(documents[0], documents[1]) == _difference(documents[2], documents[3])


def _leaves(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every value that is no table, by its path; an empty table is one, too."""
    if isinstance(value, dict) and (value or not above):
        for key, item in value.items():
            yield from _leaves(item, (*above, key))
        return
    yield above, repr(value)


def _difference(before: Mapping[tuple[str, ...], object], after: Mapping[tuple[str, ...], object]) -> object:
    keys = before.keys() | after.keys()
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}
