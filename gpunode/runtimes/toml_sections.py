"""Edit a TOML document header by header, where tomlkit cannot read all of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gpunode.runtimes.documents import (
    MISSING_VALUE,
    Document,
    Path,
    Uneditable,
    compare_documents,
    is_same_value,
    parse_toml,
    value_at,
    with_value,
)

_SECTION_START = re.compile(r"^(?=[ \t]*\[)", re.MULTILINE)


def edit_sections(
    text: str, before: Document, after: Document, edit: Callable[[str, Document, Document], str]
) -> str | None:
    """Return ``text`` after ``edit`` of each header with its lines by itself; None if that is impossible.

    tomlkit 0.15.2 cannot read some files in which another table stands between a table and its inner one.
    """
    sections = _SECTION_START.split(text)
    try:
        documents = [parse_toml(section) for section in sections]
        headers = [_header_path(section) for section in sections]
        changed = [*documents]
        for path, old, value in compare_documents(before, after):
            if old is MISSING_VALUE:
                enclosing = (n for n, header in enumerate(headers) if header == path[: len(header)] != path)
                holders = [max(enclosing, key=lambda n: len(headers[n]))]
            else:
                holders = [n for n, document in enumerate(documents) if value_at(document, path) is not None]
            for n in holders:
                new = None if value is MISSING_VALUE else value
                changed[n] = with_value(changed[n], path, new, prune=True)
        edited = "".join(map(edit, sections, documents, changed))
        return edited if is_same_value(parse_toml(edited), after) else None
    except (ValueError, Uneditable):
        return None


def _header_path(section: str) -> Path:
    """Return the keys of the header in the first line; none if there is no header."""
    path: Path = ()
    table: Any = parse_toml(section.partition("\n")[0]) if section.lstrip().startswith("[") else {}
    while isinstance(table, dict) and table:
        [(key, table)] = table.items()
        path = (*path, key)
    return path
