"""Most reports are understood where they are one text, as people copy it out of a terminal."""

from __future__ import annotations

import pytest

from tests.scenarios.reports import some_reports
from tests.scenarios.transcripts import is_right

# Of few reports a share has a wide error; over all of them it was 99, 97, 97 and 89 % in November 2026.
LEAST = {"with prompts": 0.95, "commands on their own lines": 0.85, "under headings": 0.85, "output alone": 0.7}


@pytest.mark.parametrize("form", LEAST)
def test_most_reports_are_right_as_one_text(form: str) -> None:
    some = some_reports(f"transcript {form}")
    assert sum(is_right(report, form) for report in some) >= LEAST[form] * len(some)
