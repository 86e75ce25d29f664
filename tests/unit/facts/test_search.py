"""What a pattern needs is found, and a long text searched by it gives what a plain search gives."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts.search import Lines, needs

WORDS = ("nvidia", "probe", "routine", "Xid", "failed", "not called", "错误", "2 GPUs", "")
PATTERNS = (
    r"probe routine (?:was )?not called",
    r"(?:Xid|failed): \d+",
    r"错误|error",
    r"[Nn]vidia.{0,20}failed",
    r"(?:probe)?",
    r"\d+ GPUs$",
    r"NVIDIA\b",
)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (
            r"probe routine was not called for \d+ device",
            ({"probe", "routine", "was", "not", "called", "for", "device"},),
        ),
        (r"(?:Xid|GPU lost)\b", ({"xid"}, {"gpu", "lost"})),
        (r"[Cc]ould not (?:open|load)?", ({"ould", "not"},)),
        (r"\d+\.\d+", ()),
        (r"(?:module|\d+)", ()),
        (r"(?:key )+rejected", ({"key", "rejected"},)),
    ],
)
def test_what_every_match_holds(pattern: str, expected: tuple[set[str], ...]) -> None:
    assert needs(re.compile(pattern)) == tuple(frozenset(words) for words in expected)


@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join), max_size=30), st.sampled_from(PATTERNS))
def test_an_index_finds_what_a_plain_search_finds(lines: list[str], pattern: str) -> None:
    for flags in (0, re.IGNORECASE):
        compiled = re.compile(pattern, flags)
        padded = [*lines, "x" * 20_000]
        plain = [number for number, line in enumerate(padded) if compiled.search(line)]
        assert [number for number, _ in Lines(padded).matching(compiled)] == plain


def test_letters_that_become_two_in_small_shift_nothing() -> None:
    lines = Lines(["İİİİ", "nvidia İ failed", "x" * 20_000, "the last: nvidia"])
    assert [number for number, _ in lines.matching(re.compile("nvidia"))] == [1, 3]
