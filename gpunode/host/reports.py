"""Reports about a node in any form: a capture, a pasted list, plain text, a bug report."""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import json
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gpunode.command import gpunode_command
from gpunode.errors import Refused, UsageError
from gpunode.facts import pasted
from gpunode.facts.evidence import TRUNCATION_KEY, Capture, Evidence
from gpunode.fast_dataclass import dataclass
from gpunode.host.capture import (
    CAPTURE_INDEX_NAME,
    describe_unreadable_format,
    is_packed_capture,
    load_capture,
    load_packed_capture,
)

MAX_REPORT_BYTES: Final = 64 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_REPORT_SUFFIXES: Final = (".tar.gz", ".tgz", ".log.gz", ".gz", ".json", ".txt", ".log")
_MAX_FOLDER_DEPTH: Final = 6
_MAX_ENTRIES: Final = 200_000
_FORMATS_HINT: Final = (
    "a report is a capture (`gpunode capture FILE`), an nvidia-bug-report.log.gz, a JSON list of "
    '{"source", "text"}, or the text of a terminal; - reads it from standard input'
)


_UNPACK_HINT: Final = "unpack it, or copy the text out of it: gpunode reads text, captures and bug reports"
_PERMISSION_HINT: Final = "run it as a user who may read the file, for example with sudo, or make your own copy of it"


def read_report(name: str) -> Evidence:
    """Read the report ``name``, whose format is detected by its content; ``-`` is standard input.

    Raises:
        UsageError: if it does not exist, cannot be read, or is no report.
        Refused: if it is damaged or malicious.
    """
    path = Path(name)
    if name != "-" and is_folder(path):
        return load_capture(path)
    place = "standard input" if name == "-" else name
    try:
        data = _read_bytes(path)
    except OSError as error:
        hint = _PERMISSION_HINT if error.errno in {errno.EACCES, errno.EPERM} else _FORMATS_HINT
        raise UsageError(f"{name} cannot be read", why=error.strerror or str(error), hint=hint) from error
    return load_packed_capture(io.BytesIO(data), place) if is_packed_capture(data) else _parse_bytes(data, place)


def _read_bytes(path: Path) -> bytes:
    """Return the content of ``path``, at most one byte more than a report may have. Raises OSError."""
    if str(path) == "-":
        return sys.stdin.buffer.read(MAX_REPORT_BYTES + 1)
    descriptor = _find_stream_descriptor(path)
    if descriptor is None and not _is_file(path):
        raise UsageError(f"{path} is not a report", why="it is neither a file nor a folder", hint=_FORMATS_HINT)
    with open(path if descriptor is None else descriptor, "rb", closefd=descriptor is None) as file:
        return file.read(MAX_REPORT_BYTES + 1)


# The path a shell writes for <(COMMAND), and others of open pipes; a named pipe may have no writer, so none is read.
_DESCRIPTOR_PATH: Final = re.compile(r"/(?:dev|proc/self)/fd/(?P<number>\d{1,9})|/dev/stdin")


def _find_stream_descriptor(path: Path) -> int | None:
    """Return the number of the open pipe that ``path`` names; None if it is a file or not open."""
    match = _DESCRIPTOR_PATH.fullmatch(str(path))
    return int(match["number"] or 0) if match and path.exists() and not path.is_file() else None


@dataclass(frozen=True, slots=True)
class FleetReport:
    """A report in a fleet.

    Attributes:
        name: for the table: as typed, or the path below the typed folder.
        path: of the report.
        problem: why it cannot be read; empty if it can.
    """

    name: str
    path: str
    problem: str = ""


def find_fleet_reports(names: Sequence[str]) -> tuple[FleetReport, ...]:
    """Find the reports ``names`` and those in the folders among them, each once.

    Raises:
        UsageError: if a folder cannot be read, holds a whole system, or none contains a report.
        Refused: if a folder is too large to be one of reports.
    """
    reports: dict[str, FleetReport] = {}
    for name in names:
        for report in _reports_in_folder(Path(name)) if is_fleet(name) else (FleetReport(name, name),):
            reports.setdefault(str(Path(report.path).absolute()), report)
    if not reports:
        raise UsageError(f"{', '.join(names)} contains no report", hint=_FORMATS_HINT)
    return tuple(reports.values())


def _reports_in_folder(top: Path) -> Iterator[FleetReport]:
    """Yield the reports below ``top`` by name, without hidden or other files; no link is followed."""
    if is_folder(top / "etc") and is_folder(top / "usr/bin"):
        raise UsageError(
            f"{top} is a root file system, not a folder of reports",
            why="it has etc and usr/bin; doctor examines the running machine, or reports",
            hint=f"to see what setup would do there:\n{gpunode_command('plan', '--root', str(top))}",
        )
    left = _MAX_ENTRIES
    folders = [(top, 0)]
    while folders:
        folder, depth = folders.pop()
        try:
            entries = _list_entries(folder)
        except OSError as error:
            why = error.strerror or str(error)
            if folder == top:
                raise UsageError(f"{top} cannot be read", why=why, hint=_FORMATS_HINT) from error
            yield FleetReport(str(folder.relative_to(top)), str(folder), f"it cannot be read: {why}")
            continue
        if (left := left - len(entries)) < 0:
            raise Refused(
                f"{top} is not read", why=f"it contains more than {_MAX_ENTRIES} files", hint="name a folder below it"
            )
        inner = [Path(entry.path) for entry in entries if _is_subfolder(entry)]
        deeper = [(path, depth + 1) for path in inner]
        yield from (found for entry in entries if not _is_subfolder(entry) and (found := _report_of_entry(entry, top)))
        if depth < _MAX_FOLDER_DEPTH:
            folders += reversed(deeper)
        else:
            yield from (FleetReport(str(one.relative_to(top)), str(one), "too many folders deep") for one, _ in deeper)


def _is_subfolder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and not _is_capture(Path(entry.path))


def _report_of_entry(entry: os.DirEntry[str], top: Path) -> FleetReport | None:
    name = str(Path(entry.path).relative_to(top))
    if entry.is_symlink():
        return FleetReport(name, entry.path, "it is a link, and links in a folder are not followed: name it directly")
    if entry.is_dir() or _looks_like_report(entry):
        return FleetReport(name, entry.path)
    is_pipe = not entry.is_file() and entry.name.endswith(_REPORT_SUFFIXES)
    return FleetReport(name, entry.path, "it is neither a file nor a folder") if is_pipe else None


def _list_entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        seen = [entry for entry, _ in zip(entries, range(_MAX_ENTRIES + 1), strict=False)]
    return sorted((entry for entry in seen if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _looks_like_report(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file():
        return False
    if entry.name.endswith(_REPORT_SUFFIXES):
        return True
    try:
        with Path(entry.path).open("rb") as file:
            return file.read(2) == _GZIP_MAGIC
    except OSError:
        return False


def is_fleet(name: str) -> bool:
    """Return whether ``name`` is a folder of reports and not itself one."""
    return name != "-" and is_folder(Path(name)) and not _is_capture(Path(name))


def is_folder(path: Path) -> bool:
    """Return whether there is a folder; False if it cannot be accessed."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _is_file(path: Path) -> bool:
    """Return whether there is a file; from Python 3.14 on Path.is_file returns False without permission."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except ValueError:
        return False
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return False
        raise


def _is_capture(folder: Path) -> bool:
    try:
        (folder / CAPTURE_INDEX_NAME).lstat()
    except OSError:
        return False
    return True


def _parse_bytes(data: bytes, place: str) -> Evidence:
    cut = ""
    if data.startswith(_GZIP_MAGIC):
        data, cut = _unpack(data, place)
    if len(data) > MAX_REPORT_BYTES:
        raise Refused(f"{place} is not read", why=f"it is larger than {MAX_REPORT_BYTES >> 20} MiB", hint=_FORMATS_HINT)
    if kind := describe_unreadable_format(data):
        raise UsageError(f"{place} is not a report", why=f"it is {kind}", hint=_UNPACK_HINT)
    text = _decode_text(data)
    if not text.strip():
        raise UsageError(f"{place} is empty", why=cut, hint=_FORMATS_HINT)
    evidence = _parse_text(text, place)
    return {**evidence, TRUNCATION_KEY: Capture("gzip -t", "failed", error=cut)} if cut else evidence


def _parse_text(text: str, place: str) -> Evidence:
    if pasted.is_bug_report(text):
        return pasted.parse_bug_report(text)
    if _is_json_list(text):
        return pasted.parse_json_report(text, place)
    return pasted.parse_text_report(text, place)


def _decode_text(data: bytes) -> str:
    """Decode ``data``; Windows editors and shells write a byte order mark or UTF-16."""
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if marked else "utf-8-sig", "replace")


def _is_json_list(text: str) -> bool:
    """Return whether it looks like a JSON list; a shell prompt may begin with a bracket, too (``[root@host ~]# …``)."""
    start = text.lstrip()
    if not start.startswith(("{", "[", '"', "null")):
        return False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        if start.startswith("{"):
            return bool(_DAMAGED_JSON_CAPTURE_LIST.search(start))
        # Other errors come from too many digits or too deep nesting, so it is still JSON.
        return not isinstance(error, json.JSONDecodeError) or bool(_DAMAGED_JSON_LIST_START.match(start))
    return isinstance(document.get("evidence"), list) if isinstance(document, dict) else True


# Two brackets begin a table of TOML, and empty ones a box of a checklist.
_DAMAGED_JSON_LIST_START: Final = re.compile(r'\[\s*(?:[{"]|\[\s*\[)')
_DAMAGED_JSON_CAPTURE_LIST: Final = re.compile(r'"evidence"\s*:\s*\[')


def _unpack(data: bytes, place: str) -> tuple[bytes, str]:
    """Unpack ``data`` as far as possible; return the content and the error, empty if none.

    It may have several gzip members: nvidia-bug-report.sh writes one for each of its sections.
    """
    unpacked = bytearray()
    file = gzip.GzipFile(fileobj=io.BytesIO(data))
    why = ""
    try:
        while len(unpacked) <= MAX_REPORT_BYTES and (chunk := file.read1(1 << 20)):
            unpacked += chunk
    except (zlib.error, gzip.BadGzipFile, EOFError) as error:
        if not unpacked:
            raise Refused(f"{place} is damaged", why=str(error), hint="copy it again") from error
        why = f"it is truncated or damaged after {len(unpacked)} bytes: {error}"
    return bytes(unpacked), why
