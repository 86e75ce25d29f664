"""Write access to files that root reads or runs, which only root should have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpunode.change import FileChange, FileState, restrict_writes_to_root
from gpunode.facts.model import Facts, value_or

_GROUP, _OTHERS = 0o020, 0o002


def describe_nonroot_writers(state: FileState) -> str:
    """Return how users other than root can write to the file; empty if none can."""
    if state.uid != 0:
        return f"belongs to uid {state.uid}"
    if state.mode & _OTHERS or (state.mode & _GROUP and state.gid != 0):
        return f"is writable for others (mode {state.mode:04o}, group {state.gid})"
    return ""


def restrict_to_root(facts: Facts, paths: Iterable[str]) -> tuple[FileChange, ...]:
    """Return the changes of owner and mode after which only root can write to the files."""
    states = ((path, value_or(facts.file(path), None)) for path in dict.fromkeys(paths))
    return tuple(
        FileChange(path, state, restrict_writes_to_root(state))
        for path, state in states
        if state and describe_nonroot_writers(state)
    )


def explain_restriction(changes: Iterable[FileChange]) -> str:
    """Return the reason for the changes of ``restrict_to_root``."""
    restrictions = (f"{change.path} {describe_nonroot_writers(change.before)}" for change in changes if change.before)
    return f"{' and '.join(restrictions)}; root relies on its content, so check it"


def note_replaceable_files(facts: Facts, paths: Iterable[str]) -> Iterator[str]:
    """Yield a note for each file that users other than root can replace, because of its folder or a link to it."""
    for path in dict.fromkeys(paths):
        if place := facts.exposed.get(path, ""):
            yield (
                f"users other than root can replace {path}, which root relies on: {place}; gpunode does not change that"
            )
