"""Compile regular expressions on first use, and mask the groups that they match."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, TypeAlias

MASK: Final = "redacted"
# The start and end of a masked part, and its mask.
MaskedSpan: TypeAlias = tuple[int, int, str]


@cache
def compile_cached(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
    """Return the pattern, compiled on first use."""
    return re.compile(pattern, flags)


def mask_secret(secret: str) -> str:
    """Return the mask for ``secret``, with as many lines and the same indentation."""
    return compile_cached(r"\S[^\n]*").sub(MASK, secret)


def mask_matches(pattern: str, text: str, mask: Callable[[str], str] = mask_secret, flags: int = 0) -> str:
    """Return ``text`` with the last matched group of each match masked."""

    def replacement(match: re.Match[str]) -> str:
        start, end = match.span(match.lastindex or 0)
        return match.string[match.start() : start] + mask(match.string[start:end]) + match.string[end : match.end()]

    return compile_cached(pattern, flags).sub(replacement, text)


def apply_masks(text: str, masks: Iterable[MaskedSpan]) -> str:
    """Return ``text`` with the ordered, disjoint ``masks`` applied."""
    parts, end = [], 0
    for first, last, mask in masks:
        parts += [text[end:first], mask]
        end = last
    return "".join(parts) + text[end:]


def mask_until_stable(mask: Callable[[str], str], text: str) -> str:
    """Return ``text`` masked until nothing changes, so that masking is idempotent.

    One replacement may complete another form. A text that never stabilizes is masked line by line.
    """
    for _ in range(12):
        before, text = text, mask(text)
        if text == before:
            return text
    return mask_secret(text)
