"""How the tables of a TOML document are written, and new ones in that way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from gpunode.runtimes.tomllayout import Keys, Node, last_blank, split_above
from gpunode.runtimes.tomlread import Document
from gpunode.runtimes.tomlvalue import Script


@dataclass(frozen=True, slots=True)
class Style:
    """How the document's tables are written.

    Attributes:
        blank: whether a blank line stands above a header.
        key_step: what keys are indented by, within their table.
        table_step: what a table is indented by, within its parent.
    """

    script: Script
    blank: bool
    key_step: str
    table_step: str

    @classmethod
    def of(cls, nodes: list[Node], newline: str) -> Style:
        """The style of most of the document's tables."""
        headers = [node for node in nodes if not node.keys]
        blank = [header for header in headers if last_blank(split_above(header.above)[0])]
        titles = "".join(header.head for header in headers)
        return cls(
            script=Script("'" if titles.count("'") > titles.count('"') else '"', newline),
            blank=len(headers) < 2 or 2 * len(blank) >= len(headers),
            key_step=_last(_key_steps(nodes), "  "),
            table_step=_last(_table_steps(headers), "" if headers else "  "),
        )


def _last(steps: Iterator[str], default: str) -> str:
    return next(iter([*steps][::-1]), default)


def _key_steps(nodes: list[Node]) -> Iterator[str]:
    for header, first in pairwise(nodes):
        if first.keys and not header.keys and first.indent.startswith(header.indent):
            yield first.indent[len(header.indent) :]


def _table_steps(headers: list[Node]) -> Iterator[str]:
    indents = {header.place: header.indent for header in headers}
    for place, indent in indents.items():
        outer = next((indents[place[:n]] for n in range(len(place) - 1, 0, -1) if place[:n] in indents), None)
        if outer is not None and indent.startswith(outer):
            yield indent[len(outer) :]


def table_lines(keys: Keys, table: Document, indent: str, style: Style, brackets: str = "[{}]") -> Iterator[str]:
    """``table`` as lines; a table that only holds tables needs no header, but an element of an array does."""
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    has_header = bool(values) or not table or brackets != "[{}]"
    inner = indent
    if has_header:
        yield indent + brackets.format(style.script.key(keys))
        for key, value in values.items():
            yield f"{indent}{style.key_step}{style.script.key((key,))} = {style.script.value(value)}"
        inner += style.table_step
    first = not has_header
    for key, value in table.items():
        if isinstance(value, dict):
            if style.blank and not first:
                yield ""
            first = False
            yield from table_lines((*keys, key), value, inner, style)
