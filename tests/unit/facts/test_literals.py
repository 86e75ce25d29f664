from __future__ import annotations

import re

import pytest

import gpunode.diagnoses
from gpunode.facts.literals import may_match, needed


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
    ],
)
def test_what_a_pattern_needs(pattern: str, words: set[str]) -> None:
    assert needed(re.compile(pattern)) == words


def test_a_pattern_that_is_spread_over_lines_is_left_alone() -> None:
    assert needed(re.compile("word # and a remark", re.VERBOSE)) == frozenset()


def test_case_does_not_matter() -> None:
    pattern = re.compile("GPU is lost", re.IGNORECASE)
    assert may_match(pattern, "the gpu is lost")
    assert not may_match(pattern, "the gpu is found")
    assert may_match(re.compile(r"\d"), "anything")


def patterns_of_the_rules() -> list[re.Pattern[str]]:
    import pkgutil
    from importlib import import_module

    names = [m.name for m in pkgutil.walk_packages(gpunode.diagnoses.__path__, "gpunode.diagnoses.")]
    found = (value for name in names for value in vars(import_module(name)).values())
    return [value for value in found if isinstance(value, re.Pattern)]


def test_no_pattern_of_a_rule_matches_without_its_words() -> None:
    from pathlib import Path

    reports = Path(__file__).parents[2] / "scenarios" / "doctor"
    texts = [path.read_text().encode().decode("unicode_escape", "replace") for path in sorted(reports.rglob("*.json"))]
    whole = "\n".join(texts)
    lines = [line for line in dict.fromkeys(whole.splitlines()) if len(line) < 400]
    for pattern in patterns_of_the_rules():
        for line in lines:
            if not may_match(pattern, line.lower()):
                assert not pattern.search(line), (pattern, line)
