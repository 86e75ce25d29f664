"""Containers: similar faults are distinguished, and nothing is claimed about healthy nodes or without evidence.

The reports are in ``lookalikes``, a file for each family: ``=== description -> cause`` (or ``nothing``), then each
piece of evidence under ``--- source``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.diagnoses import cdi, containerd, diagnose, docker, toolkit
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

PLACE = Path(__file__).parent / "lookalikes"
FAMILIES = (toolkit.RULES, docker.RULES, containerd.RULES, containerd.RULES, cdi.RULES)
OURS = {rule.cause for rules in FAMILIES for rule in rules}


def reports() -> Iterator[tuple[str, str, list[dict[str, str]]]]:
    for path in sorted(PLACE.glob("*.txt")):
        for report in path.read_text().split("=== ")[1:]:
            head, *pieces = report.split("\n--- ")
            name, _, cause = head.strip().rpartition(" -> ")
            rows = (piece.partition("\n") for piece in pieces)
            yield f"{path.stem}: {name}", cause, [{"source": s, "text": text.rstrip("\n")} for s, _, text in rows]


def diagnosis(rows: list[dict[str, str]]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


REPORTS = tuple(reports())


@pytest.mark.parametrize(
    ("cause", "rows"), [pytest.param(c, rows, id=name) for name, c, rows in REPORTS if c != "nothing"]
)
def test_expected_cause_is_the_only_root(cause: str, rows: list[dict[str, str]]) -> None:
    found = diagnosis(rows)
    assert [finding.cause for finding in found.roots if finding.severity != "info"] == [cause], found
    assert found.findings[0].citations
    assert found.findings[0].remedy


@pytest.mark.parametrize("rows", [pytest.param(rows, id=name) for name, cause, rows in REPORTS if cause == "nothing"])
def test_lookalike_without_a_cause_has_no_finding(rows: list[dict[str, str]]) -> None:
    assert not OURS & {finding.cause for finding in diagnosis(rows).findings if finding.severity != "info"}
