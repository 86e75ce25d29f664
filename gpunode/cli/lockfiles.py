"""Lock files on the disk: read with distrust, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpunode import __version__
from gpunode.change import FileState
from gpunode.cli.screen.commands import setup_command
from gpunode.cli.screen.text import BLANK, Line, line, span
from gpunode.cli.screen.words import MARKS, count
from gpunode.command import gpunode
from gpunode.errors import GpunodeError, LockFileError, UsageError
from gpunode.host import files
from gpunode.lockfile import Moved, moved, parse, render
from gpunode.recipe import LIMIT_BYTES, VersionLock


def _how(file: str) -> str:
    return f"on a node that is set up, this writes it:\n{gpunode('plan', '--lock', file)}"


def there_is(file: str) -> bool:
    """Return whether something stands at ``file``."""
    return os.path.lexists(file)


def read_lock(file: str) -> VersionLock:
    """Return the lock in ``file``.

    Raises:
        UsageError: there is no such file, or it cannot be read; LockFileError: it is no lock file.
    """
    found = files.read(str(Path(file).absolute()), LIMIT_BYTES + 1)
    if found.outcome != "ok":
        what = "there is no lock file" if found.outcome == "absent" else "cannot read the lock file"
        raise UsageError(f"{what} {file}", why=found.error, hint=_how(file))
    try:
        return parse(found.data.decode(), file)
    except UnicodeDecodeError as error:
        line = found.data.count(b"\n", 0, error.start) + 1
        raise LockFileError(f"not text in UTF-8: {error.reason}", file=file, line=line) from error


def former_lock(file: str) -> VersionLock | None:
    """Return the lock that ``file`` holds before it is written; None where there is nothing yet.

    Raises:
        UsageError: what stands there is no lock file, so it is not written over, or nothing can stand there.
    """
    if there_is(file):
        return read_lock(file)
    if not Path(file).absolute().parent.is_dir():
        raise UsageError(
            f"the lock file {file} cannot be written",
            why=f"there is no folder {Path(file).parent}",
            hint="name a file in an existing folder",
        )
    return None


def write_lock(lock: VersionLock, former: VersionLock | None) -> tuple[Moved, ...]:
    """Write ``lock`` to its file, if something differs, and return what does.

    Raises:
        UsageError: it cannot be written there; the file is as it was.
    """
    if former == lock:
        return ()
    path = str(Path(lock.file).absolute())
    try:
        before = files.state(path)
        usual = FileState(b"", 0o644, os.geteuid(), os.getegid())
        files.replace(path, replace(before or usual, content=render(lock, __version__).encode()))
    except GpunodeError as error:
        hint = "name a file that you may write"
        raise UsageError(f"the lock file {lock.file} cannot be written", why=error.why, hint=hint) from error
    return moved(former, lock)


def refuse_part(only: Sequence[str]) -> None:
    """Refuse if single steps were asked for.

    Raises:
        UsageError: a lock of some steps would pass for one of the node.
    """
    if only:
        raise UsageError(
            "a lock file covers the whole recipe",
            why=f"with --only {' --only '.join(only)} it would have only those steps' packages",
            hint="leave --only out",
        )


def lock_lines(lock: VersionLock, changed: Sequence[Moved], argv: Sequence[str], *, renewed: bool) -> Iterator[Line]:
    """Yield where the lock is, and what has changed in one that was there before."""
    yield BLANK
    if renewed and not changed:
        yield line(MARKS["nothing"], f"{lock.file} holds these versions already", hang=2)
        return
    size = count(len(lock.packages), "package")
    where = f"{lock.distribution} {lock.release}, {lock.architecture}"
    yield line(MARKS["change"], f"{lock.file} {'renewed' if renewed else 'written'}: {size} for {where}", hang=2)
    for one in changed if renewed else ():
        yield line(f"    {one.name} {one.before or 'new'} → {one.after or 'gone'}", hang=6)
    yield line("next: ", span(str(setup_command(argv)), "command"), "  (on every node of this kind)", hang=6)
