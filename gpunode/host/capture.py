"""Captures of nodes: probed like a node, saved without secrets, and read as untrusted input."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias, get_args

from gpunode.errors import Refused, UsageError
from gpunode.facts.evidence import (
    NOT_CAPTURED_REASON,
    Capture,
    ContentKind,
    Evidence,
    Probe,
    ProbeOutcome,
    decode_matches,
    decode_ownership,
    encode_ownership,
)
from gpunode.fast_dataclass import dataclass

if TYPE_CHECKING:
    import tarfile

    from typing_extensions import Self

    from gpunode.change import PackageChange

CAPTURE_SCHEMA_VERSION: Final = 2
CAPTURE_INDEX_NAME: Final = "capture.json"
_PROBE_ROWS_FIELD: Final = "probes"
# Keys that schema 1 names differently; it also has ``captures`` for ``probes``.
_SCHEMA_1_RENAMED_KEYS: Final[Mapping[str, str]] = {"holds": "content_kind", "changed": "ctime"}
MAX_UNPACKED_BYTES: Final = 96 << 20
MAX_ARCHIVE_MEMBERS: Final = 4096
# A real capture has a few hundred kilobytes; both limits bound the time to read one.
MAX_PACKED_BYTES: Final = 64 << 20
MAX_INDEX_BYTES: Final = 8 << 20
# Per member, and for all members; programs that repack a capture write a few hundred bytes. Python without the fix for
# CVE-2024-6232 needs time quadratic in the length.
_MAX_EXTENDED_HEADER_BYTES: Final = 4096
_MAX_ALL_EXTENDED_BYTES: Final = 512 << 10
_GZIP_MAGIC: Final = b"\x1f\x8b"
# Enough of a packed file to unpack the first block of an archive, however badly compressed.
_MAX_HEAD_BYTES: Final = 64 << 10
_GLOB_SOURCE: Final = re.compile(r"/[^\s*]*\*\S*")
_NAME_READABLE_CAPTURE_HINT: Final = "name an existing capture that you may read; `gpunode capture FILE` takes one"
_RETAKE_CAPTURE_HINT: Final = "take the capture again with `gpunode capture FILE`"


# The source of a capture, for messages: a path, or the description of a stream.
CapturePlace: TypeAlias = Path | str


@dataclass(frozen=True, slots=True)
class CaptureHost:
    """A captured node, which can be probed."""

    evidence: Evidence

    def run_probe(self, probe: Probe, /) -> Capture:
        """Return what ``probe`` returned on the node."""
        capture = self.evidence.get(probe.key)
        return capture or Capture(probe.source, "failed", error=NOT_CAPTURED_REASON)

    def read_live_distribution(self) -> None:
        """Return None: the evidence has all that there is."""

    def simulate(self, changes: Sequence[PackageChange], /) -> None:
        """Return None: a capture has no package manager."""


def save_capture(evidence: Evidence, path: Path) -> None:
    """Write ``evidence``, redacted and private, as an archive.

    Law: ``load_capture(path) == redact(evidence)``.

    Raises:
        UsageError: if it cannot be written there.
    """
    from gpunode.host import output
    from gpunode.redaction.evidence import redact

    members = dict(_make_members(redact(evidence)))
    try:
        output.write_output_with(path, partial(_write_archive, members))
    except OSError as error:
        raise UsageError(
            f"the capture cannot be written to {path}",
            why=_explain_os_error(error, path),
            hint="name a file that you may write, on a disk with room",
        ) from error


def _explain_os_error(error: OSError, path: Path) -> str:
    """Return the system's error, without the name of our temporary file."""
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist, or you may not write to it"
    return error.strerror or str(error)


def _make_members(evidence: Evidence) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a capture: the index, and one for every probe that returned data."""
    rows: dict[str, object] = {}
    names: set[str] = {CAPTURE_INDEX_NAME}
    for key, capture in sorted(evidence.items()):
        row = _make_row(key, capture)
        if capture.data:
            row["file"] = name = _member_name(key, names)
            names.add(name)
            yield name, capture.data
        rows[key] = row
    index = {"schema": CAPTURE_SCHEMA_VERSION, _PROBE_ROWS_FIELD: rows}
    yield CAPTURE_INDEX_NAME, (json.dumps(index, indent=1) + "\n").encode()


def _make_row(key: str, capture: Capture) -> dict[str, object]:
    row: dict[str, object] = {
        "source": capture.source,
        "outcome": capture.outcome,
        "content_kind": capture.content_kind,
    }
    if capture.error:
        row["error"] = capture.error
    if capture.exit_status is not None:
        row["exit_status"] = capture.exit_status
    if capture.ownership is not None:
        own = capture.ownership
        row.update(encode_ownership(own))
        # For other probes the time would only make two captures of the same state differ.
        if own.ctime is not None and key.startswith("file:"):
            row["ctime"] = round(own.ctime, 6)
    return row


def _member_name(key: str, taken: set[str]) -> str:
    """Return a portable file name like ``key`` that differs, ignoring case, from those in ``taken``."""
    base = "data/" + (re.sub(r"[^a-z0-9_.-]+", "_", key.lower()).strip("._-")[:80] or "probe")
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def _write_archive(members: Mapping[str, bytes], file: IO[bytes]) -> None:
    import tarfile

    # Store no times and no names of this node: two captures of the same state are the same bytes.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in sorted(members.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))


def load_capture(path: Path) -> Evidence:
    """Load the capture at ``path``, whose format is detected by its content.

    Raises:
        UsageError: if there is no capture at ``path``.
        Refused: if it is damaged, malicious, or from a newer gpunode.
    """
    with _explain_read_errors(path):
        if path.is_dir():
            return _load_folder(path)
        if path.exists() and not path.is_file():  # opening a pipe could block forever
            raise _unrecognised_error(path, b"")
        with path.open("rb") as file:
            head = file.read(_MAX_HEAD_BYTES)
            if not is_packed_capture(head):
                raise _unrecognised_error(path, _unpack_head(head))
            file.seek(0)
            return load_packed_capture(file, path)


def is_packed_capture(data: bytes) -> bool:
    """Return whether it begins like a packed tar archive, as captures do."""
    with suppress(zlib.error):
        return data.startswith(_GZIP_MAGIC) and _unpack_head(data)[257:262] == b"ustar"
    return False


def _unpack_head(data: bytes) -> bytes:
    """Return the first bytes of ``data``, unpacked if it is packed. Raises zlib.error."""
    # 31 is a window of any size, and gzip's header.
    packed, head = data.startswith(_GZIP_MAGIC), data[:_MAX_HEAD_BYTES]
    return zlib.decompressobj(31).decompress(head, _HEAD_BYTES) if packed else head[:_HEAD_BYTES]


def load_packed_capture(file: IO[bytes], place: CapturePlace) -> Evidence:
    """Load a packed capture, by the same rules as ``load_capture``; ``place`` names it in messages.

    Raises:
        UsageError: if it cannot be read.
        Refused: if it is damaged, malicious, or from a newer gpunode.
    """
    with _explain_read_errors(place):
        packed = _LimitedStream(file, place, MAX_PACKED_BYTES, f"is larger than {MAX_PACKED_BYTES >> 20} MiB")
        return _decode_evidence(_read_archive(packed, place).__getitem__, place)


@contextmanager
def _explain_read_errors(place: CapturePlace) -> Iterator[None]:
    """Turn errors about a capture into messages that name it."""
    from tarfile import TarError

    unpacking_errors = (TarError, zlib.error)
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{place} cannot be read", why=error.strerror or str(error), hint=_NAME_READABLE_CAPTURE_HINT
        ) from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, EOFError, *unpacking_errors) as error:
        # The text of a KeyError is only the missing key.
        why = f"there is no {error.args[0]} in it" if isinstance(error, KeyError) and error.args else str(error)
        raise Refused(f"{place} is damaged", why=why, hint=f"copy it again, or {_RETAKE_CAPTURE_HINT}") from error


def _unrecognised_error(path: Path, start: bytes) -> UsageError:
    from gpunode.facts.pasted import is_bug_report  # defined with the readers of pasted text

    if is_bug_report(start.decode("utf-8", "replace")):
        kind = "it is the log of nvidia-bug-report.sh, which lacks files that this command needs"
    elif start.lstrip()[:1] == b"[":
        kind = "it is a JSON list of pasted texts, which lacks files that this command needs"
    elif start and not describe_unreadable_format(start):
        kind = "it is pasted text, which lacks files that this command needs"
    else:
        kind = f"it is neither a .tar.gz nor a folder with {CAPTURE_INDEX_NAME}"
    return UsageError(
        f"{path} is not a capture of a node", why=kind, hint=f"{_RETAKE_CAPTURE_HINT}; `gpunode doctor` reads text"
    )


def _harmful_error(path: CapturePlace, member: str, why: str) -> Refused:
    return Refused(
        f"{path} was not read: it has an invalid member",
        why=f"{member}: {why}",
        hint=f"do not unpack it by hand; {_RETAKE_CAPTURE_HINT}",
    )


@dataclass(slots=True)
class _LimitedStream:
    """A stream with a size limit against decompression bombs and endless pipes."""

    stream: IO[bytes] | gzip.GzipFile
    path: CapturePlace
    left: int
    limit_message: str

    def read(self, size: int) -> bytes:
        data = self.stream.read(min(size, self.left + 1))
        self.left -= len(data)
        if self.left < 0:
            raise _harmful_error(self.path, "the archive", self.limit_message)
        return data


def _read_archive(file: _LimitedStream, path: CapturePlace) -> Mapping[str, bytes]:
    import tarfile  # loaded on use: most reports are texts

    left = _MAX_ALL_EXTENDED_BYTES

    class Member(tarfile.TarInfo):
        """A member whose extended headers are short."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            nonlocal left
            found = super().frombuf(buf, encoding, errors)
            if found.type in {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE}:
                left -= found.size
                if left < 0 or found.size > _MAX_EXTENDED_HEADER_BYTES:
                    raise _harmful_error(path, found.name, "has too long an extended header")
            return found

    # Headers, padding and the end of the archive come on top of what the members hold.
    most, limit_message = (
        MAX_UNPACKED_BYTES + MAX_ARCHIVE_MEMBERS * 2048,
        f"unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB",
    )
    # gzip and tarfile call only read() on a stream that is read once from its start.
    unpacked = gzip.GzipFile(fileobj=file)  # type: ignore[call-overload]
    metered = _LimitedStream(unpacked, path, most, limit_message)
    members: dict[str, bytes] = {}
    seen_names: set[str] = set()
    with tarfile.open(fileobj=metered, mode="r|", tarinfo=Member) as archive:  # type: ignore[call-overload]
        for member in archive:
            _refuse_harmful_member(member, path, seen_names)
            seen_names.add(_normalize_member_name(member.name))
            if member.isreg():
                content = archive.extractfile(member)
                members[member.name] = content.read() if content else b""
    while metered.read(1 << 16):  # gzip compares its checksum at the very end
        pass
    return _without_top_folder(members)


def _refuse_harmful_member(member: tarfile.TarInfo, path: CapturePlace, seen_names: set[str]) -> None:
    name = member.name
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or "\\" in name:
        raise _harmful_error(path, name, "its name points outside of the capture")
    if member.isreg() and _normalize_member_name(name) in seen_names:
        raise _harmful_error(path, name, "appears twice")
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise _harmful_error(path, name, "is a link or a device, not a file")
    if not 0 <= member.size <= MAX_UNPACKED_BYTES:
        raise _harmful_error(path, name, f"is larger than {MAX_UNPACKED_BYTES >> 20} MiB")
    if len(seen_names) >= MAX_ARCHIVE_MEMBERS:
        raise _harmful_error(path, name, f"exceeds the limit of {MAX_ARCHIVE_MEMBERS} members")


def _normalize_member_name(name: str) -> str:
    """Normalize a member's name: ``./a//b`` and ``a/b`` are the same."""
    return "/".join(part for part in name.split("/") if part not in {"", "."})


def _without_top_folder(members: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Name the members relative to the capture's folder, which people pack as ``./`` or with its name."""
    plain = {_normalize_member_name(name): data for name, data in members.items()}
    indexes = sorted(
        (name for name in plain if f"/{name}".endswith(f"/{CAPTURE_INDEX_NAME}")), key=lambda name: name.count("/")
    )
    if not indexes:
        raise ValueError(f"no {CAPTURE_INDEX_NAME} in it")
    top = indexes[0].removesuffix(CAPTURE_INDEX_NAME)
    return {name.removeprefix(top): data for name, data in plain.items() if name.startswith(top)}


def _load_folder(path: Path) -> Evidence:
    if not (path / CAPTURE_INDEX_NAME).exists():
        raise _unrecognised_error(path, b"")
    left = MAX_UNPACKED_BYTES

    def read(name: str) -> bytes:
        nonlocal left
        data = _read_regular_file(path, name, left)
        left -= len(data)
        return data

    return _decode_evidence(read, path)


def _read_regular_file(folder: Path, name: str, limit: int) -> bytes:
    if (folder / "data").is_symlink():
        raise _harmful_error(folder, "data", "is a link, not a folder")
    try:
        # Do not follow a link out of the folder, and do not block on a pipe.
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise KeyError(name) from error
    except OSError as error:
        raise _harmful_error(folder, name, f"cannot be opened as a plain file ({error.strerror})") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _harmful_error(folder, name, "is not a plain file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise _harmful_error(folder, name, f"makes the capture larger than {MAX_UNPACKED_BYTES >> 20} MiB")
    return data


def _decode_evidence(read_member: Callable[[str], bytes], path: CapturePlace) -> Evidence:
    if len(packed := read_member(CAPTURE_INDEX_NAME)) > MAX_INDEX_BYTES:
        raise _harmful_error(path, CAPTURE_INDEX_NAME, f"is larger than {MAX_INDEX_BYTES >> 20} MiB")
    try:
        index = json.loads(packed)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{CAPTURE_INDEX_NAME} is not JSON that gpunode wrote: {str(error)[:80]}") from error
    schema = index.get("schema") if isinstance(index, dict) else None
    if type(schema) is not int or schema < 1:
        raise ValueError(f"{CAPTURE_INDEX_NAME} has no schema")
    if schema > CAPTURE_SCHEMA_VERSION:
        raise Refused(
            f"{path} was captured by a newer gpunode",
            why=f"its schema is {schema}; this gpunode reads 1 and {CAPTURE_SCHEMA_VERSION}",
            hint="upgrade gpunode (`pipx upgrade gpunode`), or capture the node again with this version",
        )
    rows = index.get(_PROBE_ROWS_FIELD if schema == CAPTURE_SCHEMA_VERSION else "captures")
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise ValueError(f"{CAPTURE_INDEX_NAME} does not list probes by name")
    if len(rows) > MAX_ARCHIVE_MEMBERS:
        raise _harmful_error(path, CAPTURE_INDEX_NAME, f"lists more than {MAX_ARCHIVE_MEMBERS} probes")
    if schema == 1:
        rows = {
            key: {_SCHEMA_1_RENAMED_KEYS.get(name, name): value for name, value in row.items()}
            for key, row in rows.items()
        }
    return {str(key): _decode_capture(row, read_member, path) for key, row in rows.items()}


def _decode_capture(row: Mapping[str, Any], read_member: Callable[[str], bytes], path: CapturePlace) -> Capture:
    name, status = row.get("file"), row.get("exit_status")
    outcome: Any = row.get("outcome")
    if outcome not in get_args(ProbeOutcome):
        raise ValueError(f"unknown outcome {str(outcome)[:40]!r}")
    if not isinstance(row.get("source"), str) or not isinstance(row.get("error", ""), str):
        raise ValueError("source or error is not text")
    # Captures of an older gpunode lack this field; their secrets were removed when they were taken.
    content_kind: Any = row.get("content_kind", "log")
    if content_kind not in get_args(ContentKind):
        raise ValueError(f"unknown kind of content {str(content_kind)[:40]!r}")
    if status is not None and type(status) is not int:
        raise ValueError("exit_status is not a number")
    if name is not None and not re.fullmatch(r"data/[A-Za-z0-9_][A-Za-z0-9_.-]*", str(name)):
        raise _harmful_error(path, str(name)[:200], "is not a file of the capture's data folder")
    data = read_member(str(name)) if name is not None else b""
    if outcome == "ok" and _GLOB_SOURCE.fullmatch(row["source"]):
        decode_matches(data)  # what no reader understands would count as files that are not there
    return Capture(
        source=row["source"],
        outcome=outcome,
        data=data,
        error=row.get("error", ""),
        exit_status=status,
        ownership=decode_ownership(row),
        content_kind=content_kind,
    )


# What a file of each kind begins with; text in UTF-16 with a byte order mark is read.
_UNREADABLE_FORMATS: Final = (
    (b"\x1f\x8b", "packed with gzip twice"),
    (b"\xfd7zXZ\x00", "packed with xz"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd"),
    (b"BZh", "packed with bzip2"),
    (b"PK\x03\x04", "a zip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"\x04\x22\x4d\x18", "packed with lz4"),
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"%PDF-", "a PDF document"),
    (b"\x7fELF", "a program"),
    (b"LPKSHHRH", "a journal of systemd (journalctl --file FILE shows it)"),
    (b"\x00\x00\xfe\xff", "text in UTF-32"),
    (b"\xff\xfe\x00\x00", "text in UTF-32"),
)
_HEAD_BYTES: Final = 4096
_TEXT_CONTROL_CHARACTERS: Final = b"\t\n\r\f\x08\x1b"


def describe_unreadable_format(data: bytes) -> str:
    """Return what ``data`` is if it cannot be a report, in words that follow "it is"; empty if it may be text."""
    for start, what in _UNREADABLE_FORMATS:
        if data.startswith(start):
            return what
    if data[257:262] == b"ustar":
        return "a tar archive that is not packed"
    head = data[:_HEAD_BYTES]
    controls = sum(byte < 32 and byte not in _TEXT_CONTROL_CHARACTERS for byte in head)
    is_text = head.startswith((b"\xff\xfe", b"\xfe\xff")) or controls * 4 <= len(head)
    return "" if is_text else "not text in UTF-8, or UTF-16 with its mark: it contains many zero bytes"
