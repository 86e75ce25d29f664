"""A TOML document as gpunode reads it. Apart from the editor, which a file that is right already does not need."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

from gpunode.toml import loads

Path: TypeAlias = tuple[str, ...]
# TOML's own shape: tables of tables of values.
Document: TypeAlias = dict[str, Any]


class Verbatim(str):
    """A float as it was written, so that 1e3 stays 1e3 and nan equals nan."""

    __slots__ = ()


@lru_cache(maxsize=8)
def parse(text: str) -> Document:
    """The document; floats keep their spelling. Nobody changes it: who asks for the same text again gets the same one.

    Reading takes longer than all else that is done with a large file, and what was read to prove an edit is read again
    by whoever checks what the edit means.

    Raises:
        ValueError: the text is not TOML, or holds a number that Python will not read.
    """
    document: Document = loads(text, parse_float=Verbatim)
    return document
