"""What every page has: a head that forbids scripts and requests, where it comes from, cards, and a foot. Pure."""

from __future__ import annotations

import hashlib
import pkgutil
from base64 import b64encode
from dataclasses import dataclass

from gpunode.page.markup import Markup, Part, tag


@dataclass(frozen=True, slots=True)
class About:
    """Where a page comes from.

    Attributes:
        node: the machine's name; empty where nothing tells it.
        source: what was examined: this machine, or a report.
        made: when, as a person writes it.
        version: of gpunode.
    """

    node: str
    source: str
    made: str
    version: str


def _sheet(name: str) -> str:
    data = pkgutil.get_data(__package__, name)
    assert data is not None, f"{name} is not beside this file"
    return data.decode()


def head(title: str, *sheets: str, rules: str = "") -> Markup:
    """The head of a page with these style sheets and ``rules`` of its own; its policy forbids all that is not here."""
    sheet = "\n".join((*map(_sheet, sheets), *([rules] if rules else [])))
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


def body(about: About, skip: str, to: str, *parts: Part) -> Markup:
    """The page's body: a link past the head, what was examined, ``parts``, and that the page does nothing."""
    origin = (tag("b", about.node) if about.node else "", about.source, about.made)
    foot = (
        f"Made by gpunode {about.version}, which only read; passwords, tokens and keys are replaced. "
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
    """A section with a heading and what it is about."""
    return tag("section.card", tag("h2", title), tag("p.legend", legend) if legend else None, *parts, id=id_)


def scroll(label: str, *parts: Part) -> Markup:
    """What may be wider than the screen."""
    return tag("div.scroll", *parts, tabindex=0, role="group", aria_label=label)


def table(style: str | None, names: Part, rows: Part, *before: Part) -> Markup:
    """A table with a head."""
    return tag("table", *before, tag("thead", tag("tr", names)), tag("tbody", rows), class_=style)


def columns(*names: str) -> Markup:
    """Heads of columns."""
    return Markup("".join(tag("th", name, scope="col") for name in names))


def commands(*typed: str) -> Markup | None:
    """Commands to be picked up; nothing else on the page looks like one but what this program wrote."""
    return tag("pre.commands", tag("code", "\n".join(typed)), tabindex=0) if any(typed) else None
