"""The cost of a diagnosis in countable things: patterns searched, lines parsed; never time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any
from unittest.mock import patch

import gpunode.diagnoses
from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views import kernel
from gpunode.diagnoses.views.faults import fault_timeline
from gpunode.diagnoses.word_index import LineIndex
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture, Evidence
from gpunode.facts.patterns import Pattern
from gpunode.host.reports import read_report

SAMPLE = Path(__file__).parents[3] / "gpunode/samples/debian12-gtx1080"
JOURNAL = "journalctl -b -q --no-pager -o short-iso-precise -k -n 20000"
ELSEWHERE = "kernel: br-0: port 2(veth1) entered forwarding state"
LOADING = "kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  545.23.08"
# On 2026-11-30: 3 419, 58, 502, 5, 42 and 298. Before a line needed all words of a pattern, 6 030, 80, 502, 5, 80 and
# 1 041. Before the index of words, 146 520 searches, 20 501 lines and 15 texts.
MAX_SEARCHES = 3_500
MAX_PATTERNS = 62
MAX_LINES_PARSED = 600
MAX_WHOLE_TEXTS = 6
MAX_WORDS_LOCATED = 50
MAX_WORDS_ASKED = 330


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the searches, the patterns that are searched, the searches over complete texts, the words that single texts
    are asked for and that are looked up in a complete text, and the kernel's lines that are parsed.
    """
    count = Counter[str]()
    patterns = set[Pattern]()

    def counting(name: str, key: str) -> Any:
        method = getattr(Pattern, name)

        def call(self: Pattern, text: str, *place: int) -> Any:
            count[key] += 1
            patterns.add(self)
            count["whole texts"] += not place and len(text) > 100_000
            return method(self, text, *place)

        return patch.object(Pattern, name, call)

    split_stamp, find_lines, line_starts = kernel._split_stamp, LineIndex._find_lines, LineIndex.line_starts

    def counting_words(self: LineIndex, word: str) -> frozenset[int]:
        count["words asked"] += 1
        return line_starts(self, word)

    def counting_lookups(self: LineIndex, word: str) -> Iterable[int]:
        count["words located"] += 1
        return find_lines(self, word)

    def counting_split(line: str) -> Any:
        count["lines parsed"] += 1
        return split_stamp(line)

    with (
        counting("search", "searches"),
        counting("finditer", "searches"),
        patch.object(kernel, "_split_stamp", counting_split),
        patch.object(LineIndex, "_find_lines", counting_lookups),
        patch.object(LineIndex, "line_starts", counting_words),
    ):
        yield count
        count["patterns"] = len(patterns)


def capture_with_journal(messages: int, *more: str) -> Evidence:
    """Return the shipped sample with a kernel journal of this many lines that concern no GPU."""
    lines = [
        f"2026-11-28T{n // 3600 % 24:02}:{n // 60 % 60:02}:{n % 60:02}+00:00 node {ELSEWHERE}" for n in range(messages)
    ]
    lines += [f"2026-11-29T00:00:00+00:00 node {one}" for one in more]
    return {
        **read_report(str(SAMPLE)), "kernel-journal": Capture(JOURNAL, "ok", "\n".join(lines).encode())
    }  # fmt: skip


def cost_of(evidence: Evidence) -> Mapping[str, int]:
    """Return the cost of a diagnosis of ``evidence``."""
    with counted() as count:
        diagnose(take_snapshot(evidence))
    return count


def test_cost_of_a_fixed_capture_does_not_grow() -> None:
    # If a limit is exceeded, look for a pattern without words, or a view that reads every line of every text, or that
    # walks over ``snapshot.items`` instead of ``items_with_words``.
    count = cost_of(capture_with_journal(20_000, *[LOADING] * 500))
    assert 0 < count["searches"] <= MAX_SEARCHES
    assert 0 < count["patterns"] <= MAX_PATTERNS
    assert 0 < count["lines parsed"] <= MAX_LINES_PARSED
    assert count["whole texts"] <= MAX_WHOLE_TEXTS
    assert 0 < count["words located"] <= MAX_WORDS_LOCATED
    assert 0 < count["words asked"] <= MAX_WORDS_ASKED


def test_package_database_is_neither_indexed_nor_split_into_lines() -> None:
    """It is the longest text, and describes all packages, so that every word occurs in it."""
    snapshot = take_snapshot(read_report(str(SAMPLE)))
    diagnose(snapshot)
    databases = [item for item in snapshot.all_items if item.is_package_database and item.text]
    assert databases
    assert not any(LineIndex in item._views or "lines" in vars(item) for item in databases)


def test_lines_without_any_word_of_a_pattern_cost_no_search() -> None:
    few, many = (cost_of(capture_with_journal(lines, LOADING)) for lines in (20, 20_000))
    assert many["searches"] <= few["searches"]
    assert many["lines parsed"] == few["lines parsed"]


def test_line_of_a_storm_of_xids_is_searched_a_few_times() -> None:
    # All lines are one block, of which one line has a word of the patterns for PCIe errors: "bad".
    xid = "node kernel: NVRM: Xid (PCI:0000:01:00): 31, pid={}, name=python, MMU Fault: faulted @ 0x7f{}000"

    def cost(lines: int) -> Mapping[str, int]:
        text = "\n".join(xid.format(number, "ccd" if number else "bad") for number in range(lines))
        return cost_of(pasted.collect_pieces([("dmesg", text)]))

    few, many = cost(200), cost(1_200)
    assert many["searches"] - few["searches"] <= 17 * 1_000
    assert many["whole texts"] <= MAX_WHOLE_TEXTS


def test_lines_of_one_endless_message_are_each_visited_a_few_times() -> None:
    def visits(lines: int) -> int:
        count, visit = Counter[str](), kernel._KernelLog._line

        def counting(log: Any, place: int) -> Any:
            count["visits"] += 1
            return visit(log, place)

        snapshot = take_snapshot(capture_with_journal(20, *["kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1"] * lines))
        with patch.object(kernel._KernelLog, "_line", counting):
            assert len(snapshot.view(fault_timeline)) >= lines
        return count["visits"]

    assert visits(2_000) < 12 * visits(200)


def test_no_group_with_flags_hides_the_words_of_a_pattern() -> None:
    """Such a pattern is searched in every text, as in all of dpkg's status."""
    modules = (import_module(one.name) for one in walk_packages(gpunode.diagnoses.__path__, "gpunode.diagnoses."))
    patterns = {f"{module.__name__}.{name}": one for module in modules for name, one in vars(module).items()}
    hidden = [name for name, one in patterns.items() if isinstance(one, Pattern) and not one.word_sets]
    assert [name for name in hidden if re.search(r"\(\?[imsx]+:", patterns[name].pattern)] == []
