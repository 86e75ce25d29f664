"""A JSON value with the place of every member. One pass, and nesting costs no stack.

Numbers keep their spelling: 9007199254740993 does not become a float on the way.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

Path: TypeAlias = tuple[str, ...]
# What JSON calls white space.
JSON_BLANKS = " \t\r\n"
# Deeper than this neither dockerd's decoder goes (Go's encoding/json, maxNestingDepth).
_MAX_NESTING_DEPTH = 10_000


class MalformedJson(Exception):
    """The text is not one JSON value; says where.

    Attributes:
        line: from 1. Likewise ``column``.
    """

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(reason)
        self.reason, self.line, self.column = reason, line, column


class DuplicateKey(MalformedJson):
    """An object has the same key twice: JSON by the letter, and nobody knows which one is meant."""


class Number(str):
    """A number as it was written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class MemberPosition:
    """The position of a member: the offset of its key, and its value's with the one behind its end."""

    start: int
    value: int
    end: int


class Object(dict[str, Any]):
    """An object with its position and those of its members in the text.

    Attributes:
        start: the offset of its opening brace; ``end`` is the one behind its closing brace.
    """

    __slots__ = ("end", "members", "start")

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = self.end = start
        self.members: dict[str, MemberPosition] = {}


def parse(text: str) -> Any:
    """The value: objects as ``Object``, numbers as ``Number``.

    Raises:
        MalformedJson: it is not JSON, something follows it, or an object has a key twice.
    """
    scan, opened = _Scan(text), list[_OpenContainer]()
    while True:
        value = scan.start_value()
        if isinstance(value, Object | list) and not scan.accept(_CLOSING_BRACKET_BY_TYPE[type(value)]):
            if len(opened) == _MAX_NESTING_DEPTH:
                scan.fail(f"nested too deeply, more than {_MAX_NESTING_DEPTH} times")
            opened.append(_OpenContainer(value))
            opened[-1].expect(scan)
            continue
        _set_object_end(value, scan.at)
        while opened:
            opened[-1].add(value, scan.at)
            if scan.accept_comma():
                opened[-1].expect(scan)
                break
            closing = _CLOSING_BRACKET_BY_TYPE[type(opened[-1].container)]
            if not scan.accept(closing):
                scan.unexpected(f"a comma or {closing}")
            value = opened.pop().container
            _set_object_end(value, scan.at)
        else:
            scan.finish()
            return value


def position(text: str, path: Path) -> tuple[int, int]:
    """Line and column, from 1, of the value at ``path`` in a valid document."""
    if not path:
        return _line_and_column(text, SPACE.match(text, 0).end())  # type: ignore[union-attr]  # it matches everywhere
    return _line_and_column(text, find_parent_object(parse(text), path).members[path[-1]].value)


def source_text(text: str, path: Path) -> str:
    """The value at ``path`` in a valid document, as it is written there."""
    member = find_parent_object(parse(text), path).members[path[-1]]
    return text[member.value : member.end]


def find_parent_object(root: Any, path: Path) -> Object:
    """The object that has the member at ``path``."""
    for key in path[:-1]:
        root = root[key]
    return root  # type: ignore[no-any-return]  # the caller knows that there are objects on the way


SPACE = re.compile(r"[ \t\r\n]*")
STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})[^"\\\x00-\x1f]*)*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_UNQUOTED_WORD = re.compile(r'[^\s,:{}\[\]"]{1,20}')
_CONSTANTS = {"true": True, "false": False, "null": None}
_CLOSING_BRACKET_BY_TYPE: dict[type, str] = {Object: "}", list: "]"}


class _Scan:
    """The text from one token to the next.

    Attributes:
        at: the offset behind what has been read.
    """

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def skip(self) -> int:
        """The offset of the next token."""
        found = SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.at

    def accept(self, mark: str) -> bool:
        """Return whether ``mark`` comes next; then it has been read."""
        end = self.at
        found = self.text.startswith(mark, self.skip())
        self.at = self.at + 1 if found else end
        return found

    def accept_comma(self) -> bool:
        """Read a comma after which something has to come."""
        if not self.accept(","):
            return False
        behind = self.at
        if self.text[self.skip() : self.at + 1] in {"}", "]"}:
            self.at = behind - 1
            self.fail("trailing comma before a closing bracket")
        return True

    def start_value(self) -> Any:
        """The value that comes next; an object or array still empty."""
        start = self.skip()
        match self.text[start : start + 1]:
            case '"':
                return self.string()
            case "{":
                self.at += 1
                return Object(start)
            case "[":
                self.at += 1
                return []
            case _:
                pass
        if found := _NUMBER.match(self.text, start):
            self.at = found.end()
            return Number(found[0])
        word = _UNQUOTED_WORD.match(self.text, start)
        if word is None or word[0] not in _CONSTANTS:
            self.unexpected("a value")
        self.at = word.end()
        return _CONSTANTS[word[0]]

    def string(self) -> str:
        found = STRING.match(self.text, self.at)
        if found is None:
            self._unreadable_string()
        self.at = found.end()
        return json.loads(found[0]) if "\\" in found[0] else found[0][1:-1]

    def finish(self) -> None:
        if self.skip() != len(self.text):
            self.unexpected("the end of the file")

    def unexpected(self, meant: str) -> NoReturn:
        """Raise MalformedJson: something else than ``meant`` comes next."""
        at = self.skip()
        if at == len(self.text):
            self.fail(f"the file ends where {meant} is expected")
        word = _UNQUOTED_WORD.match(self.text, at)
        found = word[0] if word else self.text[at]
        if found.startswith(("//", "/*", "#")):
            self.fail(f"a comment where {meant} is expected")
        if meant == "a value" and found in {"NaN", "Infinity", "-Infinity"}:
            self.fail(f"{found} is not JSON")
        self.fail(f"{found!r} where {meant} is expected")

    def fail(self, reason: str) -> NoReturn:
        raise MalformedJson(reason, *_line_and_column(self.text, self.at))

    def _unreadable_string(self) -> NoReturn:
        begin = self.at
        stop = re.compile(r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*').match(self.text, begin + 1)
        self.at = stop.end() if stop else begin
        if self.at == len(self.text):
            self.at = begin
            self.fail("unterminated string")
        if self.text[self.at] == "\\":
            self.fail(f"{self.text[self.at : self.at + 2]!r} is not a valid escape")
        self.fail(f"the control character {self.text[self.at]!r} in a string")


class _OpenContainer:
    """An object or array whose closing bracket has not come yet."""

    __slots__ = ("container", "key", "start", "value")

    def __init__(self, container: Object | list[Any]) -> None:
        self.container = container
        self.key, self.start, self.value = "", 0, 0

    def expect(self, scan: _Scan) -> None:
        """A member or an item comes next; of a member its key and colon have been read."""
        if not isinstance(self.container, Object):
            return
        self.start = scan.skip()
        if not scan.text.startswith('"', self.start):
            scan.unexpected("a key")
        self.key = scan.string()
        if self.key in self.container:
            raise DuplicateKey(
                f"the key {json.dumps(self.key)} appears twice", *_line_and_column(scan.text, self.start)
            )
        if not scan.accept(":"):
            scan.unexpected("a colon")
        self.value = scan.skip()

    def add(self, value: Any, end: int) -> None:
        if isinstance(self.container, Object):
            self.container[self.key] = value
            self.container.members[self.key] = MemberPosition(self.start, self.value, end)
        else:
            self.container.append(value)


def _set_object_end(value: Any, at: int) -> None:
    if isinstance(value, Object):
        value.end = at


def _line_and_column(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
