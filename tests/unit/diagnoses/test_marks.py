"""What a pattern needs is told right: nothing that it matches is passed over, whatever the length of the text."""

from __future__ import annotations

import json
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpunode.diagnoses
from gpunode.diagnoses.marks import marks, may_occur, numbers
from gpunode.facts.items import Item
from gpunode.facts.sources import Source

REPORTS = Path(__file__).parents[2] / "scenarios" / "doctor"


def item(text: str) -> Item:
    return Item("log", "log", Source("text"), text)


def patterns() -> list[re.Pattern[str]]:
    """Every pattern that stands by itself in a module of the rules."""
    names = [info.name for info in pkgutil.walk_packages(gpunode.diagnoses.__path__, "gpunode.diagnoses.")]
    values = [value for name in names for value in vars(import_module(name)).values()]
    return list(dict.fromkeys(value for value in values if isinstance(value, re.Pattern)))


def lines() -> list[str]:
    texts = (row["text"] for path in REPORTS.rglob("*.json") for row in json.loads(path.read_text())["evidence"])
    return sorted({line for text in texts for line in text.splitlines()})


def test_no_line_of_a_report_is_passed_over() -> None:
    every = [(line, item(line)) for line in lines()]
    for pattern in patterns():
        ways = marks(pattern)
        for line, one in every:
            if ways and pattern.search(line):
                assert any(all(word in one.lowered for word in way) for way in ways), (pattern.pattern, line)


FILL = "Nov 21 10:00:00 node systemd[1]: Started a session of user nobody, which says nothing.\n"


@pytest.mark.parametrize("copies", [0, 400])
def test_lines_are_found_by_their_numbers_in_short_and_long_texts(copies: int) -> None:
    text = f"first Alpha here\n{FILL * copies}beta then ALPHA\n\nalpha twice, alpha\n{FILL * copies}the end is alpha"
    found = tuple(numbers(re.compile(r"\balpha\b(?: here)?", re.IGNORECASE), item(text)))
    assert found == (1, 2 + copies, 4 + copies, 5 + 2 * copies)


def test_a_long_text_without_the_words_is_not_searched() -> None:
    text = item(FILL * 100)
    assert not may_occur(re.compile(r"(?:lost|gone) GPU|Xid \d+: fell"), text)
    assert may_occur(re.compile(r"Started (?:a|the) session"), text)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"could not select (?:device|runtime) driver", {("could", "not", "select", "device", "driver"),
                                                          ("could", "not", "select", "runtime", "driver")}),
        (r"[Ee]rror: lost", {("rror:", "lost")}),
        (r"(?:alpha)?beta", {("beta",)}),
        (r"(?:alpha|\d+)", set()),
        (r"\d+: 79", set()),
    ],
)  # fmt: skip
def test_what_a_pattern_needs(pattern: str, expected: set[tuple[str, ...]]) -> None:
    assert {tuple(sorted(way)) for way in marks(re.compile(pattern))} == {tuple(sorted(way)) for way in expected}


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bXid \((?:PCI:)?[0-9a-f:]{7,12}\): (?:79|48), \w{1,5}",
        r"(?:Failed to (?:acquire|renew)|License expired) [a-z]{0,3}",
        r"(?:no|not) space(?: for)?|failed to assign",
        r"x{2,3}abc?d+",
        r"(?:(?:one|two) three|four five){1,2}",
        r"(?i:Words) and(?! more)",
    ],
)
@settings(max_examples=60)
@given(data=st.data())
def test_whatever_matches_has_the_words(pattern: str, data: st.DataObject) -> None:
    compiled = re.compile(pattern)
    text = data.draw(st.from_regex(compiled))
    assert may_occur(compiled, item(f"{FILL * 60}{text}"))
