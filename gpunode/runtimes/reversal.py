"""Revert gpunode's edit of a configuration file that others have edited since. Pure.

This is the only rule for restoring a former state: rollback, remove and unconfigure all use it, for TOML and JSON.
Lines are reverted first, because that restores comments and layout; but only if the result means the same as reverting
the keys. Otherwise the keys are reverted: a key that gpunode added is removed, a key that it changed gets its former
value, and a key that somebody has changed since stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from typing import Any

from gpunode import three_way_merge
from gpunode.errors import Refused
from gpunode.fast_dataclass import dataclass
from gpunode.runtimes.containerd_files import CRI_PLUGIN_BY_SCHEMA
from gpunode.runtimes.documents import (
    Document,
    Path,
    Uneditable,
    edit_content,
    is_json,
    is_same_value,
    parse_document,
    reads_as,
    value_at,
    with_value,
)
from gpunode.runtimes.model import RUNC_FAMILY, Edit


@dataclass(frozen=True, slots=True)
class RevertedFile:
    """A file without gpunode's edit.

    Attributes:
        content: empty if nothing is left of a file that did not exist before.
        changed: the keys that gpunode set and somebody has changed since; they stay as they are.
        removed: the keys that somebody has since added or changed in gpunode's own tables; they are removed with these.
        kept: gpunode's own tables of runc in which somebody has since added or changed a key; they stay.
    """

    content: bytes
    changed: tuple[Path, ...] = ()
    removed: tuple[Path, ...] = ()
    kept: tuple[Path, ...] = ()


def revert_edit(edit: Edit, current: bytes, entries: Collection[Path] | None = None) -> RevertedFile | None:
    """Return ``current`` without ``edit``; None if they cannot be separated.

    A file that nobody edited since is restored byte for byte. A list keeps the items that were added since.

    Args:
        edit: gpunode's edit of the file; content that is neither TOML nor JSON is reverted by lines. If it removed the
            file, any present file is somebody else's.
        current: the present file.
        entries: the tables that are removed with everything that was added to them since, because they would be useless
            without gpunode's keys. By default: each new table within another that holds values, unless it also holds
            tables of tables.
    """
    if current == edit.after:
        return RevertedFile(edit.before or b"")
    if edit.after is None:
        return RevertedFile(current)
    path, as_json = edit.path, is_json(edit.path, edit.before, edit.after, current)
    try:
        was, made, found = (parse_document(data, path) for data in (edit.before, edit.after, current))
    except (ValueError, Refused):
        return None if as_json else _revert_lines(edit, current)
    if is_same_value(was, made):
        return _revert_lines(edit, current)
    name, new_name = _find_cri_plugin(made), _find_cri_plugin(found)
    is_migrated = bool(name and new_name) and name != new_name
    if is_migrated:
        was, made = (_migrate_handlers(document, name, new_name) for document in (was, made))
    keys = _KeyReversal(entries)
    reverted = keys.revert_table(was, made, found, ())
    if "plugins" in reverted and found.get("version", 1) != 1:
        # The schema of containerd's tables that were written since.
        reverted = {"version": found["version"], **reverted}
    gone = {*_leaf_paths(found)} - {*_leaf_paths(reverted)}
    foreign = (path for path in gone if not is_same_value(value_at(found, path), value_at(made, path)))
    removed = () if is_migrated else tuple(sorted(foreign))  # a migration writes every default into the entries
    notable = (tuple(keys.foreign_paths), removed, tuple(keys.kept_paths))
    content = _write_reverted(edit, current, found, reverted, as_json=as_json)
    return None if content is None else RevertedFile(content, *notable)


def _write_reverted(edit: Edit, current: bytes, found: Document, reverted: Document, *, as_json: bool) -> bytes | None:
    """Return ``current``, which holds ``found``, with ``reverted`` instead; None if it cannot be edited."""
    is_empty = edit.before is None and not reverted
    if is_empty and (as_json or _adds_no_line(current, edit.after)):
        return b""
    content = three_way_merge.merge_three_ways(edit.after or b"", edit.before or b"", current, is_checked=True)
    if content is None or not reads_as(content, edit.path, reverted):
        try:
            content = edit_content(current, found, reverted, as_json=as_json)
        except Uneditable:
            return None
    # Nobody misses comments of gpunode's own.
    return b"" if is_empty and _adds_no_line(content, edit.after) else content


def _find_cri_plugin(document: Document) -> str:
    """Return containerd's name for the CRI plugin that has the handlers; empty if there is none."""
    names = CRI_PLUGIN_BY_SCHEMA.values()
    return next((name for name in names if value_at(document, ("plugins", name, "containerd"))), "")


def _migrate_handlers(document: Document, name: str, new_name: str) -> Document:
    """Return the result of ``containerd config migrate`` for handlers with a program, and for the plugin's other keys.

    Other handlers, such as runc, stay in the migrated file: containerd has them anyway, and users may have added keys.
    """
    plugin, path = value_at(document, ("plugins", name)) or {}, ("containerd", "runtimes")
    handlers = {one: entry for one, entry in (value_at(plugin, path) or {}).items() if program_of(entry)}
    unversioned = with_value(with_value(document, ("version",), None), ("plugins", name), None)
    return with_value(unversioned, ("plugins", new_name), with_value(plugin, path, handlers))


def _revert_lines(edit: Edit, current: bytes) -> RevertedFile | None:
    content = three_way_merge.merge_three_ways(edit.after or b"", edit.before or b"", current)
    return None if content is None else RevertedFile(content)


def _adds_no_line(current: bytes, after: bytes | None) -> bool:
    lines, own_lines = ({line.strip() for line in content.splitlines()} for content in (current, after or b""))
    return lines <= {b"", *own_lines}


def _leaf_paths(document: Document, above: Path = ()) -> Iterator[Path]:
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield from _leaf_paths(value, (*above, key))
        else:
            yield (*above, key)


def _has_other_values(document: Document, other: Document) -> bool:
    return any(not is_same_value(value_at(document, path), value_at(other, path)) for path in _leaf_paths(document))


# Keys.

_NO_VALUE = object()


@dataclass(frozen=True, slots=True)
class _KeyReversal:
    """The reversal of an edit by keys.

    Attributes:
        foreign_paths: collects the keys that somebody changed since.
        kept_paths: collects the new tables of runc in which somebody added or changed a key since.
    """

    own_entries: Collection[Path] | None
    foreign_paths: list[Path] = field(default_factory=list)
    kept_paths: list[Path] = field(default_factory=list)

    def revert_table(
        self, before: Document, after: Document, now: Document, path: Path, *, is_new: bool = False
    ) -> Document:
        """Return the table ``now`` without the change of ``before`` to ``after``; a new one has no former values."""
        result = dict(now)
        for key in {**before, **after}:
            was, made, found = (table.get(key, _NO_VALUE) for table in (before, after, now))
            if is_same_value(was, made) or is_same_value(found, was):
                continue
            value = (
                was if is_same_value(found, made) else self._revert_value(was, made, found, (*path, key), is_new=is_new)
            )
            if value is _NO_VALUE:
                result.pop(key, None)
            else:
                result[key] = value
        return result

    def _revert_value(self, old: Any, written: Any, current: Any, path: Path, *, is_new: bool) -> Any:
        """Return the value to keep for one that is neither gpunode's nor the former value."""
        if isinstance(written, dict):
            return self._revert_inner_table(old, written, current, path)
        if isinstance(written, list) and isinstance(current, list) and (old is _NO_VALUE or isinstance(old, list)):
            former = old if isinstance(old, list) else []
            if any(item not in former for item in written) or any(item not in written for item in former):
                return _revert_list(former, written, current)
        return current if is_new else self._keep(current, path)

    def _revert_inner_table(self, old: Any, written: Document, current: Any, path: Path) -> Any:
        is_new = not isinstance(old, dict)
        if not isinstance(current, dict):
            is_theirs = not is_new and (current is not _NO_VALUE or self.revert_table(old, written, {}, path))
            return self._keep(current, path) if is_theirs else current
        if self._is_entry(written, path, is_new=is_new):
            if program_of(current) != program_of(written):
                return self._keep(current, path)
            if is_new and path[-1] in RUNC_FAMILY and _has_other_values(current, written):
                # Containers without a GPU run with it, so options such as SystemdCgroup still matter.
                self.kept_paths.append(path)
                return current
            if is_new:
                return old
        reverted = self.revert_table({} if is_new else old, written, current, path, is_new=is_new)
        return reverted if reverted or not is_new else old

    def _is_entry(self, table: Document, path: Path, *, is_new: bool) -> bool:
        """Return whether a table is added and removed as a unit."""
        if self.own_entries is not None:
            return path in self.own_entries
        tables = [value for value in table.values() if isinstance(value, dict)]
        collections = [inner for inner in tables if inner and all(isinstance(value, dict) for value in inner.values())]
        return is_new and len(path) > 1 and len(tables) < len(table) and not collections

    def _keep(self, current: Any, path: Path) -> Any:
        self.foreign_paths.append(path)
        return current


def program_of(entry: Document) -> object:
    """Return the program that a handler's entry runs: docker's ``path`` in any case, CRI-O's and containerd's keys."""
    values = {key.lower(): value for key, value in entry.items()}
    options = values.get("options")
    named = options.get("BinaryName") if isinstance(options, dict) else None
    return named or values.get("runtime_path") or values.get("path")


def _revert_list(old: list[Any], written: list[Any], current: list[Any]) -> list[Any]:
    """Return ``current`` without the items that gpunode added, and with those that it removed."""
    result = [item for item in current if item in old or item not in written]
    for index, item in enumerate(old):
        if item not in written and item not in result:
            result.insert(index, item)
    return result


# Entries of handlers.


def changed_handlers(edit: Edit) -> frozenset[str]:
    """Return the handlers whose entries an edit added, changed or removed."""
    return frozenset(_changed_entries(edit))


def added_programs(edit: Edit) -> frozenset[str]:
    """Return the programs of the handlers whose entries an edit added or changed."""
    entries = (entry for entry in _changed_entries(edit).values() if isinstance(entry, dict))
    return frozenset(str(program) for program in map(program_of, entries) if program)


def _changed_entries(edit: Edit) -> Mapping[str, object]:
    """Return the entries that an edit added, changed or removed, in their state after it; None for a removed one."""
    try:
        before, after = (parse_document(data, edit.path) for data in (edit.before, edit.after))
    except (ValueError, Refused):
        # A template from an earlier gpunode, which is TOML except for its directives.
        before, after = ({"runtimes": _find_named_handlers(data)} for data in (edit.before, edit.after))
    return dict(_differing_entries(before, after))


def removes_handler(edit: Edit, handler: str) -> bool:
    """Return whether an edit removed the handler's entry from the file."""
    had, has = (handler in changed_handlers(Edit(edit.path, None, data)) for data in (edit.before, edit.after))
    return had and not has


def _find_named_handlers(data: bytes | None) -> Document:
    text = (data or b"").decode(errors="replace")
    return dict.fromkeys(re.findall(r"""runtimes\.["']?([\w-]+)["']?[\].]""", text), True)


def _differing_entries(before: Document, after: Document) -> Iterator[tuple[str, object]]:
    """Yield the entries that differ, in tables of runtimes, each with its name and its value in ``after``."""
    for key in {**before, **after}:
        old, new = ({} if (value := table.get(key)) is None else value for table in (before, after))
        if not isinstance(old, dict) or not isinstance(new, dict):
            continue
        if key == "runtimes":
            yield from (
                (name, new.get(name)) for name in {**old, **new} if not is_same_value(old.get(name), new.get(name))
            )
        else:
            yield from _differing_entries(old, new)
