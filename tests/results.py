"""Test results on one screen, from a run of pytest (`screen.py`) or from JUnit reports (`.ci/report.py`)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

Outcome = Literal["passed", "failed", "errors", "skipped"]

GROUPS: Final = ("unit", "laws", "scenarios", "conformance", "e2e", "gpu", "project")
OUTCOMES: Final[tuple[Outcome, ...]] = ("passed", "failed", "errors", "skipped")
_INSTALLS: Final = re.compile(r"apt-get install ((?:[a-z0-9][a-z0-9.+-]+ ?)+)")
_MOST_FAILURES: Final = 40


@dataclass(slots=True)
class Results:
    """Counts and seconds of each group of tests, the failures, and why tests were skipped."""

    counts: dict[str, Counter[Outcome]] = field(default_factory=lambda: defaultdict(Counter))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    failures: list[str] = field(default_factory=list)
    skips: Counter[str] = field(default_factory=Counter)

    def add(self, group: str, outcome: Outcome, name: str, reason: str = "") -> None:
        """Count a test that has ended."""
        self.counts[group][outcome] += 1
        if outcome in {"failed", "errors"}:
            self.failures.append(name)
        if outcome == "skipped":
            self.skips[reason] += 1

    @property
    def done(self) -> int:
        """The number of tests that have ended."""
        return sum(sum(counts.values()) for counts in self.counts.values())

    def lines(self) -> Iterator[str]:
        """Yield the screen: a table of the groups, the failures, the skips, and what would enable those."""
        yield f"{'group':12}{''.join(f'{outcome:>9}' for outcome in OUTCOMES)}   minutes"
        for group in sorted(self.counts, key=GROUPS.index):
            row = "".join(f"{self.counts[group][outcome]:>9}" for outcome in OUTCOMES)
            yield f"{group:12}{row}{self.seconds[group] / 60:>10.1f}"
        yield from self._failed()
        yield from self._skipped()

    def _failed(self) -> Iterator[str]:
        if not self.failures:
            return
        yield from ("", "failed")
        yield from (f"  {name}" for name in self.failures[:_MOST_FAILURES])
        if len(self.failures) > _MOST_FAILURES:
            yield f"  and {len(self.failures) - _MOST_FAILURES} more"

    def _skipped(self) -> Iterator[str]:
        if not self.skips:
            return
        yield from ("", "skipped")
        yield from (f"{count:>6}  {reason}" for reason, count in self.skips.most_common())
        if packages := sorted({name for reason in self.skips for name in _packages(reason)}):
            yield f"  to run more of them: sudo apt-get install {' '.join(packages)}"

    @property
    def total(self) -> str:
        """All counts in one line, in pytest's form."""
        sums = sum(self.counts.values(), Counter[Outcome]())
        order: tuple[Outcome, ...] = ("failed", "passed", "skipped", "errors")
        return ", ".join(f"{sums[outcome]} {outcome}" for outcome in order if sums[outcome]) or "no tests ran"


def group_of(path: str) -> str:
    """Return ``unit`` for ``tests/unit/journal/test_lock.py``, ``project`` for a test outside the folders."""
    parts = re.split(r"[/.]", path)
    return parts[1] if len(parts) > 1 and parts[1] in GROUPS else "project"


def reason_of(skip: str) -> str:
    """Return why a test was skipped, worded the same for every test with that reason."""
    plain = skip.removeprefix("Skipped: ").strip().split("\n")[0]
    if plain.startswith("needs root"):
        return "needs root: sudo make test"
    return re.sub(r"/\S*pytest-of-\S+", "the temporary folder", plain)


def _packages(reason: str) -> list[str]:
    found = _INSTALLS.search(reason)
    return found[1].split() if found else []
