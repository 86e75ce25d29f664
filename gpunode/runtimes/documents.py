"""Configuration files as documents, TOML and JSON alike: read, and edited as text. Pure.

A file whose name ends in ``.json`` is JSON, any other is read as TOML.
"""

from __future__ import annotations

from gpunode.errors import Refused
from gpunode.runtimes.text import decode, encode, same
from gpunode.runtimes.tomlread import Document, parse


def is_json(path: str) -> bool:
    """Return whether the file at ``path`` is JSON."""
    return path.endswith(".json")


def parse_document(data: bytes | None, path: str) -> Document:
    """Return what a file says; empty for a missing or blank one.

    Raises:
        ValueError: it is not what its name says.
        Refused: it is not UTF-8.
    """
    text = decode(data, path)
    if not is_json(path):
        return parse(text)
    if not text.strip():
        return {}
    from gpunode.runtimes import jsonread

    try:
        document = jsonread.parse(text)
    except jsonread.MalformedJson as error:
        raise ValueError(error.reason) from error
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return document


def reads_as(data: bytes, path: str, document: Document) -> bool:
    """Return whether a file says the same as ``document``."""
    try:
        return same(parse_document(data, path), document)
    except (ValueError, Refused):
        return False


def edit_file(data: bytes | None, path: str, before: Document, after: Document) -> bytes | None:
    """Return a file, which reads as ``before``, changed so that it reads as ``after``, and all else stays as it is.

    None where there is no such edit.
    """
    text = decode(data, path)
    if is_json(path):
        from gpunode.runtimes import jsontext

        edited = encode(jsontext.edit(text, before, after), data)
        return edited if reads_as(edited, path, after) else None
    from gpunode.runtimes import tomltext

    try:
        return encode(tomltext.edit(text, before, after), data)
    except tomltext.Uneditable:
        return None
