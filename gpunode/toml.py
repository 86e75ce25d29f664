"""TOML for untrusted text: rejects what would take unlimited time or memory to parse. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

# For nested tables and lists: code that walks them is recursive.
_MAX_NESTING = 200
# The parts of a dotted key, or text like it; does not match a list of addresses on one line.
_DOTTED_KEY_PARTS = re.compile(r"(?:\.[^.\n=,\[\]{}]+)+")


def loads(text: str, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """Parse a document.

    Raises:
        ValueError: the text is not TOML, or is crafted to exhaust the parser.
    """
    # Loaded on use: doctor seldom reads TOML.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    # The parser takes quadratic time and memory in the number of a dotted key's parts.
    for part in _DOTTED_KEY_PARTS.finditer(text):
        if part[0].count(".") > _MAX_NESTING:
            line = text.count("\n", 0, part.start()) + 1
            raise ValueError(f"A key of more than {_MAX_NESTING} parts (at line {line}, column 1)")
    try:
        document: dict[str, Any] = tomllib.loads(text, parse_float=parse_float)
    except RecursionError as error:
        raise ValueError("Nested too deeply") from error
    if _nesting_depth(document) > _MAX_NESTING:
        raise ValueError("Nested too deeply")
    return document


def _nesting_depth(document: dict[str, Any]) -> int:
    """Return how deeply tables and lists are nested."""
    count, level = 0, list[Any]([document])
    while level:
        count += 1
        members = (node.values() if isinstance(node, dict) else node for node in level)
        level = [value for inner in members for value in inner if isinstance(value, dict | list)]
    return count
