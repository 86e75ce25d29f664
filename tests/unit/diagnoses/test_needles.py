"""What every match of a pattern must hold is found, and never more than that."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.diagnoses.needles import may_match, needles


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"fallen off the bus", ("fallen off the bus",)),
        (r"\bGPU \S+ is already bound to (?P<driver>[\w-]+)", (" is already bound to ",)),
        (r"not (?:loaded|found) here", ("loaded", "found")),
        (r"[a-z]+\d*", ()),
        (r"ab|cdef", ()),
        (r"(?:optional )?\w+", ()),
        (r"(?:three )+x", ("three ",)),
        (r"^Loaded: (?!masked)", ("Loaded: ",)),
        (r"(?i:Words) and", (" and",)),
    ],
)
def test_the_best_words_of_a_pattern(pattern: str, words: tuple[str, ...]) -> None:
    assert needles(re.compile(pattern)) == words


def test_case_is_folded_where_the_pattern_folds_it() -> None:
    pattern = re.compile("GPU Access Blocked", re.IGNORECASE)
    assert needles(pattern) == ("gpu access blocked",)
    assert may_match(pattern, "gpu ACCESS blocked by", "gpu access blocked by")


PATTERNS = (
    r"\bXid \((?:PCI:)?[0-9a-f:]{7,12}\): (?:79|48), \w{1,5}",
    r"(?:Failed to (?:acquire|renew)|License expired) [a-z]{0,3}",
    r"(?:no|not) space(?: for)?|failed to assign",
    r"x{2,3}abc?d+",
    r"(?:(?:one|two) three|four five){1,2}",
)


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=60)
@given(data=st.data())
def test_every_match_holds_one_of_the_words(pattern: str, data: st.DataObject) -> None:
    compiled = re.compile(pattern)
    text = data.draw(st.from_regex(compiled))
    assert may_match(compiled, text, text.lower())
