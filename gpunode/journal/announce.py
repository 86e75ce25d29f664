"""Announce runs in systemd's journal: their begin, each change made or failed, their end. No file contents.

Written in journald's own protocol, https://systemd.io/JOURNAL_NATIVE_PROTOCOL/; what cannot be sent at once is dropped.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from gpunode.journal.record import Begin, Commit, Done, Entry, Failed, Intent, Result
from gpunode.redaction.secrets import redact_text as redact

JOURNALD_SOCKET = Path("/run/systemd/journal/socket")
# A datagram must fit the socket's buffer, 200 KiB by default; longer values are of no use in a log.
_MAX_FIELD_BYTES = 8192
# journald takes a message in microseconds; the buffer may be full for a moment when many come at once.
_SEND_TIMEOUT_S = 0.1


class Journald:
    """A connection to journald; after the first failed message nothing more is sent."""

    def __init__(self, path: Path = JOURNALD_SOCKET) -> None:
        self._path = str(path)
        self._gone = not path.is_socket()

    def announce(self, entries: Sequence[Entry], entry: Entry) -> None:
        """Send the message about ``entry`` of a run with these ``entries`` so far, if it is announced."""
        if fields := message_fields(entries, entry):
            self.send(fields)

    def send(self, fields: Mapping[str, str]) -> None:
        """Send ``fields`` to systemd's journal, if there is one and it accepts them; never raises OSError."""
        if self._gone:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_SEND_TIMEOUT_S)
                sender.sendto(encode_datagram(fields), self._path)
        except OSError:
            self._gone = True


def encode_datagram(fields: Mapping[str, str]) -> bytes:
    """Encode ``fields`` for journald: a value of more than one line is preceded by its length."""
    return b"".join(_encode_field(name, value) for name, value in fields.items())


def _encode_field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    if len(data) > _MAX_FIELD_BYTES:
        data = data[:_MAX_FIELD_BYTES].decode("utf-8", "ignore").encode() + "…".encode()
    if b"\n" in data:
        return b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
    return b"%s=%s\n" % (name.encode(), data)


# Never change these: users search for such messages by them. `journalctl MESSAGE_ID=…`
RUN_BEGUN_MESSAGE_ID: Final = "26954dfd1c66499ab132039003990614"
CHANGE_MADE_MESSAGE_ID: Final = "7b4a7b8bddf047d78c789d7233a47551"
CHANGE_FAILED_MESSAGE_ID: Final = "058aa45087c940af94da0361f545f210"
RUN_ENDED_MESSAGE_ID: Final = "35ec43e986f34f3fa8ae5a0bebc707e5"
# The priorities of syslog(3).
_ERROR, _WARNING, _NOTICE, _INFO = "3", "4", "5", "6"
_PRIORITIES: Mapping[Result, str] = {"done": _NOTICE, "waiting": _NOTICE, "interrupted": _WARNING, "failed": _ERROR}


# Hundreds of messages share the same run, step and archive.
_redact_cached = lru_cache(maxsize=64)(redact)


def message_fields(entries: Sequence[Entry], entry: Entry) -> Mapping[str, str]:
    """Return the log fields that announce ``entry``, secrets redacted; empty if it is not announced.

    Args:
        entries: the entries of its run written so far; the first is its begin.
        entry: one of them.
    """
    begin = entries[0]
    if not isinstance(begin, Begin):
        return {}
    match entry:
        case Begin():
            about = _begin_fields(entry)
        case Done(seq=seq):
            about = _change_fields(_find_intent(entries, seq), CHANGE_MADE_MESSAGE_ID, _INFO)
        case Failed(seq=seq, error=error):
            about = _change_fields(_find_intent(entries, seq), CHANGE_FAILED_MESSAGE_ID, _ERROR, error)
        case Commit(result=result, reason=reason):
            about = {
                "MESSAGE": f"{begin.title} ended: {result}{reason and f': {reason}'}",
                "MESSAGE_ID": RUN_ENDED_MESSAGE_ID,
                "PRIORITY": _PRIORITIES[result],
                "GPUNODE_RESULT": result,
                "GPUNODE_REASON": reason,
            }
        case _:
            return {}
    own = {"SYSLOG_IDENTIFIER": "gpunode", "GPUNODE_RUN": begin.run, "GPUNODE_VERB": begin.verb}
    return {name: _redact_cached(value) for name, value in {**about, **own}.items() if value}


def _find_intent(entries: Sequence[Entry], seq: int) -> Intent:
    return next(entry for entry in entries if isinstance(entry, Intent) and entry.seq == seq)


def _begin_fields(begin: Begin) -> dict[str, str]:
    return {
        "MESSAGE": f"{begin.title} begins, for {begin.user}",
        "MESSAGE_ID": RUN_BEGUN_MESSAGE_ID,
        "PRIORITY": _NOTICE,
        "GPUNODE_UNDOES": begin.undoes,
        "GPUNODE_VERSION": begin.version,
        "GPUNODE_RECIPE": begin.recipe,
        "GPUNODE_RECIPE_SHA256": begin.recipe_sha256,
        "GPUNODE_USER": begin.user,
        "GPUNODE_UID": str(begin.uid),
        "GPUNODE_LOGINUID": "" if begin.loginuid is None else str(begin.loginuid),
        "GPUNODE_ARGV": " ".join(begin.argv),
    }


def _change_fields(intent: Intent, message_id: str, priority: str, error: str = "") -> dict[str, str]:
    change, word = intent.change, intent.change.participle
    before, after = change.states
    result = f"could not be {word}: {error}" if message_id == CHANGE_FAILED_MESSAGE_ID else word
    return {
        "MESSAGE": f"{change.subject}: {result}",
        "MESSAGE_ID": message_id,
        "PRIORITY": priority,
        "GPUNODE_ERROR": error,
        "GPUNODE_SEQ": str(intent.seq),
        "GPUNODE_STAGE": intent.stage,
        "GPUNODE_STEP": intent.step,
        "GPUNODE_KIND": change.kind_name,
        "GPUNODE_SUBJECT": change.subject,
        "GPUNODE_BEFORE": before,
        "GPUNODE_AFTER": after,
        "GPUNODE_ORIGIN": change.origin,
    }
