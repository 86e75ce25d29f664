"""Undo a change in a text that was edited since: a three-way merge that gives up rather than guess. Pure."""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import pairwise
from typing import TypeAlias

_Edit: TypeAlias = tuple[int, int, tuple[bytes, ...]]


def merge_three_ways(base: bytes, ours: bytes, theirs: bytes, *, is_checked: bool = False) -> bytes | None:
    """Apply the change from ``base`` to ``ours`` to ``theirs`` as well; None if both changed the same lines.

    Edits may be adjacent.

    Args:
        base: the common ancestor.
        ours: the changed text.
        theirs: the text to apply the change to.
        is_checked: whether the caller checks the result's meaning; then new lines may be adjacent to a changed line.
    """
    lines = [text.splitlines(keepends=True) for text in (base, ours, theirs)]
    edits = _join_edits(_line_edits(lines[0], lines[1]), _line_edits(lines[0], lines[2]), is_checked=is_checked)
    if edits is None:
        return None
    result, place = list[bytes](), 0
    for first, last, new in edits:
        result += (*lines[0][place:first], *new)
        place = last
    result += lines[0][place:]
    if any(not line.endswith((b"\n", b"\r")) for line in result[:-1]):
        return None  # one text's last line, without its end, would join the other's next line
    return b"".join(result)


def _line_edits(base: list[bytes], other: list[bytes]) -> list[_Edit]:
    # Trim the common ends: matching is slow over recurring lines, such as blank ones.
    length = min(len(base), len(other))
    head = next((n for n in range(length) if base[n] != other[n]), length)
    tail = next((n for n in range(length - head) if base[-1 - n] != other[-1 - n]), length - head)
    middle, theirs = base[head : len(base) - tail], other[head : len(other) - tail]
    codes = SequenceMatcher(None, middle, theirs, autojunk=False).get_opcodes()
    return [(head + i, head + j, tuple(theirs[k:m])) for tag, i, j, k, m in codes if tag != "equal"]


def _join_edits(ours: list[_Edit], theirs: list[_Edit], *, is_checked: bool) -> list[_Edit] | None:
    """Merge both lists in order; None if two different edits affect the same lines.

    If two begin at the same line, new lines come first; that may be wrong, so it needs ``is_checked``.
    """
    both = sorted({*ours, *theirs})
    for one, next_one in pairwise(both):
        begin_together = one[0] == next_one[0]
        both_add = begin_together and one[1] == next_one[1]
        is_deletion = not next_one[2]
        if next_one[0] < one[1] or both_add or (begin_together and not is_deletion and not is_checked):
            return None
    return both
