"""What is wrong where a report is of several machines: each is judged by itself, and what is found names it.

What works on one of them says nothing of another. What nobody names a machine for is judged as if all were one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpunode.diagnoses.model import Citation, Diagnosis, Doubt, Finding
from gpunode.diagnoses.ranking import WEIGHT
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import hearsay


def told(snapshot: Snapshot, joint: Diagnosis, each: Mapping[str, Diagnosis]) -> Diagnosis:
    """What is wrong with each machine, and what is wrong with one that nobody names.

    Args:
        snapshot: all that the report shows.
        joint: what is wrong if all of it is of one machine.
        each: what is wrong with each by what is known of it.
    """
    unnamed = _Unnamed(frozenset((item.key, item.written) for item in snapshot.whole if item.machine not in each))
    named = (one for name, diagnosis in each.items() for one in _named(diagnosis, name, unnamed))
    findings = [_weighed(finding, snapshot) for finding in named]
    causes = {finding.cause for finding in findings}
    findings += (one for one in joint.findings if unnamed.proves(one.citations) and one.cause not in causes)
    doubts = [one for name, diagnosis in each.items() for one in _asked(diagnosis, name, unnamed)]
    doubts += (one for one in joint.unknown if not one.citations or unnamed.proves(one.citations))
    bugs = dict.fromkeys(bug for diagnosis in (joint, *each.values()) for bug in diagnosis.bugs)
    return Diagnosis(tuple(_ranked(findings)), tuple(dict.fromkeys(doubts)), tuple(bugs))


@dataclass(frozen=True, slots=True)
class _Unnamed:
    """The places of what is of no machine in particular."""

    places: frozenset[tuple[str, str]]

    def proves(self, citations: tuple[Citation, ...]) -> bool:
        """Whether this alone is cited."""
        return bool(citations) and all((one.key, one.source) in self.places for one in citations)


def _named(diagnosis: Diagnosis, machine: str, unnamed: _Unnamed) -> Iterator[Finding]:
    """What is wrong with that machine, by something that it shows itself; and what that follows from."""
    own = [finding for finding in diagnosis.findings if not unnamed.proves(finding.citations)]
    roots = {finding.explained_by for finding in own}
    for finding in diagnosis.findings:
        if finding in own or finding.cause in roots:
            yield replace(finding, machine=machine, summary=f"On {machine}: {finding.summary}")


def _weighed(finding: Finding, snapshot: Snapshot) -> Finding:
    """The finding; that it is of the old node, or of another one, is a person's word, and makes nothing certain."""
    is_told = hearsay.is_of_another_host(snapshot, finding.citations)
    return replace(finding, confidence="likely") if is_told else finding


def _asked(diagnosis: Diagnosis, machine: str, unnamed: _Unnamed) -> Iterator[Doubt]:
    for doubt in diagnosis.unknown:
        if doubt.citations and not unnamed.proves(doubt.citations):
            yield replace(doubt, question=f"on {machine}: {doubt.question}")


def _ranked(findings: list[Finding]) -> list[Finding]:
    """Roots first, errors first among them, and what is certain."""
    causes = {finding.cause for finding in findings}
    placed = (one if one.explained_by in causes else replace(one, explained_by="") for one in findings)
    return sorted(placed, key=_standing)


def _standing(finding: Finding) -> tuple[bool, int, bool]:
    return bool(finding.explained_by), WEIGHT.index(finding.severity), finding.confidence != "certain"
