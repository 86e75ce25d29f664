"""A TOML document as gpunode reads it. Apart from the editor, which a file that is right already does not need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from gpunode.errors import Refused
from gpunode.runtimes.text import decode, same
from gpunode.toml import loads

Path: TypeAlias = tuple[str, ...]
# TOML's own shape: tables of tables of values.
Document: TypeAlias = dict[str, Any]


class VerbatimFloat(str):
    """A float as it was written, so that 1e3 stays 1e3 and nan equals nan."""

    __slots__ = ()


@lru_cache(maxsize=8)
def parse(text: str) -> Document:
    """The document; floats keep their spelling. Nobody changes it: who asks for the same text again gets the same one.

    Reading takes longer than all else that is done with a large file, and what was read to prove an edit is read again
    by the check of what the edit means.

    Raises:
        ValueError: the text is not TOML, or holds a number that Python will not read.
    """
    document: Document = loads(text, parse_float=VerbatimFloat)
    return document


def parse_file(data: bytes | None, path: str, *, hint: str, also: str = "") -> tuple[str, Document]:
    """The file's text and document; both empty for a missing file.

    Args:
        data: the file.
        path: its name, for messages.
        hint: what to do where it is not TOML.
        also: what comes of that, beside the parser's words.

    Raises:
        Refused: it is not TOML, or not UTF-8.
    """
    text = decode(data, path)
    try:
        return text, parse(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        place = f"{path}:{found[1]}" if found else path
        raise Refused(f"{place}: not valid TOML", why=f"{error}{also}", hint=hint) from error


def at(document: Document, keys: Sequence[str]) -> Any:
    """Return the value at ``keys``; None when nothing does, or what is above it is no table."""
    node: Any = document
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def put(document: Document, keys: Sequence[str], value: Any, *, prune: bool = False) -> Document:
    """Return a copy of ``document`` with ``value`` at ``keys``; None takes out what is there.

    What is no table on the way there gives way to one. With ``prune`` a table goes with the last key that it had.
    """
    key, *below = keys
    if below:
        former = document.get(key)
        table = put(former if isinstance(former, dict) else {}, below, value, prune=prune)
        value = None if prune and not table and (former or key not in document) else table
    if value is None:
        return {name: one for name, one in document.items() if name != key}
    return {**document, key: value}


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A file of a program's, parsed."""

    consequence: ClassVar[str] = "its program cannot read it either"

    path: str
    text: str
    document: Document

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

    def edit(self, document: Document, *, advice: str) -> str:
        """Return the text changed so that it reads as ``document``.

        Raises:
            Refused: that would change other lines, too; ``advice`` says what to do instead.
        """
        if same(self.document, document):
            return self.text
        from gpunode.runtimes import tomltext  # tomlkit takes 25 ms to load, and a right file needs no edit

        try:
            return tomltext.edit(self.text, self.document, document)
        except tomltext.Uneditable as error:
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
