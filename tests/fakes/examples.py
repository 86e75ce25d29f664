"""Numbers of examples per property, and of rows of a long table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import settings

_HYPOTHESIS_OWN = 100
Row = TypeVar("Row")


def examples(usual: int) -> int:
    """Return ``usual``, scaled like the profile's number of examples compared with Hypothesis's default."""
    return usual * max(1, settings().max_examples // _HYPOTHESIS_OWN)


def sample(rows: Sequence[Row], law: str, name: Callable[[Row], str], count: int = 60) -> list[Row]:
    """Return ``count`` of ``rows``, the same in each run but different for each ``law``; all of them in long runs."""
    if settings().max_examples > _HYPOTHESIS_OWN:
        return list(rows)
    chosen = sorted(rows, key=lambda row: hashlib.sha256(f"{law} {name(row)}".encode()).digest())[:count]
    return [row for row in rows if row in chosen]
