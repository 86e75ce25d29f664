"""What a lock file holds, and what is different in it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpunode.cli.screen.commands import setup_command
from gpunode.cli.screen.text import BLANK, Line, line, span
from gpunode.cli.screen.words import MARKS, count

if TYPE_CHECKING:
    from gpunode.lockfile import Moved
    from gpunode.recipe import VersionLock


def lock_lines(lock: VersionLock, changed: Sequence[Moved], argv: Sequence[str], *, renewed: bool) -> Iterator[Line]:
    """Where the lock is; of one that was there before, what has changed in it."""
    yield BLANK
    if renewed and not changed:
        yield line(MARKS["nothing"], f"{lock.file} holds these versions already", hang=2)
        return
    size = count(len(lock.packages), "package")
    where = f"{lock.distribution} {lock.release}, {lock.architecture}"
    yield line(MARKS["change"], f"{lock.file} {'renewed' if renewed else 'written'}: {size} for {where}", hang=2)
    for moved in changed if renewed else ():
        yield line(f"    {moved.name} {moved.before or 'new'} → {moved.after or 'gone'}", hang=6)
    yield line("next: ", span(str(setup_command(argv)), "command"), "  (on every node of this kind)", hang=6)
