"""Values of TOML as text: written in the document's style, or changed so that all else in them stays. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from gpunode.runtimes.text import same
from gpunode.runtimes.tomllayout import Keys, Part, parts
from gpunode.runtimes.tomlread import Document, Verbatim


@dataclass(frozen=True, slots=True)
class Script:
    """How new keys and values are written.

    Attributes:
        quote: of keys and strings.
        newline: in arrays that stand on several lines.
    """

    quote: str = '"'
    newline: str = "\n"

    def key(self, keys: Iterable[str]) -> str:
        """``keys``, dotted."""
        return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else self._string(key) for key in keys)

    def value(self, value: Any) -> str:
        """``value`` on one line."""
        match value:
            case bool():
                return "true" if value else "false"
            case Verbatim() | int():
                return str(value)
            case str():
                return self._string(value)
            case list():
                return f"[{', '.join(map(self.value, value))}]"
            case dict():
                inside = ", ".join(f"{self.key((key,))} = {self.value(inner)}" for key, inner in value.items())
                return f"{{ {inside} }}" if inside else "{}"
            case _:  # a date, a time, or both
                import tomlkit

                return str(tomlkit.item(value).as_string())

    def dotted(self, keys: Keys, value: Any) -> list[str]:
        """Statements that set ``keys`` to ``value``, one for each value in it."""
        if isinstance(value, Mapping) and value:
            return [line for key, inner in value.items() for line in self.dotted((*keys, key), inner)]
        return [f"{self.key(keys)} = {self.value(value)}"]

    def _string(self, text: str) -> str:
        import tomlkit  # loaded where something is written

        is_literal = self.quote == "'" and not re.search(r"['\x00-\x1f\x7f]", text)
        return tomlkit.string(text, literal=is_literal).as_string()


def changed(text: str, old: Any, new: Any, script: Script) -> str:
    """``text``, a value that reads as ``old``, so that it reads as ``new``; what is equal in both stays as it is."""
    if same(old, new):
        return text
    if isinstance(old, dict) and isinstance(new, dict):
        return _changed_table(text, (), old, new, script)
    if isinstance(old, list) and isinstance(new, list):
        return _changed_array(text, old, new, script)
    if isinstance(old, str) and isinstance(new, str) and text[0] in "\"'" and not text.startswith(("'''", '"""')):
        script = Script(text[0], script.newline)
    return script.value(new)


def _changed_table(text: str, above: Keys, old: Document, new: Document, script: Script) -> str:
    """An inline table in which the table at ``above``, made by dotted keys within it, changes."""
    for key, value in new.items():
        here = (*above, key)
        if key not in old:
            text = _with_member(text, here, value, script)
        elif not same(old[key], value):
            text = _changed_member(text, here, old[key], value, script)
    for key in reversed(old):
        if key not in new:
            text = _without(text, _members(text, (*above, key)))
    return text


def _changed_member(text: str, keys: Keys, old: Any, new: Any, script: Script) -> str:
    found = _members(text, keys)
    if parts(text)[found[0]].keys == keys:
        part = parts(text)[found[0]]
        return text[: part.value] + changed(text[part.value : part.end], old, new, script) + text[part.end :]
    if isinstance(new, dict) and new:
        return _changed_table(text, keys, old, new, script)
    return _without(_with_member(text, keys, new, script), found)


def _members(text: str, keys: Keys) -> list[int]:
    """The members that set ``keys`` or something below it, by number."""
    return [index for index, part in enumerate(parts(text)) if part.keys[: len(keys)] == keys]


def _with_member(text: str, keys: Keys, value: Any, script: Script) -> str:
    """The inline table with a new member, beside those of the same table of dotted keys."""
    beside = _members(text, keys[:-1])
    return _with_parts(text, beside[-1] + 1 if beside else 0, [f"{script.key(keys)} = {script.value(value)}"], script)


def _changed_array(text: str, old: list[Any], new: list[Any], script: Script) -> str:
    # From the end, so that the items before it keep their numbers.
    for start, end, first, last in reversed(differing_items(old, new)):
        both = min(end - start, last - first)
        text = _with_parts(text, end, [script.value(value) for value in new[first + both : last]], script)
        text = _without(text, range(start + both, end))
        found = parts(text) if both else []
        for index in reversed(range(both)):
            part = found[start + index]
            item = changed(text[part.value : part.end], old[start + index], new[first + index], script)
            text = text[: part.value] + item + text[part.end :]
    return text


def differing_items(old: list[Any], new: list[Any]) -> list[tuple[int, int, int, int]]:
    """Which items of ``old``, from and to, have to give way to which of ``new``; as many tables are the same ones."""
    if len(old) == len(new) and all(isinstance(item, dict) for item in (*old, *new)):
        return [(n, n + 1, n, n + 1) for n in range(len(old)) if not same(old[n], new[n])]
    head = 0
    while head < min(len(old), len(new)) and same(old[head], new[head]):
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and same(old[-1 - tail], new[-1 - tail]):
        tail += 1
    ends = len(old) - tail, len(new) - tail
    if (ends[0] - head) * (ends[1] - head) > _MATCHED:
        return [(head, ends[0], head, ends[1])]
    one, other = (
        [Script().value(item) for item in old[head : ends[0]]],
        [Script().value(item) for item in new[head : ends[1]]],
    )
    codes = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return [(head + i, head + j, head + k, head + m) for tag, i, j, k, m in codes if tag != "equal"]


# Pairs of items beyond which matching them would take too long.
_MATCHED = 1_000_000
_COMMA = re.compile(r"(?:[ \t\r\n]|#[^\n]*\n)*(,)")
_REST_OF_LINE = re.compile(r"[ \t]*(?:#[^\n]*)?\r?\n")


def _with_parts(text: str, index: int, written: list[str], script: Script) -> str:
    """An array or inline table with more parts at ``index``, laid out as that before them or, of the first, after."""
    found = parts(text)
    if not found and written:
        return _with_parts(_with_only_part(text, written[0], script), 1, written[1:], script)
    gap = _gap(text, found)
    # The last first: what stands before them keeps its place.
    for one in reversed(written):
        text = _with_part(text, found[:index], one, gap, script) if index else _with_first(text, found[0], one, script)
    return text


def _with_first(text: str, below: Part, written: str, script: Script) -> str:
    lead = _own_indent(text, below)
    at = below.start - len(lead or "")
    return text[:at] + (f"{written}, " if lead is None else f"{lead}{written},{script.newline}") + text[at:]


def _with_part(text: str, before: list[Part], written: str, gap: str, script: Script) -> str:
    lead, end = _own_indent(text, before[-1]), before[-1].end
    comma = _comma_after(text, end)
    if lead is None:
        return _with_part_beside(text, end, comma, written, gap)
    line = _REST_OF_LINE.match(text, comma or end)
    if comma and line:
        return f"{text[: line.end()]}{lead}{written},{script.newline}{text[line.end() :]}"
    if comma:
        return _with_part_beside(text, end, comma, written, " ")
    if line:
        return f"{text[:end]},{text[end : line.end()]}{lead}{written}{script.newline}{text[line.end() :]}"
    return f"{text[:end]},{script.newline}{lead}{written}{text[end:]}"


def _with_part_beside(text: str, end: int, comma: int, written: str, gap: str) -> str:
    return f"{text[:comma]}{gap}{written},{text[comma:]}" if comma else f"{text[:end]},{gap}{written}{text[end:]}"


def _with_only_part(text: str, written: str, script: Script) -> str:
    space = text[1:-1]
    if "\n" not in space:
        return f"{text[0]}{space}{written}{space}{text[-1]}"
    at = text.rindex("\n") + 1
    return f"{text[:at]}{text[at:-1]}  {written}{script.newline}{text[at:]}"


def _without(text: str, indexes: Sequence[int]) -> str:
    found = parts(text)
    # The last first: what stands before it keeps its place.
    for index in reversed(indexes):
        text = _without_part(text, found, index)
    return text


def _without_part(text: str, found: Sequence[Part], index: int) -> str:
    """An array or inline table without one part and its comma, and without its line where that holds nothing else."""
    part, comma = found[index], _comma_after(text, found[index].end)
    end = comma or part.end
    lead = _own_indent(text, part)
    line = _REST_OF_LINE.match(text, end) if lead is not None else None
    start = part.start - len(lead or "") if line else part.start
    before = found[index - 1].end if index else 0
    theirs = _comma_after(text, before) if index else 0
    between = text[before : part.start]
    if index and not comma:
        if not line and "#" not in between:
            return text[:before] + text[end:]
        return text[: theirs - 1] + text[theirs:start] + text[line.end() if line else end :]
    if line:
        return text[:start] + text[line.end() :]
    if index and not re.search(r"[#\n]", between):
        return text[:theirs] + text[comma:]
    if not index and text[1:start] == text[end:-1]:  # it was the only one
        return text[:start] + text[-1]
    return text[:start] + text[end:].lstrip(" \t")


def _comma_after(text: str, at: int) -> int:
    """Where the comma ends that follows the part that ends at ``at``; 0 when none does."""
    found = _COMMA.match(text, at)
    return found.end() if found else 0


def _own_indent(text: str, part: Part) -> str | None:
    """The white space before ``part`` on its line; None when it is not the first on a line of its own."""
    line = text.rfind("\n", 0, part.start) + 1
    lead = text[line : part.start]
    return lead if line and not lead.strip() else None


def _gap(text: str, found: Sequence[Part]) -> str:
    """What stands between two parts on one line, after the comma."""
    if len(found) < 2:
        return " "
    between = text[_comma_after(text, found[0].end) : found[1].start]
    return between if not between.strip(" \t") else " "
