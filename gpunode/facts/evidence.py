"""Probes and the evidence they return. Evidence is raw: it is saved, sent and read again without loss."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Final, Literal, TypeAlias

from gpunode.fast_dataclass import dataclass

NOT_CAPTURED_REASON: Final = "not captured"
"""The error of a probe that is missing from a capture: it was never run, so it did not fail."""

TRUNCATION_KEY: Final = "report:cut"
"""The key under which a partly read report records its error; it is not evidence itself."""

ProbeOutcome: TypeAlias = Literal["ok", "absent", "denied", "failed", "timeout"]
ContentKind: TypeAlias = Literal["table", "config", "log"]
"""The kind of a probe's content, which decides the part that may leave the node.

A table leaves whole; of a configuration, values known to be harmless; of a log (also command lines and tool output),
everything except what looks like a secret.
"""


# The start of a capture's error if the path is not a regular file: ``it is a folder``.
OTHER_FILE_KIND_ERROR_PREFIX: Final = "it is "


@dataclass(frozen=True, slots=True)
class Probe:
    """A file, a glob or a command to read, whichever of the three is given.

    Attributes:
        key: its name in the evidence, stable across versions, since captures are kept.
        path: an absolute path, read up to ``limit_bytes``; a longer file makes the outcome ``failed``.
        glob: an absolute pattern; the capture lists what matches, see ``GlobMatch``.
        argv: a command, run in the C locale without a terminal.
        contents: whether a glob reads the files it finds, or only lists them.
        written: a readable form of ``argv``, if that is not readable itself.
        content_kind: decides what redaction keeps; unclassified content is masked like configuration.
    """

    key: str
    path: str = ""
    glob: str = ""
    argv: tuple[str, ...] = ()
    timeout_s: float = 10.0
    limit_bytes: int = 1 << 20
    contents: bool = True
    written: str = ""
    content_kind: ContentKind = "config"

    @property
    def source(self) -> str:
        """The file, glob or command, as a person would write it."""
        return self.written or self.path or self.glob or " ".join(self.argv)


@dataclass(frozen=True, slots=True)
class Ownership:
    """A file's permission bits and owner, numeric, and when they or its content last changed.

    Attributes:
        ctime: seconds since the epoch of the inode's last change, which no program can set: a file restored with its
            old date is as new as its restoration. None if unknown. Not compared: a file written twice is the same.
        mtime: seconds since the epoch when the content was last written; a copy or backup may preserve it. Not compared
            either.
        exposed: the folder or link in its path through which users other than root could replace it, and why; empty if
            none could.
    """

    mode: int
    uid: int
    gid: int
    ctime: float | None = field(default=None, compare=False)
    exposed: str = ""
    mtime: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Capture:
    """The answer to a probe.

    Attributes:
        data: the file's content, the command's standard output, or the lines of a glob.
        error: the command's standard error, or the system's reason for the missing content.
        ownership: of a file; None for globs and commands.
        content_kind: that of its probe.
    """

    source: str
    outcome: ProbeOutcome
    data: bytes = b""
    error: str = ""
    exit_status: int | None = None
    ownership: Ownership | None = None
    content_kind: ContentKind = "config"

    @property
    def text(self) -> str:
        """The data as text; invalid UTF-8 is replaced."""
        return self.data.decode("utf-8", "replace")


Evidence: TypeAlias = Mapping[str, Capture]


@dataclass(frozen=True, slots=True)
class GlobMatch:
    """A file matched by a glob.

    Attributes:
        link: the target when the match is a symbolic link.
        data: the content, if the probe requests it and it could be read.
        denied: whether we may not read it.
    """

    path: str
    link: str | None = None
    data: bytes | None = None
    ownership: Ownership | None = None
    denied: bool = False


def encode_matches(matches: Iterator[GlobMatch]) -> bytes:
    """Encode a glob's matches, one JSON object a line, sorted by path."""
    return b"".join(_encode_match(match) for match in sorted(matches, key=lambda one: one.path))


def _encode_match(match: GlobMatch) -> bytes:
    row: dict[str, object] = {"path": match.path}
    if match.link is not None:
        row["link"] = match.link
    if match.data is not None:
        try:
            row["text"] = match.data.decode()
        except UnicodeDecodeError:
            row["base64"] = base64.b64encode(match.data).decode()
    if match.denied:
        row["denied"] = True
    if match.ownership is not None:
        row.update(encode_ownership(match.ownership))
        if match.ownership.mtime is not None:
            row["mtime"] = match.ownership.mtime
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def decode_matches(data: bytes) -> tuple[GlobMatch, ...]:
    """Decode the output of ``encode_matches``.

    Raises:
        ValueError: if a line has another form.
    """
    return tuple(_decode_match(line) for line in data.splitlines() if line)


def _decode_match(line: bytes) -> GlobMatch:
    try:
        row = json.loads(line)
    except RecursionError:
        raise ValueError("a match of a glob is nested too deeply") from None
    if not isinstance(row, dict) or not isinstance(row.get("path"), str) or not isinstance(row.get("link", ""), str):
        raise ValueError(f"not a match of a glob: {line[:80]!r}")
    content: bytes | None = None
    if "text" in row:
        content = str(row["text"]).encode("utf-8", "surrogatepass")
    elif "base64" in row:
        content = base64.b64decode(row["base64"], validate=True)
    return GlobMatch(row["path"], row.get("link"), content, decode_ownership(row), row.get("denied") is True)


def encode_ownership(ownership: Ownership) -> dict[str, object]:
    """Return the owner and the mode as ``decode_ownership`` reads them, without the times."""
    row: dict[str, object] = {"mode": f"{ownership.mode:04o}", "uid": ownership.uid, "gid": ownership.gid}
    return {**row, "exposed": ownership.exposed} if ownership.exposed else row


def decode_ownership(row: Mapping[str, Any]) -> Ownership | None:
    """Return the ownership in a row of a capture or of a glob's answer; None if it has none.

    Raises:
        ValueError: if it is malformed.
    """
    if "mode" not in row:
        return None
    mode, uid, gid = (row.get(name) for name in ("mode", "uid", "gid"))
    if not isinstance(mode, str) or not re.fullmatch(r"[0-7]{1,6}", mode):
        raise ValueError("a mode is not an octal number in quotes")
    if type(uid) is not int or type(gid) is not int:
        raise ValueError("uid or gid is not a number")
    # The time of the last change of the content has another name in captures of schema 1.
    times = (row.get("ctime"), row.get("mtime", row.get("modified")))
    ctime, mtime = (float(time) if isinstance(time, int | float) else None for time in times)
    return Ownership(int(mode, 8), uid, gid, ctime, str(row.get("exposed", "")), mtime)
