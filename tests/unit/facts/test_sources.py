"""Evidence from each source."""

from __future__ import annotations

import pytest

from gpunode.facts.sources import Source


@pytest.mark.parametrize(
    ("pattern", "shows"),
    [
        ("", True),
        ("nvidia|cuda", True),
        ("^nvidia-D", True),
        ("libcuda", False),
        ("(nvidia", False),
        # A search for it would not end.
        ("(([a-z-]+)+)+X", False),
        ("a*" * 60 + "b", False),
    ],
)
def test_grep_pattern_lets_matching_lines_through(pattern: str, shows: bool) -> None:
    assert Source("packages", pattern=pattern).lets_through("nvidia-driver-550" + "a" * 40) is shows
