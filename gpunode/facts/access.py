"""Who may write to a file that root reads, runs or starts a daemon with: nobody but root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpunode.change import FileChange, FileState, without_foreign_writers
from gpunode.facts.model import Facts, known

_GROUP, _OTHERS = 0o020, 0o002


def why_open(state: FileState) -> str:
    """How somebody else than root may write to the file; empty when nobody may."""
    if state.uid != 0:
        return f"belongs to the user with the id {state.uid}"
    if state.mode & _OTHERS or (state.mode & _GROUP and state.gid != 0):
        return f"may be written by others (mode {state.mode:04o}, group {state.gid})"
    return ""


def closing(facts: Facts, paths: Iterable[str]) -> tuple[FileChange, ...]:
    """Owner and mode of those of the files that somebody else than root may write to, put right."""
    states = ((path, known(facts.file(path), None)) for path in dict.fromkeys(paths))
    return tuple(
        FileChange(path, state, without_foreign_writers(state)) for path, state in states if state and why_open(state)
    )


def why_closed(changes: Iterable[FileChange]) -> str:
    """Why ``closing`` changes these files."""
    found = (f"{change.path} {why_open(change.before)}" for change in changes if change.before)
    return f"{' and '.join(found)}; root acts on its content, so check it"


def exposed(facts: Facts, paths: Iterable[str]) -> Iterator[str]:
    """A note for each of the files whose place, not the file itself, is open to somebody else than root."""
    for path in dict.fromkeys(paths):
        if place := facts.exposed.get(path, ""):
            yield f"users other than root can replace {path}, which root acts on: {place}; gpunode does not change that"
