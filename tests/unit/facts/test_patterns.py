from __future__ import annotations

import gc
import json
import pkgutil
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpunode.diagnoses
import gpunode.facts
from gpunode.facts.patterns import Pattern
from tests.fakes.examples import sample

REPORTS = Path(__file__).parents[2] / "scenarios" / "doctor"


@cache
def every_pattern() -> tuple[Pattern, ...]:
    for package in (gpunode.facts, gpunode.diagnoses):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    gc.unfreeze()  # a fleet of another test has already frozen every existing object
    found = [one for one in gc.get_objects() if isinstance(one, Pattern)]
    return tuple({(one.pattern, one.flags): one for one in found}.values())


def test_every_pattern_compiles() -> None:
    pattern = Pattern("(")
    assert pattern.word_sets == ()
    with pytest.raises(re.error):
        pattern.search("text")


@pytest.mark.parametrize(
    ("written", "flags"),
    [("(?i)", re.IGNORECASE), ("(?m)", re.MULTILINE), ("(?im)", re.IGNORECASE | re.MULTILINE)],
)
def test_flags_may_lead_the_expression(written: str, flags: re.RegexFlag) -> None:
    pattern = Pattern(rf"{written}^fallen (?:off|from)")
    assert (pattern.pattern, pattern.flags) == ("^fallen (?:off|from)", flags)
    assert pattern.word_sets == (("fallen ", "off"), ("fallen ", "from"))
    assert bool(pattern.search("first\nfallen off")) is bool(flags & re.MULTILINE)


def test_pattern_is_compiled_on_first_use() -> None:
    assert len(every_pattern()) > 800
    for pattern in every_pattern():
        assert pattern.compiled.pattern == pattern.pattern


def test_pattern_is_not_compiled_for_a_text_without_its_words() -> None:
    pattern = Pattern(r"fallen off the \w+", re.IGNORECASE)
    assert (pattern.search("all is well"), pattern.match("well"), pattern.fullmatch("")) == (None, None, None)
    assert [*pattern.finditer("all is well")] == []
    assert pattern.search("Fallen off the bus, all is well", 19) is None
    assert pattern._compiled is None
    assert pattern.search("FALLEN off the bus") is not None


def test_pattern_matches_like_re() -> None:
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


def test_prefilter_ignores_case() -> None:
    pattern = Pattern("GPU is lost", re.IGNORECASE)
    assert pattern.may_match("the gpu is lost")
    assert not pattern.may_match("the gpu is found")
    assert Pattern(r"\d").may_match("anything")


def lines_of_reports() -> list[str]:
    texts = [one["text"] for path in REPORTS.rglob("*.json") for one in json.loads(path.read_text())["evidence"]]
    return [line for line in dict.fromkeys("\n".join(texts).split("\n")) if len(line) < 400]


def test_prefilter_rejects_no_real_match() -> None:
    lines = sample(lines_of_reports(), "prefilter", str, 1500)
    # All lines at once, with the same result as each line alone.
    whole = "\n".join(lines)
    for pattern in every_pattern():
        for match in re.finditer(pattern.pattern, whole, pattern.flags | re.MULTILINE) if pattern.word_sets else ():
            assert pattern.may_match(match[0].lower()), (pattern, match)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("GPU is lost", {"gpu is lost"}),
        (r"\bGPU is lost\b|GPU_IS_LOST", {"gpu is lost", "gpu_is_lost"}),
        (r"fallen off the (?:PCIe? )?bus", {("fallen off the ", "bus")}),
        (r"failed \((?P<code>0x[0-9a-f]+)\)", {"failed ("}),
        (r"(?:no|any) reason", {" reason"}),
        (r"(?:could not|cannot) start", {("could not", " start"), ("cannot", " start")}),
        (r"timed? ?out", {("time", "out")}),
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
        (r"(\d) and then \1 again", {(" and then ", " again")}),
        (r"(?P<end>[A-Z]+)\n(?P=end)", set()),
        (r"[^^]word", {"word"}),
        (r"C:\\dir\.x+", {"c:\\dir."}),
        (r"module .* not found", {(" not found", "module ")}),
        (r"NVRM.*(?:failed|timed out)", {("failed", "nvrm"), ("timed out", "nvrm")}),
        (r"(?:one|two) (?:wonder|thousand)", {"wonder", "thousand"}),
        (r"(?:abc|abc)+ and \d|done", {(" and ", "abc"), "done"}),
        (r"(?:(?:ab|cd)x|efg).*hij", {"hij"}),
    ],
)
def test_required_words_of_a_pattern(pattern: str, words: set[str | tuple[str, ...]]) -> None:
    found = Pattern(pattern).word_sets
    assert {one[0] if len(one) == 1 else one for one in found} == words
    assert len(found) == len(words)


def test_verbose_pattern_has_no_required_words() -> None:
    assert Pattern("word # and a remark", re.VERBOSE).word_sets == ()


LITERAL = ("abcd", "Word", r"\.", r"\101", r"\060", " ", "^")
VARYING = ("[^^]", "[^a]", "[^]]", "[^^]*", "[x]", "[Xx]", r"\d", r"\b", "(?:ab|cdef)", "(one|two)", "|")
REPEATED = ("b?", "c+", "d{2}", "e{0,2}")
PIECES = (*LITERAL, *VARYING, *REPEATED)


@settings(max_examples=50)
@given(st.data(), st.lists(st.sampled_from(PIECES), min_size=1, max_size=6))
def test_generated_match_contains_the_required_words(data: st.DataObject, pieces: list[str]) -> None:
    pattern = "".join(pieces)
    made = Pattern(pattern)
    try:
        match = re.search(pattern, data.draw(st.from_regex(pattern)))
    except re.error:
        return
    assert match is None or made.may_match(match[0].lower())
