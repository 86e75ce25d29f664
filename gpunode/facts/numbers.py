"""Numbers as they stand in evidence, which nobody has promised to keep short.

Python reads no whole number of thousands of digits, and what is as long as that counts nothing: it is no number here.
"""

from __future__ import annotations

import re
from typing import Final

# What 64 bits hold, almost: more bytes, links or restarts than these are nowhere.
_DIGITS: Final = 18


def whole(text: str) -> int | None:
    """The whole number that ``text`` is; None where it is another thing, or longer than any that counts something."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def version(text: str) -> tuple[int, ...]:
    """The numbers of a version of digits and dots, each with as many digits as count.

    Raises:
        ValueError: it has other parts.
    """
    return tuple(int(part[:_DIGITS]) for part in text.split("."))
