"""Lines of logs made short: what stands before every message goes, then what says nothing of the finding. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gpunode.cli.screen.text import cells

# The time of a kernel's message, its caller, the host and the program, of which the source tells.
_STAMP: Final = re.compile(
    r"^\s*(?:\[\s*\d{1,9}\.\d{1,6}\](?:\s*\[\s*[TC]\d+\])?\s*"
    r"|\[\w{3} \w{3}\s+\d{1,2} \d\d:\d\d:\d\d \d{4}\]\s*"
    r"|(?:\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d)?|\w{3}\s+\d{1,2} \d\d:\d\d:\d\d)"
    r"\s+\S+\s+[\w.-]{1,40}(?:\[\d+\])?:\s+)"
)
_WORD: Final = re.compile(r"[\w.:/+-]*\w")
# What names a fault or a GPU in any message.
_ALWAYS: Final = re.compile(
    r"\bS?Xid\b|\b[0-9a-f]{2}:[0-9a-f]{2}\b|\berror|\bfail|\bfatal|\bmismatch|\bdenied", re.IGNORECASE
)
_SHORTEST: Final = 3
_MOST_WORDS: Final = 400
_CUT: Final = "…"


def telling(*texts: str) -> frozenset[str]:
    """The words of ``texts`` by which the part of a line is known that proves something."""
    found = (match[0].lower() for text in texts for match in _WORD.finditer(text))
    return frozenset(word for word in found if len(word) >= _SHORTEST or word.isdecimal())


def shortened(line: str, words: frozenset[str], room: int) -> str:
    """``line`` in ``room`` columns; what stays of one too long is what has ``words``, and what is next to that."""
    plain = " ".join(line.split())
    if cells(plain) <= room:
        return plain
    plain = _STAMP.sub("", plain)
    if cells(plain) <= room:
        return plain
    parts = [_narrowed(part, room) for part in plain.split(" ")[:_MOST_WORDS]]
    kept: set[int] = set()
    for index in _by_weight(parts, words):
        if cells(_with_cuts(parts, kept | {index})) <= room:
            kept.add(index)
    return _with_cuts(parts, kept)


def _by_weight(parts: list[str], words: frozenset[str]) -> list[int]:
    """The parts, the first and the telling ones before those that stand near them."""
    tell = [index for index, part in enumerate(parts) if _tells(part, words)] or [0, len(parts) - 1]
    near = {index: min(abs(index - one) for one in (0, *tell)) for index in range(len(parts))}
    return sorted(range(len(parts)), key=lambda index: (index != 0, near[index], "=" in parts[index], index))


def _tells(part: str, words: frozenset[str]) -> bool:
    return _ALWAYS.search(part) is not None or any(match[0].lower() in words for match in _WORD.finditer(part))


def _with_cuts(parts: list[str], kept: Iterable[int]) -> str:
    shown: list[str] = []
    before = -1
    for index in sorted(kept):
        if index > before + 1:
            shown.append(_CUT)
        shown.append(parts[index])
        before = index
    if before < len(parts) - 1:
        shown.append(_CUT)
    return " ".join(shown)


def _narrowed(part: str, room: int) -> str:
    """A word without blanks that would fill the row alone."""
    most = max(room // 2, 8)
    return part if len(part) <= most else f"{part[: most * 2 // 3]}{_CUT}{part[-(most // 3 - 1) :]}"
