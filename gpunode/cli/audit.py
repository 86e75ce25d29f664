"""Runs for programs that audit nodes: every key is always there. Described in docs/reference/log-format.md."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpunode.change import (
    Change,
    CommandChange,
    FileChange,
    FileState,
    MigChange,
    MigLayout,
    ModuleChange,
    ObjectChange,
    PackageChange,
    PackageState,
    ServiceChange,
    subject,
    without_values,
)
from gpunode.journal.announce import kind
from gpunode.journal.chronicle import Chronicle, Debt, Deed

SCHEMA = 1
Row = dict[str, Any]


def summary(run: Chronicle, logins: Mapping[int, str]) -> Row:
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
        "counts": dict(sorted(Counter(map(kind, run.changes)).items())),
        "undone_by": run.undone_by,
        "forgotten": {"user": run.forgotten.user, "at": moment(run.forgotten.at)} if run.forgotten else None,
    }


def whole(run: Chronicle, logins: Mapping[int, str]) -> Row:
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


def _deed(deed: Deed) -> Row:
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
        "kind": kind(intent.change),
        "subject": subject(intent.change),
        **_states(intent.change),
    }


def _states(change: Change) -> Row:
    match change:
        case FileChange(before=before, after=after):
            return {"before": _file(before), "after": _file(after), "folders": list(change.folders)}
        case PackageChange(before=before, after=after):
            return {"before": _package(before), "after": _package(after)}
        case ServiceChange(before=was, after=now):
            states = ({"enabled": one.enabled, "active": one.active} for one in (was, now))
            return dict(zip(("before", "after"), states, strict=True))
        case ModuleChange(before=loaded, after=wanted):
            return {"before": {"loaded": loaded}, "after": {"loaded": wanted}}
        case ObjectChange():
            return {
                "cluster": change.cluster,
                "before": json.loads(change.before or "null"),
                "after": json.loads(change.after or "null"),
            }
        case CommandChange(argv=argv, undo=undo):
            undone_by = None if undo is None else list(without_values(undo))
            return {"argv": list(without_values(argv)), "for": change.why, "undo": undone_by}
        case MigChange(before=former, after=new):
            return {"before": _layout(former), "after": _layout(new)}


def _file(state: object) -> Row | None:
    """A file by the name of its backup, which is its sha256: the journal is read without them."""
    if not isinstance(state, FileState):
        return None
    return {"sha256": state.content.decode(), "mode": f"{state.mode:04o}", "uid": state.uid, "gid": state.gid}


def _package(state: object) -> Row | None:
    if not isinstance(state, PackageState):
        return None
    return {
        "version": state.version,
        "auto": state.auto,
        "held": state.held,
        "config_files_only": state.config_files_only,
        "origin": state.origin,
    }


def _layout(layout: MigLayout) -> Row:
    rows = [{"profile": one.profile, "start": one.start, "size": one.size, "compute": list(one.compute)}
            for one in layout.instances]  # fmt: skip
    return {"enabled": layout.enabled, "instances": rows}


def _debt(debt: Debt) -> Row:
    return {
        "kind": debt.trigger.kind,
        "target": debt.trigger.target,
        "owed_by": list(debt.owed_by),
        "settled": None if debt.settled_at is None else moment(debt.settled_at),
        "note": debt.note,
    }
