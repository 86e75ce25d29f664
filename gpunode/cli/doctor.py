"""Diagnose this machine, a report or a fleet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING

from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import EXIT_KINDS, OutputOptions
from gpunode.command import gpunode
from gpunode.diagnoses import generic_remedy, rules_by_cause
from gpunode.errors import Refused, UsageError

if TYPE_CHECKING:
    from gpunode.catalog.xids import Xid
    from gpunode.diagnoses.model import Citation, Finding, NextStep, OpenQuestion, Suspect
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
    """Diagnose this machine, a report or a fleet, or show the story of a cause."""
    from gpunode.host.reports import is_fleet

    if "" in names:
        raise UsageError("an empty name is not a report", hint="without any, gpunode doctor examines this machine")
    if "" in (html, prometheus):
        raise UsageError("the file name is empty", hint="gpunode doctor --html FILE, --prometheus FILE.prom")
    if prometheus:
        _check_textfile(prometheus, names)
    if len(names) == 1 and (names[0] in rules_by_cause() or _find_xid(names[0])):
        if html:
            raise UsageError("--html is a page about a node, not about a cause", hint="gpunode doctor --html FILE")
        _show_cause(names[0], options, _find_xid(names[0]))
        return
    if len(names) > 1 or (names and is_fleet(names[0])):
        from gpunode.cli.fleet import diagnose_fleet

        diagnose_fleet(names, options, html or "", recipe, lock)
        return
    if recipe or lock:
        raise _not_one_node(names, recipe, lock)
    if names and not _may_exist(names[0]):
        raise _unknown_name(names[0])
    if html:
        from gpunode.cli import doctor_page

        doctor_page.check_page_file(html, options)
    _examine(names[0] if names else "", options, html or "", prometheus or "")


def _examine(report: str, options: OutputOptions, html: str, prometheus: str) -> None:
    """Diagnose the node of ``report``, or this machine."""
    from gpunode.workflow.doctor import diagnose_evidence

    is_read_here = True
    with options.open_report_screen() as screen:
        if not report:
            screen.show_progress()
        started = monotonic()
        try:
            evidence = _read_report(report) if report else collect_evidence()
            # A page leaves the machine: it is made of what a capture would hold.
            examined = diagnose_evidence(_redact(evidence) if html else evidence)
        except MemoryError as error:
            raise _too_large(report) from error
        if html:
            from gpunode.cli import doctor_page

            doctor_page.write_page(html, doctor_page.render_node_page(examined, report))
            is_read_here = html != doctor_page.STANDARD_OUTPUT
        if prometheus:
            _write_textfile(prometheus, examined, monotonic() - started)
        if is_read_here:
            screen.show_diagnosis(examined, page=html)
        kept = screen.show_bugs(examined.diagnosis.bugs)
    options.emit(_diagnosis_envelope(examined, html, kept), changed_nothing=True)


def _too_large(report: str) -> Refused:
    return Refused(
        f"{report or 'this machine'} was not examined",
        why="this machine does not have enough memory for it",
        hint="examine it on a machine with more memory, or send the part of the log around the fault",
    )


def _read_report(report: str) -> Evidence:
    from gpunode.host.reports import read_report

    return read_report(report)


def collect_evidence() -> Evidence:
    """Return the evidence of this machine."""
    from gpunode.host.local import LocalHost
    from gpunode.workflow.doctor import examine

    return examine(LocalHost("/"))


def _redact(evidence: Evidence) -> Evidence:
    from gpunode.redaction.evidence import redact

    return redact(evidence)


def _check_textfile(file: str, names: Sequence[str]) -> None:
    """Refuse a file that node_exporter would not read, or one about another node."""
    if names:
        raise UsageError(
            "--prometheus reports on this machine only", why="the file does not say which node it is about",
            hint=str(gpunode("doctor", "--prometheus", file)),
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
            hint=str(gpunode("doctor", "--prometheus", f"{file}.prom")),
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


def _may_exist(name: str) -> bool:
    try:
        return name == "-" or Path(name).exists()
    except OSError:
        return True  # perhaps: reading it tells what is in the way


def _not_one_node(names: Sequence[str], recipe: str, lock: str) -> UsageError:
    """Return the refusal of --recipe and --lock for a single node."""
    words = [*([recipe] if recipe else []), *(["--lock", lock] if lock else [])]
    return UsageError(
        "--recipe and --lock are for a fleet", why="gpunode plan shows in full what setup would do on one node",
        hint=str(gpunode("plan", *words, *(["--node", names[0]] if names else []))),
    )  # fmt: skip


def _unknown_name(name: str) -> UsageError:
    from difflib import get_close_matches

    if number := _XID.fullmatch(name):
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


_XID = re.compile(r"xid[-_ ]?(\d{1,4})", re.IGNORECASE)


def _find_xid(name: str) -> Xid | None:
    """Return the Xid of ``xid-79`` unless ``name`` is a cause or a report."""
    from gpunode.catalog import xids

    number = _XID.fullmatch(name)
    return xids.lookup(int(number[1])) if number and name not in rules_by_cause() and not _may_exist(name) else None


def _show_cause(cause: str, options: OutputOptions, xid: Xid | None = None) -> None:
    """Show the story of a cause, or of an Xid, with the remedy for any node."""
    from gpunode.diagnoses.snapshot import take_snapshot

    if xid is not None:
        from gpunode.workflow.doctor import cause_of_xid

        cause = cause_of_xid(xid.code)
        options.open_report_screen().show_xid(xid, cause)
        if not cause:
            options.emit(Envelope("doctor", result={"xid": xid}))
            return
    rule = rules_by_cause()[cause]
    remedy = generic_remedy(cause, take_snapshot({}))
    explained_by = sorted(other.cause for other in rules_by_cause().values() if cause in other.explains)
    options.open_report_screen().show_story(rule, rule.text, remedy, explained_by)
    keys = ("cause", "title", "layer", "stack_layer", "severity", "disruption", "explains")
    told = {"sources": rule.text.sources, "description": rule.text.story, "explained_by": explained_by}
    result = {
        "cause": {**{name: getattr(rule, name) for name in keys}, **told, "remedy": remedy},
        **({"xid": xid} if xid else {}),
    }
    options.emit(Envelope("doctor", result=result))


def _diagnosis_envelope(examined: Examination, page: str, bugs: str) -> Envelope:
    kind = EXIT_KINDS[examined.verdict]
    return Envelope(
        "doctor",
        status=kind.status if kind else "ok",
        exit_code=kind.exit_code if kind else 0,
        findings=[_finding_row(one) for one in examined.diagnosis.findings],
        unknown=[_question_row(one) for one in examined.diagnosis.open_questions],
        result={
            "stack": examined.stack,
            "next": _step_row(examined.diagnosis.next_step),
            "unexplained": [_suspect_row(one) for one in examined.diagnosis.unexplained],
            "suspects": [_suspect_row(one) for one in examined.diagnosis.suspects],
            "shared_steps": examined.diagnosis.shared_steps,
            "driver_works": examined.works,
            "denied": examined.denied,
            **({"page": page} if page else {}),
            **({"bugs": bugs} if bugs else {}),
        },
    )


def _finding_row(finding: Finding) -> dict[str, object]:
    # Onsets and boot only serve ranking: their clocks hold for this evidence alone.
    left_out = {"at", "onsets", "is_past"}
    row: dict[str, object] = {
        one.name: getattr(finding, one.name) for one in fields(finding) if one.name not in left_out
    }
    more = {"onset": finding.at, "citations": _citation_rows(finding.citations), "next": _step_row(finding.next_step)}
    return {**row, **more}


def _step_row(step: NextStep | None) -> dict[str, object] | None:
    return None if step is None else {"text": step.text, "command": step.command}


def _question_row(doubt: OpenQuestion) -> dict[str, object]:
    citations = _citation_rows(doubt.citations)
    return {"question": doubt.question, "commands": doubt.look_at, "citations": citations}


def _suspect_row(suspect: Suspect) -> dict[str, object]:
    told = {"cause": suspect.cause, "title": suspect.title, "commands": suspect.look_at}
    return {**told, "next": _step_row(suspect.next_step), "citations": _citation_rows(suspect.citations)}


def _citation_rows(citations: Sequence[Citation]) -> list[dict[str, object]]:
    return [{"source": one.source, "line": one.line, "line_number": one.line_number} for one in citations]
