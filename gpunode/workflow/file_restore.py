"""A file that gpunode wrote, without what gpunode made of it: the rule of rollback, remove and unconfigure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

from gpunode.change import FileChange, FileState
from gpunode.journal.footprint import ChangeSpan, FileTrail
from gpunode.runtimes import Edit


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """A file without what gpunode did to it.

    Attributes:
        is_merged: whether somebody's edits stay in it.
        is_unclear: whether gpunode's part cannot be separated from other edits, so that it may remain.
        notes: what the user should know of it.
    """

    state: FileState | None
    is_merged: bool = False
    is_unclear: bool = False
    notes: tuple[str, ...] = ()


# Of a span of a file and what is there instead of it: the file without the span; None to leave it as it is.
ResolveEdit: TypeAlias = Callable[[ChangeSpan[FileChange], FileState | None], RestoredFile | None]


def restore_file(trail: FileTrail, now: FileState | None, resolve_edit: ResolveEdit) -> RestoredFile:
    """Return the file without gpunode's changes, the newest taken out first."""
    found = RestoredFile(now)
    for span in reversed(trail.spans):
        if span.left(found.state):
            found = replace(found, state=span.change.before)
        elif found.state != span.change.before:  # else it did not happen: its run was cut short; or somebody undid it
            resolved = resolve_edit(span, found.state)
            if resolved is None:
                return found
            is_unclear = found.is_unclear or resolved.is_unclear
            found = replace(resolved, is_unclear=is_unclear, notes=(*found.notes, *resolved.notes))
    return found


def recorded_edit(change: FileChange) -> Edit:
    """Return a change of a file by its bytes."""
    before, after = (state.content if isinstance(state, FileState) else None for state in (change.before, change.after))
    return Edit(change.path, before, after)


def revert_change(
    change: FileChange, now: FileState, entries: Collection[tuple[str, ...]] | None = None, *, keeps_changed: bool
) -> RestoredFile | None:
    """Return ``now`` without ``change``, with somebody's edits; None if they cannot be separated.

    Args:
        change: of the file, which did not take it away.
        now: the file as somebody has edited it since.
        entries: the tables that go as a whole; see ``revert_edit``.
        keeps_changed: whether a value of gpunode's that somebody has changed since stays; else it cannot be told apart.
    """
    from gpunode.runtimes.reversal import revert_edit  # few undos meet an edited file

    reversal = revert_edit(recorded_edit(change), now.content, entries)
    if reversal is None or (reversal.changed and not keeps_changed):
        return None
    names = ", ".join(".".join(keys) for keys in reversal.removed)
    notes = [f"{change.path}: {names} was added to gpunode's tables since and is removed with them"] if names else []
    notes += [
        f"{change.path}: {'.'.join(keys)} is kept: its program was changed since"
        for keys in reversal.changed
        if keys[-2:-1] == ("runtimes",)
    ]
    before, after = change.before, change.after
    if before is None or not isinstance(after, FileState):
        state = replace(now, content=reversal.content) if reversal.content.strip() else None
        return RestoredFile(state, is_merged=True, notes=tuple(notes))
    mode = before.mode if now.mode == after.mode else now.mode
    owner = before if (now.uid, now.gid) == (after.uid, after.gid) else now
    state = replace(now, content=reversal.content, mode=mode, uid=owner.uid, gid=owner.gid)
    return RestoredFile(state, is_merged=True, notes=tuple(notes))
