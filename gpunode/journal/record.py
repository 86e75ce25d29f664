"""Entries of the journal: what is written, and how it is read back. Pure.

A journal has one JSON object per line, ``{"v":4,"sum":"…","entry":{…}}``; ``sum`` covers the format, the sum of the
line before, and the exact bytes of ``entry``, so a line that was changed, lost, moved or added is detected. Entries
that are written together form one line, as a list if there are several: all of them count, or none.
The bytes of files are not in it: a state names its backup object by sha256.

Format 3 is read as well; it has other names for a few types and keys, see ``_TYPE_RENAMES_OF_FORMAT_3``. A run that one
version of gpunode began and another ended has lines of both.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache, lru_cache
from typing import Any, Literal, TypeAlias, get_args

from gpunode.change import (
    Change,
    Deferred,
    FileState,
    KnownAfter,
    MigInstance,
    MigLayout,
    PackageState,
    ServiceState,
    SigningKey,
    Trigger,
    digest,
)
from gpunode.errors import JournalDamaged
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId

JOURNAL_FORMAT = 4
READABLE_JOURNAL_FORMATS = (3, JOURNAL_FORMAT)
Verb: TypeAlias = Literal[
    "setup", "rollback", "remove", "repair", "configure", "unconfigure", "k8s apply", "k8s remove", "k8s rollback"
]
# The verbs whose runs set something up on a node; the others undo such runs, or repair packages.
APPLYING_VERBS: frozenset[Verb] = frozenset({"setup", "configure", "unconfigure"})
Result: TypeAlias = Literal["done", "failed", "interrupted", "waiting"]
LoadContent: TypeAlias = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Begin:
    """A run starts.

    Attributes:
        at: seconds since the epoch, as in every other entry.
        boot_id: the boot id of the running kernel; empty in an image.
        user: who started it, or the user behind sudo.
        undoes: the run that is undone; empty unless the verb is ``rollback``.
        with_packages: whether packages, sources and everything else are undone as well as the configuration.
        uid: the real one; 0 behind sudo. Likewise ``loginuid``, which the kernel keeps through su and sudo from the
            login on (audit's auid); None if nobody logged in, such as in a unit.
    """

    run: str
    at: float
    verb: Verb
    version: str
    recipe: str
    recipe_sha256: str
    boot_id: str
    user: str
    argv: tuple[str, ...]
    undoes: str = ""
    with_packages: bool = False
    uid: int = 0
    loginuid: int | None = None

    @property
    def title(self) -> str:
        """The command in a few words: ``setup containerd``, ``rollback of 000002-20261121T081932Z``."""
        return " ".join(filter(None, (self.verb, self.recipe, self.undoes and f"of {self.undoes}")))


@dataclass(frozen=True, slots=True)
class Intent:
    """A change is about to be made; from now on it may have happened.

    Attributes:
        stage: the name of the stage in this version of gpunode, like ``step``.
    """

    seq: int
    stage: str
    step: str
    change: Change
    reason: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """The change has been made and is on disk."""

    seq: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The change could not be made; ``error`` says why, and what was restored."""

    seq: int
    error: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class TriggerCompleted:
    """The trigger was carried out, or something else did its work: ``note`` says which."""

    trigger: Trigger
    note: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Commit:
    """The run is over; a journal without it was interrupted.

    Attributes:
        reason: why it ended this way; empty for a completed run.
    """

    result: Result
    reason: str = ""
    at: float = 0.0


Entry: TypeAlias = Begin | Intent | Done | Failed | TriggerCompleted | Commit

_TYPE_NAMES: dict[type[Any], str] = {
    Begin: "begin",
    Intent: "intent",
    Done: "done",
    Failed: "failed",
    TriggerCompleted: "trigger-completed",
    Commit: "commit",
    FileState: "file-state",
    Deferred: "deferred",
    SigningKey: "signing-key",
    PackageState: "package-state",
    KnownAfter: "known-after",
    ServiceState: "service-state",
    MigLayout: "mig-layout",
    MigInstance: "mig-instance",
    Trigger: "trigger",
    **{change: change.kind_name for change in get_args(Change)},
}
_TYPES_BY_NAME = {name: kind for kind, name in _TYPE_NAMES.items()}
_TYPE_KEY = "type"
# Other names in format 3: the key of a type, a type, and keys by the type that has them.
_FORMAT_3_TYPE_KEY = "is"
_TYPE_RENAMES_OF_FORMAT_3 = {"settle": "trigger-completed"}
_KEY_RENAMES_OF_FORMAT_3: dict[str, dict[str, str]] = {
    "begin": {"of": "undoes", "whole": "with_packages"},
    "failed": {"why": "error"},
    "commit": {"why": "reason"},
    "command": {"why": "purpose"},
    "file-state": {"content": "sha256", "attributes": "xattrs"},
}
# Keyed by the annotations' text, see _stored_fields.
_TYPES_BY_SCALAR_ANNOTATION: dict[str, tuple[type[Any], ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "Verb": (str,),
    "Result": (str,),
    "bool": (bool,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
}
_STRING_TUPLE_ANNOTATION = "tuple[str, ...]"
_PACKAGE_ID_ANNOTATION = "PackageId"
# The stored keys of fields with a stand-in value, by the annotations' text.
_STORED_KEY_BY_ANNOTATION = {_PACKAGE_ID_ANNOTATION: "name", "bytes": "sha256"}
_LARGEST_NUMBER = 1 << 36
_ENTRY_TYPES = (Begin, Intent, Done, Failed, TriggerCompleted, Commit)
_JOURNAL_LINE = re.compile(rb'\{"v":([0-9]{1,9}),"sum":"([0-9a-f]{16})","entry":(\{.*\}|\[.*\])\}', re.DOTALL)


def encode(entry: Entry, *more: Entry, previous_line: bytes = b"") -> bytes:
    """Return the entries as a journal's line after ``previous_line``, which is empty for the first."""
    body = json.dumps(_encode_value((entry, *more) if more else entry), separators=(",", ":")).encode()
    version = b"%d" % JOURNAL_FORMAT
    checksum = _checksum(version, _stored_checksum(previous_line), body)
    return b'{"v":%s,"sum":"%s","entry":%s}\n' % (version, checksum, body)


def decode(data: bytes, load: LoadContent, *, file: str = "journal.jsonl") -> tuple[Entry, ...]:
    """Return the entries of a journal; a last line torn by a power cut was never acted upon and is dropped.

    Args:
        data: the journal as it is on disk.
        load: returns the bytes of a backup object, by its sha256.
        file: the journal's name in messages.

    Raises:
        JournalDamaged: a line differs from what was written; nothing is guessed from the others.
    """
    read = without_torn_line(data).split(b"\n")[:-1]
    above = (b"", *read)
    return tuple(
        entry
        for number, line in enumerate(read, 1)
        for entry in _decode_line(line, above[number - 1], load, file, number)
    )


def without_torn_line(data: bytes) -> bytes:
    """Return a journal without a line torn by a power cut.

    Such a line has no end; or it contains zeroes, which no complete line does: the file had its new length already, but
    some bytes had not reached the disk.
    """
    ended = data[: data.rfind(b"\n") + 1]
    last = ended.rfind(b"\n", 0, -1) + 1
    until_the_hole, hole, _ = ended[last:].partition(b"\0")
    # A zero after a complete line replaced its newline: the line had been on disk, so this is damage.
    return ended[:last] if hole and not _JOURNAL_LINE.fullmatch(until_the_hole) else ended


def _stored_checksum(line: bytes) -> bytes:
    """Return the sum in a line; empty for no line."""
    match = _JOURNAL_LINE.fullmatch(line.rstrip(b"\n"))
    return match[2] if match else b""


def _checksum(version: bytes, previous_checksum: bytes, body: bytes) -> bytes:
    return hashlib.sha256(b"%s:%s:%s" % (version, previous_checksum, body)).hexdigest()[:16].encode()


def _encode_value(value: object) -> object:
    """Return ``value`` in JSON's types; a dataclass has its name as ``type``."""
    if isinstance(value, bytes):
        return digest(value)
    if isinstance(value, tuple):
        return [_encode_value(item) for item in value]
    if isinstance(value, frozenset):
        return sorted((_encode_value(item) for item in value), key=json.dumps)
    if isinstance(value, PackageId):
        return str(value)
    if (name := _TYPE_NAMES.get(type(value))) is not None:
        return {
            _TYPE_KEY: name,
            **{key: _encode_field(kind, getattr(value, at)) for key, (at, kind) in _stored_fields(name).items()},
        }
    return value


def _encode_field(field_format: str, value: object) -> object:
    """Return a field in JSON's types: the inverse of ``_decode_field``."""
    if field_format == "xattrs":
        assert isinstance(value, tuple)
        return {name: content.hex() for name, content in value}
    return _encode_value(value)


@cache
def _stored_fields(name: str) -> dict[str, tuple[str, str]]:
    """Return, by JSON key, the field of a ``name`` and its format, which is empty for a plain value."""
    # Use the annotations' text: evaluating them with typing takes 3 ms of a run that reads one journal.
    found = ((field.name, str(field.type)) for field in fields(_TYPES_BY_NAME[name]))
    return {_STORED_KEY_BY_ANNOTATION.get(kind, at): (at, _field_format(kind)) for at, kind in found}


def _field_format(annotation: str) -> str:
    if annotation == "bytes":
        return "bytes"
    if annotation == "tuple[tuple[str, bytes], ...]":
        return "xattrs"
    if annotation in _TYPES_BY_SCALAR_ANNOTATION or annotation in (_STRING_TUPLE_ANNOTATION, _PACKAGE_ID_ANNOTATION):
        return annotation
    return "set" if annotation.startswith("frozenset[") else ""


def _decode_line(line: bytes, previous_line: bytes, load: LoadContent, file: str, number: int) -> tuple[Entry, ...]:
    match = _JOURNAL_LINE.fullmatch(line)
    if match is not None and int(match[1]) not in READABLE_JOURNAL_FORMATS:
        readable = " and ".join(map(str, READABLE_JOURNAL_FORMATS))
        raise damaged_line_error(
            file, number, f"it was written by another gpunode, in format {int(match[1])}; this one reads {readable}"
        )
    if match is None or _checksum(match[1], _stored_checksum(previous_line), match[3]) != match[2]:
        raise damaged_line_error(
            file, number, "this line or the one before it was altered: the checksum does not match"
        )
    try:
        stored = json.loads(match[3])
        read = _decode_value(_convert_format_3(stored) if int(match[1]) == 3 else stored, load)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged_line_error(file, number, f"no gpunode writes such a line: {error}") from error
    entries = read if isinstance(read, tuple) else (read,)
    if not all(isinstance(entry, _ENTRY_TYPES) for entry in entries):
        raise damaged_line_error(file, number, "the line is not a journal entry")
    return entries


def _convert_format_3(value: Any) -> Any:
    """Return a value of a line in format 3 with the names of format 4."""
    if isinstance(value, list):
        return [_convert_format_3(item) for item in value]
    if not isinstance(value, dict):
        return value
    former = value[_FORMAT_3_TYPE_KEY]
    renamed = _KEY_RENAMES_OF_FORMAT_3.get(former, {})
    stored = {key: item for key, item in value.items() if key != _FORMAT_3_TYPE_KEY}
    if foreign := stored.keys() & {_TYPE_KEY, *renamed.values()}:
        raise ValueError(f"unknown: {', '.join(sorted(foreign))}")
    return {
        _TYPE_KEY: _TYPE_RENAMES_OF_FORMAT_3.get(former, former),
        # Extended attributes are a plain table of strings.
        **{renamed.get(k, k): item if k == "attributes" else _convert_format_3(item) for k, item in stored.items()},
    }


def _decode_value(value: Any, load: LoadContent) -> Any:
    """Return the value that ``_encode_value`` encoded."""
    if isinstance(value, list):
        return tuple(_decode_value(item, load) for item in value)
    if not isinstance(value, dict):
        return value
    shape = _stored_fields(value[_TYPE_KEY])
    if unknown := value.keys() - shape.keys() - {_TYPE_KEY}:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    stored = ((*shape[key], item) for key, item in value.items() if key != _TYPE_KEY)
    return _TYPES_BY_NAME[value[_TYPE_KEY]](**{at: _decode_field(kind, item, load) for at, kind, item in stored})


def _decode_field(field_format: str, value: Any, load: LoadContent) -> Any:
    match field_format:
        case "bytes":
            return load(value)
        case "set":
            return frozenset(_decode_value(item, load) for item in value)
        case "xattrs":
            return tuple((name, bytes.fromhex(content)) for name, content in value.items())
        case _ if field_format == _STRING_TUPLE_ANNOTATION:
            return tuple(_check_scalar("str", word) for word in value)
        case _ if field_format == _PACKAGE_ID_ANNOTATION:
            return PackageId.of(_check_scalar("str", value))
        case _ if field_format in _TYPES_BY_SCALAR_ANNOTATION:
            return _check_scalar(field_format, value)
        case _:
            return _decode_value(value, load)


def _check_scalar(annotation: str, value: Any) -> Any:
    """Return ``value`` if a field of that type can hold it: numbers are not negative, and times not too far away."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if type(value) not in _TYPES_BY_SCALAR_ANNOTATION[annotation] or (is_number and not 0 <= value < _LARGEST_NUMBER):
        raise ValueError(f"{str(value)[:40]!r} is not a valid {annotation}")
    return value


def damaged_line_error(file: str, line: int, why: str) -> JournalDamaged:
    """Return the error that stops every reader of the journal ``file``."""
    return JournalDamaged(
        f"the journal {file} is damaged in line {line}",
        why=why,
        hint="Nothing was changed. Restore that file from a backup of this machine, or move its folder away:\n"
        "gpunode then works again, but can no longer undo that run (its saved files stay in objects/).",
    )


@lru_cache(maxsize=8)  # a setup with nothing to do reads the same few journals six times
def decode_without_contents(data: bytes, *, file: str = "journal.jsonl", run: str = "") -> tuple[Entry, ...]:
    """Return the entries of a journal without the bytes of files: each ``content`` names its backup object.

    Raises:
        JournalDamaged: as ``decode``; or if it belongs to another run than ``run``, unless that is empty.
    """
    entries = decode(data, str.encode, file=file)
    if run and not (entries and isinstance(entries[0], Begin) and entries[0].run == run):
        raise damaged_line_error(file, 1, f"it does not begin run {run}, but is in the folder of that run")
    return entries
