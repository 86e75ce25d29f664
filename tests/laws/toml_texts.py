"""TOML as people and programs write it: documents in every layout of the language, and edits of them.

Each text is written from a document, so its meaning is known without a parser.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

from hypothesis import strategies as st

from gpunode.runtimes.documents import VerbatimFloat

Document: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str | int, ...]

KEYS = [
    "a",
    "b",
    "c",
    "b-c",
    "with.dot",
    "io.x/y",
    "ünï",
    "sp ace",
    "'q'",
    '"qq"',
    "",
    "#",
    "[x]",
    "=",
    "tab\there",
    "1",
]
keys = st.sampled_from(KEYS)
texts = st.text(alphabet="aä \\\"'#[]={},\t\n🚀\x7f", max_size=6) | st.sampled_from(
    ["${SNAP_DATA}/x", "{{ .Node }}", "runc"]
)
_A_DAY = datetime.fromisoformat("1979-05-27T07:32:00")
scalars = st.one_of(
    texts,
    st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    st.booleans(),
    st.sampled_from(["1e3", "nan", "-inf", "0.10", "-0.0", "1.0"]).map(VerbatimFloat),
    st.sampled_from([_A_DAY, _A_DAY.date(), _A_DAY.time(), _A_DAY.replace(tzinfo=timezone.utc)]),
    st.just(_A_DAY.replace(microsecond=999, tzinfo=timezone(timedelta(hours=-7)))),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
tables = st.dictionaries(keys, values, max_size=4)
arrays_of_tables = st.lists(tables, min_size=1, max_size=3)
documents = st.dictionaries(
    keys,
    values | tables | arrays_of_tables | st.dictionaries(keys, tables | arrays_of_tables | values, max_size=4),
    max_size=5,
)


@dataclass
class Text:
    """A document with a text that parses to it.

    Attributes:
        lines: the number of comments on their own lines between statements, numbered from 0.
    """

    document: Document
    text: str
    own_comments: int


@dataclass
class _Writer:
    """Draws a layout for everything it writes; comments on lines of their own are numbered."""

    draw: st.DrawFn
    comments: int = 0
    odd: bool = False
    layouts: tuple[str, ...] = ("header",)
    indent: str = ""
    gaps: list[list[str]] = field(default_factory=list)
    step: str = ""

    @classmethod
    def drawn(cls, draw: st.DrawFn) -> _Writer:
        layouts = draw(
            st.sampled_from(
                [
                    ("header",),
                    ("header", "header", "dotted"),
                    ("header", "inline", "dotted"),
                    ("dotted",),
                    ("inline",),
                ]
            )
        )
        gaps: list[list[str]] = draw(
            st.sampled_from([[[]], [[""]], [[], [""]], [[], [""], ["", ""], [" \t"], ["#"], ["", "#"], ["#", "", "#"]]])
        )
        return cls(
            draw, odd=draw(st.booleans()), layouts=layouts, step=draw(st.sampled_from(["", "  ", "\t"])), gaps=gaps
        )

    def chosen(self, *choices: str) -> str:
        """Return one of the choices; the first one in a text without oddities."""
        return self.draw(st.sampled_from(choices)) if self.odd else choices[0]

    def comment(self) -> str:
        self.comments += 1
        return f"# [comment {self.comments - 1}] = \"it's"

    def gap(self, pad: str) -> list[str]:
        return [pad + self.comment() if line == "#" else line for line in self.draw(st.sampled_from(self.gaps))]

    def remark(self) -> str:
        return self.chosen("", "", "  # remark ]}\"'", "\t", "#")

    def key(self, key: str) -> str:
        plain = bool(key) and all(char.isascii() and (char.isalnum() or char in "-_") for char in key)
        literal = "'" not in key and "\t" not in key
        choices = (
            ([key] if plain else []) + [basic(key)] + ([f"'{key}'"] if literal else []) + [basic(key, escape=True)]
        )
        return self.chosen(*choices)

    def dotted(self, path: tuple[str, ...]) -> str:
        return self.chosen(".", " . ", "\t.").join(self.key(key) for key in path)

    def value(self, value: Any, pad: str = "", *, inline: bool = False) -> str:
        match value:
            case bool():
                return str(value).lower()
            case VerbatimFloat():
                return str(value)
            case int():
                return self.chosen(str(value), f"{value:+d}", hex(value) if value >= 0 else str(value))
            case str():
                return self.string(value)
            case list():
                return self.array(value, pad, inline=inline)
            case dict():
                return self.inline_table(value)
            case datetime():
                return value.isoformat(self.chosen("T", " "))
            case _:
                return str(value.isoformat())

    def string(self, text: str) -> str:
        choices = [basic(text)]
        if "'" not in text and not any(ord(char) < 32 or ord(char) == 127 for char in text):
            choices.append(f"'{text}'")
        if "'" not in text and "\x7f" not in text:
            choices.append(f"'''\n{text}'''")
        if not text[:1].isspace():  # otherwise it would count as the omitted space
            choices.append(f'"""\\\n   {basic(text, lines=True)}"""')
        return self.chosen(*choices)

    def array(self, items: list[Any], pad: str, *, inline: bool) -> str:
        written = [self.value(item, inline=True) for item in items]
        shape = "line" if inline else self.chosen("line", "line", "lines", "lines,", "mixed")
        if shape == "line":
            around, comma, last = self.chosen("", " ", "  "), self.chosen(", ", ",", " , "), self.chosen("", ",")
            return f"[{around}{comma.join(written)}{last if items else ''}{around}]"
        inner = pad + "  "
        remark = self.chosen("", "", " # of ]", ' # "')
        if shape == "mixed":
            return f"[ # first\n{inner}{(', ').join(written)}{remark}\n{pad}]"
        lines = []
        for index, item in enumerate(written):
            comma = "," if index < len(written) - 1 or shape == "lines," else ""
            lines += [*([f"{inner}# inside, [1]"] if self.chosen("", "#") else []), f"{inner}{item}{comma}{remark}"]
        return "[\n" + "".join(line + "\n" for line in lines) + f"{pad}]"

    def inline_table(self, table: Document) -> str:
        members = []
        for key, value in table.items():
            if isinstance(value, dict) and value and self.chosen("", "dotted"):
                members += [f"{self.key(key)}.{self.key(k)} = {self.value(v, inline=True)}" for k, v in value.items()]
            else:
                members.append(f"{self.key(key)}{self.chosen(' = ', '=')}{self.value(value, inline=True)}")
        around = self.chosen(" ", "", "  ") if members else self.chosen("", " ")
        return f"{{{around}{self.chosen(', ', ',', ' , ').join(members)}{around if members else ''}}}"

    def table(self, path: tuple[str, ...], table: Document, depth: int) -> tuple[list[str], list[list[str]]]:
        """Return the statements below the table's header, and the blocks of lines for tables with their own headers."""
        own: list[str] = []
        blocks: list[list[str]] = []
        pad = self.step * depth
        for key, value in table.items():
            if isinstance(value, dict):
                self.place_table((*path, key), (key,), value, depth, own, blocks)
            elif self.is_array_of_tables(value):
                blocks.append(self.elements((*path, key), value, depth))
            else:
                own += [*self.gap(pad), self.statement((key,), value, pad)]
        return own, blocks

    def place_table(
        self,
        path: tuple[str, ...],
        keys: tuple[str, ...],
        table: Document,
        depth: int,
        own: list[str],
        blocks: list[list[str]],
    ) -> None:
        layout = self.draw(st.sampled_from(self.layouts))
        pad = self.step * depth
        if layout == "header" and len(keys) == 1:
            blocks += self.section(path, table, depth)
        elif layout == "dotted" and any(not isinstance(value, dict) for value in table.values()):
            for key, value in table.items():
                if not isinstance(value, dict):
                    own += [*self.gap(pad), self.statement((*keys, key), value, pad)]
            for key, value in table.items():
                if isinstance(value, dict):
                    if self.draw(st.booleans()) and self.odd:
                        blocks += self.section((*path, key), value, depth)
                    else:
                        self.place_table((*path, key), (*keys, key), value, depth, own, blocks)
        else:
            own += [*self.gap(pad), self.statement(keys, table, pad)]

    def is_array_of_tables(self, value: Any) -> bool:
        is_one = isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
        return is_one and bool(self.draw(st.booleans()))

    def statement(self, keys: tuple[str, ...], value: Any, pad: str) -> str:
        equals = self.chosen(" = ", "=", "  =\t")
        return f"{pad}{self.dotted(keys)}{equals}{self.value(value, pad)}{self.remark()}"

    def section(self, path: tuple[str, ...], table: Document, depth: int) -> list[list[str]]:
        own, blocks = self.table(path, table, depth + 1)
        pad = self.step * depth
        inner = self.chosen("", " ")
        header = [*self.gap(pad), f"{pad}[{inner}{self.dotted(path)}{inner}]{self.remark()}"]
        is_implied = not own and bool(blocks) and self.draw(st.booleans())
        mine = [] if is_implied else [[*header, *own]]
        if self.odd and mine and self.draw(st.booleans()):
            return [*blocks, *mine]
        return [*mine, *blocks]

    def elements(self, path: tuple[str, ...], tables: list[Document], depth: int) -> list[str]:
        lines: list[str] = []
        pad = self.step * depth
        for table in tables:
            own, blocks = self.table(path, table, depth + 1)
            lines += [*self.gap(pad), f"{pad}[[{self.dotted(path)}]]{self.remark()}", *own]
            lines += [line for block in blocks for line in block]
        return lines


def basic(text: str, *, escape: bool = False, lines: bool = False) -> str:
    """Return ``text`` as a double-quoted string, or as the content of a multi-line one."""
    names = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n", "\x7f": "\\u007F"}
    written = "".join(f"\\U{ord(char):08x}" if escape else names.get(char, char) for char in text)
    return written if lines else f'"{written}"'


@st.composite
def toml_texts(draw: st.DrawFn) -> Text:
    """Return a document and a text that parses to it."""
    document = draw(documents)
    writer = _Writer.drawn(draw)
    own, blocks = writer.table((), document, 0)
    if writer.odd:
        blocks = draw(st.permutations(blocks))
    lines = [*own, *(line for block in blocks for line in block), *writer.gap("")]
    newline = draw(st.sampled_from(["\n", "\n", "\r\n", "mixed"]))
    text = "\n".join(lines)
    text += "\n" if lines and draw(st.sampled_from([True, True, False])) else ""
    # A line end within a string is part of its value; parsers normalise both kinds to the shorter one.
    if newline == "mixed":
        pieces = text.split("\n")
        ends = draw(st.lists(st.sampled_from(["\n", "\r\n"]), min_size=len(pieces), max_size=len(pieces)))
        text = "".join(piece + end for piece, end in zip(pieces[:-1], ends, strict=False)) + pieces[-1]
    else:
        text = text.replace("\n", newline)
    return Text(document, text, writer.comments)


# Edits.


def _tables(document: Any, above: Path = (), *, in_lists: bool = True) -> list[Path]:
    """Return the path to every table of the document, including those in lists with ``in_lists``."""
    found: list[Path] = [above] if isinstance(document, dict) else []
    members = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in members:
        if isinstance(value, dict) or (in_lists and isinstance(value, list)):
            found += _tables(value, (*above, key), in_lists=in_lists)
    return found


def _arrays(document: Any, above: Path = ()) -> list[Path]:
    found: list[Path] = [above] if isinstance(document, list) else []
    members = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in members:
        if isinstance(value, dict | list):
            found += _arrays(value, (*above, key))
    return found


def at(document: Any, path: Path) -> Any:
    """Return the value at ``path``."""
    for key in path:
        document = document[key]
    return document


@st.composite
def extended(draw: st.DrawFn, document: Document, *, in_lists: bool = True) -> Document:
    """Return ``document`` with new keys or, with ``in_lists``, a new item in one of its lists.

    Not both: changing one item and adding another could equally be the reverse.
    """
    after = copy.deepcopy(document)
    arrays = _arrays(after) if in_lists else []
    if arrays and draw(st.integers(0, 3)) == 0:
        array = at(after, draw(st.sampled_from(arrays)))
        of_tables = bool(array) and all(isinstance(item, dict) for item in array)
        array.insert(draw(st.integers(0, len(array))), draw(tables if of_tables else values))
        return after
    for _ in range(draw(st.integers(1, 4))):
        table = at(after, draw(st.sampled_from(_tables(after, in_lists=in_lists))))
        fresh = draw(st.sampled_from([key for key in KEYS if key not in table] or ["new"]))
        table[fresh] = draw(values)
    return after


@st.composite
def reduced(draw: st.DrawFn, document: Document, left: int = 0, *, in_lists: bool = True) -> Document:
    """Return ``document`` without some keys or, with ``in_lists``, an item; each table and list keeps ``left``."""
    after = copy.deepcopy(document)
    arrays = [path for path in _arrays(after) if in_lists and len(at(after, path)) > left]
    if arrays and draw(st.integers(0, 3)) == 0:
        array = at(after, draw(st.sampled_from(arrays)))
        del array[draw(st.integers(0, len(array) - 1))]
        return after
    for _ in range(draw(st.integers(1, 3))):
        places = [path for path in _tables(after, in_lists=in_lists) if len(at(after, path)) > left]
        if places:
            table = at(after, draw(st.sampled_from(places)))
            del table[draw(st.sampled_from(sorted(table)))]
    return after


@st.composite
def altered(draw: st.DrawFn, document: Document) -> Document:
    """Return ``document`` with keys and items added, removed and changed, including to other types."""
    after = draw(extended(document)) if draw(st.booleans()) else copy.deepcopy(document)
    for _ in range(draw(st.integers(0, 3))):
        places = [path for path in _tables(after) if at(after, path)]
        if places:
            table = at(after, draw(st.sampled_from(places)))
            table[draw(st.sampled_from(sorted(table)))] = draw(values)
    return draw(reduced(after)) if draw(st.booleans()) else after
