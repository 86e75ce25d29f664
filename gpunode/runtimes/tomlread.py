"""A TOML document as gpunode reads it. Apart from the editor, which a file that is right already does not need."""

from __future__ import annotations

from typing import Any, TypeAlias

from gpunode.toml import loads

Path: TypeAlias = tuple[str, ...]
# TOML's own shape: tables of tables of values.
Document: TypeAlias = dict[str, Any]


class Verbatim(str):
    """A float as it was written, so that 1e3 stays 1e3 and nan equals nan."""

    __slots__ = ()


def parse(text: str) -> Document:
    """The document; floats keep their spelling.

    Raises:
        ValueError: the text is not TOML, or holds a number that Python will not read.
    """
    document: Document = loads(text, parse_float=Verbatim)
    return document
