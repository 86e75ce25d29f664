"""Configuration files as documents, TOML or JSON: read with distrust, compared, and edited so that foreign bytes stay.

The editors are modules of their own, loaded on use: a file that is right already needs none.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from gpunode.errors import Refused
from gpunode.toml import loads

Path: TypeAlias = tuple[str, ...]
# TOML's own shape: tables of tables of values.
Document: TypeAlias = dict[str, Any]
# UTF-8's byte order mark, which most daemons take and parsers do not.
_BYTE_ORDER_MARK = "\ufeff"


def decode_config(data: bytes | None, path: str) -> str:
    """The file's text without its byte order mark; empty for a missing file.

    Raises:
        Refused: it is not UTF-8; names the line and the column, in bytes.
    """
    raw = data or b""
    try:
        return raw.decode().removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise Refused(
            f"{path}:{line}:{column}: not UTF-8 text",
            why=f"byte 0x{raw[error.start]:02x} is not valid UTF-8",
            hint=f"save {path} as UTF-8, then run the command again",
        ) from error


def has_byte_order_mark(data: bytes | None) -> bool:
    """Return whether a file begins with a byte order mark."""
    return (data or b"").startswith(_BYTE_ORDER_MARK.encode())


def encode_config(text: str, former_content: bytes | None) -> bytes:
    """``text`` as a file, with a byte order mark if ``former_content`` had one."""
    return ((_BYTE_ORDER_MARK if has_byte_order_mark(former_content) else "") + text).encode()


class VerbatimFloat(str):
    """A float as it was written, so that 1e3 stays 1e3 and nan equals nan."""

    __slots__ = ()


@lru_cache(maxsize=8)
def parse_toml(text: str) -> Document:
    """The document; floats keep their spelling. Nobody changes it: who asks for the same text again gets the same one.

    Reading takes longer than all else that is done with a large file, and what was read to prove an edit is read again
    by the check of what the edit means.

    Raises:
        ValueError: the text is not TOML, or holds a number that Python will not read.
    """
    document: Document = loads(text, parse_float=VerbatimFloat)
    return document


def parse_toml_file(data: bytes | None, path: str, *, hint: str, also: str = "") -> Document:
    """The file's document; empty for a missing file.

    Args:
        data: the file.
        path: its name, for messages.
        hint: what to do where it is not TOML.
        also: what comes of that, beside the parser's words.

    Raises:
        Refused: it is not TOML, or not UTF-8.
    """
    text = decode_config(data, path)
    try:
        return parse_toml(text)
    except ValueError as error:
        match = re.search(r"\(at line (\d+), column \d+\)", str(error))
        place = f"{path}:{match[1]}" if match else path
        raise Refused(f"{place}: not valid TOML", why=f"{error}{also}", hint=hint) from error


def is_json(path: str, *contents: bytes | None) -> bool:
    """Return whether a file is JSON: by its name, or because it begins as neither TOML nor a template does."""
    starts = ((content or b"").removeprefix(codecs.BOM_UTF8).lstrip()[:2] for content in contents)
    return path.endswith(".json") or any(start[:1] == b"{" and start != b"{{" for start in starts)


def parse_document(data: bytes | None, path: str) -> Document:
    """Return what a file of TOML or JSON says; empty for a missing or blank one.

    Raises:
        ValueError: it is neither.
        Refused: it is not UTF-8.
    """
    text = decode_config(data, path)
    if not is_json(path, data):
        return parse_toml(text)
    from gpunode.runtimes import jsontext

    document = jsontext.parse(text) if text.strip() else {}
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return document


def reads_as(data: bytes, path: str, document: Document) -> bool:
    """Return whether a file says the same as ``document``."""
    try:
        return is_same_value(parse_document(data, path), document)
    except (ValueError, Refused):
        return False


# Values in documents.


def value_at(document: Document, keys: Sequence[str]) -> Any:
    """Return the value at ``keys``; None when nothing does, or what is above it is no table."""
    node: Any = document
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def with_value(document: Document, keys: Sequence[str], value: Any, *, prune: bool = False) -> Document:
    """Return a copy of ``document`` with ``value`` at ``keys``; None takes out what is there.

    What is no table on the way there gives way to one. With ``prune`` a table goes with the last key that it had.
    """
    key, *below = keys
    if below:
        former = document.get(key)
        table = with_value(former if isinstance(former, dict) else {}, below, value, prune=prune)
        value = None if prune and not table and (former or key not in document) else table
    if value is None:
        return {name: one for name, one in document.items() if name != key}
    return {**document, key: value}


def is_same_value(one: Any, other: Any) -> bool:
    """Return whether two documents or parts are equal in value and kind: 1 is not true, nor is "1.0" a number.

    Members may have another order. Dates are the same when they are written alike.
    """
    pairs = [(one, other)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs += ((value, b[key]) for key, value in a.items())
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs += zip(a, b, strict=True)
        elif type(a) is not type(b) or a != b or str(a) != str(b):
            return False
    return True


# A key that a document lacks.
MISSING_VALUE: Final = object()


def compare_documents(
    before: Mapping[str, Any], after: Mapping[str, Any], above: Path = ()
) -> Iterator[tuple[Path, Any, Any]]:
    """Yield the keys that differ in two documents, each with its two values: those of ``after`` first."""
    for key, value in after.items():
        former = before.get(key, MISSING_VALUE)
        if isinstance(former, Mapping) and isinstance(value, Mapping):
            yield from compare_documents(former, value, (*above, key))
        elif not is_same_value(former, value):
            yield (*above, key), former, value
    yield from (((*above, key), value, MISSING_VALUE) for key, value in before.items() if key not in after)


# Editing.


class Uneditable(Exception):
    """No edit was found that leaves the rest of the text as it is.

    Attributes:
        paths: of the keys that were to change.
        line: from 1, that tomlkit cannot read or would write otherwise; 0 where it is none of them.
    """

    def __init__(self, before: Document, after: Document, line: int = 0) -> None:
        self.paths = tuple(path for path, _, _ in compare_documents(before, after))
        super().__init__(", ".join(".".join(path) for path in self.paths))
        self.line = line


def edit_content(data: bytes | None, before: Document, after: Document, *, as_json: bool) -> bytes:
    """Return a file, which reads as ``before``, changed so that it reads as ``after``, and all else stays as it is.

    Raises:
        Uneditable: there is no such edit.
    """
    text = decode_config(data, "")
    if as_json:
        from gpunode.runtimes import jsontext

        edited = jsontext.edit_json(text, before, after)
        if not is_same_value(jsontext.parse(edited), after):
            raise Uneditable(before, after)
        return encode_config(edited, data)
    from gpunode.runtimes import tomltext  # tomlkit takes 25 ms to load

    return encode_config(tomltext.edit_toml(text, before, after), data)


@dataclass(frozen=True, slots=True)
class ConfigLayer:
    """A file of a program's configuration, parsed.

    Attributes:
        runtimes: the keys of the table that has an entry for each handler; none where it has no handlers.
        default: the keys of the default runtime's name.
        consequence: what comes of a wrong value, a clause.
    """

    path: str
    content: bytes | None
    document: Document
    runtimes: Path = ()
    default: Path = ()
    consequence: str = ""
    as_json: bool = False

    @property
    def text(self) -> str:
        """The file's text; empty for a missing one."""
        return decode_config(self.content, self.path)

    def table(self, keys: Path) -> Document:
        """The table at ``keys``; empty when it is not there.

        Raises:
            Refused: something else than a table stands there.
        """
        node: Any = self.document
        for depth, key in enumerate(keys, 1):
            node = node.get(key, {})
            if not isinstance(node, dict):
                raise self.wrong_type_error(keys[:depth], node, "a table")
        return node  # type: ignore[no-any-return]  # tables are dicts all the way down

    def wrong_type_error(self, keys: Path, value: object, meant: str) -> Refused:
        """Return the error that the value at ``keys`` is not as it is ``meant``, with its line."""
        return Refused(
            f"{self._place(keys)}: {'.'.join(keys)} is not {meant}",
            why=f"it is {value!r}"[:200],
            hint=f"correct {self.path}; {self.consequence}",
        )

    def edit(self, document: Document, *, advice: str) -> bytes | None:
        """Return the file changed so that it reads as ``document``, or its own bytes where it does.

        Raises:
            Refused: that would change other lines, too; ``advice`` says what to do instead.
        """
        if is_same_value(self.document, document):
            return self.content
        try:
            return edit_content(self.content, self.document, document, as_json=self.as_json)
        except Uneditable as error:
            place, why = (
                self._place(error.paths[0]),
                "every edit that it tried would also change other lines or settings",
            )
            if error.line:
                place, why = f"{self.path}:{error.line}", "tomlkit, which edits the file, would change this line"
                advice = f"write line {error.line} with headers or one value a line instead of braces; or {advice}"
            raise Refused(
                f"{place}: gpunode found no way to write {error} that leaves the rest of the file as it is",
                why=why,
                hint=advice,
            ) from error

    def _place(self, keys: Path) -> str:
        """Return the file, with the line that sets ``keys`` or begins the nearest table around it."""
        from gpunode.recipe.toml import line_of

        line = line_of(self.text, keys)
        return f"{self.path}:{line}" if line else self.path
