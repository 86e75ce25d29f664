from __future__ import annotations

import gc
import json
import pkgutil
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import gpunode.diagnoses
import gpunode.facts
from gpunode.facts.patterns import Pattern

REPORTS = Path(__file__).parents[2] / "scenarios" / "doctor"


@cache
def every_pattern() -> tuple[Pattern, ...]:
    for package in (gpunode.facts, gpunode.diagnoses):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    gc.unfreeze()  # a fleet that another test looked at has taken all that was there out of its sight
    found = [one for one in gc.get_objects() if isinstance(one, Pattern)]
    return tuple({(one.pattern, one.flags): one for one in found}.values())


def test_nothing_is_compiled_before_it_is_asked() -> None:
    pattern = Pattern("(")
    assert pattern.words == frozenset()
    with pytest.raises(re.error):
        pattern.search("text")


def test_every_pattern_compiles() -> None:
    assert len(every_pattern()) > 800
    for pattern in every_pattern():
        assert pattern.compiled.pattern == pattern.pattern


def test_a_pattern_answers_as_re_does() -> None:
    ours, theirs = Pattern(r"(\w)=(\d)", re.IGNORECASE), re.compile(r"(\w)=(\d)", re.IGNORECASE)
    text = "a=1 B=2 c=x"
    assert ours.findall(text) == theirs.findall(text)
    assert ours.split(text, 1) == theirs.split(text, 1)
    assert ours.sub("-", text, 1) == theirs.sub("-", text, 1)
    assert [one.span() for one in ours.finditer(text, 2, 6)] == [one.span() for one in theirs.finditer(text, 2, 6)]
    for name in ("search", "match", "fullmatch"):
        for start, end in ((0, 99), (0, 3), (1, 99), (4, 7), (4, 6)):
            found, wanted = getattr(ours, name)(text, start, end), getattr(theirs, name)(text, start, end)
            assert (found and found.span()) == (wanted and wanted.span())


def test_case_does_not_matter() -> None:
    pattern = Pattern("GPU is lost", re.IGNORECASE)
    assert pattern.may_match("the gpu is lost")
    assert not pattern.may_match("the gpu is found")
    assert Pattern(r"\d").may_match("anything")


def lines_of_reports() -> list[str]:
    texts = [one["text"] for path in REPORTS.rglob("*.json") for one in json.loads(path.read_text())["evidence"]]
    return [line for line in dict.fromkeys("\n".join(texts).split("\n")) if len(line) < 400]


def test_no_pattern_matches_without_its_words() -> None:
    lines = lines_of_reports()
    # All lines at once, as if each were alone.
    whole = "\n".join(lines)
    for pattern in every_pattern():
        for match in re.finditer(pattern.pattern, whole, pattern.flags | re.MULTILINE) if pattern.words else ():
            assert pattern.may_match(match[0].lower()), (pattern, match)
