"""Reports about a node in whatever form somebody sends them: a capture, a pasted list, plain text, a bug report."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from pathlib import Path
from typing import Final

from gpunode.errors import Refused, UsageError
from gpunode.facts import bug_report, pasted
from gpunode.facts.evidence import Evidence
from gpunode.host.capture import INDEX, load

MAX_TEXT: Final = 64 << 20
_GZIP: Final = b"\x1f\x8b"
_HINT: Final = (
    "a report is a capture (`gpunode capture FILE`), an nvidia-bug-report.log.gz, a JSON list of "
    '{"source", "text"}, or the text of a terminal; - reads it from standard input'
)


def read(name: str) -> Evidence:
    """The evidence of the report ``name``, recognised by what it holds; ``-`` is standard input.

    Raises:
        UsageError: it is not there, cannot be read, or is no report.
        Refused: it is damaged or was made to do harm.
    """
    if name == "-":
        return _of_bytes(sys.stdin.buffer.read(MAX_TEXT + 1), "standard input")
    path = Path(name)
    if path.is_dir():
        return load(path)
    try:
        if not path.is_file():
            raise UsageError(f"{name} is no report", why="it is neither a file nor a folder", hint=_HINT)
        with path.open("rb") as file:
            head = file.read(512)
        if head.startswith(_GZIP) and _unpacked_head(path)[257:262] == b"ustar":
            return load(path)
        with path.open("rb") as file:
            return _of_bytes(file.read(MAX_TEXT + 1), name)
    except OSError as error:
        raise UsageError(f"{name} cannot be read", why=error.strerror or str(error), hint=_HINT) from error


def is_fleet(name: str) -> bool:
    """Whether ``name`` is a folder of reports and not itself one."""
    path = Path(name)
    return name != "-" and path.is_dir() and not (path / INDEX).exists()


def _unpacked_head(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read(512)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return b""


def _of_bytes(data: bytes, place: str) -> Evidence:
    if data.startswith(_GZIP):
        data = _unpacked(data, place)
    if len(data) > MAX_TEXT:
        raise Refused(f"{place} is not read", why=f"it is larger than {MAX_TEXT >> 20} MiB", hint=_HINT)
    text = data.decode("utf-8", "replace")
    if not text.strip():
        raise UsageError(f"{place} is empty", hint=_HINT)
    if bug_report.is_bug_report(text):
        return bug_report.evidence(text)
    if _is_list(text):
        return pasted.from_json(text, place)
    return pasted.from_text(text, place)


def _is_list(text: str) -> bool:
    """Whether it means to be a JSON list; terminal text may begin with a bracket too (``[root@host ~]# …``)."""
    start = text.lstrip()
    if start.startswith("{"):
        return _holds_list(start)
    if not start.startswith("["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return start[1:].lstrip()[:1] in {"{", "]"}
    return True


def _holds_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text).get("evidence"), list)
    except (ValueError, RecursionError):
        return False


def _unpacked(data: bytes, place: str) -> bytes:
    # Of several members, as nvidia-bug-report.sh writes them: one for each of its sections.
    try:
        return gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_TEXT + 1)
    except (zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise Refused(f"{place} is damaged", why=str(error), hint="copy it again") from error
