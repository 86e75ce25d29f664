"""The JSON envelope: a single object on standard output; ``changed`` and ``diff`` follow Ansible's meaning."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, is_dataclass, replace
from typing import Any

from gpunode.change import Change, FileChange, FileState, KnownAfter, PackageChange
from gpunode.cli.screen.changes import action_of, explain_purge
from gpunode.errors import BUG_EXIT_CODE, GpunodeError
from gpunode.fast_dataclass import dataclass
from gpunode.redaction.secrets import redact_known_shapes
from gpunode.redaction.secrets import redact_text as redact

ENVELOPE_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Envelope:
    """The answer of a command.

    Attributes:
        status: one word: ``ok``, or the error's.
        changes: what was changed, or would be.
        steps: the id of the step behind each change; package dependencies have none.
        unknown: facts that could not be determined, with the reasons.
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

    def with_failure(self, failure: GpunodeError | None) -> Envelope:
        """Return a copy with the status and error of ``failure``, if there is one."""
        if failure is None:
            return self
        return replace(self, status=failure.status, exit_code=failure.exit_code, errors=(failure,))

    def as_json(self) -> str:
        """Return the envelope as one line of JSON, with secrets redacted."""
        answer = {
            "schema": ENVELOPE_SCHEMA_VERSION,
            "command": self.command,
            "status": self.status,
            "exit_code": self.exit_code,
            "changed": self.changed,
            "changes": [_change_row(change, self.steps.get(change)) for change in self.changes],
            "diff": [_ansible_diff(change) for change in FileChange.of_kind(self.changes)],
            "notes": list(self.notes),
            "findings": list(self.findings),
            "unknown": list(self.unknown),
            "result": self.result,
        }
        # Errors are gpunode's own text; text that they quote was redacted when it was read.
        errors = [_error_row(error) if isinstance(error, GpunodeError) else error for error in self.errors]
        return json.dumps({**to_json_types(answer), "errors": to_json_types(errors, redact_known_shapes)})


def _error_row(error: GpunodeError) -> dict[str, object]:
    """Return the error with the commands of its hint, and whether it needs manual work."""
    from gpunode.cli.screen.failures import commands_in  # loaded on use: most commands do not fail

    commands = commands_in(error.hint)
    return {**error.as_dict(), "commands": commands, "manual": not commands}


def bug_envelope(command: str, what: str, traceback_path: str) -> Envelope:
    """Return the envelope of a crash; ``traceback_path`` has the traceback."""
    error: dict[str, object] = {
        "error": "bug",
        "what": what,
        "why": f"the traceback is in {traceback_path}",
        "hint": "report it with that file",
        "commands": (),
        "manual": True,
    }
    return Envelope(command, "bug", BUG_EXIT_CODE, errors=(error,))


def to_json_types(value: object, redact_string: Callable[[str], str] = redact) -> Any:
    """Convert ``value`` to JSON types: dataclasses to objects, sets sorted, bytes omitted, secrets redacted."""
    if isinstance(value, str):
        return _escape_surrogates(redact_string(value))
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json_types(getattr(value, f.name), redact_string) for f in fields(value)}
    if isinstance(value, Mapping):
        return {_escape_surrogates(str(key)): to_json_types(item, redact_string) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted((to_json_types(item, redact_string) for item in value), key=str)
    if isinstance(value, Sequence):
        return [to_json_types(item, redact_string) for item in value]
    return value if isinstance(value, int | float | bool) or value is None else str(value)


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which file names may contain and strict JSON readers reject."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _change_row(change: Change, step: str | None) -> dict[str, object]:
    row: dict[str, object] = {
        "kind": change.kind_name,
        "action": action_of(change),
        "subject": change.subject,
        "step": step,
    }
    for package in PackageChange.of_kind([change]):
        before, after = package.before, package.after
        row["before"] = before.version if before else None
        if reason := explain_purge(package):
            row["reason"] = reason
        # Only a prefix of the version may be known; an unknown one is null, never empty.
        row["after"] = (after.prefix if isinstance(after, KnownAfter) else after.version) or None if after else None
    if change.final_state_known_when:
        row["known_after"] = change.final_state_known_when
    return row


def _ansible_diff(change: FileChange) -> dict[str, str]:
    """Return Ansible's diff: both texts with headers, or ``prepared`` if the content is unknown or not text."""
    from gpunode.redaction.evidence import redact_change

    change = redact_change(change)
    if change.is_final_state_known:
        states = change.before, change.after
        with suppress(UnicodeDecodeError):
            before, after = (state.content.decode() if isinstance(state, FileState) else "" for state in states)
            return {"before_header": change.path, "after_header": change.path, "before": before, "after": after}
    return {"prepared": "\n".join(change.diff())}
