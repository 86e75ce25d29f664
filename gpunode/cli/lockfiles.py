"""Lock files on disk: validated when read, written atomically."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpunode import __version__
from gpunode.change import FileState
from gpunode.cli.screen.commands import setup_command
from gpunode.cli.screen.text import BLANK_LINE, STATE_MARK, Line, line, next_command_line
from gpunode.command import gpunode_command
from gpunode.errors import GpunodeError, LockFileError, UsageError
from gpunode.host import files
from gpunode.lockfile import VersionDifference, parse, render, version_differences
from gpunode.recipe import MAX_RECIPE_BYTES, VersionLock
from gpunode.wording import count_noun


def read_lock(file: str, recipe_words: Sequence[str] = ()) -> VersionLock:
    """Return the lock in ``file``; ``recipe_words`` name the recipe in the hint for a missing file.

    Raises:
        UsageError: if the file is missing or unreadable; LockFileError: if it is not a lock file.
    """
    capture = files.read_file(str(Path(file).absolute()), MAX_RECIPE_BYTES + 1)
    if capture.outcome != "ok":
        what = "there is no lock file" if capture.outcome == "absent" else "cannot read the lock file"
        raise UsageError(
            f"{what} {file}",
            why=capture.error,
            hint=f"on a node that is set up, this writes it:\n{gpunode_command('plan', *recipe_words, '--lock', file)}",
        )
    try:
        return parse(capture.data.decode(), file)
    except UnicodeDecodeError as error:
        line = capture.data.count(b"\n", 0, error.start) + 1
        raise LockFileError(f"not text in UTF-8: {error.reason}", file=file, line=line) from error


def read_previous_lock(file: str) -> VersionLock | None:
    """Return the lock in ``file`` before it is overwritten; None if the file is missing.

    Raises:
        UsageError: if the file is not a lock file, or its folder does not exist.
    """
    if os.path.lexists(file):
        return read_lock(file)
    if not Path(file).absolute().parent.is_dir():
        raise UsageError(
            f"the lock file {file} cannot be written",
            why=f"there is no folder {Path(file).parent}",
            hint="name a file in an existing folder",
        )
    return None


def write_lock(lock: VersionLock, previous: VersionLock | None) -> tuple[VersionDifference, ...]:
    """Write ``lock`` to its file if it differs, and return the differences.

    Raises:
        UsageError: if it cannot be written; the old file then stays.
    """
    if previous == lock:
        return ()
    path = str(Path(lock.file).absolute())
    try:
        before = files.read_state(path)
        usual = FileState(b"", 0o644, os.geteuid(), os.getegid())
        files.replace_file(path, replace(before or usual, content=render(lock, __version__).encode()))
    except GpunodeError as error:
        hint = "name a file that you may write"
        raise UsageError(f"the lock file {lock.file} cannot be written", why=error.why, hint=hint) from error
    return version_differences(previous, lock)


def refuse_partial_lock(only: Sequence[str]) -> None:
    """Refuse to lock only some steps.

    Raises:
        UsageError: ``only`` is not empty, but a lock must cover the whole recipe.
    """
    if only:
        raise UsageError(
            "a lock file covers the whole recipe",
            why=f"with --only {' --only '.join(only)} it would have only those steps' packages",
            hint="leave --only out",
        )


def lock_lines(
    lock: VersionLock, changed: Sequence[VersionDifference], argv: Sequence[str], *, renewed: bool
) -> Iterator[Line]:
    """Yield the lock's file, and the version changes in a renewed one."""
    yield BLANK_LINE
    if renewed and not changed:
        yield line(STATE_MARK["nothing"], f"{lock.file} holds these versions already", hang=2)
        return
    size = count_noun(len(lock.packages), "package")
    where = f"{lock.distribution} {lock.release}, {lock.architecture}"
    yield line(STATE_MARK["change"], f"{lock.file} {'renewed' if renewed else 'written'}: {size} for {where}", hang=2)
    for one in changed if renewed else ():
        yield line(f"    {one.name} {one.before or 'new'} → {one.after or 'gone'}", hang=6)
    yield next_command_line(setup_command(argv), "  (on every node of this kind)")
