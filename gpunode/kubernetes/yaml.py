"""YAML as people write it: block style, keys in the order given, text quoted only where YAML needs it.

Every document is one that a YAML 1.1 parser reads back as it was given; kubectl and Helm read YAML 1.1 in part.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_COMMENT_WIDTH: Final = 110
# Begins with a letter, / or _, so it is no number or date; no colon at its end, so it is no key.
_PLAIN: Final = re.compile(r"[A-Za-z/_](?:[A-Za-z0-9 ./:=@_+-]*[A-Za-z0-9/_])?")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_NOT_IN_A_BLOCK: Final = re.compile(r"[^\n\x20-\x7e]|[ \t]\n|[ \t]\Z")
# JSON leaves these as they are; YAML takes them for line ends, or not at all.
_UNSAFE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def document(value: Mapping[str, Any], comment: str = "") -> str:
    """``value`` as one YAML document that ends with a line end, below ``comment``."""
    lines = [f"# {part}" for line in comment.splitlines() for part in textwrap.wrap(line, _COMMENT_WIDTH)]
    return "\n".join([*lines, *_mapping(value)]) + "\n"


def _mapping(value: Mapping[str, Any]) -> Iterator[str]:
    for key, held in value.items():
        yield from _entry(f"{scalar(key)}:", held)


def _entry(head: str, value: Any) -> Iterator[str]:
    """A key with what it holds."""
    if isinstance(value, Mapping) and value:
        yield head
        yield from (f"  {line}" for line in _mapping(value))
    elif isinstance(value, list | tuple) and value:
        yield head
        yield from _items(value)
    elif isinstance(value, str) and _is_block(value):
        yield f"{head} |"
        yield from (f"  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))
    else:
        yield f"{head} {scalar(value)}"


def _items(value: Sequence[Any]) -> Iterator[str]:
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *rest = _mapping(item)
            yield f"- {first}"
            yield from (f"  {line}" if line else "" for line in rest)
        else:
            yield f"- {scalar(item)}"


def _is_block(text: str) -> bool:
    """Whether the text stands as a block of lines: several, of plain characters, the first not indented."""
    lines = text.removesuffix("\n").split("\n")
    return (
        text.endswith("\n")
        and len(lines) > 1
        and lines[0][:1] not in ("", " ")
        and bool(lines[-1] and not _NOT_IN_A_BLOCK.search(text))
    )


def scalar(value: Any) -> str:
    """A text, number, truth value, null, or an empty or flat collection, on one line."""
    if not isinstance(value, str):
        return json.dumps(value if not isinstance(value, Mapping) else dict(value), ensure_ascii=True)
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS and ": " not in value
    if plain:
        return value
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
