"""What doctor found, as a person reads it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpunode.cli.screen.text import BLANK, Line, indented, line, prose, span

if TYPE_CHECKING:
    from gpunode.diagnoses.model import Diagnosis, Finding


def diagnosis_lines(diagnosis: Diagnosis) -> Iterator[Line]:
    """The root cause first, what it explains beneath, then what could not be told."""
    for finding in diagnosis.findings:
        yield from _finding(finding)
        yield BLANK
    for doubt in diagnosis.unknown:
        yield line(span("? ", "warn"), *prose(doubt.question), hang=2)
        yield from indented([line(span("look at: "), span(doubt.look_at, "command"))], 2)
    if not diagnosis.findings and not diagnosis.unknown:
        yield line("nothing is wrong, as far as can be seen")


def _finding(finding: Finding) -> Iterator[Line]:
    mark = "  follows: " if finding.explained_by else ""
    yield line(mark, span(finding.cause, "bad" if finding.severity == "error" else "warn"), "  ", span(finding.title))
    yield from indented([line(*prose(finding.summary))], 2)
    for citation in finding.citations:
        place = f"{citation.source}:{citation.number}" if citation.number else citation.source
        yield from indented([line(span(place, "dim"), "  ", span(citation.line.strip()))], 4)
    if finding.explained_by:
        return
    for number, fix in enumerate(finding.remedy, 1):
        yield from indented([line(f"{number}. ", *prose(fix.text), hang=3)], 2)
        yield from indented([line(span(command, "command")) for command in fix.commands], 5)
