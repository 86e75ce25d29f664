"""Diagnose this machine, a report or a fleet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import accumulate, takewhile
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from gpunode.catalog import xids
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions, verdict_status
from gpunode.cli.screen.text import (
    BLANK_LINE,
    Line,
    Span,
    Style,
    cell_width,
    indent_lines,
    line,
    mark_commands,
    pad_right,
    span,
    warning_line,
    wrap_line,
)
from gpunode.command import gpunode_command
from gpunode.diagnoses import generic_remedy, rules_by_cause
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.stack import LAYER_TITLES
from gpunode.diagnoses.views import kernel
from gpunode.errors import Refused, UsageError
from gpunode.fast_dataclass import dataclass
from gpunode.page.words import LAYER_MARKS, TEXT_BY_DISRUPTION, checks_heading, when_suffix
from gpunode.wording import count_noun, join_names

if TYPE_CHECKING:
    from gpunode.catalog.xids import Xid
    from gpunode.diagnoses.cause_texts import CauseText
    from gpunode.diagnoses.model import Citation, Diagnosis, Finding, Fix, NextStep, OpenQuestion, Rule, Suspect
    from gpunode.diagnoses.snapshot import Snapshot
    from gpunode.diagnoses.stack import LayerState
    from gpunode.facts.evidence import Evidence
    from gpunode.workflow.doctor import Examination


def doctor(
    names: Sequence[str],
    options: OutputOptions,
    *,
    html: str | None = None,
    prometheus: str | None = None,
    recipe: str = "",
    lock: str = "",
) -> None:
    """Diagnose this machine, a report or a fleet, or explain a cause."""
    from gpunode.host.reports import is_fleet

    names = [" ".join(names)] if _XID_ARGUMENT.fullmatch(" ".join(names)) else names
    if "" in names:
        raise UsageError("an empty name is not a report", hint="without any, gpunode doctor examines this machine")
    if "" in (html, prometheus):
        raise UsageError("the file name is empty", hint="gpunode doctor --html FILE, --prometheus FILE.prom")
    if prometheus:
        _refuse_unusable_textfile(prometheus, names)
    if len(names) == 1 and (names[0] in rules_by_cause() or _find_xid(names[0])):
        if unused := [option for option, value in (("--html", html), ("--recipe", recipe), ("--lock", lock)) if value]:
            raise UsageError(
                f"{', '.join(unused)} cannot be used with a cause", hint=str(gpunode_command("doctor", *names))
            )
        _show_cause(names[0], options, _find_xid(names[0]))
        return
    if len(names) > 1 or (names and is_fleet(names[0])):
        from gpunode.cli.fleet import diagnose_fleet

        diagnose_fleet(names, options, html or "", recipe, lock)
        return
    if recipe or lock:
        words = [
            *([recipe] if recipe else []),
            *(["--lock", lock] if lock else []),
            *(["--node", *names] if names else []),
        ]
        raise UsageError(
            "--recipe and --lock are for a fleet", why="gpunode plan shows in full what setup would do on one node",
            hint=str(gpunode_command("plan", *words)),
        )  # fmt: skip
    if names and not may_be_report(names[0]):
        raise _unknown_name_error(names[0])
    if html:
        from gpunode.cli import doctor_page

        doctor_page.refuse_unwritable_page_file(html, options)
    _diagnose_report(names[0] if names else "", options, html or "", prometheus or "")


def _diagnose_report(report: str, options: OutputOptions, html: str, prometheus: str) -> None:
    """Diagnose the node of ``report``, or this machine."""
    from gpunode.host.reports import read_report
    from gpunode.redaction.evidence import redact
    from gpunode.workflow.doctor import add_hazard_notes, diagnose_evidence

    is_read_here = True
    with options.open_report_screen() as screen:
        if not report:
            screen.show_progress("examining this machine")
        started = monotonic()
        try:
            evidence = read_report(report) if report else collect_evidence()
            # A page leaves the machine, so it contains only what a capture would.
            examined = add_hazard_notes(diagnose_evidence(redact(evidence) if html else evidence))
        except MemoryError as error:
            raise Refused(
                f"{report or 'this machine'} was not examined",
                why="this machine does not have enough memory for it",
                hint="examine it on a machine with more memory, or send the part of the log around the fault",
            ) from error
        if html:
            from gpunode.cli import doctor_page

            doctor_page.write_page(html, doctor_page.render_node_page(examined, report))
            is_read_here = html != doctor_page.STANDARD_OUTPUT_ARGUMENT
        if prometheus:
            _write_textfile(prometheus, examined, monotonic() - started)
        if is_read_here and not options.json:
            screen.print_result(*diagnosis_lines(examined, verbose=options.verbose, page=html))
        kept = screen.show_bugs(examined.diagnosis.bugs)
    options.emit(_diagnosis_envelope(examined, html, kept), changed_nothing=True)


def collect_evidence() -> Evidence:
    """Return the evidence of this machine."""
    from gpunode.host.local import LocalHost
    from gpunode.workflow.doctor import collect_doctor_evidence

    return collect_doctor_evidence(LocalHost("/"))


def _refuse_unusable_textfile(file: str, names: Sequence[str]) -> None:
    """Refuse a file that node_exporter would not read, or one about another node."""
    if names:
        raise UsageError(
            "--prometheus reports on this machine only", why="the file does not say which node it is about",
            hint=str(gpunode_command("doctor", "--prometheus", file)),
        )  # fmt: skip
    if file == "-":
        raise UsageError(
            "--prometheus cannot write to standard output",
            why="node_exporter's textfile collector reads files, not a pipe",
            hint="gpunode doctor --prometheus /var/lib/prometheus/node-exporter/gpunode.prom",
        )  # fmt: skip
    if not file.endswith(".prom"):
        raise UsageError(
            f"{file} would never be read",
            why="node_exporter's textfile collector reads files whose names end in .prom",
            hint=str(gpunode_command("doctor", "--prometheus", f"{file}.prom")),
        )  # fmt: skip


def _write_textfile(file: str, examined: Examination, seconds: float) -> None:
    from gpunode.cli.monitoring import render_metrics
    from gpunode.host.output import write_output

    try:
        write_output(Path(file), render_metrics(examined, time(), seconds).encode())
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written", why=error.strerror or str(error),
            hint="name a file in an existing folder that you may write to",
        ) from error  # fmt: skip


def may_be_report(name: str) -> bool:
    """Return whether a report of that name exists or may exist."""
    try:
        return name == "-" or Path(name).exists()
    except OSError:
        return True  # reading it will report the problem


def _unknown_name_error(name: str) -> UsageError:
    from difflib import get_close_matches

    if number := _XID_ARGUMENT.fullmatch(name):
        return UsageError(
            f"Xid {number[1]} is not in NVIDIA's catalog", why="it is a typo, or an Xid newer than this gpunode",
            hint="the number follows `Xid (PCI:...):` in the kernel log: sudo dmesg | grep Xid",
        )  # fmt: skip

    close = get_close_matches(name, rules_by_cause(), n=3, cutoff=0.5)
    like = f"causes with a similar name: {', '.join(close)}" if close else "no cause has a similar name"
    return UsageError(
        f"there is no cause and no report called {name}",
        why=like,
        hint="name a cause, or an existing report: a capture, an nvidia-bug-report.log.gz, a JSON list or a text",
    )


_XID_ARGUMENT = re.compile(r"xid[-_ ]?(\d{1,4})", re.IGNORECASE)


def _find_xid(name: str) -> Xid | None:
    """Return the Xid of ``xid-79`` unless ``name`` is a cause or a report."""
    number = _XID_ARGUMENT.fullmatch(name)
    return xids.lookup(int(number[1])) if number and name not in rules_by_cause() and not may_be_report(name) else None


def _show_cause(cause: str, options: OutputOptions, xid: Xid | None = None) -> None:
    """Explain a cause, or an Xid, with the remedy for any node."""
    screen = options.open_report_screen()
    if xid is not None:
        from gpunode.workflow.doctor import cause_of_xid

        cause = cause_of_xid(xid.code)
        screen.put(
            line(span(f"Xid {xid.code}", "bold"), f"  {xid.meaning}", hang=2),
            line(span(f"NVIDIA's catalog says: {xid.advice or 'no action needed'}", "dim"), hang=2),
            BLANK_LINE if cause else line("not a cause by itself: the surrounding log lines decide", hang=2),
        )
        if not cause:
            options.emit(Envelope("doctor", result={"xid": xid}))
            return
    rule = rules_by_cause()[cause]
    remedy = generic_remedy(cause, take_snapshot({}))
    explained_by = sorted(other.cause for other in rules_by_cause().values() if cause in other.explains)
    screen.put(
        *cause_explanation_lines(rule, rule.text, remedy, explained_by, verbose=options.verbose, width=screen.width)
    )
    keys = ("cause", "title", "layer", "severity", "disruption", "explains")
    texts = {"sources": rule.text.sources, "description": rule.text.story, "explained_by": explained_by}
    result = {
        "cause": {**{name: getattr(rule, name) for name in keys}, **texts, "remedy": remedy},
        **({"xid": xid} if xid else {}),
    }
    options.emit(Envelope("doctor", result=result))


def _diagnosis_envelope(examined: Examination, page: str, bugs: str) -> Envelope:
    status, exit_code = verdict_status(examined.verdict)
    return Envelope(
        "doctor",
        status,
        exit_code,
        findings=[_finding_row(finding) for finding in examined.diagnosis.findings],
        unknown=[
            {"question": one.question, "commands": one.look_at, "citations": _citation_rows(one.citations)}
            for one in examined.diagnosis.open_questions
        ],
        notes=examined.notes,
        result={
            "stack": examined.stack,
            "next": examined.diagnosis.next_step,
            "unexplained": [_suspect_row(suspect) for suspect in examined.diagnosis.unexplained],
            "suspects": [_suspect_row(suspect) for suspect in examined.diagnosis.suspects],
            "shared_steps": examined.diagnosis.shared_steps,
            "driver_works": examined.driver_works,
            "denied": examined.denied,
            **({"page": page} if page else {}),
            **({"bugs": bugs} if bugs else {}),
        },
    )


def _finding_row(finding: Finding) -> dict[str, object]:
    # Onsets and boot only serve ranking: their clocks are valid only within this evidence.
    left_out = {"at", "onsets", "is_past"}
    row: dict[str, object] = {
        one.name: getattr(finding, one.name) for one in fields(finding) if one.name not in left_out
    }
    more = {"onset": finding.at, "citations": _citation_rows(finding.citations), "next": finding.next_step}
    return {**row, **more}


def _suspect_row(suspect: Suspect) -> dict[str, object]:
    return {
        "cause": suspect.cause,
        "title": suspect.title,
        "commands": suspect.look_at,
        "next": suspect.next_step,
        "citations": _citation_rows(suspect.citations),
    }


def _citation_rows(citations: Sequence[Citation]) -> list[dict[str, object]]:
    return [{"source": one.source, "line": one.line, "line_number": one.line_number} for one in citations]


_ERROR_TEXT_WORD: Final = re.compile(r"[\w.:/+-]*\w")
# Names a fault or a GPU in any message.
_ERROR_WORD: Final = re.compile(
    r"\bS?Xid\b|\b[0-9a-f]{2}:[0-9a-f]{2}\b|\berror|\bfail|\bfatal|\bmismatch|\bdenied", re.IGNORECASE
)
_MIN_SEARCH_WORD_LENGTH: Final = 3
_ELLIPSIS: Final = "…"


def relevant_words(*texts: str) -> frozenset[str]:
    """Return the words of ``texts`` that mark the relevant part of a line."""
    words_found = (match[0].lower() for text in texts for match in _ERROR_TEXT_WORD.finditer(text))
    return frozenset(word for word in words_found if len(word) >= _MIN_SEARCH_WORD_LENGTH or word.isdecimal())


def shorten_around(line: str, words: frozenset[str], room: int) -> str:
    """Return ``line`` with single blanks, cut to ``room`` columns around the first of ``words``.

    Nothing is left out in the middle: readers check a proof against the log, and paste it into tickets.
    """
    plain = " ".join(line.split())
    if cell_width(plain) <= room:
        return plain
    starts = (match.start() for match in _ERROR_TEXT_WORD.finditer(plain) if match[0].lower() in words)
    first = min((match.start() for match in (_ERROR_WORD.search(plain),) if match), default=len(plain))
    first = min((*starts, first))
    # Start a quarter of the room before the first such word; at the end of the line, show all that fits.
    start = plain.rfind(" ", 0, max(0, min(first - room // 4, len(plain) - room))) + 1
    before = f"{_ELLIPSIS} " if start else ""
    shown = _truncate_text(plain[start:], room - cell_width(before))
    return before + shown


def _truncate_text(text: str, room: int) -> str:
    """Return ``text``, cut with an ellipsis to ``room`` columns."""
    if cell_width(text) <= room:
        return text
    used = accumulate(map(cell_width, text), initial=cell_width(f" {_ELLIPSIS}"))
    end = sum(1 for _ in takewhile(lambda columns: columns <= room, used)) - 1
    blank = text.rfind(" ", 0, end)
    return f"{text[: blank if blank > end // 2 else end]} {_ELLIPSIS}"


_MAX_CITATIONS_SHOWN = 5
_MAX_CONSEQUENCES_SHOWN = 4
_MAX_DENIED_SOURCES_SHOWN = 4
_MAX_RELATED_CAUSES_SHOWN = 8
# Limits for overlong log lines: without and with -v.
_MAX_QUOTE_LENGTH = 400
_MAX_TEXT_WIDTH = 100
_MAX_VERBOSE_QUOTE_LENGTH = 2000
_LAYER_STATE_STYLES: dict[str, Style] = {
    "broken": "bad",
    "warning": "warn",
    "affected": "warn",
    "works": "good",
    "no-fault": "",
    "unknown": "dim",
    "absent": "dim",
}
_SEVERITY_MARKS: dict[str, tuple[str, Style]] = {
    "error": ("✗ ", "bad"),
    "warning": ("! ", "warn"),
    "info": ("i ", "dim"),
}


@dataclass(frozen=True, slots=True)
class _DisplayOptions:
    """The verbosity, and the snapshot with complete messages."""

    verbose: bool
    snapshot: Snapshot

    def message_text(self, citation: Citation) -> str:
        """Return the cited line, or the complete kernel message that it begins."""
        message = kernel.find_message(self.snapshot, citation)
        wrapped = message if message and message.lines > 1 else None
        return f"{'NVRM: ' if wrapped.is_nvrm else ''}{wrapped.text}" if wrapped else citation.line


def diagnosis_lines(examined: Examination, *, verbose: bool, page: str = "") -> Iterator[Line]:
    """Yield root causes, other faults and consequences, open questions, and the stack.

    Args:
        examined: the result.
        verbose: show every cited line, and why other causes are ruled out.
        page: the HTML file that was also written.
    """
    display = _DisplayOptions(verbose, examined.snapshot)
    diagnosis = examined.diagnosis
    if diagnosis.is_healthy:
        is_good = examined.verdict == "healthy"
        verdict = f"{'✓' if is_good else '?'} {examined.faultless_verdict}"
        yield line(span(verdict, "good" if is_good else "warn"), hang=2)
        yield BLANK_LINE
    for number, root in enumerate(diagnosis.roots):
        yield from _root_cause_lines(root, diagnosis.consequences_of(root), display, is_first=number == 0)
        yield BLANK_LINE
    if diagnosis.open_questions:
        yield from _question_lines(diagnosis.open_questions, display)
        yield BLANK_LINE
    if diagnosis.unexplained:
        yield from _unexplained_lines(diagnosis.unexplained, display)
        yield BLANK_LINE
    if diagnosis.suspects:
        yield from _suspect_lines(diagnosis, display)
        yield BLANK_LINE
    if examined.notes:
        yield line(span("no fault, but worth knowing", "bold"))
        yield from indent_lines(map(warning_line, examined.notes), 2)
        yield BLANK_LINE
    yield from _stack_lines(examined.stack)
    if examined.denied:
        yield BLANK_LINE
        shown = span(join_names(examined.denied, 0 if verbose else _MAX_DENIED_SOURCES_SHOWN), "dim")
        sudo = span("sudo", "command")
        yield line(span("! ", "warn"), "not visible without root: ", shown, "; ", sudo, " shows it", hang=2)
    if not diagnosis.is_healthy:
        yield BLANK_LINE
        yield from _summary_lines(diagnosis.roots, verbose=verbose)
    if page:
        yield line("page:  ", span(page, "command"), hang=7)


# A finding quotes evidence, so its text is never styled as a command. Only fields of type Command are, and backticks in
# cause texts, which gpunode wrote itself.


def _root_cause_lines(
    finding: Finding, consequences: Sequence[Finding], display: _DisplayOptions, *, is_first: bool
) -> Iterator[Line]:
    """Yield the answer, the next step and the first proof within ten narrow lines, then the rest."""
    mark, style = _SEVERITY_MARKS[finding.severity]
    likely = ", likely" if finding.confidence == "likely" else ""
    yield line(span(mark, style), span(finding.title, style), span(f"  {finding.cause}{likely}", "dim"), hang=2)
    if finding.summary != finding.title:
        yield line("  ", finding.summary, hang=2)
    if is_first:
        yield from indent_lines([_next_line(finding.next_step)], 2)
    yield from _citation_lines(
        finding.citations, relevant_words(finding.summary, finding.title), display, indent=2, heading="proof"
    )
    if finding.ruled_out and display.verbose:
        yield _heading_line("ruled out")
        yield from (line("    – ", other, hang=6) for other in finding.ruled_out)
    yield from _consequence_lines(consequences, display)
    if finding.look_at:
        yield _heading_line(checks_heading(finding))
        yield from indent_lines(map(_command_line, finding.look_at), 4)
    yield from _remedy_lines(finding.remedy, TEXT_BY_DISRUPTION[finding.disruption])


def _heading_line(text: str) -> Line:
    return line("  ", span(text, "bold"), hang=4)


def _citation_lines(
    citations: Sequence[Citation], focus: frozenset[str], display: _DisplayOptions, *, indent: int, heading: str = ""
) -> Iterator[Line]:
    """Yield the cited lines below their sources, cut around ``focus``; ``heading`` precedes the first."""
    shown = citations if display.verbose else citations[:_MAX_CITATIONS_SHOWN]
    source = ""
    numbers = max((len(str(citation.line_number or "")) for citation in shown), default=0)
    for citation in shown:
        if citation.source != source:
            source = citation.source
            head = [span(heading, "bold"), "  "] if heading and citation is shown[0] else [" " * (len(heading) + 2)]
            yield line(" " * indent, *(head if heading else ()), span(source, "dim"), hang=indent + 2)
        number = str(citation.line_number or "").rjust(numbers)
        before = f"{' ' * (indent + 2)}{number}  " if numbers else " " * (indent + 2)
        text = span(display.message_text(citation)).text
        quote = shorten_around(text, focus, _MAX_VERBOSE_QUOTE_LENGTH if display.verbose else _MAX_QUOTE_LENGTH)
        yield line(span(before, "dim"), quote, hang=len(before))
    if more := len(citations) - len(shown):
        yield line(" " * indent, span(f"and {count_noun(more, 'line')} more (-v)", "dim"), hang=indent)


def _consequence_lines(findings: Sequence[Finding], display: _DisplayOptions) -> Iterator[Line]:
    if not findings:
        return
    yield _heading_line("consequences")
    shown = findings if display.verbose else findings[:_MAX_CONSEQUENCES_SHOWN]
    for finding in shown:
        yield line("    ", span("! ", "warn"), finding.title, span(f"  {finding.cause}", "dim"), hang=6)
        if display.verbose:
            if finding.summary != finding.title:
                yield line("      ", finding.summary, hang=6)
            yield from _citation_lines(finding.citations, relevant_words(finding.summary), display, indent=6)
    if more := len(findings) - len(shown):
        yield line("    ", span(f"and {more} more (-v)", "dim"), hang=4)


def _remedy_lines(fixes: Sequence[Fix], disruption: str) -> Iterator[Line]:
    yield line("  ", span("fix", "bold"), span(f" ({disruption})", "dim"), hang=4)
    for number, fix in enumerate(fixes, 1):
        yield line(f"  {number}. ", f"{fix.text}{when_suffix(fix.when)}", hang=5)
        yield from indent_lines((_command_line(row) for command in fix.commands for row in command.split("\n")), 5)


def _command_line(command: str) -> Line:
    return line(span(command, "command"))


def _question_lines(questions: Sequence[OpenQuestion], display: _DisplayOptions) -> Iterator[Line]:
    yield line(span("undetermined", "bold"))
    for doubt in questions:
        yield line("  ", span("? ", "warn"), doubt.question, hang=4)
        yield from _citation_lines(doubt.citations, relevant_words(doubt.question), display, indent=4)
        for number, command in enumerate(doubt.look_at):
            head = " " * 9 if number else "look at  "
            yield line("    ", span(head, "dim"), span(command, "command"), hang=13)


def _suspect_lines(diagnosis: Diagnosis, display: _DisplayOptions) -> Iterator[Line]:
    suspects = diagnosis.suspects
    lines = dict.fromkeys(citation for suspect in suspects for citation in suspect.citations[:1])
    heading = "the most likely causes" if lines else "the most frequent causes of reports like this"
    heading = "what else it could be" if diagnosis.roots else heading
    yield line(span(heading, "bold"), ", and how to tell them apart")
    yield from _citation_lines(tuple(lines), frozenset(), display, indent=2)
    for number, suspect in enumerate(suspects, 1):
        yield line(f"  {number}. ", suspect.title, span(f"  {suspect.cause}", "dim"), hang=5)
        commands = suspect.look_at or filter(None, [suspect.next_step.command])
        yield from indent_lines(map(_command_line, commands), 5)
    if diagnosis.shared_steps:
        yield from _remedy_lines(diagnosis.shared_steps, "the first steps are likely these, whichever it is")
    if not diagnosis.roots and diagnosis.next_step is not None:
        yield _next_line(diagnosis.next_step)


def _unexplained_lines(suspects: Sequence[Suspect], display: _DisplayOptions) -> Iterator[Line]:
    yield line(span("also seen, not explained by this", "bold"))
    for suspect in suspects:
        yield from _citation_lines(suspect.citations[:1], frozenset(), display, indent=2)
        yield line("    could be ", suspect.title, span(f"  {suspect.cause}", "dim"), hang=6)
        yield from indent_lines([_next_line(suspect.next_step)], 4)


def _stack_lines(layers: Sequence[LayerState]) -> Iterator[Line]:
    """Yield the layers, highest first, with the unexamined ones on a single line."""
    examined_layers = [layer for layer in reversed(layers) if layer.state != "unknown"]
    width = max((len(layer.title) for layer in layers if examined_layers), default=len(LAYER_MARKS["unknown"][1]))
    for layer in examined_layers:
        mark, word = LAYER_MARKS[layer.state]
        style = _LAYER_STATE_STYLES[layer.state]
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
        mark, word = LAYER_MARKS["unknown"]
        yield line(span(f"{mark} {pad_right(word, width)}  {join_names(unseen)}", "dim"), hang=width + 4)


def _summary_lines(roots: Sequence[Finding], *, verbose: bool) -> Iterator[Line]:
    root = roots[0]
    _, style = _SEVERITY_MARKS[root.severity]
    others = len([root for root in roots if root.severity != "info"]) - 1
    more = f"; {count_noun(others, 'other fault')} found" if others else ""
    is_sure = "is" if root.confidence == "certain" else "is likely"
    verb = f"{is_sure} the root cause" if root.severity == "error" else "needs attention"
    yield line(span(f"{root.cause} {verb}", style), more, hang=2)
    yield _next_line(root.next_step)
    yield line("more:  ", span(str(gpunode_command("doctor", root.cause)), "command"), hang=7)
    if root.ruled_out and not verbose:
        yield line("       ", span("-v", "command"), f" shows how {count_noun(len(root.ruled_out), 'other cause')} "
                   f"{'was' if len(root.ruled_out) == 1 else 'were'} ruled out", hang=7)  # fmt: skip


def _next_line(step: NextStep) -> Line:
    return line("next:  ", span(step.label, "command") if step.command else span(step.text), hang=7)


def cause_explanation_lines(
    rule: Rule, text: CauseText, remedy: Sequence[Fix], explained_by: Sequence[str], *, verbose: bool, width: int = 0
) -> Iterator[Line]:
    """Yield the full text on a cause: explanation, consequences, remedy, sources.

    Args:
        rule: the cause.
        text: its title, story and sources.
        remedy: for a node about which nothing else is known.
        explained_by: the causes of which it may be a consequence.
        verbose: name all related causes.
        width: the terminal's; paragraphs are never wider than a page.
    """
    yield line(span(text.title, "bold"), span(f"  {rule.cause}", "dim"), hang=2)
    yield line(span(f"{LAYER_TITLES[rule.layer]}, {rule.severity}", "dim"), hang=2)
    for paragraph in text.story.split("\n\n"):
        yield BLANK_LINE
        yield from wrap_line(line(*mark_commands(paragraph)), min(width or _MAX_TEXT_WIDTH, _MAX_TEXT_WIDTH))
    yield BLANK_LINE
    yield from _remedy_lines(remedy, TEXT_BY_DISRUPTION[rule.disruption])
    for heading, causes in (("possible causes", explained_by), ("consequences", sorted(rule.explains))):
        if causes:
            yield _heading_line(heading)
            yield line("    ", join_names(causes, 0 if verbose else _MAX_RELATED_CAUSES_SHOWN), hang=4)
    yield _heading_line("sources")
    yield from (line("    ", span(source, "dim"), hang=4) for source in text.sources)
