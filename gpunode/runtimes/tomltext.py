"""Edits a TOML document as text, so that every byte outside the edited keys stays.

The text is cut into sections (a header and its statements). A new table is written as text beside its siblings, a
changed value within its own statement; only there does tomlkit work, because it corrupts some whole documents (it moves
dotted keys under a table that was added before them) and takes long over large ones. Each edit is a list of candidates,
and the first one that tomllib reads as exactly the meant document is taken, so a wrong guess about layout costs a
candidate and never a configuration.

Source: tomlkit@0.15.2 on the inputs of tests/conformance/runtimes/vectors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpunode.runtimes.tomlread import Document, Path, Verbatim, parse


class Uneditable(Exception):
    """No candidate reads as the meant document."""


def edit(text: str, before: Document, after: Document) -> str:
    """``text``, which reads as ``before``, so that it reads as ``after``.

    Comments and everything outside the differing keys stay byte for byte; a comment goes only with the line of a value
    that goes.

    Raises:
        Uneditable: the document is laid out in a way that no known edit fits.
    """
    document = before
    for path, value in _differences(before, after):
        document = _with(document, path, value)
        text = next((found for found in _candidates(text, path, value) if _reads_as(found, document)), "")
        if not text:
            raise Uneditable(".".join(path))
    return text


def line_of(text: str, path: Path) -> int:
    """The line, from 1, on which ``path`` is set or its table begins; 0 when it stands nowhere."""
    for section in _sections(text):
        if section.path == path and section.header:
            return text.count("\n", 0, section.header.start) + 1
        for span in _defining(text, section, path):
            return text.count("\n", 0, span.start) + 1
    return 0


def _reads_as(text: str, document: Document) -> bool:
    try:
        return parse(text) == document
    except (ValueError, RecursionError):
        return False


# Differences between documents. None stands for "gone": TOML has no null.


def _differences(old: Document, new: Document, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in new.items():
        here = (*path, key)
        if key not in old:
            yield here, value
        elif old[key] != value:
            if isinstance(old[key], dict) and isinstance(value, dict):
                yield from _differences(old[key], value, here)
                continue
            if isinstance(old[key], dict) or isinstance(value, dict):
                yield here, None
            yield here, value
    # Last, because a table of dotted keys is gone with its last key.
    for key in old:
        if key not in new:
            yield (*path, key), None


def _with(document: Document, path: Path, value: Any) -> Document:
    """A copy of ``document`` with ``value`` at ``path``; what lies beside the path is shared."""
    copy, key = dict(document), path[0]
    if len(path) > 1:
        copy[key] = _with(copy.get(key, {}), path[1:], value)
    elif value is None:
        del copy[key]
    else:
        copy[key] = value
    return copy


# Layout: where sections and statements stand.


@dataclass(frozen=True, slots=True)
class _Span:
    """A header, or a key with its value and trailing comment, from its first character to its line's end."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Section:
    """A header with its statements; the root section has no header."""

    path: Path
    header: _Span | None
    body: tuple[_Span, ...]

    @property
    def spans(self) -> tuple[_Span, ...]:
        return (self.header, *self.body) if self.header else self.body


_TOKEN = re.compile(
    r"""
      (?P<newline>\n) | (?P<space>[ \t\r]+) | (?P<comment>\#[^\n]*)
    | (?P<string>
        \"{3}(?:\\.|[^\\])*?\"{3,5} | '{3}.*?'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*')
    | (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<other>[^\s\#"'\[\]{}]+)
    """,
    re.VERBOSE | re.DOTALL,
)


def _spans(text: str) -> Iterator[_Span]:
    """Each header and statement of a valid document."""
    start, depth = -1, 0
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "newline":
            if start >= 0 and depth == 0:
                yield _Span(start, token.start() - (text[token.start() - 1] == "\r"))
                start = -1
        elif kind not in {"space", "comment"}:
            start = token.start() if start < 0 else start
            depth += {"open": 1, "close": -1}.get(kind or "", 0)
    if start >= 0:
        yield _Span(start, len(text))


def _sections(text: str) -> list[_Section]:
    """The root section, then one for each header, in the order of the text."""
    found: list[tuple[Path, _Span | None, list[_Span]]] = [((), None, [])]
    for span in _spans(text):
        if text[span.start] == "[":
            found.append((_header_path(text[span.start : span.end]), span, []))
        else:
            found[-1][2].append(span)
    return [_Section(path, header, tuple(body)) for path, header, body in found]


_PLAIN_HEADER = re.compile(r"\[[ \t]*((?:[\w-]+|\"[^\"\\]*\"|'[^']*')(?:\.(?:[\w-]+|\"[^\"\\]*\"|'[^']*'))*)[ \t]*\]")
_KEY = re.compile(r"[\w-]+|\"[^\"]*\"|'[^']*'")


def _header_path(header: str) -> Path:
    """The keys of ``[a.b]`` or ``[[a.b]]``."""
    if plain := _PLAIN_HEADER.match(header):
        return tuple(key[1:-1] if key[0] in "\"'" else key for key in _KEY.findall(plain[1]))
    return _only_path(parse(header))


def _only_path(node: Any) -> Path:
    """The way down a document that holds a single table or array of tables."""
    path: list[str] = []
    while node:
        node = node[0] if isinstance(node, list) else node
        path.extend(node)
        node = next(iter(node.values()), None)
    return tuple(path)


def _has(document: Any, path: Path) -> bool:
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True


def _defining(text: str, section: _Section, path: Path) -> Iterator[_Span]:
    """The statements of ``section`` that set ``path`` or something below it."""
    inside = path[len(section.path) :]
    if inside and section.path == path[: len(section.path)]:
        for span in section.body:
            if _has(parse(text[span.start : span.end]), inside):
                yield span


# Candidates: the edits worth trying, the most natural one first.


def _candidates(text: str, path: Path, value: Any) -> Iterator[str]:
    sections = _sections(text)
    style = _Style.of(text, sections)
    holders = [(section, span) for section in sections for span in _defining(text, section, path)]
    if value is None:
        yield _without(text, sections, path, [span for _, span in holders])
    if holders:
        yield from _in_statement(text, *holders[-1], path, value, style)
    elif value is not None:
        yield from _additions(text, sections, path, value, style)


def _additions(text: str, sections: list[_Section], path: Path, value: Any, style: _Style) -> Iterator[str]:
    """``path`` is set nowhere yet."""
    parent = path[:-1]
    holders = [(section, span) for section in sections for span in _defining(text, section, parent)]
    if holders:
        section, span = holders[-1]
        yield _beside(text, span, _dotted(path[len(section.path) :], value, style), style)
        yield from _in_statement(text, section, span, path, value, style)
    table = value if isinstance(value, dict) else None
    home = next((section for section in sections if section.path == parent), None)
    if table is None and home:
        yield _into(text, home, f"{_key(path[-1], style)} = {_value(value, style)}", style)
    elif table is None:
        yield from _block(text, sections, parent, {path[-1]: value}, style)
    else:
        yield from _block(text, sections, path, table, style)


def _in_statement(text: str, section: _Section, span: _Span, path: Path, value: Any, style: _Style) -> Iterator[str]:
    """The statement changed by tomlkit, which keeps its comment, spacing and the rest of an inline table."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    *way, last = path[len(section.path) :]
    try:
        statement = tomlkit.parse(text[span.start : span.end])
        table: Any = statement
        for key in way:
            table = table[key]
        if value is None:
            del table[last]
        else:
            table[last] = tomlkit.value(_value(value, style))
        changed = statement.as_string()
    except (TOMLKitError, ValueError):
        return  # the next candidate has its turn
    yield text[: span.start] + changed + text[span.end :]


def _without(text: str, sections: list[_Section], path: Path, holders: Sequence[_Span]) -> str:
    """The lines that set ``path`` taken out; comments on lines of their own stay."""
    inside = (span for section in sections if section.path[: len(path)] == path for span in section.spans)
    gone = sorted({*holders, *inside}, key=lambda span: span.start, reverse=True)
    for span in gone:
        below = text[span.end :].partition("\n")[2]
        text = text[: _line_start(text, span.start)] + below
    return text


def _beside(text: str, span: _Span, lines: Sequence[str], style: _Style) -> str:
    """``lines`` after the statement at ``span``, indented as it is."""
    return _insert(text, span.end, [_indent(text, span) + line for line in lines], style)


def _into(text: str, section: _Section, line: str, style: _Style) -> str:
    """``line`` after the last statement of ``section``, or right below its header."""
    if section.body:
        return _beside(text, section.body[-1], [line], style)
    if section.header is None:
        first = next(_spans(text), None)
        if first is None:
            return _insert(text, len(text), [line], style)
        at = _above_comments(text, _line_start(text, first.start))
        return text[:at] + line + style.newline * (2 if style.blank else 1) + text[at:]
    indent = _indent(text, section.header) + style.key_step
    return _insert(text, section.header.end, [indent + line], style)


def _block(text: str, sections: list[_Section], path: Path, table: Document, style: _Style) -> Iterator[str]:
    """``table`` with headers of its own, in the company and the indentation of its nearest relatives."""
    base = _header_indent(text, sections, path, style)
    lines = list(_table_lines(path, table, base, style))
    children = [section for section in sections if section.header and section.path[: len(path)] == path]
    if children and children[0].header:
        block = "".join(line + style.newline for line in [*lines, *([""] if style.blank else [])])
        at = _line_start(text, children[0].header.start)
        # A line that looks like a comment may end a string of several lines.
        for place in (_above_comments(text, at), at):
            yield text[:place] + block + text[place:]
        return
    at = _end_of_relatives(text, sections, path)
    gap = [""] if style.blank and text[:at].strip() else []
    yield _insert(text, at, [*gap, *lines], style)


def _insert(text: str, at: int, lines: Sequence[str], style: _Style) -> str:
    """``lines`` as whole lines after the one that ends at ``at``."""
    if at < len(text):
        at = text.index("\n", at) + 1
    head, tail = text[:at], text[at:]
    if head and not head.endswith("\n"):
        head += style.newline
    return head + "".join(line + style.newline for line in lines) + tail


def _end_of_relatives(text: str, sections: list[_Section], path: Path) -> int:
    """Where the last section ends that shares the longest beginning with ``path``; the text's end when none does."""
    shared = [_shared(section.path, path) for section in sections]
    closest = max(shared)
    if not closest:
        return len(text)
    index = max(i for i, count in enumerate(shared) if count == closest)
    if index == len(sections) - 1:
        return len(text)
    return _with_comments(text, sections[index].spans[-1].end)


def _with_comments(text: str, at: int) -> int:
    """``at``, moved past the comment lines below it when a blank line parts them from what follows."""
    below = re.compile(r"(?:\r?\n[ \t]*#[^\n]*)+(?=\r?\n[ \t]*\r?\n)").match(text, at)
    return below.end() if below else at


def _above_comments(text: str, at: int) -> int:
    """``at``, a line's start, moved above the comment lines that touch it."""
    while at and text[_line_start(text, at - 1) : at].lstrip().startswith("#"):
        at = _line_start(text, at - 1)
    return at


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _indent(text: str, span: _Span) -> str:
    return text[_line_start(text, span.start) : span.start]


def _shared(one: Path, other: Path) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# Style: how this document is written.


@dataclass(frozen=True, slots=True)
class _Style:
    """How the document's neighbours are written.

    Attributes:
        quote: of keys and strings.
        blank: whether a blank line stands above a header.
        key_step: what keys are indented by, within their table.
        table_step: what a table is indented by, within its parent.
    """

    newline: str
    quote: str
    blank: bool
    key_step: str
    table_step: str

    @classmethod
    def of(cls, text: str, sections: Sequence[_Section]) -> _Style:
        headers = [section.header for section in sections if section.header]
        blank = [header for header in headers if _below_blank(text, header.start)]
        titles = "".join(text[header.start : header.end] for header in headers)
        return cls(
            newline="\r\n" if "\r\n" in text else "\n",
            quote="'" if titles.count("'") > titles.count('"') else '"',
            blank=len(headers) < 2 or 2 * len(blank) >= len(headers),
            key_step=_last(_key_steps(text, sections), "  "),
            table_step=_last(_table_steps(text, sections), "" if headers else "  "),
        )


def _below_blank(text: str, at: int) -> bool:
    start = _above_comments(text, _line_start(text, at))
    return start > 0 and not text[_line_start(text, start - 1) : start].strip()


def _last(steps: Iterator[str], default: str) -> str:
    return next(iter([*steps][::-1]), default)


def _key_steps(text: str, sections: Sequence[_Section]) -> Iterator[str]:
    for section in sections:
        if section.header and section.body:
            outer, inner = _indent(text, section.header), _indent(text, section.body[0])
            if inner.startswith(outer):
                yield inner[len(outer) :]


def _table_steps(text: str, sections: Sequence[_Section]) -> Iterator[str]:
    indents = {section.path: _indent(text, section.header) for section in sections if section.header}
    for path, indent in indents.items():
        outer = next((indents[path[:n]] for n in range(len(path) - 1, 0, -1) if path[:n] in indents), None)
        if outer is not None and indent.startswith(outer):
            yield indent[len(outer) :]


def _header_indent(text: str, sections: Sequence[_Section], path: Path, style: _Style) -> str:
    """That of the last sibling, else the nearest ancestor's and a step for each level below it."""
    siblings = [s.header for s in sections if s.header and len(s.path) == len(path) and s.path[:-1] == path[:-1]]
    if siblings:
        return _indent(text, siblings[-1])
    ancestors = [s for s in sections if s.header and s.path == path[: len(s.path)]]
    if not ancestors:
        return ""
    nearest = max(ancestors, key=lambda section: len(section.path))
    indent = _indent(text, nearest.header) if nearest.header else ""
    return indent + style.table_step * (len(path) - len(nearest.path))


# Rendering.


def _table_lines(path: Path, table: Document, indent: str, style: _Style) -> Iterator[str]:
    """``table`` as lines; a table that only holds tables needs no header."""
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    inner = indent
    if values or not table:
        yield f"{indent}[{'.'.join(_key(key, style) for key in path)}]"
        for key, value in values.items():
            yield f"{indent}{style.key_step}{_key(key, style)} = {_value(value, style)}"
        inner += style.table_step
    first = not (values or not table)
    for key, value in table.items():
        if isinstance(value, dict):
            if style.blank and not first:
                yield ""
            first = False
            yield from _table_lines((*path, key), value, inner, style)


def _dotted(path: Path, value: Any, style: _Style) -> list[str]:
    """``path`` set in dotted keys, a line for each value."""
    if isinstance(value, Mapping) and value:
        return [line for key, inner in value.items() for line in _dotted((*path, key), inner, style)]
    return [f"{'.'.join(_key(key, style) for key in path)} = {_value(value, style)}"]


def _key(key: str, style: _Style) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key, style)


def _value(value: Any, style: _Style) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Verbatim() | int():
            return str(value)
        case str():
            return _string(value, style)
        case list():
            return f"[{', '.join(_value(item, style) for item in value)}]"
        case dict():
            inside = ", ".join(f"{_key(key, style)} = {_value(inner, style)}" for key, inner in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case _:  # a date, a time, or both
            return str(value.isoformat())


def _string(text: str, style: _Style) -> str:
    if style.quote == "'" and not re.search(r"['\x00-\x1f\x7f]", text):
        return f"'{text}'"
    # JSON's escapes are TOML's, but for one character that JSON lets stand.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
