"""What systemd's journal hears of a run: that it begins, each change made or failed, how it ends. No file contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from gpunode.change import (
    Change,
    CommandChange,
    FileChange,
    FileState,
    MigChange,
    ModuleChange,
    ObjectChange,
    PackageChange,
    PackageState,
    ServiceChange,
    is_generated,
    subject,
)
from gpunode.journal.record import Begin, Commit, Done, Entry, Failed, Intent, Result, digest
from gpunode.journal.run import Announce
from gpunode.redaction.secrets import text as redact

Send: TypeAlias = Callable[[Mapping[str, str]], None]

# For ever: they are how such messages are searched for. `journalctl MESSAGE_ID=…`
BEGUN: Final = "26954dfd1c66499ab132039003990614"
MADE: Final = "7b4a7b8bddf047d78c789d7233a47551"
FAILED: Final = "058aa45087c940af94da0361f545f210"
ENDED: Final = "35ec43e986f34f3fa8ae5a0bebc707e5"
# Of syslog(3).
_ERROR, _WARNING, _NOTICE, _INFO = "3", "4", "5", "6"
_PRIORITY: Mapping[Result, str] = {"done": _NOTICE, "waiting": _NOTICE, "interrupted": _WARNING, "failed": _ERROR}


# Run, step and archive are the same in hundreds of messages.
_redacted = lru_cache(maxsize=64)(redact)


def to(send: Send) -> Announce:
    """What announces an entry with ``send``, given the entries of its run so far."""

    def announce(entries: Sequence[Entry], entry: Entry) -> None:
        if found := fields(entries, entry):
            send(found)

    return announce


def fields(entries: Sequence[Entry], entry: Entry) -> Mapping[str, str]:
    """The message that announces ``entry``, secrets redacted; empty when it is none of those that are announced.

    Args:
        entries: of its run, as far as they are written; the first is its begin.
        entry: one of them.
    """
    begin = entries[0]
    if not isinstance(begin, Begin):
        return {}
    match entry:
        case Begin():
            about = _begun(entry)
        case Done(seq=seq):
            about = _made(_intent(entries, seq))
        case Failed(seq=seq, why=why):
            about = _failed(_intent(entries, seq), why)
        case Commit():
            about = _ended(begin, entry)
        case _:
            return {}
    own = {"SYSLOG_IDENTIFIER": "gpunode", "GPUNODE_RUN": begin.run, "GPUNODE_VERB": begin.verb}
    return {name: _redacted(value) for name, value in {**about, **own}.items() if value}


def _intent(entries: Sequence[Entry], seq: int) -> Intent:
    return next(entry for entry in entries if isinstance(entry, Intent) and entry.seq == seq)


def _begun(begin: Begin) -> dict[str, str]:
    return {
        "MESSAGE": f"{_named(begin)} begins, for {begin.user}",
        "MESSAGE_ID": BEGUN,
        "PRIORITY": _NOTICE,
        "GPUNODE_OF": begin.of,
        "GPUNODE_VERSION": begin.version,
        "GPUNODE_RECIPE": begin.recipe,
        "GPUNODE_RECIPE_SHA256": begin.recipe_sha256,
        "GPUNODE_USER": begin.user,
        "GPUNODE_UID": str(begin.uid),
        "GPUNODE_LOGINUID": "" if begin.loginuid is None else str(begin.loginuid),
        "GPUNODE_ARGV": " ".join(begin.argv),
    }


def _made(intent: Intent) -> dict[str, str]:
    about = {"MESSAGE": f"{subject(intent.change)}: {did(intent.change)}", "MESSAGE_ID": MADE, "PRIORITY": _INFO}
    return {**about, **_about(intent)}


def _failed(intent: Intent, why: str) -> dict[str, str]:
    message = f"{subject(intent.change)}: could not be {did(intent.change)}: {why}"
    return {"MESSAGE": message, "MESSAGE_ID": FAILED, "PRIORITY": _ERROR, "GPUNODE_WHY": why, **_about(intent)}


def _ended(begin: Begin, commit: Commit) -> dict[str, str]:
    why = f": {commit.why}" if commit.why else ""
    return {
        "MESSAGE": f"{_named(begin)} ended: {commit.result}{why}",
        "MESSAGE_ID": ENDED,
        "PRIORITY": _PRIORITY[commit.result],
        "GPUNODE_RESULT": commit.result,
        "GPUNODE_WHY": commit.why,
    }


def _named(begin: Begin) -> str:
    return " ".join(filter(None, (begin.verb, begin.recipe, f"of {begin.of}" if begin.of else "")))


def _about(intent: Intent) -> dict[str, str]:
    before, after = _states(intent.change)
    return {
        "GPUNODE_SEQ": str(intent.seq),
        "GPUNODE_STAGE": intent.stage,
        "GPUNODE_STEP": intent.step,
        "GPUNODE_KIND": kind(intent.change),
        "GPUNODE_SUBJECT": subject(intent.change),
        "GPUNODE_BEFORE": before,
        "GPUNODE_AFTER": after,
        "GPUNODE_ORIGIN": _origin(intent.change),
    }


def _states(change: Change) -> tuple[str, str]:
    """What was and what is: a file's sha256, a package's version, else a word; empty where there is nothing."""
    match change:
        case FileChange(before=before, after=after):
            return _sha256(before), _sha256(after)
        case PackageChange(before=before, after=after):
            return getattr(before, "version", ""), getattr(after, "version", "")
        case ServiceChange(before=before, after=after):
            return _service(before.enabled, before.active), _service(after.enabled, after.active)
        case MigChange(before=was, after=now):
            return str(was), str(now)
        case _:
            return "", ""


def _sha256(state: object) -> str:
    return f"sha256:{digest(state.content)}" if isinstance(state, FileState) else ""


def _service(enabled: bool, active: bool) -> str:
    return f"{'enabled' if enabled else 'disabled'}, {'active' if active else 'inactive'}"


def _origin(change: Change) -> str:
    after = change.after if isinstance(change, PackageChange) else None
    return after.origin if isinstance(after, PackageState) else ""


def kind(change: Change) -> str:
    """The change's kind as the JSON output and the audit log name it: file, package, service, module, command, mig."""
    return type(change).__name__.removesuffix("Change").lower()


def did(change: Change) -> str:
    """What making ``change`` means for its subject, as a participle."""
    match change:
        case PackageChange(before=None):
            return "installed"
        case PackageChange(after=None):
            return "purged"
        case PackageChange():
            return "changed"
        case FileChange():
            return _file(change)
        case ServiceChange(after=after):
            return _service(after.enabled, after.active)
        case ModuleChange(after=loaded):
            return "loaded" if loaded else "unloaded"
        case CommandChange():
            return "run"
        case ObjectChange(effect=effect):
            return effect
        case MigChange(after=layout):
            return f"divided: {layout}"


def _file(change: FileChange) -> str:
    if is_generated(change):
        return "asked for"
    return "created" if change.before is None else "removed" if change.after is None else "changed"
