"""Real reports: if doctor names the cause, it names no other, and the right kind of remedy.

``test_measured`` measures how often it names the cause.
"""

from __future__ import annotations

import pytest

from gpunode.diagnoses import rules_by_cause
from tests.scenarios.reports import Report, diagnose_report, faults, reports


@pytest.mark.parametrize("cause", sorted(rules_by_cause()))
def test_every_cause_has_a_labelled_report(cause: str) -> None:
    assert cause in {report.cause for report in reports()}


@pytest.mark.parametrize("report", reports(), ids=lambda report: report.name)
def test_expected_cause_is_the_only_root_and_has_its_remedy(report: Report) -> None:
    found = diagnose_report(report).diagnosis
    if not found.findings or found.findings[0].cause != report.cause:
        return  # counted by test_measured
    assert faults(found) == (report.cause,) or [finding.cause for finding in found.roots] == [report.cause], [
        (finding.cause, finding.summary) for finding in found.findings
    ]
    first = found.findings[0]
    assert first.remedy[0].kind == report.remedy
    assert first.citations
