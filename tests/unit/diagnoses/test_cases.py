"""The same causes in other wordings and with other tools, their look-alikes, and healthy nodes.

``cases/FAMILY.json`` lists evidence and the one cause to find; an empty cause means that none may be found: the node is
healthy, or the deciding evidence is missing. Informational findings count if a case asks for them. ``confidence`` and
``severity`` are the finding's, where they matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))
ROWS = [(path.stem, number, row) for path in CASES for number, row in enumerate(json.loads(path.read_text()))]


def diagnosis(evidence: list[dict[str, str]]) -> Diagnosis:
    rows = [{"source": one["source"], "text": one["text"]} for one in evidence]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


@pytest.mark.parametrize(("family", "number", "row"), ROWS, ids=[f"{name}-{number}" for name, number, _ in ROWS])
def test_case_has_exactly_its_cause(family: str, number: int, row: dict[str, Any]) -> None:
    found = diagnosis(row["evidence"])
    roots = [finding.cause for finding in found.roots if finding.severity != "info" or finding.cause == row["cause"]]
    assert roots == ([row["cause"]] if row["cause"] else []), found.open_questions
    for name in {"confidence", "severity"} & row.keys():
        assert {getattr(finding, name) for finding in found.roots} == {row[name]}
    # A person's own sentence proves nothing, but suggests where to look first.
    if suspect := row.get("suspect"):
        assert found.suspects[0].cause == suspect
