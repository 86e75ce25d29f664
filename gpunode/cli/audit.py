"""JSON rows of runs for audits: every key is always present. Described in docs/reference/log-format.md."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpunode.journal.chronicle import RunRecord, TriggerRecord
from gpunode.journal.history import ChangeRecord

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
        "of": begin.of,
        "whole": begin.whole,
        "begun": format_utc(begin.at),
        "ended": format_utc(commit.at) if commit else None,
        "user": begin.user,
        "uid": begin.uid,
        "loginuid": begin.loginuid,
        "login": logins.get(begin.loginuid) if begin.loginuid is not None else None,
        "recipe": begin.recipe,
        "recipe_sha256": begin.recipe_sha256,
        "version": begin.version,
        "result": run.ending,
        "why": commit.why if commit else "",
        "counts": dict(sorted(Counter(change.kind_name for change in run.changes).items())),
        "undone_by": run.undone_by,
        "forgotten": {"user": run.forgotten.user, "at": format_utc(run.forgotten.at)} if run.forgotten else None,
    }


def full_run_record(run: RunRecord, logins: Mapping[int, str]) -> Row:
    """Return the complete record of a run; files by their sha256."""
    return {
        **summarize_run(run, logins),
        "argv": list(run.begin.argv),
        "boot_id": run.begin.boot_id,
        "changes": [_change_row(deed) for deed in run.deeds],
        "triggers": [_trigger_row(debt) for debt in run.debts],
    }


def format_utc(at: float) -> str:
    """Return a time in ISO 8601, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _change_row(deed: ChangeRecord) -> Row:
    intent = deed.intent
    return {
        "seq": intent.seq,
        "stage": intent.stage,
        "step": intent.step,
        "reason": intent.reason,
        "at": format_utc(intent.at),
        "ended": None if deed.ended_at is None else format_utc(deed.ended_at),
        "result": deed.outcome,
        "why": deed.why,
        "kind": intent.change.kind_name,
        "subject": intent.change.subject,
        **intent.change.record,
    }


def _trigger_row(debt: TriggerRecord) -> Row:
    return {
        "kind": debt.trigger.kind,
        "target": debt.trigger.target,
        "owed_by": list(debt.owed_by),
        "settled": None if debt.settled_at is None else format_utc(debt.settled_at),
        "note": debt.note,
    }
