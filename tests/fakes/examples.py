"""Numbers of examples per property, and of rows of a long table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import settings

# The number of examples of the profile of `make test`.
_USUAL = 50
Row = TypeVar("Row")


def examples(usual: int) -> int:
    """Return ``usual``, scaled like the profile's number of examples compared with that of `make test`."""
    return usual * max(1, settings().max_examples // _USUAL)


def sample(rows: Sequence[Row], law: str, name: Callable[[Row], str], count: int = 60) -> list[Row]:
    """Return ``count`` of ``rows``, the same in each run but different for each ``law``; all of them in long runs."""
    if settings().max_examples > _USUAL:
        return list(rows)
    places = sorted(range(len(rows)), key=lambda at: hashlib.sha256(f"{law} {name(rows[at])}".encode()).digest())
    return [rows[at] for at in sorted(places[:count])]
