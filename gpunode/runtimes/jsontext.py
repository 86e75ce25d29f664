"""JSON as text: parsed with the position of every member, and edited so that every byte outside those stays.

Numbers keep their spelling: 9007199254740993 does not become a float on the way.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, NoReturn

from gpunode.runtimes.documents import MISSING_VALUE, Path, compare_documents
from gpunode.values import dataclass

# JSON's white space.
JSON_BLANKS = " \t\r\n"
# The same depth as for TOML: code that walks objects and lists is recursive.
_MAX_NESTING = 200
_BLANKS = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})[^"\\\x00-\x1f]*)*"')
_STRING_START = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_UNQUOTED_WORD = re.compile(r'[^\s,:{}\[\]"]{1,20}')
_JSON_CONSTANTS = {"true": True, "false": False, "null": None}
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


@dataclass(frozen=True, slots=True)
class MemberPosition:
    """The offsets of a member: of its key, its value, and the end of its value (exclusive)."""

    start: int
    value: int
    end: int


class Object(dict[str, Any]):
    """An object with its position and those of its members in the text.

    Attributes:
        start: the offset of its opening brace; ``end`` is the offset after its closing brace.
    """

    __slots__ = ("end", "members", "start")

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = self.end = start
        self.members: dict[str, MemberPosition] = {}


def parse(text: str) -> Any:
    """Parse the value, with objects as ``Object`` and numbers as ``Number``.

    Raises:
        MalformedJson: it is not JSON, something follows it, or an object has a key twice.
    """
    reader = _JsonReader(text)
    value = reader.read_value(0)
    if reader.skip_blanks() != len(text):
        reader.refuse("the end of the file")
    return value


class _JsonReader:
    """A cursor over the tokens of the text; ``at`` is the offset after the last one read."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def skip_blanks(self) -> int:
        """Return the offset of the next token."""
        self.at = _end_of_space(self.text, self.at)
        return self.at

    def accept(self, mark: str) -> bool:
        """Read ``mark`` if it comes next, and return whether it did."""
        is_next = self.text.startswith(mark, self.skip_blanks())
        self.at += is_next
        return is_next

    def read_value(self, depth: int) -> Any:
        """Read and return the next value, nested in ``depth`` others."""
        start = self.skip_blanks()
        if self.text.startswith('"', start):
            return self.read_string()
        if self.accept("{"):
            return self.read_container(Object(start), "}", depth + 1)
        if self.accept("["):
            return self.read_container([], "]", depth + 1)
        if match := _NUMBER.match(self.text, start):
            self.at = match.end()
            return Number(match[0])
        word = _UNQUOTED_WORD.match(self.text, start)
        if word is None or word[0] not in _JSON_CONSTANTS:
            self.refuse("a value")
        self.at = word.end()
        return _JSON_CONSTANTS[word[0]]

    def read_container(self, container: Object | list[Any], closing: str, depth: int) -> Any:
        """Read and return the rest of an object or list whose opening bracket has been read."""
        if depth > _MAX_NESTING:
            self.fail(f"nested too deeply, more than {_MAX_NESTING} times")
        is_closed = self.accept(closing)
        while not is_closed:
            if isinstance(container, Object):
                self.read_member(container, depth)
            else:
                container.append(self.read_value(depth))
            comma = self.skip_blanks()
            if not self.accept(","):
                is_closed = self.accept(closing) or self.refuse(f"a comma or {closing}")
            elif self.text.startswith(("}", "]"), self.skip_blanks()):
                self.at = comma
                self.fail("trailing comma before a closing bracket")
        if isinstance(container, Object):
            container.end = self.at
        return container

    def read_member(self, holder: Object, depth: int) -> None:
        start = self.skip_blanks()
        if not self.text.startswith('"', start):
            self.refuse("a key")
        key = self.read_string()
        if key in holder:
            raise DuplicateKey(f"the key {json.dumps(key)} appears twice", *line_and_column(self.text, start))
        if not self.accept(":"):
            self.refuse("a colon")
        value = self.skip_blanks()
        holder[key] = self.read_value(depth)
        holder.members[key] = MemberPosition(start, value, self.at)

    def read_string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            begin = self.at
            stop = _STRING_START.match(self.text, begin)
            self.at = stop.end() if stop else begin
            if self.at == len(self.text):
                self.at = begin
                self.fail("unterminated string")
            if self.text[self.at] == "\\":
                self.fail(f"{self.text[self.at : self.at + 2]!r} is not a valid escape")
            self.fail(f"the control character {self.text[self.at]!r} in a string")
        self.at = match.end()
        text: str = json.loads(match[0])
        return text

    def refuse(self, expected: str) -> NoReturn:
        """Raise MalformedJson because something other than what is ``expected`` comes next."""
        at = self.skip_blanks()
        if at == len(self.text):
            self.fail(f"the file ends where {expected} is expected")
        word = _UNQUOTED_WORD.match(self.text, at)
        found = word[0] if word else self.text[at]
        if found.startswith(("//", "/*", "#")):
            self.fail(f"a comment where {expected} is expected")
        if expected == "a value" and found in {"NaN", "Infinity", "-Infinity"}:
            self.fail(f"{found} is not JSON")
        self.fail(f"{found!r} where {expected} is expected")

    def fail(self, reason: str) -> NoReturn:
        raise MalformedJson(reason, *line_and_column(self.text, self.at))


def _end_of_space(text: str, at: int) -> int:
    """Return the offset after the white space at ``at``."""
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Return the line and the column, counted from 1, of an offset."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def put_member(text: str, path: Path, value: Any) -> str:
    """Return ``text``, an object, with ``value`` at ``path``, formatted like its neighbours.

    Missing parents are created, and a parent that is not an object is replaced by one.
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


def drop_member(text: str, path: Path) -> str:
    """Return ``text`` without the member at ``path``, which it has; removing an object's last member leaves ``{}``."""
    holder = parse(text)
    for key in path[:-1]:
        holder = holder[key]
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


def _write_member(text: str, root: Object, holder: Object, key: str, value: Any) -> str:
    """Return ``text`` with the member ``key`` of ``holder`` replaced, or appended if it is new."""
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
    def of(cls, text: str, root: Object) -> _Style:
        # JSON strings cannot contain line breaks, so every line break is between tokens.
        match = _LINE_BREAK.search(text)
        newline = match[0] if match else "\n"
        members = list(root.members.values())
        if not members:
            return cls("    ", newline, ": ", ", ")
        first = members[0]
        key = _STRING.match(text, first.start)
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
                return self._enclose("{", members, "}", indent)
            case list() if value:
                return self._enclose("[", [self.render(item, self._below(indent)) for item in value], "]", indent)
            case _:
                return json.dumps(value, ensure_ascii=False)

    def _below(self, indent: str) -> str:
        return indent + (self.unit or "")

    def _enclose(self, opening: str, parts: list[str], closing: str, indent: str) -> str:
        if self.unit is None:
            return f"{opening}{self.comma.join(parts)}{closing}"
        between = self.newline + self._below(indent)
        return f"{opening}{between}{(',' + between).join(parts)}{self.newline}{indent}{closing}"

    def member(self, key: str, value: Any, indent: str) -> str:
        return json.dumps(key, ensure_ascii=False) + self.colon + self.render(value, indent)
