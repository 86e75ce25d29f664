"""Rate of right diagnoses over all reports, and with each of their pieces removed: no worse than before.

A rule that requires more than the deciding evidence is right on the report from which it was written but not on the
next one, so the shares with one piece removed matter. The healthy nodes, look-alikes and merged reports in this folder
guard against rules that require too little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from gpunode.diagnoses.model import MAX_NEXT_STEP_LENGTH
from tests.scenarios.measure import NAMED, Answer, answers
from tests.scenarios.reports import reports


@cache
def all_answers() -> tuple[Answer, ...]:
    """Return the answers once for all tests of this file; not during collection, which every process repeats."""
    return tuple(answer for report in reports() for answer in answers(report))


def whole() -> list[Answer]:
    return [answer for answer in all_answers() if answer.left is None]


def shortened() -> list[Answer]:
    return [answer for answer in all_answers() if answer.left is not None]


def share(given: Sequence[Answer], holds: Callable[[Answer], bool]) -> float:
    return sum(map(holds, given)) / len(given)


def test_complete_reports_are_right_and_no_wrong_cause_is_certain() -> None:
    assert share(whole(), lambda one: one.is_right) >= 0.97
    assert not [one for one in whole() if one.is_wrong and one.is_certain]


def test_most_reports_missing_a_piece_are_right_or_name_the_cause() -> None:
    assert share(shortened(), lambda one: one.is_right) >= 0.66
    assert share(shortened(), lambda one: one.cause in one.named[:NAMED]) >= 0.80


def test_few_reports_missing_a_piece_are_wrong_or_certainly_wrong() -> None:
    assert share(shortened(), lambda one: one.is_wrong) <= 0.05
    assert share(shortened(), lambda one: one.is_wrong and one.is_certain) <= 0.005


def test_each_next_step_is_one_short_command_or_words() -> None:
    """Check the answers to all reports, complete or with one piece removed."""
    for answer in all_answers():
        for step in filter(None, answer.steps):
            assert step.text, answer.report
            assert step.command is None or 0 < len(step.command) <= MAX_NEXT_STEP_LENGTH, (answer.report, step)
            assert not re.search(r"[;\n]|&&|\|\|", step.command or ""), (answer.report, step)
