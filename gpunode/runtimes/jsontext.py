"""JSON as text: parsed by the standard library, and edited so that every byte outside the edited members stays.

Numbers keep their spelling: 9007199254740993 does not become a float on the way.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from gpunode.fast_dataclass import dataclass
from gpunode.runtimes.documents import MISSING_VALUE, Path, compare_documents

# JSON's white space.
JSON_BLANKS = " \t\r\n"
# The same depth as for TOML: code that walks objects and lists is recursive.
_MAX_NESTING = 200
_TOO_DEEP = f"nested too deeply, more than {_MAX_NESTING} times"
_BLANKS = re.compile(r"[ \t\r\n]*")
_STRING = r'"(?:[^"\\]|\\.)*"'
_CHECKED_TOKEN = re.compile(
    rf"(?P<key>{_STRING})[ \t\r\n]*:|{_STRING}|(?P<bracket>[\[\]{{}}])|(?P<constant>-?Infinity|NaN)"
)
# An integer of more than 4300 digits would be refused as a Python number.
_DECODER = json.JSONDecoder(parse_int=str)
_TRAILING_COMMA = re.compile(r",[ \t\r\n]*[}\]]")
_LINE_BREAK = re.compile(r"\r\n|\n|\r")


class MalformedJson(ValueError):
    """The text is not one JSON value; says where.

    Attributes:
        line: counted from 1, like ``column``.
    """

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(reason)
        self.reason, self.line, self.column = reason, line, column


class DuplicateKey(MalformedJson):
    """An object has the same key twice: valid JSON, but it is unknown which one is meant."""


class Number(str):
    """A number as it was written."""

    __slots__ = ()


def parse(text: str) -> Any:
    """Parse the value, with numbers as ``Number``.

    Raises:
        MalformedJson: it is not JSON, something follows it, or an object has a key twice.
    """
    try:
        value = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=str)
    except json.JSONDecodeError as error:
        # The most frequent mistake; from Python 3.13 on, the error is at the comma.
        comma = error.pos if text.startswith(",", error.pos) else len(text[: error.pos].rstrip(JSON_BLANKS)) - 1
        if comma >= 0 and _TRAILING_COMMA.match(text, comma):
            trailing = "trailing comma before a closing bracket"
            raise MalformedJson(trailing, *line_and_column(text, comma)) from error
        reason = error.msg.removesuffix(" starting at").removesuffix(" at")
        raise MalformedJson(reason, error.lineno, error.colno) from error
    except RecursionError as error:
        raise MalformedJson(_TOO_DEEP, 1, 1) from error
    _refuse_ambiguity(text)
    return value


def _refuse_ambiguity(text: str) -> None:
    """Refuse what Python reads and JSON lacks, or what JSON allows and gpunode does not. Raises MalformedJson."""
    keys_of_open: list[set[str]] = []
    for match in _CHECKED_TOKEN.finditer(text):
        if match["key"]:
            if (key := json.loads(match["key"])) in keys_of_open[-1]:
                raise DuplicateKey(f"the key {json.dumps(key)} appears twice", *line_and_column(text, match.start()))
            keys_of_open[-1].add(key)
        elif match["bracket"] in {"{", "["}:
            keys_of_open.append(set())
            if len(keys_of_open) > _MAX_NESTING:
                raise MalformedJson(_TOO_DEEP, *line_and_column(text, match.start()))
        elif match["bracket"]:
            keys_of_open.pop()
        elif match["constant"]:
            raise MalformedJson(f"{match['constant']} is not JSON", *line_and_column(text, match.start()))


def _end_of_space(text: str, at: int) -> int:
    """Return the offset after the white space at ``at``."""
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Return the line and the column, counted from 1, of an offset."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


@dataclass(frozen=True, slots=True)
class MemberPosition:
    """The offsets of a member: of its key, its value, and the end of its value (exclusive)."""

    start: int
    value: int
    end: int


@dataclass(frozen=True, slots=True)
class _Object:
    """The offsets of an object and its members; ``end`` is the one after its closing brace."""

    start: int
    end: int
    members: dict[str, MemberPosition]


def locate_member(text: str, path: Path) -> MemberPosition:
    """Return the position of the member at ``path`` of ``text``, an object that has it."""
    *above, last = path
    start = _end_of_space(text, 0)
    for key in above:
        start = _locate_object(text, start).members[key].value
    return _locate_object(text, start).members[last]


def _locate_object(text: str, start: int) -> _Object:
    """Locate the object at ``start`` of a text that has been parsed."""
    members: dict[str, MemberPosition] = {}
    at = _end_of_space(text, start + 1)
    while text[at] != "}":
        key, end_of_key = _DECODER.raw_decode(text, at)
        value = _end_of_space(text, text.index(":", end_of_key) + 1)
        end = _DECODER.raw_decode(text, value)[1]
        members[key] = MemberPosition(at, value, end)
        at = _end_of_space(text, end)
        at = _end_of_space(text, at + (text[at] == ","))
    return _Object(start, at + 1, members)


def put_member(text: str, path: Path, value: Any) -> str:
    """Return ``text``, an object, with ``value`` at ``path``, formatted like its neighbours.

    Missing parents are created, and a parent that is not an object is replaced by one.
    """
    root = here = _locate_object(text, _end_of_space(text, 0))
    for depth, key in enumerate(path[:-1], 1):
        inner = here.members.get(key)
        if inner is None or text[inner.value] != "{":
            for outer in reversed(path[depth:]):
                value = {outer: value}
            return _write_member(text, root, here, key, value)
        here = _locate_object(text, inner.value)
    return _write_member(text, root, here, path[-1], value)


def drop_member(text: str, path: Path) -> str:
    """Return ``text`` without the member at ``path``, which it has; removing an object's last member leaves ``{}``."""
    start = locate_member(text, path[:-1]).value if path[1:] else _end_of_space(text, 0)
    holder = _locate_object(text, start)
    keys = list(holder.members)
    index = keys.index(path[-1])
    member = holder.members[path[-1]]
    if index:
        return text[: holder.members[keys[index - 1]].end] + text[member.end :]
    if len(keys) > 1:
        return text[: member.start] + text[holder.members[keys[1]].start :]
    return text[: holder.start] + "{}" + text[holder.end :]


def edit_json(text: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return ``text``, which reads as ``before``, edited to read as ``after``."""
    text = text if text.strip(JSON_BLANKS) else "{}\n"
    for path, _, value in compare_documents(before, after):
        text = drop_member(text, path) if value is MISSING_VALUE else put_member(text, path, value)
    return text


def _write_member(text: str, root: _Object, holder: _Object, key: str, value: Any) -> str:
    """Return ``text`` with the member ``key`` of ``holder`` replaced, or appended if it is new."""
    style = _Style.of(text, root)
    if member := holder.members.get(key):
        local = style if _has_break(_space_before(text, member.start)) else replace(style, unit=None)
        return text[: member.value] + local.render(value, _indent(text, member.start)) + text[member.end :]
    if not holder.members:
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
    """Return the white space that begins the line of ``at``."""
    line = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
    match = re.compile(r"[ \t]*").match(text, line)
    return match[0] if match else ""


def _space_before(text: str, at: int) -> str:
    start = at
    while text[start - 1] in JSON_BLANKS:
        start -= 1
    return text[start:at]


@dataclass(frozen=True, slots=True)
class _Style:
    """The layout of the document.

    Attributes:
        unit: one step of indentation; None if the document is a single line.
        colon: the separator of key and value, with its spaces.
        comma: the separator of values on a line, with its spaces.
    """

    unit: str | None
    newline: str
    colon: str
    comma: str

    @classmethod
    def of(cls, text: str, root: _Object) -> _Style:
        # JSON strings cannot contain line breaks, so every line break is between tokens.
        match = _LINE_BREAK.search(text)
        newline = match[0] if match else "\n"
        members = list(root.members.values())
        if not members:
            return cls("    ", newline, ": ", ", ")
        first = members[0]
        colon = text[_DECODER.raw_decode(text, first.start)[1] : first.value]
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
                return self._enclose("{", members, "}", indent)
            case list() if value:
                return self._enclose("[", [self.render(item, self._below(indent)) for item in value], "]", indent)
            case _:
                return _write_scalar(value)

    def _below(self, indent: str) -> str:
        return indent + (self.unit or "")

    def _enclose(self, opening: str, parts: list[str], closing: str, indent: str) -> str:
        if self.unit is None:
            return f"{opening}{self.comma.join(parts)}{closing}"
        between = self.newline + self._below(indent)
        return f"{opening}{between}{(',' + between).join(parts)}{self.newline}{indent}{closing}"

    def member(self, key: str, value: Any, indent: str) -> str:
        return _write_scalar(key) + self.colon + self.render(value, indent)


def _write_scalar(value: Any) -> str:
    """Return a string, true, false, null or an empty container as JSON; half a surrogate pair can only be escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
