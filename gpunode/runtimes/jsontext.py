"""Edits a JSON object as text, so that every byte outside the edited members stays; numbers keep their spelling."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from gpunode.runtimes.jsonread import JSON_BLANKS, STRING, Number, Object, Path, find_parent_object, parse
from gpunode.runtimes.text import MISSING, compare_documents


def put(text: str, path: Path, value: Any) -> str:
    """``text``, a valid document that is an object, with ``value`` at ``path``, written as its neighbours are.

    What is missing on the way there is made, and what is no object gives way to one.
    """
    root = here = parse(text)
    for depth, key in enumerate(path[:-1], 1):
        inner = here.get(key)
        if not isinstance(inner, Object):
            for outer in reversed(path[depth:]):
                value = {outer: value}
            return _write_member(text, root, here, key, value)
        here = inner
    return _write_member(text, root, here, path[-1], value)


def drop(text: str, path: Path) -> str:
    """``text``, a valid document that has a member at ``path``, without it; of an object's last one ``{}`` is left."""
    holder = find_parent_object(parse(text), path)
    keys = list(holder.members)
    index = keys.index(path[-1])
    member = holder.members[path[-1]]
    if index:
        return text[: holder.members[keys[index - 1]].end] + text[member.end :]
    if len(keys) > 1:
        return text[: member.start] + text[holder.members[keys[1]].start :]
    return text[: holder.start] + "{}" + text[holder.end :]


def edit(text: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """``text``, which reads as ``before``, so that it reads as ``after``."""
    text = text if text.strip(JSON_BLANKS) else "{}\n"
    for path, _, value in compare_documents(before, after):
        text = drop(text, path) if value is MISSING else put(text, path, value)
    return text


def _write_member(text: str, root: Object, holder: Object, key: str, value: Any) -> str:
    """``text`` with the member ``key`` of ``holder``, which is there or comes last."""
    style = _Style.of(text, root)
    if member := holder.members.get(key):
        local = style if _has_break(_space_before(text, member.start)) else replace(style, unit=None)
        return text[: member.value] + local.render(value, _indent(text, member.start)) + text[member.end :]
    if not holder:
        indent = _indent(text, holder.start)
        return text[: holder.start] + style.render({key: value}, indent) + text[holder.end :]
    last = list(holder.members.values())[-2:]
    gap = text[last[0].end : last[1].start] if len(last) > 1 else "," + _space_before(text, last[0].start)
    if _has_break(gap):
        local = style
    else:
        local, gap = replace(style, unit=None), gap if len(last) > 1 else style.comma
    return text[: last[-1].end] + gap + local.member(key, value, _indent(text, last[-1].start)) + text[last[-1].end :]


def _has_break(space: str) -> bool:
    return "\n" in space or "\r" in space


def _indent(text: str, at: int) -> str:
    """The white space that begins the line of ``at``."""
    line = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
    found = re.compile(r"[ \t]*").match(text, line)
    return found[0] if found else ""


def _space_before(text: str, at: int) -> str:
    start = at
    while text[start - 1] in JSON_BLANKS:
        start -= 1
    return text[start:at]


_BREAK = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class _Style:
    """The layout of the document.

    Attributes:
        unit: one step of indentation; None when the document stands on one line.
        colon: between key and value, with its spaces.
        comma: between values on one line, with its spaces.
    """

    unit: str | None
    newline: str
    colon: str
    comma: str

    @classmethod
    def of(cls, text: str, root: Object) -> _Style:
        # A line cannot break inside a JSON string, so every break is one between tokens.
        found = _BREAK.search(text)
        newline = found[0] if found else "\n"
        members = list(root.members.values())
        if not members:
            return cls("    ", newline, ": ", ", ")
        first = members[0]
        key = STRING.match(text, first.start)
        colon = text[key.end() : first.value] if key else ""
        colon = colon if ":" in colon and not _has_break(colon) else ": "
        gap = text[first.end : members[1].start] if len(members) > 1 else ""
        return cls(
            unit=_indent(text, first.start) or "    " if _has_break(_space_before(text, first.start)) else None,
            newline=newline,
            colon=colon,
            comma=gap if gap and not _has_break(gap) else ", " if colon.endswith(" ") else ",",
        )

    def render(self, value: Any, indent: str) -> str:
        """Return ``value`` as text for a line indented by ``indent``."""
        match value:
            case Number():
                return str(value)
            case dict() if value:
                members = [self.member(key, inner, self._below(indent)) for key, inner in value.items()]
                return self._enclosed("{", members, "}", indent)
            case list() if value:
                return self._enclosed("[", [self.render(item, self._below(indent)) for item in value], "]", indent)
            case _:
                return json.dumps(value, ensure_ascii=False)

    def _below(self, indent: str) -> str:
        return indent + (self.unit or "")

    def _enclosed(self, opening: str, parts: list[str], closing: str, indent: str) -> str:
        if self.unit is None:
            return f"{opening}{self.comma.join(parts)}{closing}"
        between = self.newline + self._below(indent)
        return f"{opening}{between}{(',' + between).join(parts)}{self.newline}{indent}{closing}"

    def member(self, key: str, value: Any, indent: str) -> str:
        return json.dumps(key, ensure_ascii=False) + self.colon + self.render(value, indent)
