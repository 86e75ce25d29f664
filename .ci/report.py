"""Print pytest's JUnit reports as one screen, with one closing line."""

# ruff: noqa: INP001, T201 - a script of .ci/run; printing is its work

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.results import Outcome, Results, group_of, reason_of

_OUTCOMES: Final[dict[str, Outcome]] = {"failure": "failed", "error": "errors", "skipped": "skipped"}


_SLOWEST: Final = 25
_WORST_FIRST: Final[tuple[Outcome, ...]] = ("failed", "errors", "passed", "skipped")


def outcome_of(case: ET.Element) -> tuple[Outcome, str]:
    """Return the outcome of one test, and the reason if it was skipped."""
    ended = next((child for child in case if child.tag in _OUTCOMES), None)
    return ("passed", "") if ended is None else (_OUTCOMES[ended.tag], reason_of(ended.get("message", "")))


def main(files: list[str]) -> None:
    """Print the screen of all ``files``; a test that ran several times counts once, by its worst outcome."""
    results, ends = Results(), dict[tuple[str, str], tuple[Outcome, str]]()
    took = Counter[str]()
    for file in files:
        for case in ET.parse(file).iter("testcase"):  # noqa: S314 - pytest wrote it a moment ago
            test = case.get("classname", ""), case.get("name", "")
            results.seconds[group_of(test[0])] += float(case.get("time", 0))
            took[test[0]] += float(case.get("time", 0))
            known = [end for end in (ends.get(test), outcome_of(case)) if end is not None]
            ends[test] = min(known, key=lambda end: _WORST_FIRST.index(end[0]))
    for (where, name), (outcome, reason) in ends.items():
        results.add(group_of(where), outcome, f"{where}::{name}", reason)
    print(*results.lines(), sep="\n")
    print("\nthe slowest files, in minutes of one core")
    print(*(f"{seconds / 60:6.1f}  {where}" for where, seconds in took.most_common(_SLOWEST)), sep="\n")
    line = f" {results.total} in {sum(results.seconds.values()):.2f}s "
    print(f"{line:=^80}")


if __name__ == "__main__":
    main(sys.argv[1:])
