"""Edits a JSON object as text, so that every byte outside the edited members stays.

Numbers keep their spelling throughout: 9007199254740993 does not become a float on the way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from gpunode.runtimes.text import same

Path: TypeAlias = tuple[str, ...]


class Malformed(Exception):
    """The text is not one JSON value; says where, when that is known.

    Attributes:
        line: from 1; 0 when unknown. Likewise ``column``.
    """

    def __init__(self, reason: str, line: int = 0, column: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.line, self.column = reason, line, column


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def parse(text: str) -> Any:
    """The value; numbers as strings of their own kind.

    Raises:
        Malformed: it is not JSON, something follows it, or an object has a key twice.
    """
    try:
        return _decoder(text).decode(text)
    except json.JSONDecodeError as error:
        raise Malformed(error.msg, error.lineno, error.colno) from error
    except RecursionError as error:
        raise Malformed("nested too deeply") from error


def position(text: str, path: Path) -> tuple[int, int]:
    """Line and column, from 1, of the value at ``path`` in a valid document."""
    return _place(text, _value_start(text, path))


def put(text: str, path: Path, value: Any) -> str:
    """``text``, a valid document whose value is an object, with ``value`` at ``path``, written as its neighbours are.

    Every part of ``path`` but the last is an object in it.
    """
    start = _value_start(text, path[:-1])
    members = list(_members(text, start))
    style = _Style.of(text)
    for member in members:
        if member.key == path[-1]:
            rendered = style.render(value, _indent(text, member.start))
            return text[: member.value_start] + rendered + text[member.value_end :]
    if members:
        last = members[-1]
        between = _space_before(text, last.start)
        inline = style if "\n" in between else replace(style, unit=None)
        comma = "," + between if "\n" in between or len(members) > 1 else style.comma
        rendered = f"{json.dumps(path[-1])}{style.colon}{inline.render(value, _indent(text, last.start))}"
        return text[: last.value_end] + comma + rendered + text[last.value_end :]
    outer = _indent(text, start)
    end = text.index("}", start) + 1
    return text[:start] + style.render({path[-1]: value}, outer) + text[end:]


def take(text: str, path: Path) -> str:
    """``text``, a valid document whose value is an object, without the member at ``path``.

    Every part of ``path`` but the last is an object in it, and the last is a member. Undoes a ``put`` of a new one.
    """
    start = _value_start(text, path[:-1])
    members = list(_members(text, start))
    index = next(i for i, member in enumerate(members) if member.key == path[-1])
    if index:
        return text[: members[index - 1].value_end] + text[members[index].value_end :]
    if len(members) > 1:
        return text[: members[0].start] + text[members[1].start :]
    return text[: start + 1] + text[text.index("}", members[0].value_end) :]


def edit(text: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """``text``, which reads as ``before``, so that it reads as ``after``."""
    text = text if text.strip() else "{}\n"
    for path, value in _differences(before, after):
        text = take(text, path) if value is _GONE else put(text, path, value)
    return text


_GONE = object()


def _differences(before: dict[str, Any], after: dict[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in after.items():
        old = before.get(key, _GONE)
        if isinstance(old, dict) and isinstance(value, dict):
            yield from _differences(old, value, (*above, key))
        elif not same(old, value):
            yield (*above, key), value
    yield from (((*above, key), _GONE) for key in reversed(before) if key not in after)


def _decoder(text: str) -> json.JSONDecoder:
    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(members)
        if len(found) != len(members):
            key, at = next(_duplicates(text))
            raise Malformed(f"the key {json.dumps(key)} stands twice in one object", *_place(text, at))
        return found

    def constant(name: str) -> Any:
        raise Malformed(f"{name} is not JSON", *_place(text, text.index(name)))

    return json.JSONDecoder(
        object_pairs_hook=pairs, parse_int=_Number, parse_float=_Number, parse_constant=constant, strict=True
    )


_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\]:]')


def _duplicates(text: str) -> Iterator[tuple[str, int]]:
    """Each repeated key with its offset."""
    open_objects: list[set[str]] = []
    string = ""
    at = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "{" | "[":
                open_objects.append(set())
            case "}" | "]":
                open_objects.pop()
            case ":":
                key = json.loads(string)
                if key in open_objects[-1]:
                    yield key, at
                open_objects[-1].add(key)
            case found:
                string, at = found, token.start()


def _place(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


@dataclass(frozen=True, slots=True)
class _Member:
    """A key with its value; offsets into the text."""

    key: str
    start: int
    value_start: int
    value_end: int


_SPACE = re.compile(r"[ \t\r\n]*")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _members(text: str, start: int) -> Iterator[_Member]:
    """The members of the object that opens at ``start``."""
    scan = _decoder(text).raw_decode
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, end = scan(text, at)
        value_start = _skip(text, _skip(text, end) + 1)
        _, value_end = scan(text, value_start)
        yield _Member(key, at, value_start, value_end)
        at = _skip(text, value_end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _value_start(text: str, path: Path) -> int:
    at = _skip(text, 0)
    for key in path:
        at = next(member.value_start for member in _members(text, at) if member.key == key)
    return at


def _indent(text: str, at: int) -> str:
    """The white space that begins the line of ``at``."""
    line = text.rfind("\n", 0, at) + 1
    found = re.compile(r"[ \t]*").match(text, line)
    return found[0] if found else ""


def _space_before(text: str, at: int) -> str:
    start = at
    while text[start - 1] in " \t\r\n":
        start -= 1
    return text[start:at]


@dataclass(frozen=True, slots=True)
class _Style:
    """How the document is written.

    Attributes:
        unit: one step of indentation; None when the document stands on one line.
        colon: between key and value, with its spaces.
        comma: between values on one line, with its space.
    """

    unit: str | None
    newline: str
    colon: str
    comma: str

    @classmethod
    def of(cls, text: str) -> _Style:
        newline = "\r\n" if "\r\n" in text else "\n"
        first = next(_members(text, _skip(text, 0)), None)
        if first is None:
            return cls("    ", newline, ": ", ", ")
        between = _space_before(text, first.start)
        colon = text[_decoder(text).raw_decode(text, first.start)[1] : first.value_start]
        return cls(
            unit=_indent(text, first.start) or "    " if "\n" in between else None,
            newline=newline,
            colon=colon if "\n" not in colon else ": ",
            comma="," if re.search(r'[\w"\]}],["\[{]', text) or not colon.endswith(" ") else ", ",
        )

    def render(self, value: Any, indent: str) -> str:
        """``value`` as it stands in a line that ``indent`` begins."""
        match value:
            case _Number():
                return str(value)
            case dict() if value:
                key = partial(json.dumps, ensure_ascii=False)
                members = [
                    f"{key(name)}{self.colon}{self.render(inner, self._below(indent))}" for name, inner in value.items()
                ]
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
