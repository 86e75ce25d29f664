"""The strings at the top level of a YAML or JSON document. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gpunode.facts.patterns import Pattern

# k3s takes a + at a key's end for an addition.
_KEY = Pattern(r"""(["']?)([\w.-]{1,100}\+?)\1[ \t]*:(?:[ \t]+(.*))?""")
_SCALAR = Pattern(r"""(?:"([^"\\]*)"|'([^']*)'|([\w/.][^\s"'#]*))(?:[ \t]+\#.*)?""")


def flat(text: str, keys: Iterable[str]) -> Mapping[str, str | None]:
    """The strings under the top-level ``keys`` of a YAML or JSON document: None for a null, absent where it lacks one.

    Only what cannot be mistaken is read: plain and quoted scalars of one line, in a mapping that starts in column 1.

    Raises:
        ValueError: it is laid out in another way.
    """
    if text.lstrip().startswith("{"):
        return _flat_json(text, keys)
    wanted = frozenset(keys)
    found: dict[str, str | None] = {}
    for key, value in _top_level(text):
        if key in found:
            raise ValueError(f"{key} stands there twice")
        if key in wanted:
            found[key] = _scalar(key, value)
    return found


def _flat_json(text: str, keys: Iterable[str]) -> Mapping[str, str | None]:
    try:
        document: Any = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    found = {key: document[key] for key in keys if key in document}
    for key, value in found.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{key} is {value!r}, not a string"[:200])
    return found


def _top_level(text: str) -> Iterable[tuple[str, str]]:
    """The keys in column 1 with the rest of their lines: in a block mapping only they and list items stand there."""
    is_begun = False
    for line in text.splitlines():
        bare = line.rstrip()
        is_marker = bare.startswith(("---", "%"))
        if not bare or bare.lstrip().startswith("#") or (is_marker and not is_begun):
            continue
        if bare == "...":
            return
        if bare[0] in " \t-" and is_begun and not is_marker:
            continue
        match = _KEY.fullmatch(bare)
        if match is None:
            raise ValueError(f"not a mapping that starts in the first column: {bare[:80]!r}")
        is_begun = True
        yield match[2], (match[3] or "").strip()


def _scalar(key: str, value: str) -> str | None:
    if value.partition("#")[0].strip() in {"", "~", "null"}:
        return None
    match = _SCALAR.fullmatch(value)
    if match is None:
        raise ValueError(f"{key} is not a plain or quoted word: {value[:80]!r}")
    return next(group for group in match.groups() if group is not None)
