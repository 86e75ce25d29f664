"""Remove NVIDIA's handler from daemon.json: restore the old file, or keep later edits of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpunode.runtimes import jsonread
from gpunode.runtimes.docker import (
    DROPPED,
    Change,
    binary_of,
    default_of,
    document_of,
    edit_file,
    object_at,
    without_empty,
)
from gpunode.runtimes.docker_nodes import Node, node_of
from gpunode.runtimes.model import ConfigEdit, DesiredConfig, Edit, Files, RecordedEdit
from gpunode.runtimes.text import decode, same

_MISSING = object()
# What dockerd has without being told.
_BUILT_IN = "runc"
_SHIMS = "io.containerd."


def unconfigure(files: Files, desired: DesiredConfig, former: Mapping[str, RecordedEdit]) -> ConfigEdit:
    """The edits that remove the handler.

    A file that is still as gpunode left it comes back byte for byte. Else the entries go that gpunode made, and the
    default and the feature that it set are what they were; what others wrote stays.

    Raises:
        Refused: the file cannot be read.
    """
    node = node_of(files, desired)
    now = files.get(node.config)
    if now is None:
        return ConfigEdit((), f"there is no {node.config}")
    on_record = former.get(node.config)
    if on_record is None:
        return _undo_without_record(files, node, desired)
    if now == on_record.after and _is_about(on_record, desired, node.config):
        edits = (Edit(node.config, now, on_record.before),) if on_record.before != now else ()
        return ConfigEdit(edits, f"{node.config} was not edited since, so it is restored")
    undoing = _Undoing.of(on_record, now, desired, node)
    steps = undoing.steps()
    changes = without_empty(undoing.now, [step.change for step in steps if step.change], undoing.before)
    notes = tuple(step.note for step in steps if step.note)
    result = edit_file(files, node, changes, f"{node.config} was edited since: only gpunode's keys are removed", notes)
    return _without_file(result) if on_record.before is None else result


def _without_file(result: ConfigEdit) -> ConfigEdit:
    """Return the result; a file that gpunode made goes when nothing is left in it."""
    for edit in result.edits:
        if edit.after is not None and not document_of(edit.after, edit.path):
            return ConfigEdit((Edit(edit.path, edit.before, None),), result.how, result.notes)
    return result


def _is_about(on_record: RecordedEdit, desired: DesiredConfig, path: str) -> bool:
    """Return whether no other handler than the desired one would go with it; an empty one stands for all of them."""
    made = _changed_handlers(document_of(on_record.before, path), document_of(on_record.after, path))
    return not desired.handler or desired.handler not in made or made == [desired.handler]


def _changed_handlers(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The handlers whose entries differ."""
    old, new = object_at(before, "runtimes"), object_at(after, "runtimes")
    return [name for name in new if name not in old or not same(old[name], new[name])]


def _undo_without_record(files: Files, node: Node, desired: DesiredConfig) -> ConfigEdit:
    document = document_of(files[node.config], node.config)
    changes: list[Change] = []
    notes: list[str] = []
    if desired.handler in object_at(document, "runtimes"):
        changes.append((("runtimes", desired.handler), DROPPED))
    if default_of(document) == desired.handler:
        changes.append((("default-runtime",), DROPPED))
        notes.append("the former default runtime is not on record: the default is now runc, docker's own")
    if changes and object_at(document, "features").get("cdi") is True:
        notes.append("features.cdi is kept: it is not on record who enabled it")
    if desired.handler in node.flags.runtimes:
        notes.append(f"dockerd's command line has {desired.handler} too ({node.said_in('add-runtime')})")
    how = f"gpunode has no record of {node.config}: the entry {desired.handler} and a default that names it are removed"
    return edit_file(files, node, without_empty(document, changes), how, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Step:
    """A change that takes something back, or none; and what the user should know of it."""

    change: Change | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Undoing:
    """The removal of recorded changes from a file that others have edited since.

    Attributes:
        before: the document before gpunode, whose text is ``former_text``.
        after: as gpunode left it.
        now: as it is.
        names: of the handlers that go.
        elsewhere: the runtimes that dockerd has from somewhere else.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    now: dict[str, Any]
    names: tuple[str, ...]
    elsewhere: frozenset[str]
    former_text: str

    @classmethod
    def of(cls, on_record: RecordedEdit, now: bytes, desired: DesiredConfig, node: Node) -> _Undoing:
        before, after = (document_of(data, node.config) for data in (on_record.before, on_record.after))
        made = _changed_handlers(before, after)
        return cls(
            before,
            after,
            document_of(now, node.config),
            (desired.handler,) if desired.handler in made else tuple(made),
            frozenset({_BUILT_IN, *node.flags.runtimes}),
            decode(on_record.before, node.config),
        )

    def steps(self) -> list[_Step]:
        """Yield the changes to make, the entries first."""
        entries = [step for name in self.names for step in self._entry(name)]
        gone = {step.change[0][1] for step in entries if step.change and step.change[1] is DROPPED}
        return [*entries, *self._default(gone), *self._cdi()]

    def _former(self, *where: str) -> Any:
        """The value before gpunode, as it was written; ``DROPPED`` where there was none."""
        holder = self.before if len(where) == 1 else object_at(self.before, where[0])
        return jsonread.spelt(self.former_text, where) if where[-1] in holder else DROPPED

    def _entry(self, name: str) -> Iterator[_Step]:
        now = object_at(self.now, "runtimes").get(name, _MISSING)
        after = object_at(self.after, "runtimes")[name]
        change = (("runtimes", name), self._former("runtimes", name))
        if now is _MISSING:
            return
        if same(now, after):
            yield _Step(change)
        elif binary_of(now) == binary_of(after):
            yield _Step(change, f"keys added to runtimes.{name} since are removed with it")
        else:
            yield _Step(None, f"runtimes.{name} is kept: its program was changed since")

    def _default(self, gone: set[str]) -> Iterator[_Step]:
        now, after, before = (default_of(document) for document in (self.now, self.after, self.before))
        is_ours = now == after and after != before
        if now is None or not (is_ours or now in gone):
            return
        note = "" if is_ours else f"{now} was made the default runtime since; it is removed, and so is the default"
        left = {*object_at(self.now, "runtimes"), *self.elsewhere} - gone
        if before is None or before in left or before.startswith(_SHIMS):
            yield _Step((("default-runtime",), self._former("default-runtime")), note)
        else:
            note = note or f"the former default runtime, {before}, no longer exists: the default is docker's own, runc"
            yield _Step((("default-runtime",), DROPPED), note)

    def _cdi(self) -> Iterator[_Step]:
        before, after, now = (
            object_at(document, "features").get("cdi", _MISSING) for document in (self.before, self.after, self.now)
        )
        if not _equal(before, after) and now is not _MISSING and _equal(now, after):
            yield _Step((("features", "cdi"), self._former("features", "cdi")))


def _equal(one: Any, other: Any) -> bool:
    return one is other or (one is not _MISSING and other is not _MISSING and same(one, other))
