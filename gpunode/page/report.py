"""The page: verdict and root cause, the stack, what to do, the proof, what was ruled out, wiring and faults. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gpunode.diagnoses import rules
from gpunode.diagnoses.commands import Command
from gpunode.diagnoses.model import Doubt, Finding, Fix
from gpunode.diagnoses.stack import TITLES
from gpunode.diagnoses.views.topology import topology
from gpunode.page import timeline
from gpunode.page import topology as wiring
from gpunode.page.evidence import looked_at, shown
from gpunode.page.excerpt import BRIEF, FULL, Detail, cut
from gpunode.page.frame import About, footer, head, masthead
from gpunode.page.markup import Markup, document, element, joined
from gpunode.page.words import DISRUPTIONS, STATES, condition, count

if TYPE_CHECKING:
    from gpunode.diagnoses.stack import Storey
    from gpunode.workflow.doctor import Examined

_SPOKEN: Final = re.compile(r"`([^`\n]+)`")
# Characters beyond which a page shows less of each piece of evidence: mail takes it, and a browser opens it at once.
_LARGEST: Final = 2_000_000
_MOST_ROWS: Final = 200
_LABELS: Final = {"error": "root cause", "warning": "needs attention", "info": "not a fault"}


def page(examined: Examined, about: About) -> str:
    """The page about ``examined``, which was made of redacted evidence.

    Nothing in it is fetched and no script runs: its own policy forbids both, whatever stands in the evidence.
    """
    top = head(_title(examined, about), "style.css")
    whole = document("en", top, _body(examined, about, FULL))
    return whole if len(whole) <= _LARGEST else document("en", top, _body(examined, about, BRIEF))


def _title(examined: Examined, about: About) -> str:
    findings = examined.diagnosis.findings
    what = findings[0].title if findings and not examined.diagnosis.is_healthy else _all_in_all(examined)
    return f"{about.node}: {what}" if about.node else what


def _all_in_all(examined: Examined) -> str:
    """The verdict where no fault was found."""
    if examined.diagnosis.unknown:
        return "Something is wrong, and what was seen does not tell what"
    return "Nothing is wrong" if examined.works else "No fault shows, and nothing shows that the driver works"


def _body(examined: Examined, about: About, detail: Detail) -> Markup:
    diagnosis = examined.diagnosis
    faults = [root for root in diagnosis.roots if root.severity != "info"]
    notes = [root for root in diagnosis.roots if root.severity == "info"]
    return element(
        "body",
        element("a", "Skip to the verdict", href="#verdict", class_="skip"),
        masthead(about),
        element(
            "main",
            _verdict(examined, faults),
            (_fault(root, examined, number, detail) for number, root in enumerate(faults)),
            _unknown(diagnosis.unknown, examined, detail),
            _denied(examined),
            _wiring(examined),
            _faults_over_time(examined),
            (_note(note) for note in notes),
            looked_at(examined.snapshot.whole),
        ),
        footer(about),
    )


def _verdict(examined: Examined, faults: Sequence[Finding]) -> Markup:
    if not faults:
        tone = "unknown" if examined.diagnosis.unknown or not examined.works else "good"
        return element(
            "section",
            element("p", "verdict", class_="label"),
            element("h1", _all_in_all(examined), id="verdict"),
            element("div", _stack(examined.storeys), class_="columns"),
            class_=f"verdict {tone}",
            aria_labelledby="verdict",
        )
    root = faults[0]
    others = f" · {count(len(faults) - 1, 'other fault')} below" if len(faults) > 1 else ""
    likely = "likely " if root.confidence == "likely" else ""
    return element(
        "section",
        element("p", f"{likely}{_LABELS[root.severity]}{others}", class_="label"),
        element("h1", root.title, id="verdict"),
        element("p", root.summary, class_="summary"),
        _facts(root),
        element("div", _stack(examined.storeys), _remedy(root.remedy, "remedy"), class_="columns"),
        class_=f"verdict {root.severity}",
        aria_labelledby="verdict",
    )


def _facts(finding: Finding) -> Markup:
    rows = [
        ("cause", element("code", finding.cause)),
        ("in the stack", TITLES[finding.storey]),
        ("the repair", DISRUPTIONS[finding.disruption]),
        ("GPU", joined(_comma(element("code", gpu) for gpu in finding.gpus)) if finding.gpus else ""),
    ]
    return element(
        "dl", (element("div", element("dt", name), element("dd", value)) for name, value in rows if value),
        class_="facts",
    )  # fmt: skip


def _comma(parts: Iterable[Markup]) -> Iterator[str | Markup]:
    for number, part in enumerate(parts):
        if number:
            yield ", "
        yield part


def _prose(text: str) -> Markup:
    """``text``, which is this program's own, with the commands in it, which stand in backticks, set off."""
    parts = _SPOKEN.split(text)
    return joined(element("code", part) if number % 2 else part for number, part in enumerate(parts))


def _stack(storeys: Sequence[Storey]) -> Markup:
    return element(
        "section",
        element("h2", "The stack", id="stack"),
        element("ol", (_storey(storey) for storey in reversed(storeys)), class_="stack"),
        aria_labelledby="stack",
    )


def _storey(storey: Storey) -> Markup:
    mark, word = STATES[storey.state]
    causes = joined(_comma(element("a", cause, href=f"#{cause}") for cause in storey.findings))
    fault = element("strong", word, ": " if storey.findings else "", causes) if word and storey.findings else None
    return element(
        "li",
        element("span", mark, class_="mark", aria_hidden="true"),
        element("span", storey.title, class_="layer"),
        element("span", storey.seen or (word if not fault else ""), " " if fault else "", fault, class_="told"),
        class_=storey.state,
    )


def _remedy(fixes: Sequence[Fix], name: str, heading: str = "h2") -> Markup:
    return element(
        "section",
        element(heading, "What to do", id=name),
        element("ol", (_fix(fix) for fix in fixes), class_="remedy"),
        aria_labelledby=name,
    )


def _fix(fix: Fix) -> Markup:
    return element(
        "li",
        element("p", fix.text, element("em", condition(fix.when)) if fix.when else None),
        _typed(fix.commands),
    )


def _typed(commands: Sequence[Command]) -> Markup | None:
    """Commands to be picked up; nothing else on the page looks like one but what this program wrote."""
    return element("pre", element("code", "\n".join(commands)), class_="commands", tabindex=0) if commands else None


def _fault(root: Finding, examined: Examined, number: int, detail: Detail) -> Markup:
    """What proves a root, what it is not, and what follows from it; of the first, the head stands above."""
    level = "h3" if number else "h2"
    consequences = examined.diagnosis.below(root)
    head = (
        element("p", f"{'likely ' if root.confidence == 'likely' else ''}{_beside(root)}", class_="label"),
        element("h2", root.title),
        element("p", root.summary, class_="summary"),
        _facts(root),
    )
    return element(
        "article",
        head if number else None,
        _section(level, "What proves it", shown(root.citations, examined.snapshot, detail)) if root.citations else None,
        _list(level, "What it is not", root.ruled_out),
        _consequences(level, consequences, examined, detail),
        _remedy(root.remedy, f"remedy-{number}", "h3") if number else None,
        _story(level, root),
        class_=root.severity if number else "root",
        id=root.cause,
    )


def _beside(root: Finding) -> str:
    return "another fault, with a cause of its own" if root.severity == "error" else _LABELS[root.severity]


def _section(level: str, title: str, *parts: Markup | Iterable[Markup] | None) -> Markup:
    return element("section", element(level, title), *parts)


def _list(level: str, title: str, texts: Sequence[str]) -> Markup | None:
    if not texts:
        return None
    return _section(level, title, element("ul", (element("li", text) for text in texts)))


def _consequences(level: str, findings: Sequence[Finding], examined: Examined, detail: Detail) -> Markup | None:
    if not findings:
        return None
    return _section(level, "What follows from it", (_consequence(one, examined, detail) for one in findings))


def _consequence(finding: Finding, examined: Examined, detail: Detail) -> Markup:
    return element(
        "details",
        element("summary", element("b", finding.title), " ", element("code", finding.cause)),
        element("p", finding.summary),
        shown(finding.citations, examined.snapshot, detail),
        id=finding.cause,
    )


def _story(level: str, finding: Finding) -> Markup | None:
    rule = rules().get(finding.cause)
    if rule is None or len(rule.story) < 2:
        return None
    return _section(
        level,
        "How this comes about",
        (element("p", _prose(" ".join(part.split()))) for part in rule.story.split("\n\n")),
        element("p", "Sources: ", _comma(_address(source) for source in rule.sources), class_="sources")
        if rule.sources
        else None,
    )


def _address(source: str) -> Markup:
    """A link, if it leads to the web; such links are gpunode's own, and are checked all the same."""
    if not source.startswith(("https://", "http://")):
        return element("span", source)
    return element("a", source.partition("://")[2], href=source, rel="noopener noreferrer")


def _denied(examined: Examined) -> Markup | None:
    if not examined.denied:
        return None
    return element(
        "section",
        element("h2", "What could not be seen without root"),
        element("p", element("code", "sudo gpunode doctor"), " shows what these hold."),
        element("ul", (element("li", element("code", source)) for source in examined.denied), class_="plain"),
        class_="card",
    )


def _unknown(doubts: Sequence[Doubt], examined: Examined, detail: Detail) -> Markup | None:
    if not doubts:
        return None
    rows = (
        element(
            "li",
            element("p", doubt.question),
            _typed(doubt.look_at),
            element("p", "it decides between ", _comma(element("code", cause) for cause in doubt.causes))
            if len(doubt.causes) > 1
            else None,
            shown(doubt.citations, examined.snapshot, detail),
        )
        for doubt in doubts
    )
    return element("section", element("h2", "Undetermined"), element("ul", rows), class_="card unknown")


def _wiring(examined: Examined) -> Markup | None:
    seen = examined.snapshot.view(topology)
    concerned = {gpu for finding in examined.diagnosis.findings if finding.severity != "info" for gpu in finding.gpus}
    drawn = wiring.drawing(seen, concerned)
    if drawn is None:
        return None
    table = wiring.matrix(seen)
    return element(
        "section",
        element("h2", "How the GPUs are connected"),
        element("div", drawn, class_="scroll", tabindex=0, role="group", aria_label="drawing of the topology"),
        element("p", said, class_="legend") if (said := wiring.legend(seen)) else None,
        element("details", element("summary", "Every pair"), table) if table else None,
        class_="card",
    )


def _faults_over_time(examined: Examined) -> Markup | None:
    events = timeline.events(examined.snapshot)
    if not events:
        return None
    rows = (
        element(
            "tr",
            element("td", timeline.moment(event.at) if event.at is not None else "no time"),
            element("td", element("code", event.gpu)),
            element("td", element("b", event.code) if event.role == "first" else event.code),
            element("td", event.meaning),
            element("td", cut(event.text)),
        )
        for event in events[:_MOST_ROWS]
    )
    head = element("tr", (element("th", name, scope="col") for name in ("when", "GPU", "fault", "meaning", "message")))
    drawings = [
        element("div", one, class_="scroll", tabindex=0, role="group", aria_label="drawing of the faults over time")
        for one in timeline.drawings(events)
    ]
    more = len(events) - _MOST_ROWS
    table = element("table", element("thead", head), element("tbody", rows), class_="events")
    listed = element("div", table, class_="scroll", tabindex=0, role="group", aria_label="every fault")
    return element(
        "section",
        element("h2", "GPU faults over time"),
        drawings,
        element("p", "Bold is what began a failure, dashed what an earlier one brought with it.", class_="legend")
        if drawings
        else None,
        element(
            "details",
            element("summary", f"All {count(len(events), 'message')}"),
            listed,
            element("p", f"and {more} more") if more > 0 else None,
            open=not drawings,
        ),
        class_="card",
    )


def _note(note: Finding) -> Markup:
    return element(
        "section",
        element("p", _LABELS["info"], class_="label"),
        element("h2", note.title),
        element("p", note.summary),
        class_="card info",
        id=note.cause,
    )
