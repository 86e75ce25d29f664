"""The reports in this folder, and doctor's answers to evidence in their format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.report_similarity import ReportWords
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence
from tests.fakes.examples import sample

FOLDER = Path(__file__).parent / "doctor"

Piece = Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """A report.

    Attributes:
        name: its path in the folder, without the suffix.
        remedy: the kind of the first step.
        thread: the URL of its source; several reports may share one.
    """

    name: str
    cause: str
    remedy: str
    evidence: tuple[Piece, ...]
    thread: str


@cache
def reports() -> tuple[Report, ...]:
    """Return every report, by name."""
    return tuple(_read(path) for path in sorted(FOLDER.rglob("*.json")))


def some_reports(law: str) -> list[Report]:
    """Return a sample of reports: the same in each run, another for each ``law``; every report in the long run."""
    return sample(reports(), law, lambda report: report.name)


def _read(path: Path) -> Report:
    row = json.loads(path.read_text())
    name = str(path.relative_to(FOLDER).with_suffix(""))
    return Report(name, row["cause"], row["remedy"], tuple(row["evidence"]), row["source"])


def diagnosis(evidence: Iterable[Piece], told: ReportWords | None = None) -> Diagnosis:
    """Return the diagnosis of these pieces; ``told`` are the words of other reports only."""
    return diagnose(take_snapshot(_evidence(evidence)), report_words=told)


def _evidence(pieces: Iterable[Piece]) -> Evidence:
    return pasted.collect_pieces(tuple((one["source"], one["text"]) for one in pieces))


@dataclass(frozen=True, slots=True, eq=False)
class DiagnosedReport:
    """A report, the node that it shows, and doctor's diagnosis."""

    report: Report
    node: Snapshot
    diagnosis: Diagnosis

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """The pieces as pairs of source and text."""
        return tuple((one["source"], one["text"]) for one in self.report.evidence)


@cache
def diagnose_report(report: Report) -> DiagnosedReport:
    """Return the report with its diagnosis; all tests of a process share the result."""
    node = take_snapshot(_evidence(report.evidence))
    return DiagnosedReport(report, node, diagnose(node))


def diagnosed_reports() -> tuple[DiagnosedReport, ...]:
    """Return every report with its diagnosis."""
    return tuple(map(diagnose_report, reports()))


def faults_in(report: Report) -> tuple[str, ...]:
    """Return the root causes in the report that are faults."""
    return faults(diagnose_report(report).diagnosis)


def faults(found: Diagnosis) -> tuple[str, ...]:
    """Return the root causes that are faults."""
    return tuple(finding.cause for finding in found.roots if finding.severity != "info")


def roots(evidence: Iterable[Piece]) -> tuple[str, ...]:
    """Return the root causes in these pieces that are faults."""
    return faults(diagnosis(evidence))
