"""Regular expressions that are compiled on first use, and masking by the group that they capture."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Final

MASK: Final = "redacted"


@cache
def compiled(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
    """The pattern, compiled on first use."""
    return re.compile(pattern, flags)


def masked(secret: str) -> str:
    """The mask for ``secret``, with as many lines and the same indentation."""
    if "\n" not in secret:
        return MASK if secret else ""
    return "\n".join(
        line[: len(line) - len(line.lstrip())] + MASK if line.strip() else line for line in secret.split("\n")
    )


def replaced(pattern: str, text: str, mask: Callable[[str], str] = masked, flags: int = 0) -> str:
    """``text`` with the capturing group of each match masked. Of several groups, the last that matched counts."""

    def replacement(match: re.Match[str]) -> str:
        start, end = match.span(match.lastindex or 0)
        return match.string[match.start() : start] + mask(match.string[start:end]) + match.string[end : match.end()]

    return compiled(pattern, flags).sub(replacement, text)


def settled(mask: Callable[[str], str], text: str) -> str:
    """``text`` masked until nothing changes: masking the result again returns it as it is.

    One replacement may complete another form. A text that never settles is masked line by line.
    """
    for _ in range(12):
        before, text = text, mask(text)
        if text == before:
            return text
    return masked(text)
