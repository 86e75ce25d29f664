"""Where the parts of a TOML document stand in its text; joined again, they are that text. Pure.

The text has been read by a parser before: what is scanned here is valid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from gpunode.runtimes.tomlread import parse

# The way to a table: its keys, and after that of an array of tables the index of the element.
Place: TypeAlias = tuple[str | int, ...]
Keys: TypeAlias = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A header or a statement, with its lines whole.

    Attributes:
        above: the blank and comment lines between the node before it and this one.
        head: of a header all of it; of a statement what stands before its value, its indentation first.
        value: as written; empty for a header.
        tail: what follows the value on its line, the line's end included.
        table: what the header opens, or the statement stands in.
        keys: of the statement, within its table; empty for a header.
    """

    above: str
    head: str
    value: str
    tail: str
    table: Place
    keys: Keys = ()

    @property
    def place(self) -> Place:
        """What it opens or sets."""
        return self.table + self.keys

    @property
    def indent(self) -> str:
        """The white space that it begins with."""
        return self.head[: len(self.head) - len(self.head.lstrip())]

    @property
    def text(self) -> str:
        """All of it."""
        return self.above + self.head + self.value + self.tail


@dataclass(slots=True, eq=False)
class Layout:
    """A document in parts.

    Attributes:
        nodes: in the order of the text.
        tail: the blank and comment lines below the last one.
        newline: the line end that most lines have.
        is_terminated: whether the last line has its end; in the parts it always has.
    """

    nodes: list[Node]
    tail: str
    newline: str
    is_terminated: bool

    @property
    def text(self) -> str:
        """The document."""
        whole = "".join([*(node.text for node in self.nodes), self.tail])
        return whole if self.is_terminated else whole.removesuffix("\n").removesuffix("\r")


@dataclass(frozen=True, slots=True)
class Part:
    """An item of an array, or a member of an inline table; offsets into its text.

    Attributes:
        keys: of the member; empty for an item.
        start: of the key or the item.
        value: where the value begins; ``end``: where it ends.
    """

    keys: Keys
    start: int
    value: int
    end: int


_STRING = r"""\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'"""
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
_DOTTED = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_BLANK_OR_COMMENT = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\r?\n)*")
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_DOTTED})[ \t]*\]\]?[ \t]*(?:#[^\n]*)?\r?\n", re.DOTALL)
_ASSIGNMENT = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=[ \t]*", re.DOTALL)
_REST_OF_LINE = re.compile(r"[ \t]*(?:#[^\n]*)?\r?\n")
# A date and its time may be parted by a space.
_SCALAR = re.compile(rf"{_STRING}|[^\s#,\[\]{{}}\"']+(?:[ ]\d[^\s#,\[\]{{}}\"']*)?", re.DOTALL)
_NESTED = re.compile(rf"(?P<open>[\[{{])|(?P<close>[\]}}])|{_STRING}|#[^\n]*|[^\[\]{{}}\"'#]+", re.DOTALL)
_BETWEEN_PARTS = re.compile(r"(?:[ \t\r\n,]|#[^\n]*(?:\n|\Z))*")
_KEY = re.compile(_PART, re.DOTALL)


def scan(text: str) -> Layout:
    """The parts of ``text``, a valid document."""
    crlf = text.count("\r\n")
    newline = "\r\n" if 2 * crlf > text.count("\n") else "\n"
    is_terminated = not text or text.endswith("\n")
    text = text if is_terminated else text + newline
    nodes: list[Node] = []
    arrays: dict[Place, int] = {}
    table: Place = ()
    at = 0
    while True:
        start = _end(_BLANK_OR_COMMENT, text, at)
        if start == len(text):
            return Layout(nodes, text[at:], newline, is_terminated)
        above = text[at:start]
        if header := _HEADER.match(text, start):
            table = _opened(_keys(header[2]), arrays, is_array=header[1] == "[[")
            nodes.append(Node(above, header[0], "", "", table))
            at = header.end()
            continue
        assignment = _ASSIGNMENT.match(text, start)
        assert assignment, "a valid document has nothing else"
        end = _value_end(text, assignment.end())
        at = _end(_REST_OF_LINE, text, end)
        keys = _keys(assignment[1])
        nodes.append(Node(above, assignment[0], text[assignment.end() : end], text[end:at], table, keys))


def parts(value: str) -> list[Part]:
    """The items of an array, or the members of an inline table."""
    found: list[Part] = []
    at = _end(_BETWEEN_PARTS, value, 1)
    while value[at] not in "]}":
        assignment = _ASSIGNMENT.match(value, at) if value[0] == "{" else None
        begin = assignment.end() if assignment else at
        end = _value_end(value, begin)
        found.append(Part(_keys(assignment[1]) if assignment else (), at, begin, end))
        at = _end(_BETWEEN_PARTS, value, end)
    return found


def split_above(above: str) -> tuple[str, str]:
    """``above`` without the comment lines that touch the node below it, and these."""
    lines = above.splitlines(keepends=True)
    touching = len(lines)
    while touching and lines[touching - 1].strip():
        touching -= 1
    return "".join(lines[:touching]), "".join(lines[touching:])


def last_blank(above: str) -> int:
    """The length of the blank line at the end of ``above``; 0 when there is none."""
    line = above[above.rfind("\n", 0, -1) + 1 :]
    return 0 if line.strip() else len(line)


def first_blank(above: str) -> int:
    """The length of the blank line that ``above`` begins with; 0 when there is none."""
    line = above[: above.find("\n") + 1]
    return 0 if line.strip() else len(line)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _value_end(text: str, at: int) -> int:
    if text[at] not in "[{":
        return _end(_SCALAR, text, at)
    depth = 0
    for token in _NESTED.finditer(text, at):
        if token.lastgroup:
            depth += 1 if token.lastgroup == "open" else -1
            if not depth:
                return token.end()
    raise AssertionError("brackets of a valid document are closed")


def _keys(dotted: str) -> Keys:
    return tuple(map(_key, _KEY.findall(dotted)))


def _key(part: str) -> str:
    if part[0] == "'" or (part[0] == '"' and "\\" not in part):
        return part[1:-1]
    return next(iter(parse(f"{part} = 0"))) if part[0] == '"' else part


def _opened(keys: Keys, arrays: dict[Place, int], *, is_array: bool) -> Place:
    """The table that a header opens, below the last element of each array of tables on its way."""
    if not arrays and not is_array:
        return keys
    place: Place = ()
    for key in keys[:-1] if is_array else keys:
        place += (key,)
        if place in arrays:
            place += (arrays[place],)
    if is_array:
        place += (keys[-1],)
        arrays[place] = arrays.get(place, -1) + 1
        place += (arrays[place],)
    return place
