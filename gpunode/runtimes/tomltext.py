"""Edits a TOML document as text, so that every byte outside the edited keys stays.

The text is cut into headers and statements (tomllayout); those that differ are changed, go, or get company, and a value
is changed within itself (tomlvalue). What comes of it is read once more: it is the meant document, or it is nothing.
tomlkit writes the new strings and dates, and no more: given the whole, it corrupts some documents (it moves dotted keys
under a table that was added before them) and takes long over large ones.

Source: tomlkit@0.15.2 on the inputs of tests/conformance/runtimes/vectors; toml-lang/toml@1.0.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpunode.runtimes.text import same
from gpunode.runtimes.tomllayout import Layout, Node, Place, first_blank, last_blank, scan, split_above
from gpunode.runtimes.tomlread import Document, Path, parse
from gpunode.runtimes.tomlstyle import Style, table_lines
from gpunode.runtimes.tomlvalue import changed, differing_items


class Uneditable(Exception):
    """What was made of the text does not read as the meant document."""


# The second finds tables that went with their last dotted key though they are to stay, empty.
_ROUNDS = 3


def edit(text: str, before: Document, after: Document) -> str:
    """``text``, which reads as ``before``, so that it reads as ``after``; floats are as they are written.

    Comments and everything outside the differing keys stay byte for byte; a comment goes only with the line of a value
    that goes. What one edit adds, another takes back.

    Raises:
        Uneditable: the document is laid out in a way that no known edit fits.
    """
    if same(before, after):
        return text
    read = before
    for _ in range(_ROUNDS):
        try:
            text = _Editor(scan(text)).edited(read, after)
            read = parse(text)
        except (ValueError, RecursionError):
            break
        if same(read, after):
            return text
    raise Uneditable(", ".join(".".join(path) for path in _differing(before, after)))


def line_of(text: str, path: Path) -> int:
    """The line, from 1, on which ``path`` is set or its table begins; 0 when it stands nowhere."""
    line = 1
    for node in scan(text).nodes:
        line += node.above.count("\n")
        names = _names(node.place)
        if names == path or (bool(node.keys) and _sets(node, names, path)):
            return line
        line += (node.head + node.value + node.tail).count("\n")
    return 0


def _sets(node: Node, names: Path, path: Path) -> bool:
    if names[: len(path)] == path:
        return True
    return path[: len(names)] == names and _has(parse(f"v = {node.value}"), ("v", *path[len(names) :]))


def _has(document: Any, path: Path) -> bool:
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True


def _names(place: Place) -> Path:
    return tuple(key for key in place if isinstance(key, str))


def _differing(old: Document, new: Document, above: Path = ()) -> Iterator[Path]:
    for key in {**old, **new}:
        one, other = old.get(key), new.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differing(one, other, (*above, key))
        elif not same(one, other):
            yield (*above, key)


class _Editor:
    """A layout on its way from one document to another.

    First the documents are compared and what has to go is marked; then values change and what is new finds its place
    beside it; last goes what has to. The style is that of what stays, so one edit takes out what another put in.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.nodes = layout.nodes
        self.statements = {node.place: node for node in self.nodes if node.keys}
        self.headers = {node.place: node for node in self.nodes if not node.keys}
        # The last statement of each table that dotted keys make.
        self.dotted = {node.table + node.keys[:n]: node for node in self.nodes for n in range(1, len(node.keys))}
        self.changes: list[tuple[Node, Any, Any]] = []
        self.additions: list[tuple[Place, Any]] = []
        self.removals: set[Place] = set()
        self.going: set[Node] = set()

    def edited(self, old: Document, new: Document) -> str:
        """The text, which reads as ``old``, made to read as ``new``."""
        self._compare((), old, new)
        if self.removals:
            self.going.update(node for node in self.nodes if self._is_removed(node.place))
        self.style = Style.of([node for node in self.nodes if node not in self.going], self.layout.newline)
        if self.removals:
            self._mark_emptied()
        for node, one, other in self.changes:
            node.value = changed(node.value, one, other, self.style.script)
        for place, value in self.additions:
            self._add(place, value)
        if self.going:
            self._remove()
        return self.layout.text

    # What differs.

    def _compare(self, here: Place, old: Document, new: Document) -> None:
        for key, value in new.items():
            if key in old:
                self._compare_key((*here, key), old[key], value)
            else:
                self.additions.append(((*here, key), value))
        self.removals.update((*here, key) for key in old if key not in new)

    def _compare_key(self, place: Place, old: Any, new: Any) -> None:
        if old is new:
            return
        node = self.statements.get(place)
        is_table = isinstance(old, dict), isinstance(new, dict)
        if node is None and all(is_table):
            self._compare(place, old, new)
        elif same(old, new):
            return
        elif node and is_table != (False, True):
            self.changes.append((node, old, new))
        elif node is None and _are_tables(old) and _are_tables(new):
            self._compare_elements(place, old, new)
        else:
            self.removals.add(place)
            self.additions.append((place, new))

    def _compare_elements(self, place: Place, old: list[Document], new: list[Document]) -> None:
        for start, end, first, last in differing_items(old, new):
            both = min(end - start, last - first)
            for n in range(both):
                self._compare((*place, start + n), old[start + n], new[first + n])
            self.removals.update((*place, n) for n in range(start + both, end))
            self.additions += (((*place, end), element) for element in new[first + both : last])

    # What is new.

    def _add(self, place: Place, value: Any) -> None:
        parent, key = place[:-1], place[-1]
        if isinstance(key, int):
            self._add_element(parent, key, value)
        elif parent in self.dotted:
            self._add_dotted(place, value)
        elif isinstance(value, dict):
            self._add_table(place, value)
        elif parent in self.headers:
            self._add_statement(self.headers[parent], key, value)
        elif not parent:
            self._add_to_root(key, value)
        else:
            self._add_table(parent, {key: value})

    def _add_dotted(self, place: Place, value: Any) -> None:
        beside = self.dotted[place[:-1]]
        keys = _names(place[len(beside.table) :])
        self._insert_lines(beside, self.style.script.dotted(keys, value), beside.indent, place)
        self.dotted[place[:-1]] = self.nodes[self.nodes.index(beside) + 1]

    def _add_statement(self, header: Node, key: str, value: Any) -> None:
        last = self.nodes[self._section_end(header) - 1]
        indent = last.indent if last.keys else header.indent + self.style.key_step
        self._insert_lines(last, self.style.script.dotted((key,), value), indent, (*header.place, key))

    def _insert_lines(self, after: Node, lines: list[str], indent: str, place: Place) -> None:
        text = "".join(indent + line + self.layout.newline for line in lines)
        node = Node("", text, "", "", place[: len(after.table)], _names(place[len(after.table) :]))
        self.nodes.insert(self.nodes.index(after) + 1, node)

    def _add_to_root(self, key: str, value: Any) -> None:
        lines = self.style.script.dotted((key,), value)
        last = next((n for n, node in enumerate(self.nodes) if not node.keys), len(self.nodes)) - 1
        if last >= 0:
            self._insert_lines(self.nodes[last], lines, self.nodes[last].indent, (key,))
            return
        node = Node("", "".join(line + self.layout.newline for line in lines), "", "", (), (key,))
        if self.nodes:
            self._insert_above(0, node)
        else:
            node.above, self.layout.tail = self.layout.tail, ""
            self.nodes.append(node)

    def _add_table(self, place: Place, table: Document) -> None:
        indent = self._header_indent(place)
        text = "".join(f"{line}{self.layout.newline}" for line in table_lines(_names(place), table, indent, self.style))
        node = self.headers[place] = Node("", text, "", "", place)
        inside = next((n for n, other in enumerate(self.nodes) if other.table[: len(place)] == place), None)
        if inside is not None:
            self._insert_above(inside, node)
        else:
            self._insert_below(self._end_of_relatives(place), node)

    def _add_element(self, array: Place, index: int, table: Document) -> None:
        """One more ``[[array]]`` before that with ``index``, or behind the last."""
        before = (*array, index - 1)
        header = self.headers.get((*array, index)) or self.headers[before]
        lines = table_lines(_names(array), table, header.indent, self.style, brackets="[[{}]]")
        node = Node("", "".join(f"{line}{self.layout.newline}" for line in lines), "", "", before)
        if header.place == (*array, index):
            self._insert_above(self.nodes.index(header), node)
        else:
            self._insert_below(self._end_of_relatives(before), node)

    def _insert_above(self, at: int, node: Node) -> None:
        """``node`` above the header at ``at``, which keeps the comment lines that touch it and the blank line above."""
        below = self.nodes[at]
        far, near = split_above(below.above)
        gap = self.layout.newline if self.style.blank else ""
        if at == 0 and not far.strip():
            below.above = gap + below.above
        else:
            cut = len(far) - (last_blank(far) if gap else 0)
            node.above, below.above = far[:cut] + gap, far[cut:] + near
        self.nodes.insert(at, node)

    def _insert_below(self, at: int, node: Node) -> None:
        """``node`` before what is at ``at``, below the comment lines that belong to what is above."""
        above = self.nodes[at].above if at < len(self.nodes) else self.layout.tail
        is_last, is_first = at == len(self.nodes), not (at or above.strip())
        gap = self.layout.newline if self.style.blank and not is_first else ""
        cut = len(above) - (last_blank(above) if gap else 0) if is_last else _own_comments(above)
        node.above = above[:cut] + gap
        if at < len(self.nodes):
            self.nodes[at].above = above[cut:]
        else:
            self.layout.tail = above[cut:]
        self.nodes.insert(at, node)

    # Where.

    def _section_end(self, header: Node) -> int:
        """Where the statements end that stand below ``header``."""
        start = self.nodes.index(header) + 1
        return next((n for n in range(start, len(self.nodes)) if not self.nodes[n].keys), len(self.nodes))

    def _end_of_relatives(self, place: Place) -> int:
        """Where the last table ends that shares the longest beginning with ``place``; the text's end when none does."""
        headers = [node for node in self.nodes if not node.keys]
        shared = [_shared(header.place, place) for header in headers]
        closest = max(shared, default=0)
        if not closest:
            return len(self.nodes)
        return self._section_end(headers[max(n for n, count in enumerate(shared) if count == closest)])

    def _header_indent(self, place: Place) -> str:
        """That of the last sibling, else the nearest ancestor's and a step for each level below it."""
        headers = [node for node in self.nodes if not node.keys and node not in self.going]
        siblings = [node for node in headers if len(node.place) == len(place) and node.place[:-1] == place[:-1]]
        if siblings:
            return siblings[-1].indent
        ancestors = [node for node in headers if node.place == place[: len(node.place)]]
        if not ancestors:
            return ""
        nearest = max(ancestors, key=lambda node: len(node.place))
        return nearest.indent + self.style.table_step * (len(_names(place)) - len(_names(nearest.place)))

    # What goes.

    def _is_removed(self, place: Place) -> bool:
        return any(place[:n] in self.removals for n in range(1, len(place) + 1))

    def _mark_emptied(self) -> None:
        """A header goes with its last statement if it looks as if written for it: the tables in it need it not."""
        below: Node | None = None
        body: list[Node] = []
        for node in reversed(self.nodes):
            if node.keys:
                body.append(node)
                continue
            if body and below and node not in self.going and self.going.issuperset(body):
                self._mark_if_needless(node, below)
            if node not in self.going:
                below = node
            body = []

    def _mark_if_needless(self, header: Node, below: Node) -> None:
        """Marks ``header``, if the table ``below`` is in it and nobody seems to have written it for that table."""
        is_within = below.place[: len(header.place)] == header.place and isinstance(header.place[-1], str)
        if not is_within or "#" in header.head or split_above(below.above[first_blank(below.above) :])[0]:
            return
        staying = [node for node in self.nodes if node not in self.going and node is not header]
        style = Style.of(staying, self.layout.newline)
        is_first = header is self.nodes[0] and not header.above.strip()
        has_gap = first_blank(below.above) if is_first else last_blank(header.above)
        if not _names_every_table(staying, header) and (has_gap or not style.blank):
            self.going.add(header)
            self.style = style

    def _remove(self) -> None:
        """Takes out what goes, and the blank line that would have been put above it; other lines above it stay."""
        root = next((node for node in self.nodes if node not in self.going), None)
        first = self.nodes[0]
        blocks = {first} if first.keys and (root is None or not root.keys) else set()
        kept, carried, is_first_blank_due = list[Node](), "", False
        for node in self.nodes:
            above = node.above
            if is_first_blank_due and not node.keys:
                above, is_first_blank_due = above[first_blank(above) :], False
            if node not in self.going:
                node.above, carried = carried + above, ""
                kept.append(node)
                continue
            if self.style.blank and (not node.keys or node in blocks):
                is_top = not kept and not (carried + above).strip()
                is_first_blank_due = is_top
                above = above if is_top else above[: len(above) - last_blank(above)]
            carried += above
        tail = self.layout.tail
        self.layout.tail = carried + (tail[first_blank(tail) :] if is_first_blank_due else tail)
        self.layout.nodes = kept


def _names_every_table(nodes: list[Node], header: Node) -> bool:
    """Whether each table that others are in has a header, as where programs write; that of ``header`` apart."""
    places = {node.place for node in (*nodes, header) if not node.keys}
    outer = {place[: -2 if isinstance(place[-1], int) else -1] for place in places} - {(), header.place}
    return bool(outer) and outer <= places


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _shared(one: Place, other: Place) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _own_comments(above: str) -> int:
    """The length of the comment lines that ``above`` begins with, if a blank line parts them from what follows."""
    end = 0
    for line in above.splitlines(keepends=True):
        if not line.strip():
            return end
        end += len(line)
    return 0
