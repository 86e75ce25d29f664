"""The first lines on a narrow terminal: the answer, the next step and the first proof."""

from __future__ import annotations

import pytest

from gpunode.cli.doctor import diagnosis_lines
from gpunode.cli.screen.text import wrap_line
from gpunode.facts import pasted
from gpunode.workflow.doctor import diagnose_evidence
from tests.scenarios.reports import Report, some_reports


@pytest.mark.parametrize("report", some_reports("screen"), ids=lambda report: report.name)
def test_ten_rows_show_the_verdict_next_command_and_first_proof(report: Report) -> None:
    examined = diagnose_evidence(pasted.collect_pieces(tuple((one["source"], one["text"]) for one in report.evidence)))
    rows = [row.text for line in diagnosis_lines(examined, verbose=False) for row in wrap_line(line, 80)]
    (next_at, proof_at) = (
        next(at for at, row in enumerate(rows) if row.startswith(head)) for head in ("  next:", "  proof")
    )
    assert next_at < proof_at < 10
    assert sum("not seen" in row for row in rows if row.startswith("? ")) <= 1
