"""What a run that was cut short left behind: told to the user, and found again by the next run. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.change import Change, FileChange, PackageChange, PackageState, subject
from gpunode.journal.record import CutShort
from gpunode.runtimes import RUNTIMES

_NAMED = 3


def told(cut: CutShort, then: str) -> str:
    """Which run was cut short, who began it and when, and how far it came; ``then`` says what comes of it."""
    begin = cut.begin
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(begin.at))
    what = f"rollback of {begin.of}" if begin.of else f"{begin.verb} {begin.recipe}".strip()
    return f"run {begin.run} ({what}, begun {when} by {begin.user}) was cut short {_how_far(cut)}; {then}"


def _how_far(cut: CutShort) -> str:
    if not cut.made and not cut.begun:
        return "before its first change"
    parts = []
    if cut.made:
        count = "1 change" if len(cut.made) == 1 else f"{len(cut.made)} changes"
        parts.append(f"after {count}, the last of them {subject(cut.made[-1])}")
    if cut.begun:
        parts.append(f"in the middle of {_named(cut.begun)}")
    return ", ".join(parts)


def _named(changes: Sequence[Change]) -> str:
    names = list(dict.fromkeys(map(subject, changes)))
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def half_written(cut: CutShort) -> tuple[str, ...]:
    """The paths beside which the run may have left a temporary file.

    A candidate that a runtime's parser was reading stands in no journal, so every runtime's files are among them.
    """
    written = (change.path for change in (*cut.made, *cut.begun) if isinstance(change, FileChange))
    candidates = (path for row in RUNTIMES if row.unit for path in (row.config, row.drop_in) if path)
    return tuple(dict.fromkeys((*written, *candidates)))


def marks_missing(cut: CutShort, installed: Mapping[str, PackageState]) -> tuple[PackageChange, ...]:
    """The packages that the setup brought as somebody's dependency or held, and that are not marked so.

    apt marks all that it is told by name as manually installed; the marks are set after the transaction.
    """
    if cut.begin.verb != "setup":
        return ()
    begun = {change.name: change.after for change in cut.begun if isinstance(change, PackageChange)}
    owed = ((name, installed.get(name), after) for name, after in begun.items())
    return tuple(
        PackageChange(name, now, replace(now, auto=after.auto, held=after.held))
        for name, now, after in owed
        if now is not None and isinstance(after, PackageState) and now.version == after.version
        if (after.auto and not now.auto) or (after.held and not now.held)
    )
