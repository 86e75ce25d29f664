"""The laws of citations: quoted words are in the evidence at the named line; others are marked as gpunode's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Citation, Diagnosis
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence
from tests.fakes.examples import examples
from tests.laws.reports import damaged_reports
from tests.laws.test_doctor_laws import SEEN
from tests.scenarios.reports import Report, some_reports


def list_citations(found: Diagnosis) -> Iterator[tuple[str, Citation]]:
    """Yield every citation, with the claim that it supports."""
    for finding in found.findings:
        yield from ((finding.cause, citation) for citation in finding.citations)
    for doubt in found.open_questions:
        yield from ((doubt.question, citation) for citation in doubt.citations)


def stands_there(node: Snapshot, citation: Citation) -> bool:
    """True if the words are at that line of that piece, or in parentheses, as gpunode's own words are."""
    if citation.line_number is None:
        return citation.line.startswith("(") and citation.line.endswith(")")
    every = (*node.items, *(node.including_earlier_boots.items if node.including_earlier_boots else ()))
    lines = (item.lines for item in every if item.key == citation.key and item.written == citation.source)
    return any(len(one) >= citation.line_number and citation.line in one[citation.line_number - 1] for one in lines)


def misplaced_citations(evidence: Evidence) -> list[tuple[str, Citation]]:
    """Return the citations that are not in the evidence."""
    node = take_snapshot(evidence)
    return [(what, one) for what, one in list_citations(diagnose(node)) if not stands_there(node, one)]


@pytest.mark.parametrize("report", some_reports("citations"), ids=lambda report: report.name)
def test_citation_in_a_report_stands_in_its_evidence(report: Report) -> None:
    evidence = pasted.collect_pieces(tuple((one["source"], one["text"]) for one in report.evidence))
    assert list(list_citations(diagnose(take_snapshot(evidence))))
    assert misplaced_citations(evidence) == []


@given(damaged_reports)
@settings(max_examples=examples(30), deadline=None)
def test_citation_in_a_damaged_report_stands_in_its_evidence(evidence: Evidence) -> None:
    assert misplaced_citations(evidence) == []


@given(SEEN)
@settings(max_examples=examples(30), deadline=None)
def test_citation_of_a_node_stands_in_its_evidence(evidence: Evidence) -> None:
    assert misplaced_citations(evidence) == []
