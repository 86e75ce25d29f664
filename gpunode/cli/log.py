"""log: the table of runs, or the complete record of one, on screen and as JSON (docs/reference/log-format.md)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpunode.change import Trigger
from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import open_cluster_journal, validate_root
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.commands import own_gpunode, root_option
from gpunode.cli.screen.text import BLANK_LINE, STATE_MARK, Line, Span, cell_width, indent_lines, line, pad_right, span
from gpunode.command import gpunode_command, sudo_gpunode
from gpunode.errors import UsageError
from gpunode.journal.history import ChangeRecord, RequiredTrigger, RunEnding, RunRecord, run_label
from gpunode.journal.store import Store
from gpunode.redaction.evidence import redact_recursively
from gpunode.wording import format_seconds, join_names


def show_log(run: str, output: OutputOptions, root: str) -> None:
    """Show the recorded runs, or the complete record of one."""
    from gpunode.cli.screen.plans import note_line

    runs = _load_runs(run, root)
    logins = _login_names({run.begin.loginuid for run in runs})
    screen = output.open_screen()
    screen.put(*(run_lines(runs[0], logins) if run else run_table_lines(runs, root=root_option(screen.argv))))
    notes: tuple[str, ...] = ()
    if not runs:
        from gpunode.cli.undo import explain_lost_record
        from gpunode.host.local import LocalHost

        store = Store(validate_root(root))
        notes = explain_lost_record(LocalHost(str(store.root)), store)
    screen.put(*map(note_line, notes))
    if run:
        result = {"schema": LOG_SCHEMA_VERSION, "run": full_run_record(runs[0], logins)}
    else:
        result = {"schema": LOG_SCHEMA_VERSION, "runs": [summarize_run(run, logins) for run in runs]}
    output.emit(Envelope("log", notes=notes, result=result))


def _load_runs(run: str, root: str) -> tuple[RunRecord, ...]:
    """Return the runs on this node and this user's runs in clusters, as far as they can be read."""
    if run.startswith("k"):
        if root != "/":
            raise UsageError(
                f"--root cannot be used with {run}",
                why="runs in clusters are recorded for the user, not in an image",
                hint=str(gpunode_command("log", run)),
            )
        return open_cluster_journal().find_runs(run)
    clusters = () if run or root != "/" else open_cluster_journal().find_runs()
    try:
        return (*Store(validate_root(root)).find_runs(run), *clusters)
    except UsageError:
        if run or not clusters:
            raise
        return clusters


def _login_names(uids: Iterable[int | None]) -> dict[int, str]:
    """Return the names of ``uids`` on this machine, where runs were started even if they changed an image."""
    import pwd

    names: dict[int, str] = {}
    for uid in uids:
        with suppress(KeyError):
            if uid is not None:
                names[uid] = pwd.getpwuid(uid).pw_name
    return names


LOG_SCHEMA_VERSION = 1
JsonRow = dict[str, Any]


def _basic_record(run: RunRecord) -> JsonRow:
    begin, commit = run.begin, run.commit
    return {
        "run": begin.run,
        "verb": begin.verb,
        "undoes": begin.undoes,
        "with_packages": begin.with_packages,
        "started_at": format_utc(begin.at),
        "ended_at": format_utc(commit.at) if commit else None,
        "user": begin.user,
        "recipe": begin.recipe,
        "result": run.ending,
        "reason": commit.reason if commit else "",
        "undone_by": run.undone_by,
    }


def summarize_run(run: RunRecord, logins: Mapping[int, str]) -> JsonRow:
    """Return the summary of a run.

    Args:
        run: a run of this node.
        logins: the names of its users, by number.
    """
    begin = run.begin
    return {
        **_basic_record(run),
        "uid": begin.uid,
        "loginuid": begin.loginuid,
        "login": logins.get(begin.loginuid) if begin.loginuid is not None else None,
        "recipe_sha256": begin.recipe_sha256,
        "version": begin.version,
        "counts": dict(sorted(Counter(change.kind_name for change in run.changes("done", "unknown")).items())),
    }


def undo_record(run: RunRecord, rollback: str) -> JsonRow:
    """Return what ``rollback --list`` shows for a run.

    Args:
        run: a run of this node.
        rollback: says whether it can be undone now.
    """
    return {
        **_basic_record(run),
        "subjects": list(run.subjects),
        "configuration": sorted(run.configuration_subjects),
        "other_subjects": sorted(run.other_subjects),
        "fully_undone": run.is_fully_undone,
        "rollback": rollback,
    }


def full_run_record(run: RunRecord, logins: Mapping[int, str]) -> JsonRow:
    """Return the complete record of a run, with files as sha256 sums."""
    return {
        **summarize_run(run, logins),
        "argv": list(run.begin.argv),
        "boot_id": run.begin.boot_id,
        "changes": [_change_row(record) for record in run.change_records],
        "triggers": [
            {
                "kind": trigger_record.trigger.kind,
                "target": trigger_record.trigger.target,
                "required_by": [seq for _, seq in trigger_record.required_by],
                "completed_at": format_utc(trigger_record.completion.at) if trigger_record.completion else None,
                "note": trigger_record.completion.note if trigger_record.completion else "",
            }
            for trigger_record in run.trigger_records
        ],
    }


def format_utc(at: float) -> str:
    """Return a time in ISO 8601, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _change_row(record: ChangeRecord) -> JsonRow:
    intent = record.intent
    return {
        "seq": intent.seq,
        "stage": intent.stage,
        "step": intent.step,
        "reason": intent.reason,
        "started_at": format_utc(intent.at),
        "ended_at": None if record.ended_at is None else format_utc(record.ended_at),
        "result": record.outcome,
        "error": record.error,
        "kind": intent.change.kind_name,
        "subject": intent.change.subject,
        **intent.change.record,
    }


_LOG_TABLE_COLUMNS = ("run", "when", "who", "what", "result")
_MARK_BY_OUTCOME = {"done": "done", "failed": "failed", "unknown": "waits"}
_LABEL_WIDTH = 9
_MAX_SUBJECTS_SHOWN = 6


def run_table_lines(
    runs: Sequence[RunRecord],
    previews: Mapping[str, str] | None = None,
    root: str = "",
) -> Iterator[Line]:
    """Yield a table row for each run, newest last, with its changes below.

    Args:
        runs: oldest first.
        previews: says, by run id, whether the run can be undone now.
        root: the node's root folder as typed; empty for this machine.
    """
    if not runs:
        yield line(span("no run of gpunode is recorded on this node", "dim"))
        return
    rows = [_run_row(run) for run in runs]
    widths = [max(map(cell_width, column)) for column in zip(_LOG_TABLE_COLUMNS, *rows, strict=True)]
    indent = widths[0] + 4
    yield line(Span("  "), span(_join_columns(_LOG_TABLE_COLUMNS, widths), "dim"), hang=indent)
    for run, row in zip(runs, rows, strict=True):
        yield line(_run_mark(run), span(_join_columns(row, widths)), hang=indent)
        changed = run.subjects
        of_triggers = (record.change for record in run.change_records if record.change.only_triggers_reread)
        reread = [
            subject for subject in dict.fromkeys(change.subject for change in of_triggers) if subject not in changed
        ]
        read_again = f"; reloaded {join_names(reread, _MAX_SUBJECTS_SHOWN)}" if reread else ""
        did = f"changed {join_names(changed, _MAX_SUBJECTS_SHOWN) or 'nothing'}{read_again}"
        yield line(" " * indent, span(did, "dim"), hang=indent)
        if preview := (previews or {}).get(run.id):
            yield line(" " * indent, preview, hang=indent)
    where = ("--root", root) if root else ()
    undo = ("; undo a run: ", span(sudo_gpunode("rollback", "RUN", *where), "command")) if previews else ()
    # Runs in clusters are in their user's journal, which no other user's gpunode reads, not even root's.
    log = own_gpunode if all(run.begin.verb.startswith("k8s ") for run in runs) else sudo_gpunode
    yield line("details: ", span(log("log", "RUN", *where), "command"), *undo)


def _join_columns(cell: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(pad_right(text, width) for text, width in zip(cell, widths, strict=True)).rstrip()


def _run_row(run: RunRecord) -> tuple[str, ...]:
    return (
        run.label,
        format_local_time(run.begin.at, "%Y-%m-%d %H:%M %z"),
        run.begin.user,
        _verb_text(run),
        _describe_ending(run.ending)
        + (f", undone by {run_label(run.undone_by, run.begin.verb)}" if run.undone_by else ""),
    )


def _describe_ending(ending: RunEnding) -> str:
    """Return the ending as a screen shows it, also long after the reboot that the run needed."""
    return "done up to a reboot" if ending == "waiting" else ending


def _verb_text(run: RunRecord) -> str:
    begin = run.begin
    return " ".join(
        filter(None, (begin.verb, begin.recipe, begin.undoes and f"of {run_label(begin.undoes, begin.verb)}"))
    )


def _run_mark(run: RunRecord) -> Span:
    if run.ending == "done":
        return STATE_MARK["skipped" if run.undone_by else "done"]
    return STATE_MARK["waits" if run.ending in {"waiting", "running"} else "failed"]


def format_local_time(at: float, form: str = "%Y-%m-%d %H:%M:%S %z") -> str:
    """Format a time in this machine's time zone."""
    return time.strftime(form, time.localtime(at))


def run_lines(run: RunRecord, logins: Mapping[int, str]) -> Iterator[Line]:
    """Return the complete record of a run, in order.

    Args:
        run: a run of this node.
        logins: the names of its users, by uid.
    """
    # The journal quotes the output of tools without redaction.
    return map(redact_recursively, _unredacted_run_lines(run, logins))


def _unredacted_run_lines(run: RunRecord, logins: Mapping[int, str]) -> Iterator[Line]:
    yield line(span(run.begin.run, "bold"), f"  {_verb_text(run)}")
    yield from indent_lines(_run_header_lines(run, logins), 2)
    if run.change_records:
        yield BLANK_LINE
        yield line(span("changes", "bold"))
        yield from indent_lines(_change_lines(run.change_records), 2)
    if run.trigger_records:
        yield BLANK_LINE
        yield line(span("follow-up actions", "bold"))
        yield from indent_lines(map(_trigger_line, run.trigger_records), 2)


def _run_header_lines(run: RunRecord, logins: Mapping[int, str]) -> Iterator[Line]:
    begin = run.begin
    login = "not a login session"
    if begin.loginuid is not None:
        login = f"logged in as {logins.get(begin.loginuid, 'user')} ({begin.loginuid})"
    yield _labelled_line("who", f"{begin.user}, uid {begin.uid}, {login}")
    yield _labelled_line("started", format_local_time(begin.at))
    yield _labelled_line("ended", _ending_text(run))
    yield _labelled_line("command", " ".join(("gpunode", *begin.argv)))
    if begin.recipe_sha256:
        yield _labelled_line("recipe", f"{begin.recipe}, sha256 {begin.recipe_sha256}")
    yield _labelled_line("gpunode", begin.version)
    yield _labelled_line(
        "boot", begin.boot_id or ("none: it changed an image" if root_option(begin.argv) else "not recorded")
    )
    if run.undone_by:
        yield _labelled_line("undone by", run.undone_by)


def _ending_text(run: RunRecord) -> str:
    if run.commit is None:
        return "not yet: it is running" if run.is_running else "never: it was interrupted"
    took = format_seconds(max(0.0, run.commit.at - run.begin.at))
    why = f": {run.commit.reason}" if run.commit.reason else ""
    return f"{format_local_time(run.commit.at)}, after {took}: {_describe_ending(run.ending)}{why}"


def _labelled_line(label: str, text: str) -> Line:
    return line(span(f"{pad_right(label, _LABEL_WIDTH)}  ", "dim"), text, hang=_LABEL_WIDTH + 2)


def _change_lines(records: Sequence[ChangeRecord]) -> Iterator[Line]:
    width = max(len(str(record.intent.seq)) for record in records)
    hang = width + 4
    reason = origin = ""
    for record in records:
        change = record.intent.change
        step = f"  {record.intent.stage}, {record.intent.step}"
        title = (
            Span(pad_right(str(record.intent.seq), width) + "  "),
            span(change.subject, "bold"),
            f"  {_change_text(record)}",
        )
        yield line(STATE_MARK[_MARK_BY_OUTCOME[record.outcome]], *title, span(step, "dim"), hang=hang)
        notes = list(record.intent.change.log_details)
        # Dozens of packages share an archive and a reason: show both only with the first.
        if record.intent.reason and record.intent.reason != reason:
            notes.insert(0, f"why: {record.intent.reason}")
        if (comes := record.intent.change.origin) and comes != origin:
            notes.append(f"from {comes}")
        reason, origin = record.intent.reason, comes or origin
        yield from (line(Span(" " * hang), span(note, "dim"), hang=hang) for note in notes)


def _change_text(record: ChangeRecord) -> str:
    words = record.intent.change.outcome_text
    if record.outcome == "failed":
        return f"{words}: failed, {record.error}"
    return words if record.outcome == "done" else f"{words}: intended; it may or may not have been made"


def _trigger_line(required: RequiredTrigger) -> Line:
    trigger, settled = str(required.trigger), required.completion
    numbers = join_names((str(seq) for _, seq in required.required_by), 4)
    # The index is refreshed when a transaction needs it; no change requires that.
    alone = "  for the packages" if required.trigger == Trigger("index-refresh") else "  of an earlier run"
    by = f"  for change {numbers}" if numbers else alone
    if settled is None:
        return line(STATE_MARK["waits"], trigger, "  pending when the run ended", span(by, "dim"), hang=4)
    # A note says why the trigger was skipped, or what did its work instead.
    note, mark = (f": {settled.note}", STATE_MARK["skipped"]) if settled.note else ("", STATE_MARK["done"])
    return line(mark, trigger, f"  {format_local_time(settled.at)}{note}", span(by, "dim"), hang=4)
