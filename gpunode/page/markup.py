"""Build HTML and SVG from untrusted text: escape everything, show what would hide or steer. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Final, TypeAlias

_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]{0,40}[mK]")
_PLAIN: Final = re.compile(r"[\x20-\x7e\n]*")
_VOID: Final = frozenset({"meta", "link", "br", "input"})
_SELECTOR: Final = re.compile(r"(?P<name>[a-z0-9]+)(?:\.(?P<classes>[\w. -]+))?(?:#(?P<id>[\w-]+))?")
_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
_MARK: Final = "\N{REPLACEMENT CHARACTER}"


class Markup(str):
    """Text that is markup already; only this module makes it."""

    __slots__ = ()


Part: TypeAlias = "str | Markup | Iterable[str | Markup | None] | None"


def escape_invisible(text: str) -> str:
    """Return ``text`` without anything that a browser would obey or refuse to show.

    Drop terminal colours; escape other control characters, lone surrogates and direction marks.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_visible_char, _COLOURS.sub("", text)))


def _visible_char(char: str) -> str:
    if char in "\n\t" or char.isprintable() or char == _MARK:
        return char
    return char.encode("unicode_escape").decode()


def escape_text(value: str) -> Markup:
    """Return ``value`` escaped."""
    return value if isinstance(value, Markup) else Markup(html.escape(escape_invisible(value)))


def join_markup(*parts: Part) -> Markup:
    """Return ``parts``, one after the other."""
    return Markup("".join(_flatten(parts)))


def _flatten(parts: Iterable[Part]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, str):
            yield escape_text(part)
        elif part is not None:
            yield from _flatten(part)


def comma_list(parts: Iterable[str], name: str = "code") -> Markup:
    """Return ``parts`` with commas between them; plain text in an element ``name``."""
    return Markup(", ".join(part if isinstance(part, Markup) else tag(name, part) for part in parts))


def tag(selector: str, /, *parts: Part, **attributes: str | float | bool | None) -> Markup:
    """Return an element for a selector (``section.card#nodes``) from this package, never from evidence.

    ``aria_label`` is its aria-label; what is None or False is left out.
    """
    match = _SELECTOR.fullmatch(selector)
    assert match, selector
    classes = (match["classes"] or "").replace(".", " ")
    given = "".join(
        _render_attribute(key, value)
        for key, value in (("class", classes or None), ("id", match["id"]), *attributes.items())
    )
    if match["name"] in _VOID:
        return Markup(f"<{match['name']}{given}>")
    return Markup(f"<{match['name']}{given}>{join_markup(*parts)}</{match['name']}>")


def _render_attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    assert _NAME.fullmatch(name), "names of attributes are written here, never taken from evidence"
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    said = f"{value:g}" if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(escape_invisible(said))}"'


def html_document(head: Markup, body: Markup) -> str:
    """Return a whole page."""
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'
