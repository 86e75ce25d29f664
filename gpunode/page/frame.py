"""Build the parts of every page: a head that forbids scripts and requests, cards, tables, a foot. Pure."""

from __future__ import annotations

import hashlib
import pkgutil
from base64 import b64encode
from dataclasses import dataclass

from gpunode.page.markup import Markup, Part, tag


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """The origin of a page.

    Attributes:
        node: the machine's name; empty if unknown.
        source: what was examined: this machine, or a report.
        made: when, as a person writes it.
        version: of gpunode.
    """

    node: str
    source: str
    made: str
    version: str


def _read_stylesheet(name: str) -> str:
    data = pkgutil.get_data(__package__, name)
    assert data is not None, f"{name} is not beside this file"
    return data.decode()


def page_head(title: str, *sheets: str, rules: str = "") -> Markup:
    """Return the head with these stylesheets and ``rules``, and a policy that forbids everything else."""
    sheet = "\n".join((*map(_read_stylesheet, sheets), *([rules] if rules else [])))
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


def page_body(about: PageOrigin, skip: str, to: str, *parts: Part) -> Markup:
    """Return the body: a skip link, the origin, ``parts`` and a foot."""
    origin = (tag("b", about.node) if about.node else "", about.source, about.made)
    foot = (
        f"Made by gpunode {about.version}, which changed nothing; passwords, tokens and keys are replaced. "
        "This page fetches nothing and runs no script."
    )
    return tag(
        "body",
        tag("a", skip, href=to, class_="skip"),
        tag("header", tag("span.brand", "gpunode doctor"), (tag("span", part) for part in origin if part)),
        tag("main", *parts),
        tag("footer", tag("p", foot)),
    )


def card(title: str, *parts: Part, legend: str = "", id_: str | None = None) -> Markup:
    """Return a section with a heading and a legend."""
    return tag("section.card", tag("h2", title), tag("p.legend", legend) if legend else None, *parts, id=id_)


def scroll_box(label: str, *parts: Part) -> Markup:
    """Return a box that scrolls what is wider than the screen."""
    return tag("div.scroll", *parts, tabindex=0, role="group", aria_label=label)


def table(style: str | None, names: Part, rows: Part, *before: Part) -> Markup:
    """Return a table with a head."""
    return tag("table", *before, tag("thead", tag("tr", names)), tag("tbody", rows), class_=style)


def column_heads(*names: str) -> Markup:
    """Return column headings."""
    return Markup("".join(tag("th", name, scope="col") for name in names))


def command_block(*typed: str) -> Markup | None:
    """Return commands to copy; only this program's own commands look like this."""
    return tag("pre.commands", tag("code", "\n".join(typed)), tabindex=0) if any(typed) else None
