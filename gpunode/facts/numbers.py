"""Parsing of numbers in evidence, which may be of any length.

Python parses no integer of thousands of digits. Nothing in evidence counts that high, so it is not a number here.
"""

from __future__ import annotations

import re
from typing import Final

# What 64 bits hold, almost: more bytes, links or restarts than these are nowhere.
_MAX_DIGITS: Final = 18


def parse_int(text: str) -> int | None:
    """Parse a whole number; return None for other text or an absurdly long number."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def parse_version(text: str) -> tuple[int, ...]:
    """Parse a version of digits and dots; overlong numbers are shortened.

    Raises:
        ValueError: if it has other parts.
    """
    return tuple(int(part[:_MAX_DIGITS]) for part in text.split("."))
