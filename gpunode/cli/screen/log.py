"""The table of runs, and the complete record of one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo

from gpunode.change import (
    CommandChange,
    FileChange,
    FileState,
    MigChange,
    PackageChange,
    Unsettled,
    display_command,
)
from gpunode.cli.screen.commands import root_option
from gpunode.cli.screen.text import BLANK, Line, Span, cell_width, indent_lines, line, pad_right, span
from gpunode.cli.screen.words import MARKS, count, format_seconds, join_names
from gpunode.journal.chronicle import RunRecord, TriggerRecord
from gpunode.journal.history import ChangeRecord, run_label
from gpunode.redaction.evidence import redact_recursively

_HEAD = ("run", "when", "who", "what", "result", "changed")
_MARKS = {"done": "done", "failed": "failed", "intended": "waits"}
_LABEL = 9


def run_table_lines(runs: Sequence[RunRecord], zone: tzinfo | None = None) -> Iterator[Line]:
    """Yield a table row for each run, the newest last."""
    if not runs:
        yield line(span("no run of gpunode is recorded on this node", "dim"))
        return
    rows = [_run_row(run, zone) for run in runs]
    widths = [max(map(cell_width, column)) for column in zip(_HEAD, *rows, strict=True)]
    yield line(Span("  "), span(_join_columns(_HEAD, widths), "dim"), hang=widths[0] + 4)
    for run, row in zip(runs, rows, strict=True):
        yield line(_run_mark(run), span(_join_columns(row, widths)), hang=widths[0] + 4)
    yield line("one of them: ", span("sudo gpunode log RUN", "command"))


def _join_columns(cell: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(pad_right(text, width) for text, width in zip(cell, widths, strict=True)).rstrip()


def _run_row(run: RunRecord, zone: tzinfo | None) -> tuple[str, ...]:
    kinds = Counter(change.kind_name for change in run.changes)
    return (
        run_label(run.begin.run, run.begin.verb),
        format_local_time(run.begin.at, zone, "%Y-%m-%d %H:%M %z"),
        run.begin.user,
        _verb_text(run),
        f"{run.ending}, undone by {run_label(run.undone_by, run.begin.verb)}" if run.undone_by else run.ending,
        join_names(count(many, noun) for noun, many in sorted(kinds.items())) or "nothing",
    )


def _verb_text(run: RunRecord) -> str:
    begin = run.begin
    return " ".join(filter(None, (begin.verb, begin.recipe, begin.of and f"of {run_label(begin.of, begin.verb)}")))


def _run_mark(run: RunRecord) -> Span:
    if run.ending == "done":
        return MARKS["not run" if run.undone_by else "done"]
    return MARKS["waits" if run.ending in {"waiting", "going on"} else "failed"]


def format_local_time(at: float, zone: tzinfo | None = None, form: str = "%Y-%m-%d %H:%M:%S %z") -> str:
    """Format a time in ``zone``, this machine's if None."""
    return datetime.fromtimestamp(at, zone).astimezone(zone).strftime(form)


def run_lines(run: RunRecord, logins: Mapping[int, str], zone: tzinfo | None = None) -> Iterator[Line]:
    """Yield the complete record of a run, in order.

    Args:
        run: a run of this node.
        logins: the names of its users, by number.
        zone: of the times; this machine's when None.
    """
    # A journal quotes tools unredacted.
    yield from map(redact_recursively, _run_lines(run, logins, zone))


def _run_lines(run: RunRecord, logins: Mapping[int, str], zone: tzinfo | None) -> Iterator[Line]:
    yield line(span(run.begin.run, "bold"), f"  {_verb_text(run)}")
    yield from indent_lines(tuple(_run_header(run, logins, zone)), 2)
    if run.deeds:
        yield BLANK
        yield line(span("changes", "bold"))
        yield from indent_lines(tuple(_change_rows(run.deeds)), 2)
    if run.debts:
        yield BLANK
        yield line(span("what they owed", "bold"))
        yield from indent_lines(tuple(_trigger_row(debt, zone) for debt in run.debts), 2)


def _run_header(run: RunRecord, logins: Mapping[int, str], zone: tzinfo | None) -> Iterator[Line]:
    begin = run.begin
    yield _fact_line("who", _user_text(run, logins))
    yield _fact_line("begun", format_local_time(begin.at, zone))
    yield _fact_line("ended", _ending_text(run, zone))
    yield _fact_line("command", " ".join(("gpunode", *begin.argv)))
    if begin.recipe_sha256:
        yield _fact_line("recipe", f"{begin.recipe}, sha256 {begin.recipe_sha256}")
    yield _fact_line("gpunode", begin.version)
    yield _fact_line(
        "boot", begin.boot_id or ("none: it changed an image" if root_option(begin.argv) else "not recorded")
    )
    if run.undone_by:
        yield _fact_line("undone by", run.undone_by)
    if run.forgotten:
        yield _fact_line(
            "forgotten", f"its backups, by {run.forgotten.user}, {format_local_time(run.forgotten.at, zone)}"
        )


def _user_text(run: RunRecord, logins: Mapping[int, str]) -> str:
    begin = run.begin
    if begin.loginuid is None:
        return f"{begin.user}, uid {begin.uid}, not from a login"
    return f"{begin.user}, uid {begin.uid}, logged in as {logins.get(begin.loginuid, 'user')} ({begin.loginuid})"


def _ending_text(run: RunRecord, zone: tzinfo | None) -> str:
    if run.commit is None:
        return "not yet: it is running" if run.going_on else "never: it was interrupted"
    took = format_seconds(max(0.0, run.commit.at - run.begin.at))
    why = f": {run.commit.why}" if run.commit.why else ""
    return f"{format_local_time(run.commit.at, zone)}, after {took}: {run.commit.result}{why}"


def _fact_line(label: str, text: str) -> Line:
    return line(span(f"{pad_right(label, _LABEL)}  ", "dim"), text, hang=_LABEL + 2)


def _change_rows(deeds: Sequence[ChangeRecord]) -> Iterator[Line]:
    width = max(len(str(deed.intent.seq)) for deed in deeds)
    hang = width + 4
    reason = origin = ""
    for deed in deeds:
        change = deed.intent.change
        step = f"  {deed.intent.stage}, {deed.intent.step}"
        title = (
            Span(pad_right(str(deed.intent.seq), width) + "  "),
            span(change.subject, "bold"),
            f"  {_change_text(deed)}",
        )
        yield line(MARKS[_MARKS[deed.outcome]], *title, span(step, "dim"), hang=hang)
        notes = list(_change_notes(deed))
        # Packages come by the dozen from one archive, for one reason: said once, with the first.
        if deed.intent.reason and deed.intent.reason != reason:
            notes.insert(0, f"why: {deed.intent.reason}")
        if (comes := _package_origin(deed)) and comes != origin:
            notes.append(f"from {comes}")
        reason, origin = deed.intent.reason, comes or origin
        yield from (line(Span(" " * hang), span(note, "dim"), hang=hang) for note in notes)


def _change_text(deed: ChangeRecord) -> str:
    change = deed.intent.change
    words = change.participle
    if isinstance(change, PackageChange):
        was, now = change.states
        words = f"{was} → {now}" if was and now else f"{now or was} {words}"
    if deed.outcome == "failed":
        return f"{words}: failed, {deed.why}"
    return words if deed.outcome == "done" else f"{words}: intended; it may or may not have been made"


def _change_notes(deed: ChangeRecord) -> Iterator[str]:
    match deed.intent.change:
        case FileChange(before=before, after=after, folders=folders):
            yield f"before {_file_text(before)}"
            yield f"after  {_file_text(after)}"
            if folders:
                yield f"made for it: {', '.join(folders)}"
        case CommandChange(why=why, undo=undo):
            yield f"for {why}" + (f"; undone by {display_command(undo)}" if undo else "")
        case MigChange(states=(before, after)):
            yield f"before {before}"
            yield f"after  {after}"
        case _:
            pass


def _file_text(state: FileState | Unsettled | None) -> str:
    if isinstance(state, FileState):
        return f"sha256 {state.content.decode()} {state}"
    return state.what if state else "nothing"


def _package_origin(deed: ChangeRecord) -> str:
    state = deed.intent.change.settled if isinstance(deed.intent.change, PackageChange) else None
    return state.origin if state else ""


def _trigger_row(debt: TriggerRecord, zone: tzinfo | None) -> Line:
    by = f"  for change {join_names(map(str, debt.owed_by), 4)}" if debt.owed_by else "  of an earlier run"
    if debt.settled_at is None:
        return line(MARKS["waits"], str(debt.trigger), "  owed at its end", span(by, "dim"), hang=4)
    # A note says why it was not carried out, or what did its work instead.
    note, mark = (f": {debt.note}", MARKS["not run"]) if debt.note else ("", MARKS["done"])
    return line(mark, str(debt.trigger), f"  {format_local_time(debt.settled_at, zone)}{note}", span(by, "dim"), hang=4)
