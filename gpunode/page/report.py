"""Render a node's page: verdict, stack, remedy, proof, causes ruled out, topology, faults. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from gpunode.catalog import xids
from gpunode.diagnoses import rules_by_cause
from gpunode.diagnoses.model import Diagnosis, Finding, Fix, OpenQuestion, Suspect
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.stack import LAYER_TITLES
from gpunode.diagnoses.views import faults
from gpunode.diagnoses.views.faults import Fault
from gpunode.page.evidence import (
    BRIEF_DETAIL,
    FULL_DETAIL,
    EvidenceDetail,
    redact_line,
    render_citations,
    render_evidence_list,
)
from gpunode.page.markup import (
    Markup,
    MarkupPart,
    PageOrigin,
    card,
    column_heads,
    comma_list,
    command_block,
    html_document,
    join_markup,
    page_body,
    page_head,
    scroll_box,
    table,
    tag,
)
from gpunode.page.words import LAYER_MARKS, TEXT_BY_DISRUPTION, checks_heading, when_suffix
from gpunode.wording import count_noun

if TYPE_CHECKING:
    from gpunode.diagnoses.commands import Command
    from gpunode.diagnoses.stack import LayerState
    from gpunode.workflow.doctor import Examination


_BACKTICKED_TEXT: Final = re.compile(r"`([^`\n]+)`")
# Above this length a page shows less of each piece of evidence, so that it fits into a mail and opens at once.
_MAX_PAGE_LENGTH: Final = 2_000_000
_SEVERITY_LABELS: Final = {"error": "root cause", "warning": "needs attention", "info": "not a fault"}


def node_page(examined: Examination, about: PageOrigin) -> str:
    """Return the page about ``examined``, whose evidence is already redacted.

    Its policy forbids scripts and requests, whatever the evidence contains.
    """
    findings = examined.diagnosis.findings
    title = findings[0].title if findings and not examined.diagnosis.is_healthy else _faultless_title(examined)
    top = page_head(f"{about.node}: {title}" if about.node else title, "style.css")
    whole = html_document(top, _page_body(examined, about, FULL_DETAIL))
    return whole if len(whole) <= _MAX_PAGE_LENGTH else html_document(top, _page_body(examined, about, BRIEF_DETAIL))


def _faultless_title(examined: Examination) -> str:
    verdict = examined.faultless_verdict
    return verdict[0].upper() + verdict[1:]


def _page_body(examined: Examination, about: PageOrigin, detail: EvidenceDetail) -> Markup:
    diagnosis = examined.diagnosis
    faults = [root for root in diagnosis.roots if root.severity != "info"]
    return page_body(
        about,
        "Skip to the verdict",
        "#verdict",
        _render_verdict(examined, faults),
        (_render_fault(root, examined, number, detail) for number, root in enumerate(faults)),
        _render_questions(diagnosis.open_questions, examined, detail),
        _render_unexplained(diagnosis.unexplained, examined, detail),
        _render_suspects(diagnosis, examined, detail),
        _render_state_notes(examined.notes),
        _render_denied_sources(examined.denied),
        render_topology(examined.snapshot),
        render_timeline(examined.snapshot),
        (_render_note(root) for root in diagnosis.roots if root.severity == "info"),
        render_evidence_list(examined.snapshot.all_items),
    )


def _render_verdict(examined: Examination, faults: Sequence[Finding]) -> Markup:
    if not faults:
        tone = "good" if examined.verdict == "healthy" else "unknown"
        label, title, told, remedy = "verdict", _faultless_title(examined), None, None
    else:
        root = faults[0]
        others = f" · {count_noun(len(faults) - 1, 'other fault')} below" if len(faults) > 1 else ""
        label = f"{_likelihood_prefix(root)}{_SEVERITY_LABELS[root.severity]}{others}"
        tone, title = root.severity, root.title
        told = join_markup(_render_summary(root), _render_facts(root))
        remedy = _render_remedy(root.remedy, "remedy")
    step = examined.diagnosis.next_step
    parts = (
        tag("p.label", label),
        tag("h1#verdict", title),
        told,
        (tag("p", f"next: {step.text}"), command_block(*filter(None, (step.command,)))) if step else None,
        tag("div.columns", _render_stack(examined.stack), remedy),
    )
    return tag(f"section.verdict.{tone}", *parts, aria_labelledby="verdict")


def _likelihood_prefix(root: Finding) -> str:
    return "likely " if root.confidence == "likely" else ""


def _render_facts(finding: Finding) -> Markup:
    rows = {
        "cause": tag("code", finding.cause),
        "in the stack": LAYER_TITLES[finding.layer],
        "the repair": TEXT_BY_DISRUPTION[finding.disruption],
        "GPU": comma_list(finding.gpus),
    }
    return tag("dl.facts", (tag("div", tag("dt", name), tag("dd", value)) for name, value in rows.items() if value))


def _render_prose(text: str) -> Markup:
    """Return this program's own ``text``, with commands in backticks marked up."""
    parts = _BACKTICKED_TEXT.split(text)
    return join_markup(tag("code", part) if number % 2 else part for number, part in enumerate(parts))


def _render_stack(layers: Sequence[LayerState]) -> Markup:
    """Return the layers, highest first, with the unseen ones in one row."""
    rows = []
    for layer in (layer for layer in reversed(layers) if layer.state != "unknown"):
        mark, word = LAYER_MARKS[layer.state]
        causes = comma_list(tag("a", cause, href=f"#{cause}") for cause in layer.findings)
        fault = tag("strong", word, ": ", causes) if word and causes else None
        parts = layer.summary or ("" if fault else word), " " if fault else "", fault
        rows.append(_render_layer_row(layer.state, mark, layer.title, *parts))
    unseen = ", ".join(layer.title for layer in reversed(layers) if layer.state == "unknown")
    if unseen:
        mark, word = LAYER_MARKS["unknown"]
        rows.append(_render_layer_row("unknown", mark, word, unseen))
    return tag("section", tag("h2#stack", "The stack"), tag("ol.stack", rows), aria_labelledby="stack")


def _render_layer_row(state: str, mark: str, title: str, *told: MarkupPart) -> Markup:
    parts = tag("span.mark", mark, aria_hidden="true"), tag("span.layer", title), tag("span.told", *told)
    return tag(f"li.{state}", *parts)


def _render_remedy(fixes: Sequence[Fix], name: str, heading: str = "h2") -> Markup:
    steps = ((fix, tag("em", when_suffix(fix.when)) if fix.when else None) for fix in fixes)
    rows = (tag("li", tag("p", fix.text, when), command_block(*fix.commands)) for fix, when in steps)
    return tag("section", tag(f"{heading}#{name}", "What to do"), tag("ol.remedy", rows), aria_labelledby=name)


def _render_checks(finding: Finding) -> Markup | None:
    if not finding.look_at:
        return None
    return tag("section", tag("p", f"{checks_heading(finding)}:"), command_block(*finding.look_at))


def _render_fault(root: Finding, examined: Examination, number: int, detail: EvidenceDetail) -> Markup:
    """Return the proof, the causes ruled out and the consequences of a root cause."""
    level = "h3" if number else "h2"
    beside = "another fault, with its own cause" if root.severity == "error" else _SEVERITY_LABELS[root.severity]
    consequences = (_render_consequence(one, examined, detail) for one in examined.diagnosis.consequences_of(root))
    parts = (
        ("Evidence", join_markup(render_citations(root.citations, examined.snapshot, detail))),
        ("What was ruled out", tag("ul", (tag("li", other) for other in root.ruled_out)) if root.ruled_out else ""),
        ("Consequences", join_markup(consequences)),
    )
    return tag(
        "article",
        tag("p.label", f"{_likelihood_prefix(root)}{beside}") if number else None,
        join_markup(tag("h2", root.title), _render_summary(root), _render_facts(root)) if number else None,
        (tag("section", tag(level, title), part) for title, part in parts if part),
        _render_checks(root),
        _render_remedy(root.remedy, f"remedy-{number}", "h3") if number else None,
        _render_story(level, root),
        class_=root.severity if number else "root",
        id=root.cause,
    )


def _render_summary(finding: Finding, name: str = "p.summary") -> Markup | None:
    """Return the sentence about this node, if it says more than the title above it."""
    return tag(name, finding.summary) if finding.summary != finding.title else None


def _render_consequence(finding: Finding, examined: Examination, detail: EvidenceDetail) -> Markup:
    title = tag("summary", tag("b", finding.title), " ", tag("code", finding.cause))
    proof = render_citations(finding.citations, examined.snapshot, detail)
    return tag("details", title, _render_summary(finding, "p"), proof, id=finding.cause)


def _render_story(level: str, finding: Finding) -> Markup | None:
    rule = rules_by_cause().get(finding.cause)
    if rule is None:
        return None
    story = (tag("p", _render_prose(part)) for part in rule.text.story.split("\n\n"))
    sources = tag("p.sources", "Sources: ", comma_list(map(_render_link, rule.text.sources)))
    return tag("section", tag(level, "How this happens"), story, sources)


def _render_link(source: str) -> Markup:
    """Return a web link, or plain text; sources are gpunode's own, but are checked all the same."""
    if not source.startswith(("https://", "http://")):
        return tag("span", source)
    return tag("a", source.partition("://")[2], href=source, rel="noopener noreferrer")


def _render_state_notes(notes: Iterable[str]) -> Markup | None:
    rows = [tag("li", _render_prose(note)) for note in notes]
    return card("No fault, but worth knowing", tag("ul.plain", rows)) if rows else None


def _render_denied_sources(sources: Iterable[str]) -> Markup | None:
    rows = [tag("li", tag("code", source)) for source in sources]
    advice = tag("p", tag("code", "sudo gpunode doctor"), " shows them.")
    return card("What could not be seen without root", advice, tag("ul.plain", rows)) if rows else None


def _render_questions(
    questions: Sequence[OpenQuestion], examined: Examination, detail: EvidenceDetail
) -> Markup | None:
    if not questions:
        return None
    rows = (
        tag(
            "li",
            tag("p", doubt.question),
            command_block(*doubt.look_at),
            render_citations(doubt.citations, examined.snapshot, detail),
        )
        for doubt in questions
    )
    return tag("section.card.unknown", tag("h2", "Undetermined"), tag("ul", rows))


def _render_suspects(diagnosis: Diagnosis, examined: Examination, detail: EvidenceDetail) -> Markup | None:
    if not diagnosis.suspects:
        return None
    rows = (_render_suspect(suspect, suspect.look_at, examined, detail) for suspect in diagnosis.suspects)
    shared = _render_remedy(diagnosis.shared_steps, "shared", "h3") if diagnosis.shared_steps else None
    title = tag("h2", "Most likely causes, and how to tell them apart")
    return tag("section.card.unknown", title, tag("ol", rows), shared)


def _render_unexplained(suspects: Sequence[Suspect], examined: Examination, detail: EvidenceDetail) -> Markup | None:
    rows = [_render_suspect(suspect, (), examined, detail) for suspect in suspects]
    title = tag("h2", "Also seen, not explained by this")
    return tag("section.card.unknown", title, tag("ul", rows)) if rows else None


def _render_suspect(
    suspect: Suspect, look_at: Sequence[Command], examined: Examination, detail: EvidenceDetail
) -> Markup:
    """Return the suspect with the commands that would decide, or the next command if none are given."""
    return tag(
        "li",
        tag("p", suspect.title, " ", tag("code", suspect.cause)),
        command_block(*look_at or filter(None, (suspect.next_step.command,))),
        render_citations(suspect.citations, examined.snapshot, detail),
    )


def _render_note(note: Finding) -> Markup:
    label = tag("p.label", _SEVERITY_LABELS["info"])
    return tag("section.card.info", label, tag("h2", note.title), _render_summary(note, "p"), id=note.cause)


_MAX_TOPOLOGY_LINES: Final = 100
_MAX_FAULTS: Final = 200
# Later than any real clock; a malicious log may contain such a time.
_LATEST_PLAUSIBLE_TIME_S: Final = 2e11
_FAULT_CODE_FORMATS: Final = {"xid": "Xid {}", "sxid": "SXid {}"}


def render_topology(snapshot: Snapshot) -> Markup | None:
    """Return the connections of the GPUs as printed by nvidia-smi; None if it was not queried."""
    item = next(iter(snapshot.items_of("nvidia-smi-topo")), None)
    if item is None or item.outcome != "ok":
        return None
    lines = map(redact_line, item.lines[:_MAX_TOPOLOGY_LINES])
    return card("How the GPUs are connected", scroll_box(item.written[:200], tag("pre", "\n".join(lines))))


def render_timeline(snapshot: Snapshot) -> Markup | None:
    """Return the table of all faults; those without a time come last."""
    sorted_faults = sorted(
        snapshot.view(faults.fault_timeline),
        key=lambda fault: (_plausible_time(fault) is None, _plausible_time(fault) or 0.0),
    )
    if not sorted_faults:
        return None
    began = frozenset(incident.root for incident in snapshot.view(faults.find_incidents))
    rows = dict.fromkeys(tag("tr", _fault_cells(fault, is_first=fault in began)) for fault in sorted_faults)
    names = column_heads("when", "GPU", "fault", "meaning", "message")
    more = len(rows) - _MAX_FAULTS
    return card(
        "GPU faults over time",
        tag(
            "details",
            tag("summary", f"All {count_noun(len(rows), 'message')}"),
            scroll_box("every fault", table("events", names, [*rows][:_MAX_FAULTS])),
            tag("p", f"and {more} more") if more > 0 else None,
            open=True,
        ),
        legend="Bold lines began a failure.",
    )


def _fault_cells(fault: Fault, *, is_first: bool) -> Iterator[Markup]:
    message, at = fault.xid or fault.sxid, _plausible_time(fault)
    catalog_entry = xids.lookup(fault.code) if fault.source == "xid" else None
    code = _FAULT_CODE_FORMATS[fault.source].format(fault.code)
    yield tag("td", format_time(at) if at is not None else "no time")
    yield tag("td", tag("code", fault.gpu))
    yield tag("td", tag("b", code) if is_first else code)
    yield tag("td", catalog_entry.meaning if catalog_entry else "")
    yield tag("td", redact_line(message.text if message else fault.citation.line.strip()))


def _plausible_time(fault: Fault) -> float | None:
    return fault.at if fault.at is not None and 0 <= fault.at < _LATEST_PLAUSIBLE_TIME_S else None


def format_time(at: float) -> str:
    """Return a readable time, on the clock of its log."""
    if at < faults.SYSLOG_TIME_BOUNDS_S[0]:
        return f"{at:.3f} s after boot"
    when = datetime.fromtimestamp(at, tz=timezone.utc)
    return when.strftime("%b %d %H:%M:%S" if at < faults.SYSLOG_TIME_BOUNDS_S[1] else "%Y-%m-%d %H:%M:%S UTC")
