"""The JSON envelope: one object on standard output and nothing else; ``changed`` and ``diff`` as Ansible means them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from gpunode.change import (
    Change,
    Deferred,
    FileChange,
    FileState,
    KnownAfter,
    PackageChange,
    SigningKey,
)
from gpunode.cli.actions import action_of, reason_to_go
from gpunode.errors import BUG, GpunodeError
from gpunode.redaction.secrets import redact_known_shapes
from gpunode.redaction.secrets import redact_text as redact

ENVELOPE = 1


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a command answers, whoever reads it.

    Attributes:
        status: one word; ``ok`` or an error's own.
        changes: what was changed, or would be.
        steps: the id of the step that asked for each change; a dependency of a package is in none.
        unknown: what could not be told, with the reason.
        result: the command's own answer.
    """

    command: str
    status: str = "ok"
    exit_code: int = 0
    changed: bool = False
    changes: Sequence[Change] = ()
    steps: Mapping[Change, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    findings: Sequence[Mapping[str, object]] = ()
    unknown: Sequence[Mapping[str, object]] = ()
    errors: Sequence[GpunodeError | Mapping[str, object]] = ()
    result: Mapping[str, Any] = field(default_factory=dict)

    def ending_in(self, failure: GpunodeError | None) -> Envelope:
        """The same of a command that ended in ``failure``, if there is one."""
        if failure is None:
            return self
        return replace(self, status=failure.status, exit_code=failure.exit_code, errors=(failure,))

    def as_json(self) -> str:
        """The envelope as one line of JSON, secrets redacted."""
        answer = {
            "gpunode": ENVELOPE,
            "command": self.command,
            "status": self.status,
            "exit_code": self.exit_code,
            "changed": self.changed,
            "changes": [_change(change, self.steps.get(change)) for change in self.changes],
            "diff": [_diff(change) for change in FileChange.among(self.changes)],
            "notes": list(self.notes),
            "findings": list(self.findings),
            "unknown": list(self.unknown),
            "result": self.result,
        }
        # An error is in gpunode's own words; what it quotes has lost its secrets where it came in.
        errors = [_error(error) if isinstance(error, GpunodeError) else error for error in self.errors]
        return json.dumps({**plain(answer), "errors": plain(errors, redact_known_shapes)}, ensure_ascii=True)


def _error(error: GpunodeError) -> dict[str, object]:
    """Return the error with what to do next as commands, and whether that takes a person."""
    from gpunode.cli.screen.failures import commands_in  # on use: most commands fail nowhere

    commands = commands_in(error.hint)
    return {**error.as_dict(), "commands": commands, "manual": not commands}


def bug(command: str, what: str, place: str) -> Envelope:
    """The envelope of a command that came to grief by gpunode's own fault; its traceback is in ``place``."""
    error: dict[str, object] = {
        "error": "bug",
        "what": what,
        "why": f"the traceback is in {place}",
        "hint": "report it with that file",
        "commands": (),
        "manual": True,
    }
    return Envelope(command, "bug", BUG[0], errors=(error,))


def plain(value: object, cleared: Callable[[str], str] = redact) -> Any:
    """``value`` in JSON's types: dataclasses as objects, sets sorted, bytes left out, secrets redacted."""
    if isinstance(value, str):
        return _sound(cleared(value))
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), cleared) for f in fields(value)}
    if isinstance(value, Mapping):
        return {_sound(str(key)): plain(item, cleared) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted((plain(item, cleared) for item in value), key=str)
    if isinstance(value, Sequence):
        return [plain(item, cleared) for item in value]
    return value if isinstance(value, int | float | bool) or value is None else str(value)


def _sound(text: str) -> str:
    """``text`` as strict readers take it: the name of a file may hold half of a character."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _change(change: Change, step: str | None) -> dict[str, object]:
    row: dict[str, object] = {
        "kind": change.kind_name,
        "action": action_of(change),
        "subject": change.subject,
        "step": step,
    }
    match change:
        case PackageChange(before=before, after=after):
            row["before"] = before.version if before else None
            if reason := reason_to_go(change):
                row["reason"] = reason
            # A prefix is what is known of the version; nothing at all is null, never an empty text.
            row["after"] = (after.prefix if isinstance(after, KnownAfter) else after.version) or None if after else None
            if isinstance(after, KnownAfter):
                row["known_after"] = "the package index is read"
        case FileChange(after=(Deferred() | SigningKey()) as unsettled):
            row["known_after"] = unsettled.known_after
        case _:
            pass
    return row


def _diff(change: FileChange) -> dict[str, str]:
    """Ansible's shape: both texts with headers; ``prepared`` where the content is not known yet or not text."""
    from gpunode.redaction.evidence import redact_change

    change = redact_change(change)
    if not _is_text(change.before) or not _is_text(change.after):
        return {"prepared": "\n".join(change.diff())}
    return {
        "before_header": change.path,
        "after_header": change.path,
        "before": _text(change.before),
        "after": _text(change.after),
    }


def _is_text(state: object) -> bool:
    if state is None:
        return True
    if not isinstance(state, FileState):
        return False
    try:
        state.content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text(state: object) -> str:
    return state.content.decode() if isinstance(state, FileState) else ""
