"""Prints what pytest's JUnit reports say: tests and minutes for each group of tests, and one closing line."""

# ruff: noqa: INP001, T201 - a script of .ci/run; printing is its work

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict

GROUPS = ("unit", "laws", "conformance", "e2e", "gpu", "project")
KINDS = {"failure": "failed", "error": "errors", "skipped": "skipped"}


def group_of(classname: str) -> str:
    """``unit`` for ``tests.unit.journal.test_lock``; a test beside the folders belongs to the project's own."""
    parts = classname.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in GROUPS else "project"


def outcome_of(case: ET.Element) -> str:
    """How one test ended."""
    return next((KINDS[child.tag] for child in case if child.tag in KINDS), "passed")


def main(files: list[str]) -> None:
    """Prints the table of all ``files``."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    for file in files:
        for case in ET.parse(file).iter("testcase"):  # noqa: S314 - pytest wrote it a moment ago
            group = group_of(case.get("classname", ""))
            counts[group][outcome_of(case)] += 1
            seconds[group] += float(case.get("time", 0))
    kinds = ("passed", "failed", "errors", "skipped")
    print("group       ", *(f"{kind:>8}" for kind in kinds), " minutes")
    for group in sorted(counts, key=GROUPS.index):
        print(f"{group:12}", *(f"{counts[group][kind]:>8}" for kind in kinds), f"{seconds[group] / 60:8.1f}")
    total = sum(counts.values(), Counter[str]())
    said = ", ".join(f"{total[kind]} {kind}" for kind in ("failed", "passed", "skipped", "errors") if total[kind])
    line = f" {said or 'no tests ran'} in {sum(seconds.values()):.2f}s "
    print(f"{line:=^80}")


if __name__ == "__main__":
    main(sys.argv[1:])
