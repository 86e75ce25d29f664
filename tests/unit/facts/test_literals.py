from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.facts.literals import Vocabulary, needed


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("GPU is lost", {"gpu is lost"}),
        (r"\bGPU is lost\b|GPU_IS_LOST", {"gpu is lost", "gpu_is_lost"}),
        (r"fallen off the (?:PCIe? )?bus", {"fallen off the "}),
        (r"failed \((?P<code>0x[0-9a-f]+)\)", {"failed ("}),
        (r"(?:no|any) reason", {" reason"}),
        (r"(?:could not|cannot) start", {"could not", "cannot"}),
        (r"timed? ?out", {"time"}),
        (r"colou?rs", {"colo"}),
        (r"(?:optional )?word", {"word"}),
        (r"ab+cdef", {"cdef"}),
        (r"x{0,3}word", {"word"}),
        (r"[^abc]]word", {"]word"}),
        (r"[Ss]ecure [Bb]oot[.]", {"secure boot."}),
        (r"(?<!no )error here(?! now)", {"error here"}),
        (r"a.b", set()),
        (r"\d+|word", set()),
        (r"(?i:word)", set()),
        (r"\x41word", set()),
        (r"\101word", set()),
        (r"[^^]word", {"word"}),
    ],
)
def test_what_a_pattern_needs(pattern: str, words: set[str]) -> None:
    assert needed(pattern) == words


def test_a_pattern_that_is_spread_over_lines_is_left_alone() -> None:
    assert needed("word # and a remark", re.VERBOSE) == frozenset()


def test_a_vocabulary_knows_what_stands_in_its_text() -> None:
    words = Vocabulary("the gpu is lost: 0000:01:00.0 über\nthe gpu is lost")
    for string in ("gpu is lost", "pu is lo", "lost\nthe", ": 0000:01", "über", "", " "):
        assert (string in words) == (string in "the gpu is lost: 0000:01:00.0 über\nthe gpu is lost")
    for string in ("lost gpu", "lostgpu", "0000:02", "uber", "is  lost"):
        assert string not in words


@given(st.text("ab_ :é1\n"), st.text("ab_ :é1\n", max_size=4))
def test_a_vocabulary_says_what_its_text_says(text: str, string: str) -> None:
    assert (string in Vocabulary(text)) == (string in text)


LITERAL = ("abcd", "Word", r"\.", r"\101", r"\060", " ", "^")
VARYING = ("[^^]", "[^a]", "[^]]", "[^^]*", "[x]", "[Xx]", r"\d", r"\b", "(?:ab|cdef)", "(one|two)", "|")
REPEATED = ("b?", "c+", "d{2}", "e{0,2}")
PIECES = (*LITERAL, *VARYING, *REPEATED)


@settings(max_examples=50)
@given(st.data(), st.lists(st.sampled_from(PIECES), min_size=1, max_size=6))
def test_what_a_pattern_matches_has_one_of_its_words(data: st.DataObject, pieces: list[str]) -> None:
    pattern = "".join(pieces)
    words = needed(pattern)
    try:
        match = re.search(pattern, data.draw(st.from_regex(pattern)))
    except re.error:
        return
    assert not words or match is None or any(word in match[0].lower() for word in words)
