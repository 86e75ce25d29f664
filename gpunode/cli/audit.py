"""Runs for programs that audit nodes: every key is always there. Described in docs/reference/log-format.md."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpunode.journal.chronicle import ChangeRecord, RunRecord, TriggerRecord

SCHEMA = 1
Row = dict[str, Any]


def summary(run: RunRecord, logins: Mapping[int, str]) -> Row:
    """A run in short.

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
        "begun": moment(begin.at),
        "ended": moment(commit.at) if commit else None,
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
        "forgotten": {"user": run.forgotten.user, "at": moment(run.forgotten.at)} if run.forgotten else None,
    }


def whole(run: RunRecord, logins: Mapping[int, str]) -> Row:
    """Everything that is recorded of a run; files by their sha256."""
    return {
        **summary(run, logins),
        "argv": list(run.begin.argv),
        "boot_id": run.begin.boot_id,
        "changes": [_deed(deed) for deed in run.deeds],
        "triggers": [_debt(debt) for debt in run.debts],
    }


def moment(at: float) -> str:
    """A time as ISO 8601 has it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _deed(deed: ChangeRecord) -> Row:
    intent = deed.intent
    return {
        "seq": intent.seq,
        "stage": intent.stage,
        "step": intent.step,
        "reason": intent.reason,
        "at": moment(intent.at),
        "ended": None if deed.ended_at is None else moment(deed.ended_at),
        "result": deed.outcome,
        "why": deed.why,
        "kind": intent.change.kind_name,
        "subject": intent.change.subject,
        **intent.change.record,
    }


def _debt(debt: TriggerRecord) -> Row:
    return {
        "kind": debt.trigger.kind,
        "target": debt.trigger.target,
        "owed_by": list(debt.owed_by),
        "settled": None if debt.settled_at is None else moment(debt.settled_at),
        "note": debt.note,
    }
