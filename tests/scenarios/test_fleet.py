"""A fleet with injected faults and odd nodes: doctor finds all of them, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.diagnoses.comparison import Census
from gpunode.host import reports
from gpunode.workflow.fleet import fleet_rows, with_outliers
from tests.fleets import make

pytestmark = pytest.mark.usefixtures("allow_subprocess")


def test_exactly_the_injected_faults_are_found(tmp_path: Path) -> None:
    injected = make(tmp_path, 60, every=20)
    census = Census()
    answers = tuple(fleet_rows(reports.find_fleet_reports([str(tmp_path)]), census))
    found = with_outliers(answers, census.group_by_model())
    assert {row.report: row.cause for row in found if row.cause} == injected.faults
    assert {row.report for row in found if row.status == "unreadable"} == injected.unread
    odd = {row.report: row.differences for row in found if row.differences and row.status == "healthy"}
    assert {name: one.name for name, (one,) in odd.items()} == injected.odd
    assert all(one.usual != one.actual and one.usual_on > 30 for (one,) in odd.values())
