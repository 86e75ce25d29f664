"""What nobody writes costs nothing: words of kilobytes, numbers of thousands of digits."""

from __future__ import annotations

import gc
import importlib
import json
import pkgutil
import re
import time
from pathlib import Path

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted
from gpunode.facts.numbers import version, whole
from gpunode.facts.patterns import Pattern

WORDS = ("a", "0", "_", "0123456789abcdef", "A", "/", "a/", ".", "a.", "-", "[", ":")
SCENARIOS = Path(__file__).parents[2] / "scenarios/doctor"


def every() -> list[Pattern]:
    """The patterns of facts and diagnoses; without shell patterns, of which whole names of packages are asked."""
    for name in ("facts", "diagnoses"):
        package = importlib.import_module(f"gpunode.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"gpunode.{name}."):
            importlib.import_module(module.name)
    return [one for one in gc.get_objects() if isinstance(one, Pattern) and "\\Z" not in one.pattern]


def spent(pattern: Pattern, text: str) -> float:
    """The processor time in which all matches are found; the least of three, since the machine has others to serve."""
    times = []
    for _ in range(3):
        started = time.process_time()
        for _match in pattern.finditer(text):
            pass
        times.append(time.process_time() - started)
        if times[-1] < 0.004:
            break
    return min(times)


@pytest.mark.long  # it looks at the clock
@pytest.mark.parametrize("word", WORDS)
def test_no_pattern_costs_the_square_of_a_words_length(word: str) -> None:
    """A payload in hex of 60 KB cost a minute; a square shows in 4 KB (8 million steps), which else take 1 ms."""
    text = (word * 4096)[:4096]
    slow = [one.pattern for one in every() if spent(one, text) > 0.03]
    assert slow == []


@pytest.mark.long  # it looks at the clock
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("python app.py", "RuntimeError: CUDA error: unknown error\npayload " + "3c4b442dcae121cd" * 4000),
        ("app log", "failed to initialize CUDA: unknown error\n" + "error" * 12000),
        ("python app.py", "RuntimeError: CUDA error: unknown error\n" + ("3c4b442dcae121cd" * 2000 + "\n") * 10),
    ],
)
def test_a_long_word_in_a_log_takes_no_time(source: str, text: str) -> None:
    """These took from 38 s to four minutes."""
    started = time.process_time()
    diagnose(snapshot(pasted.evidence([(source, text)])))
    assert time.process_time() - started < 5.0


def test_a_number_of_thousands_of_digits_is_none() -> None:
    """Twelve rules ended in it as a bug of gpunode's."""
    node = f"apiVersion: v1\nkind: Node\nstatus:\n  capacity:\n    nvidia.com/gpu: {'1' * 5000}\n"
    found = diagnose(snapshot(pasted.evidence([("kubectl get node gpu1 -o yaml", node)])), guarded=True)
    assert found.bugs == ()


@pytest.mark.parametrize("name", ["039-pcie-width-downgraded-x1.json", "095-uvm-not-loaded-llama.json"])
def test_no_rule_ends_in_a_number(name: str) -> None:
    """Every number of a report, as long as nobody counts."""
    (path,) = SCENARIOS.rglob(name)
    for number in (r"(?<![\w.])\d{1,4}(?![\w.])", r"\b\d+(?=\.)"):
        pieces = [
            (one["source"], re.sub(number, "1" * 5000, one["text"]))
            for one in json.loads(path.read_text())["evidence"]
            if len(one["text"]) < 8000
        ]
        assert diagnose(snapshot(pasted.evidence(pieces)), guarded=True).bugs == ()


def test_whole_numbers_and_versions() -> None:
    """Digits of other alphabets are none, although ``isdigit`` says so."""
    assert [whole(text) for text in ("0", "12", "²", "", "-1", "1" * 5000)] == [0, 12, None, None, None, None]
    assert version("1.2.3") == (1, 2, 3)
    assert version("1" * 5000 + ".2") == (int("1" * 18), 2)
