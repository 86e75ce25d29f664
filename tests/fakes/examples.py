"""How many examples a property is tried on."""

from __future__ import annotations

from hypothesis import settings


def examples(usual: int) -> int:
    """``usual``, and as many times more as the Hypothesis profile has it than Hypothesis itself (100)."""
    return usual * max(1, settings().max_examples // 100)
