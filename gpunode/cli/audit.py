"""JSON rows of runs for audits: every key is always present. Described in docs/reference/log-format.md."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpunode.journal.chronicle import RunRecord, TriggerRecord
from gpunode.journal.history import ChangeRecord, RunSummary

SCHEMA = 1
Row = dict[str, Any]


def summarize_run(run: RunRecord, logins: Mapping[int, str]) -> Row:
    """Return the summary of a run.

    Args:
        run: a run of this node.
        logins: the names of its users, by number.
    """
    begin, commit = run.begin, run.commit
    return {
        "run": begin.run,
        "verb": begin.verb,
        "undoes": begin.undoes,
        "with_packages": begin.with_packages,
        "started_at": format_utc(begin.at),
        "ended_at": format_utc(commit.at) if commit else None,
        "user": begin.user,
        "uid": begin.uid,
        "loginuid": begin.loginuid,
        "login": logins.get(begin.loginuid) if begin.loginuid is not None else None,
        "recipe": begin.recipe,
        "recipe_sha256": begin.recipe_sha256,
        "version": begin.version,
        "result": run.ending,
        "reason": commit.reason if commit else "",
        "counts": dict(sorted(Counter(change.kind_name for change in run.changes).items())),
        "undone_by": run.undone_by,
        "forgotten": {"user": run.forgotten.user, "at": format_utc(run.forgotten.at)} if run.forgotten else None,
    }


def undo_record(run: RunSummary, rollback: str, *, is_running: bool) -> Row:
    """Return what ``rollback --list`` says of a run.

    Args:
        run: a run of this node.
        rollback: whether it can be undone now, in words.
        is_running: whether it is going on.
    """
    begin, commit = run.begin, run.commit
    return {
        "run": begin.run,
        "verb": begin.verb,
        "undoes": begin.undoes,
        "with_packages": begin.with_packages,
        "recipe": begin.recipe,
        "user": begin.user,
        "started_at": format_utc(begin.at),
        "ended_at": format_utc(commit.at) if commit else None,
        "result": commit.result if commit else "running" if is_running else "incomplete",
        "reason": commit.reason if commit else "",
        "subjects": list(run.subjects),
        "configuration": sorted(run.configuration),
        "other_subjects": sorted(run.other_subjects),
        "undone_by": run.undone_by,
        "fully_undone": run.is_fully_undone,
        "rollback": rollback,
    }


def full_run_record(run: RunRecord, logins: Mapping[int, str]) -> Row:
    """Return the complete record of a run; files by their sha256."""
    return {
        **summarize_run(run, logins),
        "argv": list(run.begin.argv),
        "boot_id": run.begin.boot_id,
        "changes": [_change_row(record) for record in run.change_records],
        "triggers": [_trigger_row(record) for record in run.trigger_records],
    }


def format_utc(at: float) -> str:
    """Return a time in ISO 8601, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _change_row(record: ChangeRecord) -> Row:
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


def _trigger_row(record: TriggerRecord) -> Row:
    return {
        "kind": record.trigger.kind,
        "target": record.trigger.target,
        "required_by": list(record.required_by),
        "completed_at": None if record.completed_at is None else format_utc(record.completed_at),
        "note": record.note,
    }
