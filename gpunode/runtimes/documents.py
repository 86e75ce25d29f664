"""Configuration files as documents, TOML or JSON: validated, compared, and edited without touching foreign bytes.

The editors are separate modules, loaded on use: a file that is already right needs none.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from gpunode.errors import Refused
from gpunode.fast_dataclass import dataclass
from gpunode.toml import loads

Path: TypeAlias = tuple[str, ...]
# TOML's structure: nested tables of values.
Document: TypeAlias = dict[str, Any]
# UTF-8's byte order mark, which most daemons accept and parsers do not.
_BYTE_ORDER_MARK = "\ufeff"


def decode_config(data: bytes | None, path: str) -> str:
    """Return the file's text without its byte order mark; empty for a missing file.

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
    """Encode ``text`` as a file, with a byte order mark if ``former_content`` had one."""
    return ((_BYTE_ORDER_MARK if has_byte_order_mark(former_content) else "") + text).encode()


class VerbatimFloat(str):
    """A float as it was written, so that 1e3 stays 1e3 and nan equals nan."""

    __slots__ = ()


@lru_cache(maxsize=8)
def parse_toml(text: str) -> Document:
    """Parse the document; floats keep their spelling. The result is cached and shared, so callers must not change it.

    Parsing takes longer than everything else that is done with a large file, and a file that was parsed to verify an
    edit is parsed again to check the edit's meaning.

    Raises:
        ValueError: the text is not TOML, or holds a number that Python does not accept.
    """
    document: Document = loads(text, parse_float=VerbatimFloat)
    return document


def parse_toml_file(data: bytes | None, path: str, *, hint: str, also: str = "") -> Document:
    """Parse the file's document; empty for a missing file.

    Args:
        data: the file.
        path: its name, for messages.
        hint: what to do if it is not TOML.
        also: the consequence, appended to the parser's message.

    Raises:
        Refused: it is not TOML, or not UTF-8.
    """
    text = decode_config(data, path)
    try:
        return parse_toml(text)
    except ValueError as error:
        match = re.search(r"\(at line (\d+), column \d+\)", str(error))
        position = f"{path}:{match[1]}" if match else path
        raise Refused(f"{position}: not valid TOML", why=f"{error}{also}", hint=hint) from error


def is_json(path: str, *contents: bytes | None) -> bool:
    """Return whether a file is JSON: by its name, or because it begins like neither TOML nor a template."""
    starts = ((content or b"").removeprefix(codecs.BOM_UTF8).lstrip()[:2] for content in contents)
    return path.endswith(".json") or any(start[:1] == b"{" and start != b"{{" for start in starts)


def parse_document(data: bytes | None, path: str) -> Document:
    """Parse a file of TOML or JSON; empty for a missing or blank one.

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
    """Return whether a file has the same meaning as ``document``."""
    try:
        return is_same_value(parse_document(data, path), document)
    except (ValueError, Refused):
        return False


# Values in documents.


def value_at(document: Document, keys: Sequence[str]) -> Any:
    """Return the value at ``keys``; None if there is none, or a parent is not a table."""
    node: Any = document
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def with_value(document: Document, keys: Sequence[str], value: Any, *, prune: bool = False) -> Document:
    """Return a copy of ``document`` with ``value`` at ``keys``; None removes what is there.

    A parent that is not a table is replaced by one. With ``prune``, a table is removed with its last key.
    """
    key, *below = keys
    if below:
        former = document.get(key)
        table = with_value(former if isinstance(former, dict) else {}, below, value, prune=prune)
        value = None if prune and not table and (former or key not in document) else table
    if value is None:
        return {name: entry for name, entry in document.items() if name != key}
    return {**document, key: value}


def is_same_value(one: Any, other: Any) -> bool:
    """Return whether two documents or parts have equal values of equal types: 1 is not true, nor is "1.0" a number.

    The order of members does not matter. Dates are equal if they are written alike.
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
    """Yield the keys that differ between two documents, each with its two values; the keys of ``after`` come first."""
    for key, value in after.items():
        former = before.get(key, MISSING_VALUE)
        if isinstance(former, Mapping) and isinstance(value, Mapping):
            yield from compare_documents(former, value, (*above, key))
        elif not is_same_value(former, value):
            yield (*above, key), former, value
    yield from (((*above, key), value, MISSING_VALUE) for key, value in before.items() if key not in after)


# Editing.


class Uneditable(Exception):
    """No edit was found that leaves the rest of the text unchanged.

    Attributes:
        paths: the keys that were to change.
        line: the line, from 1, that tomlkit cannot read or would write differently; 0 if there is none.
    """

    def __init__(self, before: Document, after: Document, line: int = 0) -> None:
        self.paths = tuple(path for path, _, _ in compare_documents(before, after))
        super().__init__(", ".join(".".join(path) for path in self.paths))
        self.line = line


def edit_content(data: bytes | None, before: Document, after: Document, *, as_json: bool) -> bytes:
    """Return a file that reads as ``before``, edited to read as ``after`` with everything else unchanged.

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
        runtimes: the keys of the table that has an entry for each handler; none if it has no handlers.
        default: the keys of the default runtime's name.
        consequence: a clause with the consequence of a wrong value.
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
        """Return the table at ``keys``; empty if there is none.

        Raises:
            Refused: a value that is not a table is there.
        """
        node: Any = self.document
        for depth, key in enumerate(keys, 1):
            node = node.get(key, {})
            if not isinstance(node, dict):
                raise self.wrong_type_error(keys[:depth], node, "a table")
        return node  # type: ignore[no-any-return]  # tables are dicts all the way down

    def wrong_type_error(self, keys: Path, value: object, expected: str) -> Refused:
        """Return the error that the value at ``keys`` is not the ``expected`` kind of value, with its line."""
        return Refused(
            f"{self._place(keys)}: {'.'.join(keys)} is not {expected}",
            why=f"it is {value!r}"[:200],
            hint=f"correct {self.path}; {self.consequence}",
        )

    def edit(self, document: Document, *, advice: str) -> bytes | None:
        """Return the file edited to read as ``document``, or its own bytes if it already does.

        Raises:
            Refused: the edit would change other lines as well; ``advice`` says what to do instead.
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
        """Return the file, with the line that sets ``keys`` or begins the nearest enclosing table."""
        from gpunode.recipe.toml import line_of

        line = line_of(self.text, keys)
        return f"{self.path}:{line}" if line else self.path
