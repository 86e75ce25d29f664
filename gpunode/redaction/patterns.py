"""Regular expressions that are compiled on first use, and masking by the group that they capture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, TypeAlias

MASK: Final = "redacted"
# Where something is masked, and by what.
Mask: TypeAlias = tuple[int, int, str]


@cache
def compiled(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
    """The pattern, compiled on first use."""
    return re.compile(pattern, flags)


def masked(secret: str) -> str:
    """The mask for ``secret``, with as many lines and the same indentation."""
    return compiled(r"\S[^\n]*").sub(MASK, secret)


def replaced(pattern: str, text: str, mask: Callable[[str], str] = masked, flags: int = 0) -> str:
    """``text`` with the capturing group of each match masked. Of several groups, the last that matched counts."""

    def replacement(match: re.Match[str]) -> str:
        start, end = match.span(match.lastindex or 0)
        return match.string[match.start() : start] + mask(match.string[start:end]) + match.string[end : match.end()]

    return compiled(pattern, flags).sub(replacement, text)


def spliced(text: str, masks: Iterable[Mask]) -> str:
    """``text`` with ``masks`` in place, which are in order and do not overlap."""
    parts, end = [], 0
    for first, last, mask in masks:
        parts += [text[end:first], mask]
        end = last
    return "".join(parts) + text[end:]


def settled(mask: Callable[[str], str], text: str) -> str:
    """``text`` masked until nothing changes: masking the result again returns it as it is.

    One replacement may complete another form. A text that never settles is masked line by line.
    """
    for _ in range(12):
        before, text = text, mask(text)
        if text == before:
            return text
    return masked(text)
