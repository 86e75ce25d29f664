"""What doctor found, as a person reads it: the root cause, its proof, what to do, and the stack it breaks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Final

from gpunode.cli.screen.text import BLANK, Line, Span, Style, cells, indented, line, padded, prose, span, wrap
from gpunode.cli.screen.words import count, listed
from gpunode.command import gpunode
from gpunode.diagnoses.stack import TITLES
from gpunode.diagnoses.views import kernel, pci
from gpunode.page.words import DISRUPTIONS, STATES, condition_suffix

if TYPE_CHECKING:
    from gpunode.catalog.xids import Xid
    from gpunode.diagnoses.model import Citation, Diagnosis, Finding, Fix, OpenQuestion, Rule
    from gpunode.diagnoses.snapshot import Snapshot
    from gpunode.diagnoses.stack import LayerState
    from gpunode.workflow.doctor import Examined


_WORD: Final = re.compile(r"[\w.:/+-]*\w")
# What names a fault or a GPU in any message.
_ALWAYS: Final = re.compile(
    r"\bS?Xid\b|\b[0-9a-f]{2}:[0-9a-f]{2}\b|\berror|\bfail|\bfatal|\bmismatch|\bdenied", re.IGNORECASE
)
_SHORTEST: Final = 3
_CUT: Final = "…"


def telling(*texts: str) -> frozenset[str]:
    """The words of ``texts`` by which the part of a line is known that proves something."""
    found = (match[0].lower() for text in texts for match in _WORD.finditer(text))
    return frozenset(word for word in found if len(word) >= _SHORTEST or word.isdecimal())


def passage(line: str, words: frozenset[str], room: int) -> str:
    """``line``, its blanks made single; of more than ``room`` columns the passage from where it has ``words``.

    No word is left out between two that are shown: a proof is read, and pasted into tickets, as it was logged.
    """
    plain = " ".join(line.split())
    if cells(plain) <= room:
        return plain
    found = (match.start() for match in _WORD.finditer(plain) if match[0].lower() in words)
    told = min((match.start() for match in (_ALWAYS.search(plain),) if match), default=len(plain))
    told = min((*found, told))
    # A quarter before what tells; at the end of the line, all that fits.
    start = plain.rfind(" ", 0, max(0, min(told - room // 4, len(plain) - room))) + 1
    before = f"{_CUT} " if start else ""
    shown = _fitting(plain[start:], room - cells(before))
    return before + shown


def _fitting(text: str, room: int) -> str:
    """``text``, or as many of its first letters as fit with the sign that more follows."""
    if cells(text) <= room:
        return text
    used = accumulate(map(cells, text), initial=cells(f" {_CUT}"))
    end = sum(1 for _ in takewhile(lambda columns: columns <= room, used)) - 1
    blank = text.rfind(" ", 0, end)
    return f"{text[: blank if blank > end // 2 else end]} {_CUT}"


_CITED = 5
_CONSEQUENCES = 4
_DENIED = 4
_RELATED = 8
# Of a log's line without end, what is shown: by itself, and with -v.
_PASSAGE = 400
_PAGE = 100
_LONGEST = 2000
# Of the first answer, a command of more than two rows of a narrow terminal stands below its proof.
_SHORT = 140
_STYLES: dict[str, Style] = {
    "broken": "bad",
    "warned": "warn",
    "affected": "warn",
    "works": "good",
    "seen": "",
    "unseen": "dim",
    "absent": "dim",
}
_SEVERITIES: dict[str, tuple[str, Style]] = {"error": ("✗ ", "bad"), "warning": ("! ", "warn"), "info": ("i ", "dim")}


@dataclass(frozen=True, slots=True)
class _How:
    """How proof is shown: all of it or the first of it, and where messages are whole."""

    verbose: bool
    snapshot: Snapshot

    def said(self, citation: Citation) -> str:
        """The line; of a message of the kernel that goes on over the next lines, the message."""
        wrapped = self.snapshot.view(kernel.wrapped_messages).get((citation.key, citation.line_number or 0))
        return f"{'NVRM: ' if wrapped.is_nvrm else ''}{wrapped.text}" if wrapped else citation.line


def diagnosis_lines(examined: Examined, *, verbose: bool) -> Iterator[Line]:
    """The root cause first, then other faults and what follows from them, what could not be told, and the stack.

    Args:
        examined: what was found.
        verbose: whether every line that proves something is shown, and why other causes are ruled out.
    """
    how = _How(verbose, examined.snapshot)
    diagnosis = examined.diagnosis
    if diagnosis.is_healthy:
        yield _no_fault(examined)
        yield BLANK
    for number, root in enumerate(diagnosis.roots):
        yield from _root(root, diagnosis.consequences_of(root), how, is_first=number == 0)
        yield BLANK
    if diagnosis.open_questions:
        yield from _unknown(diagnosis.open_questions, how)
        yield BLANK
    if diagnosis.suspects:
        yield from _suspects(diagnosis, how)
        yield BLANK
    yield from _stack(examined.stack)
    if examined.denied:
        yield BLANK
        yield _denied(examined.denied, verbose=verbose)
    if not diagnosis.is_healthy:
        yield BLANK
        yield from _what_next(diagnosis.roots, verbose=verbose)


def _no_fault(examined: Examined) -> Line:
    if any(suspect.citations for suspect in examined.diagnosis.suspects):
        return line(span("? what was seen fits several causes and decides none", "warn"), hang=2)
    if examined.diagnosis.open_questions:
        if any(doubt.citations for doubt in examined.diagnosis.open_questions):
            return line(span("? something is wrong, but the evidence does not show what", "warn"), hang=2)
        if examined.snapshot.view(pci.has_gpu) is False:
            return line(span("? no NVIDIA GPU found", "warn"), ", and no fault detected", hang=2)
        return line(span("? not enough evidence to call this node healthy", "warn"), hang=2)
    if examined.works:
        return line(span("✓ nothing is wrong", "good"), hang=2)
    return line(
        span("? no fault detected", "warn"),
        ", but nothing shows that the driver works: not enough evidence to call this node healthy",
        hang=2,
    )


# What is said of a node has words of its evidence in it, whoever wrote them: it is never styled as a command. Only what
# is typed as one is; in stories, which are this program's own, so is what stands in backticks.


def _root(finding: Finding, below: Sequence[Finding], how: _How, *, is_first: bool) -> Iterator[Line]:
    """The answer, what to do next and the first proof, in ten lines of a narrow terminal; then the rest."""
    mark, style = _SEVERITIES[finding.severity]
    likely = ", likely" if finding.confidence == "likely" else ""
    yield line(span(mark, style), span(finding.title, style), span(f"  {finding.cause}{likely}", "dim"), hang=2)
    yield line("  ", finding.summary, hang=2)
    if is_first:
        yield from indented([*_next(finding, _SHORT)], 2)
    yield from _cited(finding.citations, telling(finding.summary, finding.title), how, indent=2, heading="proof")
    yield from _ruled_out(finding.ruled_out, how)
    yield from _consequences(below, how)
    yield from _remedy(finding.remedy, DISRUPTIONS[finding.disruption])


def _heading(text: str) -> Line:
    return line("  ", span(text, "bold"), hang=4)


def _cited(
    citations: Sequence[Citation], words: frozenset[str], how: _How, *, indent: int, heading: str = ""
) -> Iterator[Line]:
    """The proving lines, under the sources that they are from; ``heading`` stands before the first source."""
    shown = citations if how.verbose else citations[:_CITED]
    source = ""
    numbers = max((len(str(citation.line_number or "")) for citation in shown), default=0)
    for citation in shown:
        if citation.source != source:
            source = citation.source
            head = [span(heading, "bold"), "  "] if heading and citation is shown[0] else [" " * (len(heading) + 2)]
            yield line(" " * indent, *(head if heading else ()), span(source, "dim"), hang=indent + 2)
        number = str(citation.line_number or "").rjust(numbers)
        yield _quoted(f"{' ' * (indent + 2)}{number}  " if numbers else " " * (indent + 2), citation, words, how)
    if more := len(citations) - len(shown):
        yield line(" " * indent, span(f"and {count(more, 'line')} more (-v)", "dim"), hang=indent)


def _quoted(before: str, citation: Citation, words: frozenset[str], how: _How) -> Line:
    said = span(how.said(citation)).text
    shown = passage(said, words, _LONGEST if how.verbose else _PASSAGE)
    return line(span(before, "dim"), shown, hang=len(before))


def _ruled_out(others: Sequence[str], how: _How) -> Iterator[Line]:
    if others and how.verbose:
        yield _heading("ruled out")
        yield from (line("    – ", other, hang=6) for other in others)


def _consequences(findings: Sequence[Finding], how: _How) -> Iterator[Line]:
    if not findings:
        return
    yield _heading("what follows from it")
    shown = findings if how.verbose else findings[:_CONSEQUENCES]
    for finding in shown:
        yield line("    ", span("! ", "warn"), finding.title, span(f"  {finding.cause}", "dim"), hang=6)
        if how.verbose:
            yield line("      ", finding.summary, hang=6)
            yield from _cited(finding.citations, telling(finding.summary), how, indent=6)
    if more := len(findings) - len(shown):
        yield line("    ", span(f"and {more} more (-v)", "dim"), hang=4)


def _remedy(fixes: Sequence[Fix], disruption: str) -> Iterator[Line]:
    yield line("  ", span("fix", "bold"), span(f" ({disruption})", "dim"), hang=4)
    for number, fix in enumerate(fixes, 1):
        yield line(f"  {number}. ", f"{fix.text}{condition_suffix(fix.when)}", hang=5)
        yield from indented([_typed(row) for command in fix.commands for row in command.split("\n")], 5)


def _typed(command: str) -> Line:
    return Line((span(command, "command"),), solid=True)


def _unknown(doubts: Sequence[OpenQuestion], how: _How) -> Iterator[Line]:
    yield line(span("undetermined", "bold"))
    for doubt in doubts:
        yield line("  ", span("? ", "warn"), doubt.question, hang=4)
        yield from _cited(doubt.citations, telling(doubt.question), how, indent=4)
        for number, command in enumerate(doubt.look_at):
            head = " " * 9 if number else "look at  "
            yield Line((Span("    "), span(head, "dim"), span(command, "command")), solid=True)


def _suspects(diagnosis: Diagnosis, how: _How) -> Iterator[Line]:
    suspects = diagnosis.suspects
    lines = dict.fromkeys(citation for suspect in suspects for citation in suspect.citations[:1])
    yield line(span(_likeliest(diagnosis, is_seen=bool(lines)), "bold"), ", and what would show which it is")
    yield from _cited(tuple(lines), frozenset(), how, indent=2)
    for number, suspect in enumerate(suspects, 1):
        yield line(f"  {number}. ", suspect.title, span(f"  {suspect.cause}", "dim"), hang=5)
        yield from indented([_typed(command) for command in suspect.look_at], 5)


def _likeliest(diagnosis: Diagnosis, *, is_seen: bool) -> str:
    if diagnosis.roots:
        return "what else it could be"
    return "the likeliest causes" if is_seen else "what reports that read like this were most often of"


def _stack(layers: Sequence[LayerState]) -> Iterator[Line]:
    """The layers, the highest first, and in one line those of which nothing was seen."""
    width = max(len(layer.title) for layer in layers)
    seen = [layer for layer in reversed(layers) if layer.state != "unseen"]
    for layer in seen:
        mark, word = STATES[layer.state]
        style = _STYLES[layer.state]
        is_faulty = bool(word and layer.findings)
        yield line(
            span(f"{mark} ", style),
            span(padded(layer.title, width), "" if style == "good" else style),
            "  ",
            *([span(f"{word}: {listed(layer.findings, 3)}", style)] if is_faulty else []),
            *([Span("  ")] if is_faulty and layer.seen else []),
            span(layer.seen or ("" if is_faulty else word), "dim" if is_faulty or style == "dim" else ""),
            hang=width + 4,
        )
    unseen = [layer.title for layer in reversed(layers) if layer.state == "unseen"]
    if unseen:
        mark, word = STATES["unseen"]
        yield line(span(f"{mark} {padded(word, width if seen else 0)}  {listed(unseen)}", "dim"), hang=width + 4)


def _denied(sources: Sequence[str], *, verbose: bool) -> Line:
    shown = listed(sources, 0 if verbose else _DENIED)
    return line(
        span("! ", "warn"), "not visible without root: ", span(shown, "dim"), "; ", span("sudo", "command"),
        " shows it", hang=2,
    )  # fmt: skip


def _what_next(roots: Sequence[Finding], *, verbose: bool) -> Iterator[Line]:
    root = roots[0]
    _, style = _SEVERITIES[root.severity]
    others = len([one for one in roots if one.severity != "info"]) - 1
    more = f"; {count(others, 'other fault')} beside it" if others else ""
    is_sure = "is" if root.confidence == "certain" else "is likely"
    verb = f"{is_sure} the root cause" if root.severity == "error" else "needs attention"
    yield line(span(f"{root.cause} {verb}", style), more, hang=2)
    yield from _next(root)
    yield line("story: ", span(str(gpunode("doctor", root.cause)), "command"), hang=7)
    if root.ruled_out and not verbose:
        yield line("why:   ", span("-v", "command"), f" tells how {count(len(root.ruled_out), 'other cause')} "
                   f"{'was' if len(root.ruled_out) == 1 else 'were'} ruled out", hang=7)  # fmt: skip


def _next(root: Finding, room: int = 0) -> Iterator[Line]:
    """The first thing to do: its command, or in words where no command of so much ``room`` does it."""
    for fix in root.remedy[:1]:
        command = next((one for one in fix.commands[:1] if not room or len(one) <= room), "")
        yield line("next:  ", *([span(command, "command")] if command else [span(fix.text)]), hang=7)


def xid_lines(xid: Xid, cause: str) -> Iterator[Line]:
    """What an Xid means, what NVIDIA's catalog says to do, and whether it is a cause by itself."""
    yield line(span(f"Xid {xid.code}", "bold"), f"  {xid.meaning}", hang=2)
    yield line(span(f"NVIDIA's catalog says: {xid.advice or 'nothing is to be done'}", "dim"), hang=2)
    yield BLANK if cause else line("no cause by itself: what the log says around it decides", hang=2)


def story_lines(
    rule: Rule, remedy: Sequence[Fix], explained_by: Sequence[str], *, verbose: bool, width: int = 0
) -> Iterator[Line]:
    """The whole story of a cause: what happens, what it brings about, what to do, where the facts come from.

    Args:
        rule: the cause.
        remedy: what to do on a node of which nothing is known.
        explained_by: the causes of which it may be a consequence.
        verbose: whether all of them are named.
        width: of the terminal; its paragraphs are no wider than a page, through a pipe either.
    """
    yield line(span(rule.title, "bold"), span(f"  {rule.cause}", "dim"), hang=2)
    yield line(span(f"{TITLES[rule.stack_layer]}, {rule.severity}", "dim"), hang=2)
    for paragraph in rule.story.split("\n\n"):
        yield BLANK
        yield from wrap(line(*prose(" ".join(paragraph.split()))), min(width or _PAGE, _PAGE))
    yield BLANK
    yield from _remedy(remedy, DISRUPTIONS[rule.disruption])
    for heading, causes in (("may come from", explained_by), ("brings about", sorted(rule.explains))):
        if causes:
            yield _heading(heading)
            yield line("    ", listed(causes, 0 if verbose else _RELATED), hang=4)
    if rule.sources:
        yield _heading("sources")
        yield from (line("    ", span(source, "dim"), hang=4) for source in rule.sources)
