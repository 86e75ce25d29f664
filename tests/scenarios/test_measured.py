"""Rate of right diagnoses over all reports, and with each of their pieces removed: no worse than before.

A rule that requires more than the deciding evidence is right on the report from which it was written but not on the
next one, so the shares with one piece removed matter. The healthy nodes, look-alikes and merged reports in this folder
guard against rules that require too little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gpunode.diagnoses.model import MAX_NEXT_STEP_LENGTH
from tests.fakes.examples import sample
from tests.scenarios.measure import NAMED, Answer, answer, read_answer, removable_pieces
from tests.scenarios.reports import diagnosed_reports, reports


def whole() -> list[Answer]:
    """Return the answers to the complete reports; their own words, which order suspects, change no finding."""
    return [read_answer(one.report, None, one.diagnosis) for one in diagnosed_reports()]


def shortened() -> list[Answer]:
    """Return the answers to a sample of reports with a piece removed; to all of them in the long run of the tests."""
    pairs = [(report, left) for report in reports() for left in removable_pieces(report)]
    some = sample(pairs, "measured", lambda pair: f"{pair[0].name} {pair[1]}", 250)
    return [answer(report, left) for report, left in some]


def share(given: Sequence[Answer], holds: Callable[[Answer], bool]) -> float:
    return sum(map(holds, given)) / len(given)


def test_complete_reports_are_right_and_no_wrong_cause_is_certain() -> None:
    answers = whole()
    assert share(answers, lambda one: one.is_right) >= 0.97
    assert not [one for one in answers if one.is_wrong and one.is_certain]
    for one in answers:
        _assert_next_steps_are_short(one)


def test_most_reports_missing_a_piece_are_right_and_few_are_wrong() -> None:
    answers = shortened()
    assert share(answers, lambda one: one.is_right) >= 0.66
    assert share(answers, lambda one: one.cause in one.named[:NAMED]) >= 0.80
    assert share(answers, lambda one: one.is_wrong) <= 0.05
    assert share(answers, lambda one: one.is_wrong and one.is_certain) <= 0.005
    for one in answers:
        _assert_next_steps_are_short(one)


def _assert_next_steps_are_short(given: Answer) -> None:
    """Assert that each step is one short command, with the making of its folder, or words."""
    for step in filter(None, given.steps):
        assert step.text, given.report
        assert step.command is None or 0 < len(step.command) <= MAX_NEXT_STEP_LENGTH, (given.report, step)
        assert not re.search(r"[;\n]|&&|\|\|", re.sub(r"^(?:sudo )?mkdir -p \S+ && ", "", step.command or "")), (
            given.report,
            step,
        )
