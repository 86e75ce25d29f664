"""Real reports: fed only the evidence, doctor names the cause, that one alone, and the right kind of thing to do."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import rules
from tests.scenarios.reports import Report, diagnosis, faults, reports


@pytest.mark.parametrize("report", reports(), ids=lambda report: report.name)
def test_the_first_finding_is_the_cause_and_the_only_root(report: Report) -> None:
    if report.cause not in rules():
        pytest.skip(f"no rule for {report.cause} yet")
    found = diagnosis(report.evidence)
    assert faults(found) == (report.cause,) or [finding.cause for finding in found.roots] == [report.cause], [
        (finding.cause, finding.summary) for finding in found.findings
    ] or found.unknown
    first = found.findings[0]
    assert first.cause == report.cause
    assert first.remedy[0].kind == report.remedy
    assert first.citations
