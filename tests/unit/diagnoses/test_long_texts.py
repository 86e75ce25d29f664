"""Cost of pathological texts: words of kilobytes, numbers of thousands of digits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.patterns import parse_int, parse_version

SCENARIOS = Path(__file__).parents[2] / "scenarios/doctor"


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("python app.py", "RuntimeError: CUDA error: unknown error\npayload " + "3c4b442dcae121cd" * 4000),
        ("app log", "failed to initialize CUDA: unknown error\n" + "error" * 12000),
        ("python app.py", "RuntimeError: CUDA error: unknown error\n" + ("3c4b442dcae121cd" * 2000 + "\n") * 10),
    ],
)
def test_very_long_word_does_not_slow_the_rules(source: str, text: str) -> None:
    """These took from 38 s to four minutes; ``tests/fuzz/slow_patterns.py`` looks for similar cases."""
    assert diagnose(take_snapshot(pasted.collect_pieces([(source, text)])), guarded=True).bugs == ()


def test_very_long_number_crashes_no_rule() -> None:
    """Twelve rules once crashed on it."""
    node = f"apiVersion: v1\nkind: Node\nstatus:\n  capacity:\n    nvidia.com/gpu: {'1' * 5000}\n"
    found = diagnose(take_snapshot(pasted.collect_pieces([("kubectl get node gpu1 -o yaml", node)])), guarded=True)
    assert found.bugs == ()


@pytest.mark.parametrize("name", ["039-pcie-width-downgraded-x1.json", "095-uvm-not-loaded-llama.json"])
def test_very_long_numbers_in_reports_crash_no_rule(name: str) -> None:
    """Every number of a report is replaced by a very long one."""
    (path,) = SCENARIOS.rglob(name)
    for number in (r"(?<![\w.])\d{1,4}(?![\w.])", r"\b\d+(?=\.)"):
        pieces = [
            (one["source"], re.sub(number, "1" * 5000, one["text"]))
            for one in json.loads(path.read_text())["evidence"]
            if len(one["text"]) < 8000
        ]
        assert diagnose(take_snapshot(pasted.collect_pieces(pieces)), guarded=True).bugs == ()


def test_integers_and_versions_are_parsed_with_limits() -> None:
    """Digits of other alphabets do not count, although ``isdigit`` accepts them."""
    assert [parse_int(text) for text in ("0", "12", "²", "", "-1", "1" * 5000)] == [0, 12, None, None, None, None]
    assert parse_version("1.2.3") == (1, 2, 3)
    assert parse_version("1" * 5000 + ".2") == (int("1" * 18), 2)


def test_nvidia_smi_q_of_many_gpus_crashes_no_rule() -> None:
    """A line continues a sentence if the line above does: a thousand of them caused too deep a recursion."""
    (path,) = SCENARIOS.rglob("pending-query-section.json")
    pieces = [(one["source"], f"{one['text']}\n" * 120) for one in json.loads(path.read_text())["evidence"]]
    assert diagnose(take_snapshot(pasted.collect_pieces(pieces)), guarded=True).bugs == ()
