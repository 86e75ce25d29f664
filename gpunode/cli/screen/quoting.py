"""Lines of logs quoted as proof: whole, or of one without end the passage that proves something. Pure."""

from __future__ import annotations

import re
from itertools import accumulate, takewhile
from typing import Final

from gpunode.cli.screen.text import cells

_WORD: Final = re.compile(r"[\w.:/+-]*\w")
# What names a fault or a GPU in any message.
_ALWAYS: Final = re.compile(
    r"\bS?Xid\b|\b[0-9a-f]{2}:[0-9a-f]{2}\b|\berror|\bfail|\bfatal|\bmismatch|\bdenied", re.IGNORECASE
)
_SHORTEST: Final = 3
_CUT: Final = "…"


def telling(*texts: str) -> frozenset[str]:
    """The words of ``texts`` by which the part of a line is known that proves something."""
    found = (match[0].lower() for text in texts for match in _WORD.finditer(text))
    return frozenset(word for word in found if len(word) >= _SHORTEST or word.isdecimal())


def passage(line: str, words: frozenset[str], room: int) -> str:
    """``line``, its blanks made single; of more than ``room`` columns the passage from where it has ``words``.

    No word is left out between two that are shown: a proof is read, and pasted into tickets, as it was logged.
    """
    plain = " ".join(line.split())
    if cells(plain) <= room:
        return plain
    found = (match.start() for match in _WORD.finditer(plain) if match[0].lower() in words)
    told = min((match.start() for match in (_ALWAYS.search(plain),) if match), default=len(plain))
    told = min((*found, told))
    # A quarter before what tells; at the end of the line, all that fits.
    start = plain.rfind(" ", 0, max(0, min(told - room // 4, len(plain) - room))) + 1
    before = f"{_CUT} " if start else ""
    shown = _fitting(plain[start:], room - cells(before))
    return before + shown


def _fitting(text: str, room: int) -> str:
    """``text``, or as many of its first letters as fit with the sign that more follows."""
    if cells(text) <= room:
        return text
    used = accumulate(map(cells, text), initial=cells(f" {_CUT}"))
    end = sum(1 for _ in takewhile(lambda columns: columns <= room, used)) - 1
    blank = text.rfind(" ", 0, end)
    return f"{text[: blank if blank > end // 2 else end]} {_CUT}"
