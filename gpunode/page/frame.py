"""What every page has: a head that forbids scripts and requests, where it comes from, and a foot. Pure."""

from __future__ import annotations

import hashlib
import pkgutil
from base64 import b64encode
from dataclasses import dataclass

from gpunode.page.markup import Markup, element, styled


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
    digest = b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="robots", content="noindex"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        styled(sheet),
    )


def masthead(about: About) -> Markup:
    """What was examined, and when."""
    parts = [element("b", about.node) if about.node else None, about.source, about.made]
    shown = [element("span", part) for part in parts if part]
    return element("header", element("span", "gpunode doctor", class_="brand"), shown)


def footer(about: About) -> Markup:
    """What made the page, and that it does nothing."""
    return element(
        "footer",
        element(
            "p",
            f"Made by gpunode {about.version}, which only read; passwords, tokens and keys are replaced. "
            "This page fetches nothing and runs no script.",
        ),
    )
