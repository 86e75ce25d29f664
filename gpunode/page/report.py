"""The page: verdict and root cause, the stack, what to do, the proof, what was ruled out, wiring and faults. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.diagnoses import rules_by_cause
from gpunode.diagnoses.model import Finding, Fix, OpenQuestion, Suspect
from gpunode.diagnoses.stack import TITLES
from gpunode.diagnoses.views.topology import find_topology
from gpunode.page import topology as wiring
from gpunode.page.evidence import BRIEF, FULL, Detail, looked_at, shown
from gpunode.page.frame import About, body, card, commands, head, scroll
from gpunode.page.markup import Markup, Part, document, joined, listed, tag
from gpunode.page.timeline import over_time
from gpunode.page.words import DISRUPTIONS, STATES, condition, count

if TYPE_CHECKING:
    from gpunode.diagnoses.stack import LayerState
    from gpunode.workflow.doctor import Examined

_SPOKEN: Final = re.compile(r"`([^`\n]+)`")
# Characters beyond which a page shows less of each piece of evidence: mail takes it, and a browser opens it at once.
_LARGEST: Final = 2_000_000
_LABELS: Final = {"error": "root cause", "warning": "needs attention", "info": "not a fault"}


def page(examined: Examined, about: About) -> str:
    """The page about ``examined``, which was made of redacted evidence.

    Nothing in it is fetched and no script runs: its own policy forbids both, whatever stands in the evidence.
    """
    findings = examined.diagnosis.findings
    what = findings[0].title if findings and not examined.diagnosis.is_healthy else _all_in_all(examined)
    top = head(f"{about.node}: {what}" if about.node else what, "style.css")
    whole = document(top, _body(examined, about, FULL))
    return whole if len(whole) <= _LARGEST else document(top, _body(examined, about, BRIEF))


def _all_in_all(examined: Examined) -> str:
    """The verdict where no fault was found."""
    if any(suspect.citations for suspect in examined.diagnosis.suspects):
        return "What was seen fits several causes and decides none"
    if examined.diagnosis.open_questions:
        return "Something is wrong, and what was seen does not tell what"
    return "Nothing is wrong" if examined.works else "No fault shows, and nothing shows that the driver works"


def _body(examined: Examined, about: About, detail: Detail) -> Markup:
    diagnosis = examined.diagnosis
    faults = [root for root in diagnosis.roots if root.severity != "info"]
    return body(
        about,
        "Skip to the verdict",
        "#verdict",
        _verdict(examined, faults),
        (_fault(root, examined, number, detail) for number, root in enumerate(faults)),
        _unknown(diagnosis.open_questions, examined, detail),
        _suspects(diagnosis.suspects, examined, detail),
        _denied(examined.denied),
        _wiring(examined),
        over_time(examined.snapshot),
        (_note(root) for root in diagnosis.roots if root.severity == "info"),
        looked_at(examined.snapshot.all_items),
    )


def _verdict(examined: Examined, faults: Sequence[Finding]) -> Markup:
    if not faults:
        tone = "unknown" if examined.diagnosis.open_questions or not examined.works else "good"
        label, title, told, remedy = "verdict", _all_in_all(examined), None, None
    else:
        root = faults[0]
        others = f" · {count(len(faults) - 1, 'other fault')} below" if len(faults) > 1 else ""
        tone, label, title = root.severity, f"{_likely(root)}{_LABELS[root.severity]}{others}", root.title
        told = joined(tag("p.summary", root.summary), _facts(root))
        remedy = _remedy(root.remedy, "remedy")
    parts = tag("p.label", label), tag("h1#verdict", title), told, tag("div.columns", _stack(examined.stack), remedy)
    return tag(f"section.verdict.{tone}", *parts, aria_labelledby="verdict")


def _likely(root: Finding) -> str:
    return "likely " if root.confidence == "likely" else ""


def _facts(finding: Finding) -> Markup:
    rows = {
        "cause": tag("code", finding.cause),
        "in the stack": TITLES[finding.stack_layer],
        "the repair": DISRUPTIONS[finding.disruption],
        "GPU": listed(finding.gpus),
    }
    return tag("dl.facts", (tag("div", tag("dt", name), tag("dd", value)) for name, value in rows.items() if value))


def _prose(text: str) -> Markup:
    """``text``, which is this program's own, with the commands in it, which stand in backticks, set off."""
    parts = _SPOKEN.split(text)
    return joined(tag("code", part) if number % 2 else part for number, part in enumerate(parts))


def _stack(layers: Sequence[LayerState]) -> Markup:
    """The layers, the highest first, and in one row those of which nothing was seen."""
    rows = [_row(layer) for layer in reversed(layers) if layer.state != "unseen"]
    unseen = ", ".join(layer.title for layer in reversed(layers) if layer.state == "unseen")
    if unseen:
        mark, word = STATES["unseen"]
        rows.append(_layer("unseen", mark, word, unseen))
    return tag("section", tag("h2#stack", "The stack"), tag("ol.stack", rows), aria_labelledby="stack")


def _row(layer: LayerState) -> Markup:
    mark, word = STATES[layer.state]
    causes = listed(tag("a", cause, href=f"#{cause}") for cause in layer.findings)
    fault = tag("strong", word, ": ", causes) if word and causes else None
    told = layer.seen or ("" if fault else word)
    return _layer(layer.state, mark, layer.title, told, " " if fault else "", fault)


def _layer(state: str, mark: str, title: str, *told: Part) -> Markup:
    parts = tag("span.mark", mark, aria_hidden="true"), tag("span.layer", title), tag("span.told", *told)
    return tag(f"li.{state}", *parts)


def _remedy(fixes: Sequence[Fix], name: str, heading: str = "h2") -> Markup:
    steps = ((fix, tag("em", condition(fix.when)) if fix.when else None) for fix in fixes)
    rows = (tag("li", tag("p", fix.text, when), commands(*fix.commands)) for fix, when in steps)
    return tag("section", tag(f"{heading}#{name}", "What to do"), tag("ol.remedy", rows), aria_labelledby=name)


def _fault(root: Finding, examined: Examined, number: int, detail: Detail) -> Markup:
    """What proves a root, what it is not, and what follows from it; of the first, the head stands above."""
    level = "h3" if number else "h2"
    beside = "another fault, with a cause of its own" if root.severity == "error" else _LABELS[root.severity]
    consequences = (_consequence(one, examined, detail) for one in examined.diagnosis.consequences_of(root))
    parts = (
        ("What proves it", joined(shown(root.citations, examined.snapshot, detail))),
        ("What it is not", tag("ul", (tag("li", other) for other in root.ruled_out)) if root.ruled_out else ""),
        ("What follows from it", joined(consequences)),
    )
    return tag(
        "article",
        tag("p.label", f"{_likely(root)}{beside}") if number else None,
        joined(tag("h2", root.title), tag("p.summary", root.summary), _facts(root)) if number else None,
        (tag("section", tag(level, title), part) for title, part in parts if part),
        _remedy(root.remedy, f"remedy-{number}", "h3") if number else None,
        _story(level, root),
        class_=root.severity if number else "root",
        id=root.cause,
    )


def _consequence(finding: Finding, examined: Examined, detail: Detail) -> Markup:
    title = tag("summary", tag("b", finding.title), " ", tag("code", finding.cause))
    proof = shown(finding.citations, examined.snapshot, detail)
    return tag("details", title, tag("p", finding.summary), proof, id=finding.cause)


def _story(level: str, finding: Finding) -> Markup | None:
    rule = rules_by_cause().get(finding.cause)
    if rule is None or len(rule.story) < 2:
        return None
    story = (tag("p", _prose(" ".join(part.split()))) for part in rule.story.split("\n\n"))
    sources = tag("p.sources", "Sources: ", listed(map(_address, rule.sources))) if rule.sources else None
    return tag("section", tag(level, "How this comes about"), story, sources)


def _address(source: str) -> Markup:
    """A link, if it leads to the web; such links are gpunode's own, and are checked all the same."""
    if not source.startswith(("https://", "http://")):
        return tag("span", source)
    return tag("a", source.partition("://")[2], href=source, rel="noopener noreferrer")


def _denied(sources: Iterable[str]) -> Markup | None:
    rows = [tag("li", tag("code", source)) for source in sources]
    told = tag("p", tag("code", "sudo gpunode doctor"), " shows what these hold.")
    return card("What could not be seen without root", told, tag("ul.plain", rows)) if rows else None


def _unknown(doubts: Sequence[OpenQuestion], examined: Examined, detail: Detail) -> Markup | None:
    if not doubts:
        return None
    rows = (
        tag(
            "li",
            tag("p", doubt.question),
            commands(*doubt.look_at),
            shown(doubt.citations, examined.snapshot, detail),
        )
        for doubt in doubts
    )
    return tag("section.card.unknown", tag("h2", "Undetermined"), tag("ul", rows))


def _suspects(suspects: Sequence[Suspect], examined: Examined, detail: Detail) -> Markup | None:
    if not suspects:
        return None
    rows = (
        tag(
            "li",
            tag("p", suspect.title, " ", tag("code", suspect.cause)),
            commands(*suspect.look_at),
            shown(suspect.citations, examined.snapshot, detail),
        )
        for suspect in suspects
    )
    return tag("section.card.unknown", tag("h2", "Likeliest causes, and what would show which it is"), tag("ol", rows))


def _wiring(examined: Examined) -> Markup | None:
    seen = examined.snapshot.view(find_topology)
    concerned = {gpu for finding in examined.diagnosis.findings if finding.severity != "info" for gpu in finding.gpus}
    drawn = wiring.drawing(seen, concerned)
    if drawn is None:
        return None
    pairs = wiring.matrix(seen)
    return card(
        "How the GPUs are connected",
        scroll("drawing of the topology", drawn),
        tag("p.legend", said) if (said := wiring.legend(seen)) else None,
        tag("details", tag("summary", "Every pair"), pairs) if pairs else None,
    )


def _note(note: Finding) -> Markup:
    label = tag("p.label", _LABELS["info"])
    return tag("section.card.info", label, tag("h2", note.title), tag("p", note.summary), id=note.cause)
