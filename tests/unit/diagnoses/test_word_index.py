from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.diagnoses.snapshot import find_all, lines_with
from gpunode.diagnoses.word_index import ItemGroup, LineIndex, vocabulary_of
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Source

# Characters whose lower case is longer, letters of other alphabets, digits, line ends.
TEXT = st.text("abAB 1_\nİßé驱", max_size=40)
WORD = st.text("ab 1_éi驱", min_size=1, max_size=5)


def item(text: str) -> EvidenceItem:
    return EvidenceItem("key", "written", Source("text"), text)


@given(TEXT, WORD)
def test_index_finds_the_lines_with_a_word(text: str, word: str) -> None:
    one = item(text)
    found = [one.lines[one.line_number_at(start) - 1] for start in one.view(LineIndex).line_starts(word)]
    lowered = zip(text.split("\n"), one.lowered.split("\n"), strict=True)
    assert found == [line for line, lower in lowered if word in lower]


@given(st.lists(TEXT, max_size=4), WORD)
def test_vocabularies_lack_no_word_that_is_there(texts: list[str], word: str) -> None:
    items = [item(text) for text in texts]
    having = [one for one in items if word in one.lowered]
    assert not (having and vocabulary_of(items).lacks(word))
    found = {id(one) for one in ItemGroup(items).items_with_words(Pattern(re.escape(word), re.IGNORECASE))}
    assert {id(one) for one in having} <= found


def test_absent_word_is_known_from_the_vocabulary() -> None:
    items = [item("NVRM: loading"), item("GPU 0: Tesla T4")]
    assert vocabulary_of(items).lacks("fallen off the ")
    assert not vocabulary_of(items).lacks("tesla t4")
    assert ItemGroup(items).items_with_words(Pattern("tesla", re.IGNORECASE)) == (items[1],)
    assert ItemGroup(items).items_with_words(Pattern("fallen off")) == ()


@pytest.mark.parametrize(
    ("pattern", "flags", "is_line_based"),
    [
        (r"GPU is lost$", re.MULTILINE, True),
        (r"GPU is lost$", 0, False),
        (r"GPU[^\n]*lost", 0, True),
        (r"GPU[^\]\n]*lost", 0, True),
        (r"runtimes: \{[\s\n]*nvidia", 0, False),
        (r"GPU.*lost", re.DOTALL, False),
    ],
)
def test_pattern_says_whether_it_goes_over_a_line_end(pattern: str, flags: int, is_line_based: bool) -> None:
    assert Pattern(pattern, flags).is_line_based is is_line_based


def test_lines_of_any_pattern_are_those_of_a_plain_search() -> None:
    text = "GPU is lost\nall is well\nthe gpu IS LOST\n  GPU is lost again"
    for pattern in (r"GPU is lost", r"^\s*GPU is", r"lost$", r"(?<=is )lost"):
        for flags in (re.MULTILINE, re.MULTILINE | re.IGNORECASE):
            wanted = [n for n, line in enumerate(text.split("\n"), 1) if re.search(pattern, line, flags)]
            assert [one.line_number for one in lines_with(item(text), Pattern(pattern, flags))] == wanted


@pytest.mark.parametrize("pattern", [r"Spec directories:\s*/etc/cdi", r"directories:\D/etc", r"directories:[^x]/etc"])
def test_pattern_that_a_line_end_matches_is_found_over_it(pattern: str) -> None:
    one = item("CDI Spec directories:\n/etc/cdi\n/var/run/cdi")
    assert [match[0] for match in find_all(one, Pattern(pattern))] == re.findall(pattern, one.text) != []
    assert not Pattern(r"CDI[^\n]+ directories:[ \t]").may_span_lines
