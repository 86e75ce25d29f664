"""The next step is the same wherever it is printed; ``test_measured`` checks the steps of all reports."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from gpunode.cli.doctor import _diagnosis_envelope, diagnosis_lines
from gpunode.cli.envelope import to_json_types
from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence
from gpunode.host.reports import FleetReport
from gpunode.page.markup import PageOrigin
from gpunode.page.report import node_page
from gpunode.workflow.doctor import diagnose_evidence
from gpunode.workflow.fleet import build_row
from tests.scenarios.reports import Report, reports, some_reports


def evidence_of(report: Report) -> Evidence:
    return pasted.collect_pieces([(one["source"], one["text"]) for one in report.evidence])


@pytest.mark.parametrize("report", some_reports("next"), ids=lambda report: report.name)
def test_next_is_the_same_on_screen_json_page_and_fleet(report: Report) -> None:
    evidence = evidence_of(report)
    examined = diagnose_evidence(evidence)
    step = examined.diagnosis.next_step
    if step is None:
        return
    rows = [line.text for line in diagnosis_lines(examined, verbose=False)]
    shown = [row.removeprefix("next:  ") for row in rows if row.startswith("next:  ")]
    if not examined.diagnosis.is_healthy or not examined.diagnosis.roots:
        assert shown == [step.label]
    answer = to_json_types(_diagnosis_envelope(examined, "", "").result["next"], str)
    assert answer == {"text": step.text, "command": step.command}
    page = html.unescape(re.sub(r"<[^>]*>", "", node_page(examined, PageOrigin("", "a report", "now", "0"))))
    assert f"next: {step.text}" in page
    assert (step.command or "") in page
    row, _ = build_row(FleetReport("a report", "a report"), evidence)
    assert (row.advice, row.command) == (step.text, step.command or "")


def test_fleet_names_the_first_step_and_not_a_later_command() -> None:
    legacy = next(one for one in reports() if one.name.startswith("028-"))
    row, _ = build_row(FleetReport("a report", str(Path("a report"))), evidence_of(legacy))
    assert row.cause == "gpu-legacy-unsupported-by-branch"
    # The report is a text, and the first step removes packages.
    assert row.advice.startswith("make sure of it: ")
    assert row.command == "sudo gpunode doctor  # on the node itself"
