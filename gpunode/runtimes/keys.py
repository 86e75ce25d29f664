"""Remove gpunode's changes from a runtime's configuration and keep later edits. Pure.

Lines are taken back first, because that brings back comments and layout; but only where the result means what taking
back the keys means. Else the keys are: each one that gpunode added goes, each one that it changed is as before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from gpunode import merging
from gpunode.errors import Refused
from gpunode.runtimes.model import RecordedEdit
from gpunode.runtimes.text import decode, encode, same
from gpunode.runtimes.tomlread import Document, Path, parse, put


def taken_back(
    before: bytes | None, after: bytes | None, now: bytes, path: str, whole: Collection[Path] | None = None
) -> bytes | None:
    """``now`` without what made ``after`` of ``before``; empty where nothing is left of a file that was not there.

    A file that nobody edited since is ``before``, byte for byte. A list keeps what was added to it since.

    Args:
        before: the file as gpunode found it; None when there was none.
        after: as gpunode left it; None when it took the file away.
        now: as it is.
        path: of the file; ``.json`` is JSON, any other is TOML where it reads as that, else lines.
        whole: the tables that go with all that was written into them since, where gpunode made them: an entry without
            its own keys would be none. When not given: each new table that holds values, unless it also holds tables
            of tables.

    Returns:
        None where what gpunode set was changed since, or the file cannot be read any more.
    """
    if now == after:
        return before or b""
    if after is None:
        return now  # whoever wrote it did so after gpunode's file had gone
    language = _language(path)
    try:
        was, set_to, found = (language.parse(decode(data, path)) for data in (before, after, now))
    except (ValueError, Refused):
        return None if language is _JSON else merging.merged(after, before or b"", now)
    if same(was, set_to):
        return merging.merged(after, before or b"", now)
    if (meant := _intended_document(was, set_to, found, whole)) is None:
        return None
    if before is None and not meant and _adds_no_line(now, after):
        return b""
    lines = merging.merged(after, before or b"", now, is_checked=True)
    if lines is not None and _reads_as(language, lines, path, meant):
        return lines
    edited = language.edit(decode(now, path), found, meant)
    return None if edited is None else encode(edited, now)


def _intended_document(
    was: Document, set_to: Document, found: Document, whole: Collection[Path] | None
) -> Document | None:
    """Return what ``found`` is to become; None if what gpunode set was changed since."""
    try:
        meant = _taken_back(was, set_to, found, (), whole, is_new=False)
    except _Changed:
        return None
    if "plugins" in meant and found.get("version", 1) != 1:
        return {"version": found["version"], **meant}  # the schema of containerd's tables that were written since
    return meant


def gone_too(after: bytes | None, now: bytes, result: bytes, path: str) -> tuple[str, ...]:
    """The keys that somebody wrote into ``now`` since and that ``taken_back`` did not leave, for a note."""
    language = _language(path)
    try:
        left, found, kept = (set(_leaves(language.parse(decode(data, path)))) for data in (after, now, result))
    except (ValueError, Refused):
        return ()
    return tuple(".".join(keys) for keys in sorted(found - left - kept))


def about(former: RecordedEdit, handler: str, path: str, copied: Collection[str] = ()) -> RecordedEdit | None:
    """Return gpunode's changes of a file that concern one handler; None where it is about others alone.

    A record of several handlers is cut down to the one: what it was before keeps the others, as gpunode left them. It
    may be that of an unconfigure, which took the handler out.
    """
    names = entries_changed(former, path)
    if handler in names and names <= {handler, "runc", *copied}:
        return former  # runc comes along where its table would be missed, ``copied`` where a drop-in repeats the root's
    if not names:
        return former
    if handler not in names:
        return None
    language = _language(path)
    before, after = (language.parse(decode(data, path)) for data in (former.before, former.after))
    kept = _with_entry_of(before, after, handler)
    edited = language.edit(decode(former.after, path), after, kept)
    return former if edited is None else RecordedEdit(encode(edited, former.after), former.after)


def entries_changed(former: RecordedEdit, path: str) -> frozenset[str]:
    """The handlers whose entries gpunode added, changed or took out; none where the file is no such configuration."""
    language = _language(path)
    try:
        before, after = (language.parse(decode(data, path)) for data in (former.before, former.after))
    except (ValueError, Refused):
        return frozenset()
    return frozenset(_differing_entries(before, after))


def took_out(former: RecordedEdit, handler: str, path: str) -> bool:
    """Return whether gpunode took the handler's entry out of the file."""
    had, has = (handler in entries_changed(RecordedEdit(None, data), path) for data in (former.before, former.after))
    return had and not has


def _differing_entries(before: Document, after: Document) -> Iterator[str]:
    """The names of the entries, in tables of runtimes, that differ."""
    for key in {**before, **after}:
        was, now = (table.get(key) for table in (before, after))
        old, new = ({} if table is None else table for table in (was, now))
        if not isinstance(old, dict) or not isinstance(new, dict):
            continue
        if key == "runtimes":
            yield from (name for name in {**old, **new} if not same(old.get(name), new.get(name)))
        else:
            yield from _differing_entries(old, new)


_DEFAULTS = ("default_runtime_name", "default_runtime", "default-runtime")


def _with_entry_of(before: Document, after: Document, handler: str) -> Document:
    """``after`` with the entry of ``handler``, and a default that names it, as they are in ``before``."""
    result = dict(after)
    for key in {**before, **after}:
        was, now = (table.get(key) for table in (before, after))
        if key in _DEFAULTS and handler in (was, now):
            result = put(result, (key,), was)
        elif isinstance(was, dict | None) and isinstance(now, dict | None):
            old, new = was or {}, now or {}
            back = put(new, (handler,), old.get(handler)) if key == "runtimes" else _with_entry_of(old, new, handler)
            result = put(result, (key,), back if back or now is not None else None)
    return result


@dataclass(frozen=True, slots=True)
class _Language:
    """The reader and editor of a file's text; ``edit`` is None where no way of writing it was found."""

    parse: Callable[[str], Document]
    edit: Callable[[str, Document, Document], str | None]


def _parse_json(text: str) -> Document:
    from gpunode.runtimes import jsonread

    if not text.strip():
        return {}
    try:
        document = jsonread.parse(text)
    except jsonread.Malformed as error:
        raise ValueError(error.reason) from error
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return document


def _edit_json(text: str, before: Document, after: Document) -> str:
    from gpunode.runtimes import jsontext

    return jsontext.edit(text, before, after)


def _edit_toml(text: str, before: Document, after: Document) -> str | None:
    from gpunode.runtimes import tomltext

    try:
        return tomltext.edit(text, before, after)
    except tomltext.Uneditable:
        return None


_JSON = _Language(_parse_json, _edit_json)
_TOML = _Language(parse, _edit_toml)


def _language(path: str) -> _Language:
    return _JSON if path.endswith(".json") else _TOML


def _reads_as(language: _Language, data: bytes, path: str, document: Document) -> bool:
    try:
        return same(language.parse(decode(data, path)), document)
    except (ValueError, Refused):
        return False


def _adds_no_line(now: bytes, after: bytes) -> bool:
    return {line.strip() for line in now.splitlines()} <= {b"", *(line.strip() for line in after.splitlines())}


def _leaves(document: Document, above: Path = ()) -> Iterator[Path]:
    for key, value in document.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key)


# Keys.

_GONE = object()


class _Changed(Exception):
    """Raised where what gpunode set was changed since."""


def _taken_back(
    before: Document, after: Document, now: Document, here: Path, whole: Collection[Path] | None, *, is_new: bool
) -> Document:
    """The table ``now`` without what made ``after`` of ``before``.

    Raises:
        _Changed: a value of a table that was there before gpunode is neither what gpunode set nor what it was.
    """
    result = dict(now)
    for key in {**before, **after}:
        was, set_to, found = (table.get(key, _GONE) for table in (before, after, now))
        if same(was, set_to) or same(found, was):
            continue
        back = found
        if same(found, set_to):
            back = was
        elif isinstance(set_to, dict) and (was is _GONE or isinstance(was, dict)):
            back = _table_back(was, set_to, found, (*here, key), whole)
        elif isinstance(set_to, list) and isinstance(found, list) and (was is _GONE or isinstance(was, list)):
            back = _list_back([] if was is _GONE else was, set_to, found)
        elif not is_new:
            raise _Changed
        if back is _GONE:
            result.pop(key, None)
        else:
            result[key] = back
    return result


def _table_back(was: Any, set_to: Document, found: Any, here: Path, whole: Collection[Path] | None) -> Any:
    is_new = was is _GONE
    if is_new and (_is_entry(set_to) if whole is None else here in whole):
        return _GONE
    if not isinstance(found, dict) and not (is_new or found is _GONE):
        raise _Changed
    if not isinstance(found, dict) and is_new:
        return found
    back = _taken_back({} if is_new else was, set_to, {} if found is _GONE else found, here, whole, is_new=is_new)
    if found is _GONE:
        if back:
            raise _Changed
        return _GONE
    return back if back or not is_new else _GONE


def _is_entry(table: Document) -> bool:
    """Return whether ``table`` is more than the way to others."""
    tables = [value for value in table.values() if isinstance(value, dict)]
    collections = [inner for inner in tables if inner and all(isinstance(value, dict) for value in inner.values())]
    return len(tables) < len(table) and not collections


def _list_back(was: Any, set_to: list[Any], found: list[Any]) -> list[Any]:
    """``found`` without the items that gpunode added, and with those that it took out."""
    added = [item for item in set_to if item not in was]
    taken = [(index, item) for index, item in enumerate(was) if item not in set_to]
    if not (added or taken):
        raise _Changed  # it put them in another order
    result = [item for item in found if item not in added]
    for index, item in taken:
        if item not in result:
            result.insert(index, item)
    return result
