"""Render doctor's result: root cause, proof, remedy and stack. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Final

from gpunode.cli.screen.text import (
    BLANK,
    Line,
    Span,
    Style,
    cell_width,
    indent_lines,
    line,
    mark_commands,
    pad_right,
    span,
    wrap_line,
)
from gpunode.cli.screen.words import count, join_names
from gpunode.command import gpunode
from gpunode.diagnoses.stack import TITLES
from gpunode.diagnoses.views import kernel, pci
from gpunode.page.words import DISRUPTIONS, STATES, condition_suffix

if TYPE_CHECKING:
    from gpunode.catalog.xids import Xid
    from gpunode.diagnoses.cause_texts import CauseText
    from gpunode.diagnoses.commands import Command
    from gpunode.diagnoses.model import Citation, Diagnosis, Finding, Fix, NextStep, OpenQuestion, Rule, Suspect
    from gpunode.diagnoses.snapshot import Snapshot
    from gpunode.diagnoses.stack import LayerState
    from gpunode.workflow.doctor import Examination


_WORD: Final = re.compile(r"[\w.:/+-]*\w")
# What names a fault or a GPU in any message.
_ALWAYS: Final = re.compile(
    r"\bS?Xid\b|\b[0-9a-f]{2}:[0-9a-f]{2}\b|\berror|\bfail|\bfatal|\bmismatch|\bdenied", re.IGNORECASE
)
_SHORTEST: Final = 3
_CUT: Final = "…"


def telling_words(*texts: str) -> frozenset[str]:
    """Return the words of ``texts`` that mark the relevant part of a line."""
    found = (match[0].lower() for text in texts for match in _WORD.finditer(text))
    return frozenset(word for word in found if len(word) >= _SHORTEST or word.isdecimal())


def shorten_around(line: str, words: frozenset[str], room: int) -> str:
    """``line``, its blanks made single; of more than ``room`` columns the passage from where it has ``words``.

    No word is left out between two that are shown: a proof is read, and pasted into tickets, as it was logged.
    """
    plain = " ".join(line.split())
    if cell_width(plain) <= room:
        return plain
    found = (match.start() for match in _WORD.finditer(plain) if match[0].lower() in words)
    told = min((match.start() for match in (_ALWAYS.search(plain),) if match), default=len(plain))
    told = min((*found, told))
    # A quarter before what tells; at the end of the line, all that fits.
    start = plain.rfind(" ", 0, max(0, min(told - room // 4, len(plain) - room))) + 1
    before = f"{_CUT} " if start else ""
    shown = _fit_text(plain[start:], room - cell_width(before))
    return before + shown


def _fit_text(text: str, room: int) -> str:
    """Return ``text``, or as many letters as fit before an ellipsis."""
    if cell_width(text) <= room:
        return text
    used = accumulate(map(cell_width, text), initial=cell_width(f" {_CUT}"))
    end = sum(1 for _ in takewhile(lambda columns: columns <= room, used)) - 1
    blank = text.rfind(" ", 0, end)
    return f"{text[: blank if blank > end // 2 else end]} {_CUT}"


_MAX_CITED = 5
_MAX_CONSEQUENCES = 4
_DENIED = 4
_RELATED = 8
# Of a log's line without end, what is shown: by itself, and with -v.
_PASSAGE = 400
_PAGE = 100
_LONGEST = 2000
_STYLES: dict[str, Style] = {
    "broken": "bad",
    "warning": "warn",
    "affected": "warn",
    "works": "good",
    "no-fault": "",
    "unknown": "dim",
    "absent": "dim",
}
_SEVERITIES: dict[str, tuple[str, Style]] = {"error": ("✗ ", "bad"), "warning": ("! ", "warn"), "info": ("i ", "dim")}


@dataclass(frozen=True, slots=True)
class _DisplayOptions:
    """The verbosity, and the snapshot with whole messages."""

    verbose: bool
    snapshot: Snapshot

    def message_text(self, citation: Citation) -> str:
        """Return the cited line, or the whole kernel message that it begins."""
        message = kernel.find_message(self.snapshot, citation)
        wrapped = message if message and message.lines > 1 else None
        return f"{'NVRM: ' if wrapped.is_nvrm else ''}{wrapped.text}" if wrapped else citation.line


def diagnosis_lines(examined: Examination, *, verbose: bool) -> Iterator[Line]:
    """Yield root causes, other faults and consequences, open questions, and the stack.

    Args:
        examined: the result.
        verbose: show every cited line, and why other causes are ruled out.
    """
    display = _DisplayOptions(verbose, examined.snapshot)
    diagnosis = examined.diagnosis
    if diagnosis.is_healthy:
        yield _no_fault(examined)
        yield BLANK
    for number, root in enumerate(diagnosis.roots):
        yield from _root_lines(root, diagnosis.consequences_of(root), display, is_first=number == 0)
        yield BLANK
    if diagnosis.open_questions:
        yield from _question_lines(diagnosis.open_questions, display)
        yield BLANK
    if diagnosis.unexplained:
        yield from _unexplained_lines(diagnosis.unexplained, display)
        yield BLANK
    if diagnosis.suspects:
        yield from _suspect_lines(diagnosis, display)
        yield BLANK
    yield from _stack_lines(examined.stack)
    if examined.denied:
        yield BLANK
        yield _denied_line(examined.denied, verbose=verbose)
    if not diagnosis.is_healthy:
        yield BLANK
        yield from _summary_lines(diagnosis.roots, verbose=verbose)


def _no_fault(examined: Examination) -> Line:
    if any(suspect.citations for suspect in examined.diagnosis.suspects):
        return line(span("? the evidence fits several causes and does not decide between them", "warn"), hang=2)
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


def _root_lines(
    finding: Finding, consequences: Sequence[Finding], display: _DisplayOptions, *, is_first: bool
) -> Iterator[Line]:
    """Yield the answer, the next step and the first proof within ten narrow lines, then the rest."""
    mark, style = _SEVERITIES[finding.severity]
    likely = ", likely" if finding.confidence == "likely" else ""
    yield line(span(mark, style), span(finding.title, style), span(f"  {finding.cause}{likely}", "dim"), hang=2)
    yield line("  ", finding.summary, hang=2)
    if is_first:
        yield from indent_lines([_next_line(finding.next_step)], 2)
    yield from _citation_lines(
        finding.citations, telling_words(finding.summary, finding.title), display, indent=2, heading="proof"
    )
    yield from _ruled_out_lines(finding.ruled_out, display)
    yield from _consequence_lines(consequences, display)
    if finding.look_at:
        yield _heading_line("to be sure, look at")
        yield from indent_lines([_command_line(command) for command in finding.look_at], 4)
    yield from _remedy_lines(finding.remedy, DISRUPTIONS[finding.disruption])


def _heading_line(text: str) -> Line:
    return line("  ", span(text, "bold"), hang=4)


def _citation_lines(
    citations: Sequence[Citation], words: frozenset[str], display: _DisplayOptions, *, indent: int, heading: str = ""
) -> Iterator[Line]:
    """Yield the cited lines below their sources; ``heading`` precedes the first source."""
    shown = citations if display.verbose else citations[:_MAX_CITED]
    source = ""
    numbers = max((len(str(citation.line_number or "")) for citation in shown), default=0)
    for citation in shown:
        if citation.source != source:
            source = citation.source
            head = [span(heading, "bold"), "  "] if heading and citation is shown[0] else [" " * (len(heading) + 2)]
            yield line(" " * indent, *(head if heading else ()), span(source, "dim"), hang=indent + 2)
        number = str(citation.line_number or "").rjust(numbers)
        yield _quote_line(
            f"{' ' * (indent + 2)}{number}  " if numbers else " " * (indent + 2), citation, words, display
        )
    if more := len(citations) - len(shown):
        yield line(" " * indent, span(f"and {count(more, 'line')} more (-v)", "dim"), hang=indent)


def _quote_line(before: str, citation: Citation, words: frozenset[str], display: _DisplayOptions) -> Line:
    text = span(display.message_text(citation)).text
    shown = shorten_around(text, words, _LONGEST if display.verbose else _PASSAGE)
    return line(span(before, "dim"), shown, hang=len(before))


def _ruled_out_lines(others: Sequence[str], display: _DisplayOptions) -> Iterator[Line]:
    if others and display.verbose:
        yield _heading_line("ruled out")
        yield from (line("    – ", other, hang=6) for other in others)


def _consequence_lines(findings: Sequence[Finding], display: _DisplayOptions) -> Iterator[Line]:
    if not findings:
        return
    yield _heading_line("consequences")
    shown = findings if display.verbose else findings[:_MAX_CONSEQUENCES]
    for finding in shown:
        yield line("    ", span("! ", "warn"), finding.title, span(f"  {finding.cause}", "dim"), hang=6)
        if display.verbose:
            yield line("      ", finding.summary, hang=6)
            yield from _citation_lines(finding.citations, telling_words(finding.summary), display, indent=6)
    if more := len(findings) - len(shown):
        yield line("    ", span(f"and {more} more (-v)", "dim"), hang=4)


def _remedy_lines(fixes: Sequence[Fix], disruption: str) -> Iterator[Line]:
    yield line("  ", span("fix", "bold"), span(f" ({disruption})", "dim"), hang=4)
    for number, fix in enumerate(fixes, 1):
        yield line(f"  {number}. ", f"{fix.text}{condition_suffix(fix.when)}", hang=5)
        yield from indent_lines([_command_line(row) for command in fix.commands for row in command.split("\n")], 5)


def _command_line(command: str) -> Line:
    return Line((span(command, "command"),), solid=True)


def _question_lines(doubts: Sequence[OpenQuestion], display: _DisplayOptions) -> Iterator[Line]:
    yield line(span("undetermined", "bold"))
    for doubt in doubts:
        yield line("  ", span("? ", "warn"), doubt.question, hang=4)
        yield from _citation_lines(doubt.citations, telling_words(doubt.question), display, indent=4)
        for number, command in enumerate(doubt.look_at):
            head = " " * 9 if number else "look at  "
            yield Line((Span("    "), span(head, "dim"), span(command, "command")), solid=True)


def _suspect_lines(diagnosis: Diagnosis, display: _DisplayOptions) -> Iterator[Line]:
    suspects = diagnosis.suspects
    lines = dict.fromkeys(citation for suspect in suspects for citation in suspect.citations[:1])
    yield line(span(_suspects_heading(diagnosis, is_seen=bool(lines)), "bold"), ", and how to tell them apart")
    yield from _citation_lines(tuple(lines), frozenset(), display, indent=2)
    for number, suspect in enumerate(suspects, 1):
        yield line(f"  {number}. ", suspect.title, span(f"  {suspect.cause}", "dim"), hang=5)
        yield from indent_lines([_command_line(command) for command in _suspect_commands(suspect)], 5)
    if diagnosis.shared_steps:
        yield from _remedy_lines(diagnosis.shared_steps, "the first steps are likely these, whichever it is")
    if not diagnosis.roots and diagnosis.next_step is not None:
        yield _next_line(diagnosis.next_step)


def _suspect_commands(suspect: Suspect) -> tuple[Command, ...]:
    """Return the commands that would decide; never none."""
    told = suspect.next_step.command
    return suspect.look_at or ((told,) if told else ())


def _unexplained_lines(suspects: Sequence[Suspect], display: _DisplayOptions) -> Iterator[Line]:
    yield line(span("also seen, not explained by this", "bold"))
    for suspect in suspects:
        yield from _citation_lines(suspect.citations[:1], frozenset(), display, indent=2)
        yield line("    could be ", suspect.title, span(f"  {suspect.cause}", "dim"), hang=6)
        yield from indent_lines([_next_line(suspect.next_step)], 4)


def _suspects_heading(diagnosis: Diagnosis, *, is_seen: bool) -> str:
    if diagnosis.roots:
        return "what else it could be"
    return "the most likely causes" if is_seen else "the most frequent causes of reports like this"


def _stack_lines(layers: Sequence[LayerState]) -> Iterator[Line]:
    """Yield the layers, the highest first, and the unseen ones in one line."""
    width = max(len(layer.title) for layer in layers)
    seen = [layer for layer in reversed(layers) if layer.state != "unknown"]
    for layer in seen:
        mark, word = STATES[layer.state]
        style = _STYLES[layer.state]
        is_faulty = bool(word and layer.findings)
        yield line(
            span(f"{mark} ", style),
            span(pad_right(layer.title, width), "" if style == "good" else style),
            "  ",
            *([span(f"{word}: {join_names(layer.findings, 3)}", style)] if is_faulty else []),
            *([Span("  ")] if is_faulty and layer.summary else []),
            span(layer.summary or ("" if is_faulty else word), "dim" if is_faulty or style == "dim" else ""),
            hang=width + 4,
        )
    unseen = [layer.title for layer in reversed(layers) if layer.state == "unknown"]
    if unseen:
        mark, word = STATES["unknown"]
        yield line(span(f"{mark} {pad_right(word, width if seen else 0)}  {join_names(unseen)}", "dim"), hang=width + 4)


def _denied_line(sources: Sequence[str], *, verbose: bool) -> Line:
    shown = join_names(sources, 0 if verbose else _DENIED)
    return line(
        span("! ", "warn"), "not visible without root: ", span(shown, "dim"), "; ", span("sudo", "command"),
        " shows it", hang=2,
    )  # fmt: skip


def _summary_lines(roots: Sequence[Finding], *, verbose: bool) -> Iterator[Line]:
    root = roots[0]
    _, style = _SEVERITIES[root.severity]
    others = len([one for one in roots if one.severity != "info"]) - 1
    more = f"; {count(others, 'other fault')} found" if others else ""
    is_sure = "is" if root.confidence == "certain" else "is likely"
    verb = f"{is_sure} the root cause" if root.severity == "error" else "needs attention"
    yield line(span(f"{root.cause} {verb}", style), more, hang=2)
    yield _next_line(root.next_step)
    yield line("more:  ", span(str(gpunode("doctor", root.cause)), "command"), hang=7)
    if root.ruled_out and not verbose:
        yield line("       ", span("-v", "command"), f" shows how {count(len(root.ruled_out), 'other cause')} "
                   f"{'was' if len(root.ruled_out) == 1 else 'were'} ruled out", hang=7)  # fmt: skip


def _next_line(step: NextStep) -> Line:
    return line("next:  ", span(step.label, "command") if step.command else span(step.text), hang=7)


def xid_lines(xid: Xid, cause: str) -> Iterator[Line]:
    """Yield the meaning of an Xid, NVIDIA's advice, and whether it is a cause by itself."""
    yield line(span(f"Xid {xid.code}", "bold"), f"  {xid.meaning}", hang=2)
    yield line(span(f"NVIDIA's catalog says: {xid.advice or 'no action needed'}", "dim"), hang=2)
    yield BLANK if cause else line("not a cause by itself: the surrounding log lines decide", hang=2)


def story_lines(
    rule: Rule, text: CauseText, remedy: Sequence[Fix], explained_by: Sequence[str], *, verbose: bool, width: int = 0
) -> Iterator[Line]:
    """Yield the whole story of a cause: explanation, consequences, remedy, sources.

    Args:
        rule: the cause.
        text: what people are told about it.
        remedy: for a node of which nothing else is known.
        explained_by: the causes of which it may be a consequence.
        verbose: name all related causes.
        width: of the terminal; paragraphs are never wider than a page.
    """
    yield line(span(text.title, "bold"), span(f"  {rule.cause}", "dim"), hang=2)
    yield line(span(f"{TITLES[rule.stack_layer]}, {rule.severity}", "dim"), hang=2)
    for paragraph in text.story.split("\n\n"):
        yield BLANK
        yield from wrap_line(line(*mark_commands(paragraph)), min(width or _PAGE, _PAGE))
    yield BLANK
    yield from _remedy_lines(remedy, DISRUPTIONS[rule.disruption])
    for heading, causes in (("possible causes", explained_by), ("consequences", sorted(rule.explains))):
        if causes:
            yield _heading_line(heading)
            yield line("    ", join_names(causes, 0 if verbose else _RELATED), hang=4)
    yield _heading_line("sources")
    yield from (line("    ", span(source, "dim"), hang=4) for source in text.sources)
