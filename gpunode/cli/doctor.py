"""doctor: the true cause, on this machine or from what somebody sent."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.cli.commands import How
from gpunode.cli.envelope import Envelope
from gpunode.diagnoses.model import Diagnosis, Doubt, Finding
from gpunode.errors import ProblemFound, Undetermined


def doctor(named: Sequence[str], how: How) -> None:
    """Says what is wrong with this machine, or with the node of a report."""
    from gpunode.host.local import LocalHost
    from gpunode.host.reports import read
    from gpunode.workflow.doctor import diagnosed, examine

    evidence = read(named[0]) if named else examine(LocalHost("/"))
    _, diagnosis = diagnosed(evidence)
    how.screen().diagnosis(diagnosis)
    how.answer(_envelope(diagnosis))


def _envelope(diagnosis: Diagnosis) -> Envelope:
    kind = _verdict(diagnosis)
    return Envelope(
        "doctor",
        status=kind.status if kind else "ok",
        exit_code=kind.exit_code if kind else 0,
        findings=[_finding(one) for one in diagnosis.findings],
        unknown=[_doubt(one) for one in diagnosis.unknown],
    )


def _verdict(diagnosis: Diagnosis) -> type[ProblemFound | Undetermined] | None:
    if not diagnosis.is_healthy:
        return ProblemFound
    return Undetermined if diagnosis.unknown else None


def _finding(finding: Finding) -> dict[str, object]:
    from dataclasses import fields

    row: dict[str, object] = {field.name: getattr(finding, field.name) for field in fields(finding)}
    row["citations"] = [{"source": c.source, "line": c.line, "number": c.number} for c in finding.citations]
    return row


def _doubt(doubt: Doubt) -> dict[str, object]:
    return {"what": doubt.question, "look_at": doubt.look_at, "causes": doubt.causes}
