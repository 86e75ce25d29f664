"""The reports in ``field``, written from public threads by someone who had not read any rule.

Doctor is measured on them. Half of each set is sealed and run once, at the end, and no rule is written from it. No
other test reads this folder, and the words that order suspects do not include theirs. ``kind`` is "fault", "healthy",
or "none" if the catalogue lacks the cause, so that doctor must not name one. ``also`` lists causes that are as right as
``cause``; ``fits`` lists patterns of ids that would be right if the catalogue had them. ``text`` is the report as one
post.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from gpunode.diagnoses import rule_families
from tests.scenarios.reports import FOLDER, reports

FIELD: Final = Path(__file__).parent / "field"
KEYS: Final = {"id", "url", "title", "cause", "also", "fits", "strength", "evidence", "text", "why", "kind"}
CAUSES: Final = {rule.cause for family in rule_families() for rule in family.rules}


def _read(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(path.read_text())
    return row


@pytest.mark.parametrize("path", sorted(FIELD.glob("*.json")), ids=lambda path: path.stem)
def test_field_report_is_complete_and_its_label_is_of_the_catalogue(path: Path) -> None:
    row = _read(path)
    assert row.keys() == KEYS
    assert row["id"] == path.stem
    assert row["kind"] in {"fault", "none", "healthy"}
    assert bool(row["cause"]) is (row["kind"] == "fault")
    assert {row["cause"], *row["also"]} - {""} <= CAUSES
    assert row["cause"] not in row["also"]
    assert all(piece["source"] for piece in row["evidence"])
    assert all(row[key].strip() for key in ("title", "text", "why"))


def test_field_reports_are_not_among_those_that_rules_are_from() -> None:
    assert not FIELD.is_relative_to(FOLDER)
    assert not {path.stem for path in FIELD.glob("*.json")} & {report.name for report in reports()}
