"""Laws for a node after a power cut, whenever it happened and whichever of the last writes reached the disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpunode.change import FileChange
from gpunode.errors import GpunodeError
from gpunode.journal.record import Intent
from gpunode.journal.store import Store
from tests.conformance.power.disk import Tree
from tests.conformance.power.node import Command, build, gpunode
from tests.conformance.power.recording import tree_of

_TEMPORARY = re.compile(r".*/\.gpunode-[0-9a-f]{8}|.*/objects/../\..*")


def configuration(tree: Tree) -> Tree:
    """Return the content of /etc, without gpunode's own temporary files."""
    return {path: node for path, node in tree.items() if path.startswith("/etc/") and not _TEMPORARY.fullmatch(path)}


def temporaries(tree: Tree) -> list[str]:
    """Return gpunode's temporary files."""
    return sorted(path for path in tree if _TEMPORARY.fullmatch(path))


def _files(tree: Tree) -> Tree:
    return {path: node for path, node in configuration(tree).items() if node.data is not None}


def found_broken(root: Path, tree: Tree, command: Command, *, ended: bool) -> Iterator[str]:
    """Yield the errors of a node as the power cut left it, before any repair."""
    former, wanted, present = _files(command.former), _files(command.wanted), _files(tree)
    allowed = (wanted,) if ended else (former, wanted)
    for path in sorted({*former, *wanted, *present}):
        if present.get(path) not in [one.get(path) for one in allowed]:
            yield f"{path} is neither as before nor as wanted" if not ended else f"{path} is not as the command said"
    store = Store(root)
    try:
        intents = [entry for run in store.ids() for entry in store.read_with_contents(run) if isinstance(entry, Intent)]
    except GpunodeError as error:
        yield f"{error.what}: {error.why}"
        return
    known = {intent.change.path for intent in intents if isinstance(intent.change, FileChange)}
    for path in sorted({*former, *present}):
        if present.get(path) != former.get(path) and path not in known:
            yield f"{path} was changed and no intent says so, so nothing can undo it"


def not_recovered(work: Path, tree: Tree, command: Command) -> Iterator[str]:
    """Yield unrepaired errors: repeating the command must reach the wanted state, undoing it the former."""
    again, back = (work / name for name in ("again", "back"))
    build(tree, again)
    yield from _reaches(again, command.again, command.wanted)
    yield from _reaches(again, command.back, command.former)
    build(tree, back)
    if command.again[0] == "setup" and not _recorded(back, command.number):
        yield from (f"{path} was changed without a record" for path in _different(_files(tree), _files(command.former)))
        return
    yield from _reaches(back, command.back, command.former)


def _different(present: Tree, wanted: Tree) -> list[str]:
    """Return each path whose content, mode or owner differs; an extra empty folder may be the user's, and stay."""
    return sorted(
        path
        for path in {*present, *wanted}
        if present.get(path) != wanted.get(path) and (path in wanted or present[path].data is not None)
    )


def _recorded(root: Path, number: int) -> bool:
    """True if the journal has a change of the run."""
    runs = Store(root).read_runs()
    return any(int(run.id.partition("-")[0]) == number and run.subjects for run in runs)


def _reaches(root: Path, argv: tuple[str, ...], wanted: Tree) -> Iterator[str]:
    said = root.with_name(f"{root.name}.said")
    code = gpunode((*argv, "--root", str(root)), said)
    if code != 0:
        yield f"gpunode {' '.join(argv)} exits with {code}:\n{said.read_text()}"
        return
    after = tree_of(root)
    for path in _different(configuration(after), configuration(wanted)):
        yield f"after gpunode {' '.join(argv)} {path} is not as it should be"
    if left := temporaries(after):
        yield f"gpunode {' '.join(argv)} left {', '.join(left)}"
