"""doctor: the true cause, on this machine or from what somebody sent; a whole fleet in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode.cli.commands import How
from gpunode.cli.envelope import Envelope
from gpunode.diagnoses import rules
from gpunode.errors import ProblemFound, Undetermined, UsageError

if TYPE_CHECKING:
    from gpunode.diagnoses.model import Doubt, Finding
    from gpunode.workflow.doctor import Examined


def doctor(named: Sequence[str], how: How, *, html: str = "") -> None:
    """Says what is wrong with this machine, with the node of a report, or with a fleet; or tells a cause's story."""
    from gpunode.cli import doctor_page
    from gpunode.host.local import LocalHost
    from gpunode.host.redact import redact
    from gpunode.host.reports import read
    from gpunode.workflow.doctor import diagnosed, examine

    if len(named) == 1 and named[0] in rules():
        _tell(named[0], how)
        return
    if len(named) == 1 and not _is_there(named[0]):
        raise _unknown_name(named[0])
    if html:
        doctor_page.check(html, how)
    with how.screen() as screen:
        if not named:
            screen.looking()
        evidence = read(named[0]) if named else examine(LocalHost("/"))
        # A page leaves the machine: it is made of what a capture would hold.
        examined = diagnosed(redact(evidence) if html else evidence)
        if html:
            doctor_page.write(html, examined, named[0] if named else "")
        if html != doctor_page.STANDARD_OUTPUT:
            screen.diagnosis(examined, page=html)
    how.answer(_envelope(examined, html))


def _is_there(name: str) -> bool:
    return name == "-" or Path(name).exists()


def _unknown_name(name: str) -> UsageError:
    from difflib import get_close_matches

    close = get_close_matches(name, rules(), n=3, cutoff=0.5)
    like = f"causes with a similar name: {', '.join(close)}" if close else "no cause has a similar name"
    return UsageError(
        f"there is no cause and no report {name}",
        why=like,
        hint="name a cause, or a report that is there: a capture, an nvidia-bug-report.log.gz, a JSON list or a text",
    )


def _tell(cause: str, how: How) -> None:
    """The whole story of one cause; its remedy as it is where nothing is known of the node."""
    from gpunode.diagnoses.snapshot import snapshot

    rule = rules()[cause]
    remedy = tuple(rule.remedy(snapshot({})))
    above = sorted(other.cause for other in rules().values() if cause in other.explains)
    how.screen().story(rule, remedy, above)
    told = ("cause", "title", "layer", "severity", "disruption", "story", "sources", "explains")
    row = {name: getattr(rule, name) for name in told}
    how.answer(Envelope("doctor", result={"cause": {**row, "explained_by": above, "remedy": remedy}}))


def _envelope(examined: Examined, page: str) -> Envelope:
    kind = _verdict(examined)
    return Envelope(
        "doctor",
        status=kind.status if kind else "ok",
        exit_code=kind.exit_code if kind else 0,
        findings=[_finding(one) for one in examined.diagnosis.findings],
        unknown=[_doubt(one) for one in examined.diagnosis.unknown],
        result={
            "stack": examined.storeys,
            "works": examined.works,
            "denied": examined.denied,
            **({"page": page} if page else {}),
        },
    )


def _verdict(examined: Examined) -> type[ProblemFound | Undetermined] | None:
    if not examined.diagnosis.is_healthy:
        return ProblemFound
    return Undetermined if examined.diagnosis.unknown or not examined.works else None


def _finding(finding: Finding) -> dict[str, object]:
    row: dict[str, object] = {field.name: getattr(finding, field.name) for field in fields(finding)}
    row["citations"] = [{"source": c.source, "line": c.line, "number": c.number} for c in finding.citations]
    return row


def _doubt(doubt: Doubt) -> dict[str, object]:
    return {"what": doubt.question, "look_at": doubt.look_at, "causes": doubt.causes}
