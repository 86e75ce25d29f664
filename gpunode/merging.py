"""A change taken out of a text that was edited since: a three-way merge that gives up rather than guesses. Pure."""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import pairwise
from typing import TypeAlias

_Edit: TypeAlias = tuple[int, int, tuple[bytes, ...]]


def merge_three_ways(base: bytes, ours: bytes, theirs: bytes, *, is_checked: bool = False) -> bytes | None:
    """``theirs`` with what makes ``ours`` of ``base`` done to it as well; None where both changed the same lines.

    Edits may stand side by side.

    Args:
        base: what both began with.
        ours: the change.
        theirs: what it is made to.
        is_checked: whether the caller makes sure of what the result means; then new lines may stand beside a changed
            one.
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
        return None  # the last line of one, without its end, would run into the next of the other
    return b"".join(result)


def _line_edits(base: list[bytes], other: list[bytes]) -> list[_Edit]:
    # Cut to the part that differs: matching takes long over lines that recur, as blank ones do.
    length = min(len(base), len(other))
    head = next((n for n in range(length) if base[n] != other[n]), length)
    tail = next((n for n in range(length - head) if base[-1 - n] != other[-1 - n]), length - head)
    middle, theirs = base[head : len(base) - tail], other[head : len(other) - tail]
    codes = SequenceMatcher(None, middle, theirs, autojunk=False).get_opcodes()
    return [(head + i, head + j, tuple(theirs[k:m])) for tag, i, j, k, m in codes if tag != "equal"]


def _join_edits(ours: list[_Edit], theirs: list[_Edit], *, is_checked: bool) -> list[_Edit] | None:
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
