"""HTML and SVG built from untrusted words: all is escaped, and what would hide or steer is shown. Pure."""

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
    """Text that is markup already; nothing but this module makes any."""

    __slots__ = ()


Part: TypeAlias = "str | Markup | Iterable[str | Markup | None] | None"


def visible(text: str) -> str:
    """``text`` with nothing in it that a browser would obey instead of show, or refuse to show.

    Colours of a terminal are left out; any other control character, half a character, and whatever hides or turns the
    direction of writing stands there as its escape.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(map(_shown, _COLOURS.sub("", text)))


def _shown(char: str) -> str:
    if char in "\n\t" or char.isprintable() or char == _MARK:
        return char
    return char.encode("unicode_escape").decode()


def text(value: str) -> Markup:
    """``value`` escaped."""
    return value if isinstance(value, Markup) else Markup(html.escape(visible(value)))


def joined(*parts: Part) -> Markup:
    """``parts``, one after the other."""
    return Markup("".join(_flat(parts)))


def _flat(parts: Iterable[Part]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, str):
            yield text(part)
        elif part is not None:
            yield from _flat(part)


def listed(parts: Iterable[str], name: str = "code") -> Markup:
    """``parts`` with commas between them; each that is no markup yet in an element."""
    return Markup(", ".join(part if isinstance(part, Markup) else tag(name, part) for part in parts))


def tag(selector: str, /, *parts: Part, **attributes: str | float | bool | None) -> Markup:
    """An element by its selector (``section.card#nodes``), which is written in this package, never taken from evidence.

    ``aria_label`` is its aria-label; what is None or False is left out.
    """
    match = _SELECTOR.fullmatch(selector)
    assert match, selector
    classes = (match["classes"] or "").replace(".", " ")
    given = "".join(
        _attribute(key, value) for key, value in (("class", classes or None), ("id", match["id"]), *attributes.items())
    )
    if match["name"] in _VOID:
        return Markup(f"<{match['name']}{given}>")
    return Markup(f"<{match['name']}{given}>{joined(*parts)}</{match['name']}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    assert _NAME.fullmatch(name), "names of attributes are written here, never taken from evidence"
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    said = f"{value:g}" if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(visible(said))}"'


def document(head: Markup, body: Markup) -> str:
    """A whole page."""
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'
