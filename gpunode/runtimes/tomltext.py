"""Edit a TOML document as text, so that every byte outside the edited keys stays.

tomlkit parses the text into a tree that writes itself back byte for byte. Values are changed within that tree, new
entries are inserted as text, and old ones removed. The tables' own methods are not used for that: they move comments to
other tables and, below dotted keys, keys of others (tomlkit 0.15.2 on the inputs of tests/conformance/runtimes). The
standard library parses the result: it must be the intended document with every foreign line, or the edit is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

# This module is loaded only if a file has to change.
import tomlkit  # noqa: TID253
from tomlkit.exceptions import ParseError, TOMLKitError  # noqa: TID253
from tomlkit.items import AoT, Array, Comment, InlineTable, Item, Key, Table, Whitespace  # noqa: TID253

from gpunode.fast_dataclass import dataclass
from gpunode.runtimes.documents import Document, Path, Uneditable, VerbatimFloat, is_same_value, parse_toml

_Entry: TypeAlias = tuple[Key | None, Item]
# The second round adds the headers of tables that lose their last key but stay.
_MAX_EDIT_ROUNDS = 2
# No TOML text contains this character: it marks insertions and removals until the lines around them are laid out.
_INSERTED_TEXT_MARK = "\0"
_TABLE_HEADER_LINE = re.compile(r"^([ \t]*)\[([^\[\n].*?)\][ \t]*(?:#.*)?$", re.MULTILINE)
_LINE_ABOVE_HEADER = re.compile(r"^([ \t]*(?:[^#\s].*)?)\n(?=[ \t]*\[)", re.MULTILINE)
_KEY_BELOW_HEADER = re.compile(r"^([ \t]*)\[[^\[\n].*\n\1([ \t]*)[^\s#\[]", re.MULTILINE)


def edit_toml(text: str, before: Document, after: Document) -> str:
    """Return ``text``, which reads as ``before``, edited to read as ``after``.

    Comments and everything outside the differing keys stay byte for byte; a comment is removed only with a removed
    value on the same line. Floats keep their spelling.

    Raises:
        Uneditable: tomlkit cannot read the text, or the result would differ in meaning or lack a foreign line.
    """
    try:
        return _edit_whole(text, before, after)
    except Uneditable:
        from gpunode.runtimes.toml_sections import edit_sections  # loaded on use: few files need it

        if (edited := edit_sections(text, before, after, _edit_whole)) is None:
            raise
        return edited


def _edit_whole(text: str, before: Document, after: Document) -> str:
    if is_same_value(before, after):
        return text
    is_crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    is_terminated = not text or text.endswith("\n")
    result = former = (text.replace("\r\n", "\n") if is_crlf else text) + ("" if is_terminated else "\n")
    read, replaced, line = before, None, 0
    for _ in range(_MAX_EDIT_ROUNDS):
        try:
            result, ends = _edit_once(result, read, after)
            read = parse_toml(result)
        except (TOMLKitError, ValueError, LookupError, AttributeError, RecursionError) as error:
            line = error.line if isinstance(error, ParseError) and result == former else 0
            break  # LookupError and AttributeError are bugs in tomlkit
        replaced = ends if replaced is None else replaced
        if is_same_value(read, after) and _keeps_foreign_lines(former, result, replaced):
            result = result if is_terminated else result.removesuffix("\n")
            return result.replace("\n", "\r\n") if is_crlf else result
    raise Uneditable(before, after, line)


def _edit_once(text: str, before: Document, after: Document) -> tuple[str, set[str]]:
    """Return the edited text, and the ends of the lines that were changed or removed."""
    document = tomlkit.parse(text)
    root = _Part(document)
    headers = {name: indent for indent, name in _TABLE_HEADER_LINE.findall(text)}
    _restore_indents(root, headers)
    if (written := document.as_string()) != text:
        pairs = enumerate(zip(written.split("\n"), text.split("\n"), strict=False), 1)
        raise ParseError(next((line for line, (one, other) in pairs if one != other), 0), 0, "it has another syntax")
    editor = _Editor(root, text, [*headers.values()])
    editor.change((), before, after)
    return _lay_out(document.as_string(), has_gaps=editor.has_gaps), editor.replaced


def _keeps_foreign_lines(old: str, new: str, replaced: set[str]) -> bool:
    """Return whether ``new`` has each line of ``old``, comments in the same order; ``replaced`` has line ends."""
    lost = Counter(old.splitlines()) - Counter(new.splitlines())
    ends = tuple(replaced)
    if any(line.strip() and not line.lstrip().startswith("[") and not line.endswith(ends) for line in lost):
        return False
    remaining = iter(new.splitlines())
    comments = (line for line in old.splitlines() if _is_comment(line) and line not in replaced)
    return all(line in remaining for line in comments)


def _is_comment(line: str) -> bool:
    """Return whether the line looks like a comment, and not like the last line of a long string."""
    return line.lstrip().startswith("#") and '"""' not in line and "'''" not in line


@dataclass(frozen=True, slots=True)
class _Part:
    """A place with keys of a table: below a header, in dotted keys, or within braces.

    A table without a header of its own (``a`` of ``[a.b]``) counts as a part as well.

    Attributes:
        node: the node in tomlkit's tree.
        key: as written; None for the root table.
        above: the part of the enclosing table.
    """

    node: tomlkit.TOMLDocument | Table | InlineTable
    key: Key | None = None
    above: _Part | None = None

    @property
    def body(self) -> list[_Entry]:
        """The entries, comments and blank lines, in order."""
        return self.node.body if isinstance(self.node, tomlkit.TOMLDocument) else self.node.value.body

    @property
    def is_dotted(self) -> bool:
        """True for a table that dotted keys create."""
        return self.key is not None and self.key.is_dotted()

    @property
    def header(self) -> Table | None:
        """The table, if it has a header."""
        is_one = isinstance(self.node, Table) and not (self.is_dotted or self.node.is_super_table())
        return self.node if is_one else None  # type: ignore[return-value]

    @property
    def indent(self) -> str:
        """The white space before the header, or before the first header within."""
        if self.header is not None:
            return self.header.trivia.indent
        return "" if self.key is None else next((part.indent for part in self.tables()), "")

    def tables(self, name: str | None = None) -> Iterator[_Part]:
        """Yield the parts of the inner tables, or only of the one named ``name``."""
        for key, item in self.body:
            if key is not None and isinstance(item, Table | InlineTable) and name in {None, key.key}:
                yield _Part(item, key, self)

    def index_of(self, part: _Part) -> int:
        """Return the index of ``part`` in the body."""
        return next(index for index, (_, item) in enumerate(self.body) if item is part.node)

    def end_of_lines(self) -> int:
        """Return the index after the last ``key = value``; 0 if there is none."""
        lines = (
            index
            for index, (key, item) in enumerate(self.body, 1)
            if key is not None and (key.is_dotted() or not isinstance(item, Table | AoT))
        )
        return max(lines, default=0)


def _restore_indents(part: _Part, indents: Mapping[str, str]) -> None:
    """Indent headers as in the text; tomlkit 0.15.2 indents ``[a.b.d]`` twice after ``[a]`` and ``[a.b.c]``."""
    for inner in part.tables():
        if (table := inner.header) is not None:
            table.trivia.indent = indents.get(table.display_name or "", table.trivia.indent)
        _restore_indents(inner, indents)


class _Editor:
    """A tree that is being changed from one document to another.

    Attributes:
        has_gaps: whether most headers have a blank line above.
        replaced: the ends of the lines that were changed or removed.
    """

    def __init__(self, root: _Part, text: str, header_indents: list[str]) -> None:
        self.root = root
        gaps = [not line.strip() for line in _LINE_ABOVE_HEADER.findall(text)]
        self.has_gaps = 2 * sum(gaps) >= len(gaps)
        self.quote = "'" if re.search(r"^[ \t]*\[[^\"\n]*'", text, re.MULTILINE) else '"'
        self.table_step = min(filter(None, header_indents), key=len, default="" if header_indents else "  ")
        self.key_step = found[-1][1] if (found := _KEY_BELOW_HEADER.findall(text)) else "  "
        self.replaced: set[str] = set()

    def change(self, path: Path, old: Document, new: Document) -> None:
        """Make the table at ``path``, which reads as ``old``, read as ``new``."""
        if is_same_value(old, new):
            return
        parts = [self.root]
        for name in path:
            parts = [inner for part in parts for inner in part.tables(name)]
        for key, value in new.items():
            if key not in old or is_same_value(old[key], value):
                continue
            if isinstance(old[key], dict) and isinstance(value, dict):
                self.change((*path, key), old[key], value)
            elif isinstance(old[key], dict) or isinstance(value, dict):
                self._remove(parts, key)
                self._add(parts, path, key, value)
            else:
                self._replace(parts, key, value)
        # New keys are inserted at the same place one after the other, so the last comes first.
        for key in reversed([key for key in new if key not in old]):
            self._add(parts, path, key, new[key])
        for key in old:
            if key not in new:
                self._remove(parts, key)

    # What is new.

    def _add(self, parts: list[_Part], path: Path, key: str, value: Any) -> None:
        last = next((part for part in parts if part.is_dotted), parts[-1])
        headers = [part for part in parts if part.header is not None or part.key is None]
        if isinstance(last.node, InlineTable):
            self._note_lines(last)
            _append_in_braces(last.node, key, _parse_value(value, self.quote))
        elif last.is_dotted:
            self._add_dotted(last, (key,), value)
        elif isinstance(value, dict):
            tables = [part for part in last.tables() if isinstance(part.node, Table) and not part.is_dotted]
            indent = tables[-1].indent if tables else last.indent + self.table_step * (last.key is not None)
            at = last.index_of(tables[-1]) + 1 if tables else len(last.body)
            self._insert_tables(last, at, self._format_tables((*path, key), value, indent))
        elif headers:
            self._add_line(headers[0], key, value)
        elif (above := parts[0].above) is not None:
            lines = self._format_tables(path, {key: value}, parts[0].indent)
            self._insert_tables(above, above.index_of(parts[0]), lines)

    def _add_dotted(self, part: _Part, keys: Path, value: Any) -> None:
        outer = part
        while outer.is_dotted and outer.key is not None and outer.above is not None:
            keys, part, outer = (outer.key.key, *keys), outer, outer.above
        if isinstance(outer.node, InlineTable):
            raise ValueError("dotted keys within braces are not edited")
        at = outer.index_of(part)
        outer.body.insert(at + 1, _make_entry(self._format_lines(keys, value, _read_indent(outer.body[at][1]))))

    def _add_line(self, part: _Part, key: str, value: Any) -> None:
        at = part.end_of_lines()
        indent = _read_indent(part.body[at - 1][1]) if at else part.indent + self.key_step * (part.key is not None)
        lines = self._format_lines((key,), value, indent)
        if at or part.key is not None:
            part.body.insert(at, _make_entry(lines))
        else:  # above all tables, but below the comments about the file itself
            tables = (
                n for n, (key, item) in enumerate(part.body) if key or item.as_string().startswith(_INSERTED_TEXT_MARK)
            )
            self._insert_tables(part, next(tables, len(part.body)), lines)

    def _insert_tables(self, part: _Part, at: int, lines: str) -> None:
        part.body.insert(at, _make_entry(f"{_INSERTED_TEXT_MARK}{lines}{_INSERTED_TEXT_MARK}\n"))

    def _format_tables(self, path: Path, table: Document, indent: str) -> str:
        """Format ``table``; one that only contains tables needs no header."""
        values = {key: value for key, value in table.items() if not isinstance(value, dict)}
        blocks = []
        if values or not table:
            lines = (self._format_lines((key,), value, indent + self.key_step) for key, value in values.items())
            blocks.append(f"{indent}[{_format_keys(path, self.quote)}]\n{''.join(lines)}")
            indent += self.table_step
        tables = {key: inner for key, inner in table.items() if isinstance(inner, dict)}
        blocks += (self._format_tables((*path, key), inner, indent) for key, inner in tables.items())
        return ("\n" if self.has_gaps else "").join(blocks)

    def _format_lines(self, keys: Path, value: Any, indent: str) -> str:
        """Format statements that set ``keys``, one for each value in it."""
        if isinstance(value, dict) and value:
            return "".join(self._format_lines((*keys, key), inner, indent) for key, inner in value.items())
        return f"{indent}{_format_keys(keys, self.quote)} = {_format_value(value, self.quote)}\n"

    # What changes.

    def _replace(self, parts: list[_Part], name: str, value: Any) -> None:
        for part, index, key, item in _find_entries(parts, name):
            self._note_lines(part, key, item)
            if isinstance(item, AoT):
                raise ValueError("a list of tables is not edited")
            if isinstance(item, Array) and isinstance(value, list):
                self.replaced -= {line for line in item.as_string().splitlines() if _is_comment(line)}
                _change_list(item, value, self.quote)
                return
            new = _parse_value(value, "'" if item.as_string().startswith("'") else '"')
            for field in ("indent", "comment_ws", "comment", "trail"):
                setattr(new.trivia, field, getattr(item.trivia, field))
            part.body[index] = (key, new)

    # What goes.

    def _remove(self, parts: list[_Part], name: str) -> None:
        for part, index, key, item in _find_entries(parts, name):
            self._note_lines(part, key, item)
            if isinstance(part.node, InlineTable):
                part.node.remove(key)
                continue
            part.body[index] = _make_entry("")
            is_last_of_root = part.key is None and not part.end_of_lines()
            if is_last_of_root or (isinstance(item, Table) and not key.is_dotted()):
                part.body[index] = _make_entry(f"{_INSERTED_TEXT_MARK}{_INSERTED_TEXT_MARK}\n{_collect_comments(item)}")

    def _note_lines(self, part: _Part, key: Key | None = None, item: Item | None = None) -> None:
        """Record the lines of an entry of ``part``; an inline table's line changes with everything in it."""
        while isinstance(node := part.node, InlineTable) and part.above is not None:
            part, key, item = part.above, part.key, node
        if item is None or key is None:
            return
        lines = item.as_string().splitlines()
        if isinstance(item, Table | AoT):
            # Statements with dotted keys follow the rest of their key.
            lines = [line.lstrip() for line in lines if not _is_comment(line)]
        else:
            trivia = item.trivia
            end = f"{trivia.comment_ws}{trivia.comment}{trivia.trail}"
            lines = f"{key.as_string()}{key.sep}{item.as_string()}{end}".splitlines()
        self.replaced.update(filter(str.strip, lines))


def _append_in_braces(table: InlineTable, key: str, item: Item) -> None:
    """Append a key, keeping the space before the closing brace behind it."""
    body = table.value.body
    end = [body.pop()] if body and body[-1][0] is None else []
    table.append(key, item)
    body += end


def _find_entries(parts: Iterable[_Part], name: str) -> Iterator[tuple[_Part, int, Key, Item]]:
    for part in parts:
        for index, (key, item) in enumerate([*part.body]):
            if key is not None and key.key == name:
                yield part, index, key, item


def _make_entry(text: str) -> _Entry:
    return None, Whitespace(text, fixed=True)


def _read_indent(item: Item) -> str:
    """Return the white space before a statement, which may have dotted keys."""
    while isinstance(item, Table):
        item = next((inner for key, inner in item.value.body if key is not None), tomlkit.item(0))
    return item.trivia.indent


def _collect_comments(item: Item) -> str:
    """Return the comments in a removed table, and the blank lines below its last statement."""
    kept = ""
    for key, inner in item.value.body if isinstance(item, Table) else ():
        if key is not None:
            kept = kept.rstrip("\n") + "\n" * bool(kept.strip()) + _collect_comments(inner)
        elif isinstance(inner, Comment | Whitespace):
            kept += inner.as_string()
    return kept


def _change_list(array: Array, new: list[Any], quote: str) -> None:
    """Remove and insert single items, so that comments and line breaks between the others stay."""
    old = parse_toml(f"v = {array.as_string()}")["v"]
    head = 0
    while head < min(len(old), len(new)) and is_same_value(old[head], new[head]):
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and is_same_value(old[-1 - tail], new[-1 - tail]):
        tail += 1
    del array[head : len(old) - tail]
    for index in range(head, len(new) - tail):
        array.insert(index, _parse_value(new[index], quote))


def _parse_value(value: Any, quote: str) -> Item:
    return tomlkit.value(_format_value(value, quote))


def _format_keys(keys: Path, quote: str) -> str:
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _format_value(key, quote) for key in keys)


def _format_value(value: Any, quote: str) -> str:
    """Format ``value`` on one line."""
    match value:
        case VerbatimFloat():
            return str(value)
        case str():
            is_literal = quote == "'" and not re.search(r"['\x00-\x1f\x7f]", value)
            return tomlkit.string(value, literal=is_literal).as_string()
        case list():
            return f"[{', '.join(_format_value(item, quote) for item in value)}]"
        case dict():
            members = (f"{_format_keys((key,), quote)} = {_format_value(inner, quote)}" for key, inner in value.items())
            return f"{{ {', '.join(members)} }}" if value else "{}"
        case _:
            return str(tomlkit.item(value).as_string())


def _lay_out(text: str, *, has_gaps: bool) -> str:
    """Return ``text`` without marks; comments stay attached to a header, and gaps match those between other tables."""
    blank = "\n" if has_gaps else ""
    text = text.replace(f"{_INSERTED_TEXT_MARK}\n{_INSERTED_TEXT_MARK}", blank)
    while _INSERTED_TEXT_MARK in text:
        head, lines, tail = text.split(_INSERTED_TEXT_MARK, 2)
        tail = tail.removeprefix("\n")
        if lines.strip():
            head, below = _split_end(head) if tail else (head, "")
            above = "" if head.endswith("\n\n") or not head.strip() else blank
            is_table = lines.lstrip().startswith("[")
            between = "" if is_table or (below or tail or "\n").startswith("\n") else blank
            text = head + above + lines + between + below + tail
        elif head.endswith("\n\n"):
            text = head.removesuffix(blank) + tail
        else:
            text = head + (tail if head.strip() else tail.removeprefix(blank))
    return text


def _split_end(head: str) -> tuple[str, str]:
    """Split off the blank lines and comments at the end; comments above the first blank line stay."""
    lines = head.splitlines(keepends=True)
    end = len(lines)
    while end and (not lines[end - 1].strip() or _is_comment(lines[end - 1])):
        end -= 1
    blank = next((index for index in range(end, len(lines)) if not lines[index].strip()), end)
    return "".join(lines[:blank]), "".join(lines[blank:])
