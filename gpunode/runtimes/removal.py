"""Removal of a handler from a runtime's files: by the record of its edits, else by its name. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from gpunode.errors import Refused
from gpunode.runtimes.keys import about, entries_changed, taken_back, took_out
from gpunode.runtimes.model import (
    RUNC_FAMILY,
    ConfigEdit,
    DesiredConfig,
    Edit,
    Files,
    RecordedEdit,
    Runtime,
    after_edits,
)

# Of each file what gpunode made of it, newest first.
Recorded = Mapping[str, Sequence[RecordedEdit]]


def others_in(path: str, files: Files, recorded: Recorded) -> bytes | None:
    """Return what others than gpunode have in the file; None where nobody can tell, or gpunode has no part in it."""
    left = files.get(path) if path in recorded else None
    for former in recorded.get(path, ()):
        left = None if left is None else taken_back(former.before, former.after, left, path)
    return left


def remove_handler(row: Runtime, desired: DesiredConfig, files: Files, recorded: Recorded) -> ConfigEdit:
    """The edits that take ``desired.handler`` out.

    Raises:
        Refused: the files cannot be edited so, or neither gpunode nor nvidia-ctk can have added the handler.
    """
    rounds = tuple(_by_record(row, desired, files, recorded))
    if not any(_join_edits(rounds)):
        # Nothing on record is left to be taken back: what is there goes by its name.
        _refuse_foreign(row, desired, files)
        rounds = (row.unconfigure(files, desired, {}),)
    after = after_edits(files, ConfigEdit(tuple(_join_edits(rounds))))
    if dangling := _dangling(row, desired, files, after):
        rounds = (*rounds, row.unconfigure(after, replace(desired, handler=dangling), {}))
    edits = tuple(_join_edits(rounds))
    notes = [note for one in rounds for note in one.notes]
    if edits and desired.handler in row.inspect(after, desired).handlers and not row.product:
        notes.append(
            f"{row.id} still has a runtime {desired.handler}: gpunode has no record of that entry and kept it; run "
            "the same command again to remove it by its name"
        )
    return ConfigEdit(edits, rounds[0].how, tuple(dict.fromkeys(notes)))


def _by_record(row: Runtime, desired: DesiredConfig, files: Files, recorded: Recorded) -> Iterator[ConfigEdit]:
    """Return the edits that take back the recorded ones, newest first: one written in between goes through both."""
    handler = desired.handler
    copied = _from_before(row, desired, files, recorded) - {handler}
    others = _others(row, desired, files, recorded) - copied
    # Since the handler was taken out last: that took back all before it.
    since = {
        path: list(takewhile(lambda one, path=path: not took_out(one, handler, path), each))  # type: ignore[misc]
        for path, each in recorded.items()
    }
    for depth in range(max(map(len, since.values()), default=0)):
        former = {path: each[depth] for path, each in since.items() if depth < len(each)}
        if concerned := _edits_about(former, handler, others, copied):
            yield (edited := row.unconfigure(files, desired, concerned))
            files = after_edits(files, edited)


def _others(row: Runtime, desired: DesiredConfig, files: Files, recorded: Recorded) -> frozenset[str]:
    """The other handlers that gpunode added and that are still there."""
    made = (entries_changed(each, path) for path, formers in recorded.items() for each in formers)
    return frozenset().union(*made) & row.inspect(files, desired).handlers.keys() - {desired.handler, *RUNC_FAMILY}


def _from_before(row: Runtime, desired: DesiredConfig, files: Files, recorded: Recorded) -> frozenset[str]:
    """The handlers that were there before gpunode and run what they ran then; a drop-in may repeat them."""
    first = {path: formers[-1].before for path, formers in recorded.items() if path in files}
    then = {path: content for path, content in {**files, **first}.items() if content is not None}
    was, now = (row.inspect(each, desired).handlers for each in (then, files))
    return frozenset(name for name in now if was.get(name) == now[name])


def _edits_about(
    former: Mapping[str, RecordedEdit], handler: str, others: Collection[str], copied: Collection[str]
) -> dict[str, RecordedEdit]:
    """Return what is about ``handler``; what is about none, such as an import, only when no other needs it."""
    cut = ((path, about(each, handler, path, copied)) for path, each in former.items())
    return {path: one for path, one in cut if one is not None and (not others or entries_changed(one, path))}


def _dangling(row: Runtime, desired: DesiredConfig, before: Files, after: Files) -> str:
    """The former default that came back, where it is the name of a handler that has gone meanwhile; else empty."""
    was, now = (row.inspect(files, desired) for files in (before, after))
    name = now.default or ""
    is_there = name in {*now.handlers, *RUNC_FAMILY} or name.startswith("io.containerd.")  # a shim, which docker takes
    return "" if is_there or name == was.default else name


def _refuse_foreign(row: Runtime, desired: DesiredConfig, files: Files) -> None:
    """Refuse to remove a handler that neither gpunode nor nvidia-ctk can have added.

    Raises:
        Refused: it is, and nobody has on record that gpunode did.
    """
    binary = row.inspect(files, desired).handlers.get(desired.handler)
    if binary in {None, desired.binary} or posixpath.basename(binary or "").startswith("nvidia-container-runtime"):
        return
    raise Refused(
        f"the runtime {desired.handler} of {row.id} was not added by configure",
        why=f"it runs {binary or 'the default of its shim'}, and gpunode has no record of it",
        hint=f"remove it from {desired.config or row.config} by hand; if it is NVIDIA's nevertheless, name its "
        f"program: --nvidia-runtime-path={binary or 'FILE'}",
    )


def _join_edits(rounds: Iterable[ConfigEdit]) -> Iterator[Edit]:
    """Join the edits of each path; a way that leads back to where it began is none."""
    found: dict[str, Edit] = {}
    for edit in (edit for one in rounds for edit in one.edits):
        first = found.pop(edit.path, edit)
        found[edit.path] = Edit(edit.path, first.before, edit.after, edit.like)
    return (edit for edit in found.values() if edit.before != edit.after)
