"""Rate of right diagnoses: on each report, and on each with one piece of its evidence removed.

Run by ``make measure-doctor``. A rule that requires more than the deciding evidence is right on the report from which
it was written, but not on the next one; a report with one piece removed acts as that next one. Suspects are ordered by
the words of all reports except the report itself and others of its thread. Arguments name causes or families: for
these, each answer that is not right is printed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

from gpunode.diagnoses import rule_families, symptoms
from gpunode.diagnoses.model import Diagnosis, NextStep
from gpunode.diagnoses.report_similarity import ReportWords
from tests.scenarios.reports import Piece, Report, diagnosis, reports
from tests.scenarios.words import words_of

NAMED = 3
FAILURE = re.compile(rf"(?i)\b(?:{symptoms.FAILURE_WORDS}|xid|[a-z]+error)\b")


@dataclass(frozen=True, slots=True)
class Answer:
    """Doctor's answer to one report.

    Attributes:
        left: the index of the removed piece; None for the complete report.
        said: the first cause that it named; empty if it named none.
        named: the first causes that it named, findings before suspects.
        shows_failure: whether the remaining text has a word of failure; without one "unknown" is mostly right.
        steps: the next step overall, and the next step of each named cause.
    """

    report: str
    cause: str
    left: int | None
    said: str
    is_certain: bool
    named: tuple[str, ...]
    shows_failure: bool
    steps: tuple[NextStep | None, ...]

    @property
    def is_right(self) -> bool:
        """True if the true cause was named first."""
        return self.said == self.cause

    @property
    def is_wrong(self) -> bool:
        """True if another cause was named first."""
        return self.said not in {"", self.cause}


def answers(report: Report) -> list[Answer]:
    """Return doctor's answers to the complete report, and to the report without each of its pieces."""
    return [answer(report, left) for left in (None, *removable_pieces(report))]


def removable_pieces(report: Report) -> range:
    """Return the indexes of the pieces that can be removed."""
    return range(len(report.evidence) if len(report.evidence) > 1 else 0)


@cache
def _words_of_others(thread: str) -> ReportWords:
    return words_of(one for one in reports() if one.thread != thread)


def answer(report: Report, left: int | None) -> Answer:
    """Return doctor's answer to the report without the piece ``left``."""
    return read_answer(report, left, diagnosis(_without(report, left), _words_of_others(report.thread)))


def _without(report: Report, left: int | None) -> list[Piece]:
    return [piece for number, piece in enumerate(report.evidence) if number != left]


def read_answer(report: Report, left: int | None, found: Diagnosis) -> Answer:
    """Return what ``found``, the diagnosis of the report without the piece ``left``, says."""
    roots = [one for one in found.roots if one.severity != "info"] or list(found.roots)
    named = tuple(dict.fromkeys((*(one.cause for one in roots), *_suspected(found))))
    first = roots[0] if roots else None
    return Answer(
        report.name,
        report.cause,
        left,
        first.cause if first else "",
        bool(first and first.confidence == "certain"),
        named,
        any(FAILURE.search(piece["text"]) for piece in _without(report, left)),
        (
            found.next_step,
            *(one.next_step for one in found.findings),
            *(one.next_step for one in (*found.unexplained, *found.suspects)),
        ),
    )


def _suspected(found: Diagnosis) -> Iterator[str]:
    return (one.cause for one in found.suspects)


def told(name: str, given: Sequence[Answer]) -> str:
    """Return a line of the table."""

    def share(count: int) -> str:
        return f"{count / len(given):7.1%}"

    right, wrong = sum(one.is_right for one in given), sum(one.is_wrong for one in given)
    certain = sum(one.is_wrong and one.is_certain for one in given)
    near = sum(one.cause in one.named[:NAMED] for one in given)
    return f"{name:<24} {len(given):>5} {share(right)} {share(wrong)} {share(certain)} {share(near)}"


def main(wanted: Sequence[str]) -> None:
    """Print the figures and, for ``wanted`` causes and families, the answers that are not right."""
    with ProcessPoolExecutor() as pool:
        given = [one for found in pool.map(answers, reports(), chunksize=16) for one in found]
    causes = {
        rule.cause for family in rule_families() for rule in family.rules if {family.id, rule.cause} & set(wanted)
    }
    if causes:
        given = [one for one in given if one.cause in causes]
        for one in given:
            if not one.is_right:
                print(f"{one.report} without {one.left}: {one.said or 'unknown'}; named {', '.join(one.named) or '-'}")
    print(f"{'reports':<24} {'count':>5} {'right':>7} {'wrong':>7} {'certain':>7} {'top 3':>7}")
    print(told("whole", [one for one in given if one.left is None]))
    shortened = [one for one in given if one.left is not None]
    print(told("one piece taken away", shortened))
    for name, fails in (("… something fails", True), ("… nothing fails", False)):
        if part := [one for one in shortened if one.shows_failure is fails]:
            print(told(name, part))


if __name__ == "__main__":
    main(sys.argv[1:])
