"""What doctor found, as a person reads it: the root cause, its proof, what to do, and the stack it breaks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpunode.cli.screen.text import BLANK, Line, Style, indented, line, padded, prose, span
from gpunode.cli.screen.words import count, listed

if TYPE_CHECKING:
    from gpunode.diagnoses.model import Diagnosis, Doubt, Finding, Fix, Rule
    from gpunode.diagnoses.stack import Storey

_CITED = 6
_DISRUPTIONS = {
    "none": "disturbs nothing",
    "restart-container": "containers restart",
    "restart-service": "a service restarts",
    "reset-gpu": "the GPU is reset: its work stops",
    "reboot": "the node reboots",
    "power-cycle": "the node is powered off and on",
    "RMA": "the part is replaced",
}
_STATES: dict[str, tuple[str, Style, str]] = {
    "broken": ("✗", "bad", "broken"),
    "warned": ("!", "warn", "at risk"),
    "affected": ("!", "warn", "suffers"),
    "works": ("✓", "good", ""),
    "seen": ("✓", "good", ""),
    "unseen": ("?", "dim", "not seen"),
    "absent": ("–", "dim", ""),
}
_SEVERITIES: dict[str, Style] = {"error": "bad", "warning": "warn", "info": "dim"}


def diagnosis_lines(diagnosis: Diagnosis, storeys: Sequence[Storey], *, healthy: bool) -> Iterator[Line]:
    """The root cause first, then other faults and what follows from them, what could not be told, and the stack.

    Args:
        diagnosis: what was found.
        storeys: the stack.
        healthy: whether the driver itself was seen to work, so that finding nothing means that nothing is wrong.
    """
    for number, finding in enumerate(diagnosis.roots):
        if number:
            yield BLANK
        yield from _root(finding, [f for f in diagnosis.findings if f.explained_by == finding.cause])
    if diagnosis.roots:
        yield BLANK
    if diagnosis.unknown:
        yield from _unknown(diagnosis.unknown)
        yield BLANK
    yield from _stack(storeys)
    yield BLANK
    yield _verdict(diagnosis, healthy=healthy)


def _root(finding: Finding, consequences: Sequence[Finding]) -> Iterator[Line]:
    style = _SEVERITIES[finding.severity]
    likely = "" if finding.confidence == "certain" else "  (likely)"
    mark = {"error": "✗ ", "warning": "! ", "info": "i "}[finding.severity]
    yield line(span(mark, style), span(finding.title, style), span(f"  {finding.cause}{likely}", "dim"), hang=2)
    yield from indented([line(*prose(finding.summary))], 2)
    yield from _proof(finding)
    if finding.ruled_out:
        yield from indented([line(span("not "), *prose(other, "dim"), hang=4) for other in finding.ruled_out], 2)
    if consequences:
        names = listed(one.title for one in consequences)
        yield from indented([line(span("it explains: ", "dim"), *prose(names, "dim"), hang=13)], 2)
    yield from _remedy(finding.remedy, _DISRUPTIONS[finding.disruption])


def _proof(finding: Finding) -> Iterator[Line]:
    for citation in finding.citations[:_CITED]:
        place = f"{citation.source}:{citation.number}" if citation.number else citation.source
        yield Line((span("    "), span(place, "dim"), span("  "), *prose(citation.line.strip(), "dim")), 6, fold=False)
    if (more := len(finding.citations) - _CITED) > 0:
        yield from indented([line(span(f"and {count(more, 'line')} more; --json has them all", "dim"))], 4)


def _remedy(fixes: Sequence[Fix], disruption: str) -> Iterator[Line]:
    yield from indented([line(span("what to do", "bold"), span(f"  {disruption}", "dim"))], 2)
    for number, fix in enumerate(fixes, 1):
        when = f" ({fix.when})" if fix.when else ""
        yield from indented([line(f"{number}. ", *prose(f"{fix.text}{when}"), hang=3)], 2)
        yield from indented([line(span(command, "command")) for command in fix.commands], 5)


def _unknown(doubts: Sequence[Doubt]) -> Iterator[Line]:
    yield line(span("could not be told", "bold"))
    for doubt in doubts:
        yield line(span("? ", "warn"), *prose(doubt.question), hang=2)
        yield from indented([line(span("look at: "), span(doubt.look_at, "command"), hang=9)], 2)


def _stack(storeys: Sequence[Storey]) -> Iterator[Line]:
    width = max(len(storey.title) for storey in storeys)
    for storey in reversed(storeys):
        mark, style, word = _STATES[storey.state]
        causes = f": {listed(storey.findings, 3)}" if storey.findings and word else ""
        said = [span(storey.seen, "dim" if style == "dim" else "")] if storey.seen else []
        fault = [span(f"{word}{causes}", style)] if word else []
        between = [span("  ")] if said and fault else []
        title = span(padded(storey.title, width), style if style != "good" else "")
        yield line(span(f"{mark} ", style), title, "  ", *said, *between, *fault, hang=width + 4)


def _verdict(diagnosis: Diagnosis, *, healthy: bool) -> Line:
    if not diagnosis.is_healthy:
        root = diagnosis.findings[0]
        others = len([one for one in diagnosis.roots if one.severity != "info"]) - 1
        more = f"; {count(others, 'other fault')} beside it" if others > 0 else ""
        verb = "is the root cause" if root.severity == "error" else "needs attention"
        return line(span(f"{root.cause} {verb}", _SEVERITIES[root.severity]), f"{more}. ",
                    span(f"gpunode doctor {root.cause}", "command"), " tells its whole story", hang=2)  # fmt: skip
    if diagnosis.unknown:
        return line(span("something is wrong, and what was seen does not tell what", "warn"), hang=2)
    if healthy:
        return line(span("nothing is wrong", "good"), hang=2)
    return line(
        "no fault shows, and nothing shows that the driver works: this is too little to call it healthy", hang=2
    )


def story_lines(rule: Rule, remedy: Sequence[Fix], explained_by: Sequence[str]) -> Iterator[Line]:
    """The whole story of a cause: what happens, what it brings about, what to do, where the facts come from."""
    yield line(span(rule.cause, "bold"), span(f"  {rule.title}"), hang=2)
    for paragraph in rule.story.split("\n\n"):
        yield line(*prose(" ".join(paragraph.split())))
    if rule.explains:
        yield line(span("brings about: ", "dim"), *prose(listed(sorted(rule.explains)), "dim"), hang=14)
    if explained_by:
        yield line(span("may come from: ", "dim"), *prose(listed(explained_by), "dim"), hang=15)
    yield BLANK
    yield from _remedy(remedy, _DISRUPTIONS[rule.disruption])
    yield BLANK
    for source in rule.sources:
        yield line(span(source, "dim"))
