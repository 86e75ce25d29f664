"""Real reports: fed only the evidence, doctor names the cause, that one alone, and the right kind of thing to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpunode.diagnoses import diagnose, rules
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted

REPORTS = Path(__file__).parent / "doctor"
PATHS = sorted(REPORTS.rglob("*.json"))


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def diagnosis(evidence: list[dict[str, str]]) -> Diagnosis:
    rows = [{"source": one["source"], "text": one["text"]} for one in evidence]
    return diagnose(snapshot(pasted.from_json(json.dumps(rows), "a report")))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_first_finding_is_the_cause_and_the_only_root(path: Path) -> None:
    report = load(path)
    if report["cause"] not in rules():
        pytest.skip(f"no rule for {report['cause']} yet")
    found = diagnosis(report["evidence"])
    assert [finding.cause for finding in found.roots if finding.severity != "info"][:2] == [report["cause"]] or (
        [finding.cause for finding in found.roots] == [report["cause"]]
    ), [(finding.cause, finding.summary) for finding in found.findings] or found.unknown
    first = found.findings[0]
    assert first.cause == report["cause"]
    assert first.remedy[0].kind == report["remedy"]
    assert first.citations
