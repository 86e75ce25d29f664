"""Numbers of examples per property, and of rows of a long table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import settings

_HYPOTHESIS_OWN = 100
Row = TypeVar("Row")


def examples(usual: int) -> int:
    """Return ``usual``, and as many times more as the Hypothesis profile has it than Hypothesis itself."""
    return usual * max(1, settings().max_examples // _HYPOTHESIS_OWN)


def sample(rows: Sequence[Row], law: str, name: Callable[[Row], str], count: int = 60) -> list[Row]:
    """Return ``count`` of ``rows``, the same in each run and others for each ``law``; all of them in the long run."""
    if settings().max_examples > _HYPOTHESIS_OWN:
        return list(rows)
    chosen = sorted(rows, key=lambda row: hashlib.sha256(f"{law} {name(row)}".encode()).digest())[:count]
    return [row for row in rows if row in chosen]
