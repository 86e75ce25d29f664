"""Build HTML from untrusted text: only this module escapes text, and it makes control characters visible. Pure.

After the elements come the parts of every page: a head that forbids scripts and requests, cards, tables, a foot.
"""

from __future__ import annotations

import hashlib
import html
import pkgutil
import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Final, TypeAlias

from gpunode.fast_dataclass import dataclass

_TERMINAL_COLOUR_CODE: Final = re.compile(r"\x1b\[[0-9;:]{0,40}[mK]")
_PRINTABLE_ASCII: Final = re.compile(r"[\x20-\x7e\n]*")
_VOID_ELEMENTS: Final = frozenset({"meta", "link", "br", "input"})
_ELEMENT_SELECTOR: Final = re.compile(r"(?P<name>[a-z0-9]+)(?:\.(?P<classes>[\w. -]+))?(?:#(?P<id>[\w-]+))?")
_ATTRIBUTE_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
_REPLACEMENT_MARK: Final = "\N{REPLACEMENT CHARACTER}"


class Markup(str):
    """Text that already is markup; only this module creates it."""

    __slots__ = ()


MarkupPart: TypeAlias = "str | Markup | Iterable[str | Markup | None] | None"


def escape_invisible(text: str) -> str:
    """Return ``text`` without characters that a browser would interpret or hide.

    Drop terminal colours; escape other control characters, lone surrogates and direction marks.
    """
    if _PRINTABLE_ASCII.fullmatch(text):
        return text
    return "".join(map(_visible_char, _TERMINAL_COLOUR_CODE.sub("", text)))


def _visible_char(char: str) -> str:
    if char in "\n\t" or char.isprintable() or char == _REPLACEMENT_MARK:
        return char
    return char.encode("unicode_escape").decode()


def escape_text(value: str) -> Markup:
    """Return ``value`` escaped."""
    return value if isinstance(value, Markup) else Markup(html.escape(escape_invisible(value)))


def join_markup(*parts: MarkupPart) -> Markup:
    """Return the concatenation of ``parts``."""
    return Markup("".join(_flatten(parts)))


def _flatten(parts: Iterable[MarkupPart]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, str):
            yield escape_text(part)
        elif part is not None:
            yield from _flatten(part)


def comma_list(parts: Iterable[str]) -> Markup:
    """Return ``parts`` separated by commas, plain text as code."""
    return Markup(", ".join(part if isinstance(part, Markup) else tag("code", part) for part in parts))


def tag(selector: str, /, *parts: MarkupPart, **attributes: str | float | bool | None) -> Markup:
    """Return the element for a selector (``section.card#nodes``), which never comes from evidence.

    ``aria_label`` becomes aria-label; attributes that are None or False are left out.
    """
    match = _ELEMENT_SELECTOR.fullmatch(selector)
    assert match, selector
    classes = (match["classes"] or "").replace(".", " ")
    given = "".join(
        _render_attribute(key, value)
        for key, value in (("class", classes or None), ("id", match["id"]), *attributes.items())
    )
    if match["name"] in _VOID_ELEMENTS:
        return Markup(f"<{match['name']}{given}>")
    return Markup(f"<{match['name']}{given}>{join_markup(*parts)}</{match['name']}>")


def _render_attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    assert _ATTRIBUTE_NAME.fullmatch(name), "names of attributes are written here, never taken from evidence"
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(escape_invisible(text))}"'


def html_document(head: Markup, body: Markup) -> str:
    """Return a complete page."""
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """The origin of a page.

    Attributes:
        node: the machine's name; empty if unknown.
        source: the examined machine or report.
        made_at: the time in readable form.
        version: gpunode's version.
    """

    node: str
    source: str
    made_at: str
    version: str


def _read_stylesheet(name: str) -> str:
    data = pkgutil.get_data(__package__, name)
    assert data is not None, f"{name} is not beside this file"
    return data.decode()


def page_head(title: str, *sheets: str) -> Markup:
    """Return the head with these stylesheets, and a policy that forbids everything else."""
    sheet = "\n".join(map(_read_stylesheet, sheets))
    assert "<" not in sheet, "a sheet that could close its element"
    digest = b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="robots", content="noindex"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(sheet)),
    )


def page_body(about: PageOrigin, skip: str, skip_target: str, *parts: MarkupPart) -> Markup:
    """Return the body: a skip link, the origin, ``parts`` and a foot."""
    origin = (tag("b", about.node) if about.node else "", about.source, about.made_at)
    foot = (
        f"Made by gpunode {about.version}, which changed nothing; passwords, tokens and keys are replaced. "
        "This page fetches nothing and runs no script."
    )
    return tag(
        "body",
        tag("a", skip, href=skip_target, class_="skip"),
        tag("header", tag("span.brand", "gpunode doctor"), (tag("span", part) for part in origin if part)),
        tag("main", *parts),
        tag("footer", tag("p", foot)),
    )


def card(title: str, *parts: MarkupPart, legend: str = "", id_: str | None = None) -> Markup:
    """Return a section with a heading and a legend."""
    return tag("section.card", tag("h2", title), tag("p.legend", legend) if legend else None, *parts, id=id_)


def scroll_box(label: str, *parts: MarkupPart) -> Markup:
    """Return a box that scrolls content wider than the screen."""
    return tag("div.scroll", *parts, tabindex=0, role="group", aria_label=label)


def table(style: str | None, names: MarkupPart, rows: MarkupPart, *before: MarkupPart) -> Markup:
    """Return a table with a head row."""
    return tag("table", *before, tag("thead", tag("tr", names)), tag("tbody", rows), class_=style)


def column_heads(*names: str) -> Markup:
    """Return column headings."""
    return join_markup(tag("th", name, scope="col") for name in names)


def command_block(*typed: str) -> Markup | None:
    """Return commands to copy; only this program's own commands get this style."""
    return tag("pre.commands", tag("code", "\n".join(typed)), tabindex=0) if any(typed) else None
