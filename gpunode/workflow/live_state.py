"""The present state of a node, for changes that depend on every byte of it."""

from __future__ import annotations

from collections.abc import Collection

from gpunode.change import FileState
from gpunode.command import command
from gpunode.errors import Undetermined
from gpunode.facts.evidence import Probe, decode_found
from gpunode.host.port import HostView
from gpunode.packages import SYSTEMS, Database

_LIMIT = 64 << 20


def read_file_state(host: HostView, path: str, limit_bytes: int = _LIMIT) -> FileState | None:
    """Return the file as it is; None if there is none.

    Raises:
        Undetermined: it cannot be read.
    """
    capture = host.look(Probe(path, path=path, limit_bytes=limit_bytes))
    if capture.outcome == "absent":
        return None
    if capture.outcome != "ok" or capture.ownership is None:
        raise Undetermined(
            f"{path} cannot be read, so gpunode cannot tell whether it was edited",
            why=capture.error or capture.outcome,
            hint=f"look at it with `{command('ls', '-l', path)}`, then run the command again",
        )
    owner = capture.ownership
    return FileState(capture.data, owner.mode, owner.uid, owner.gid)


def has_empty_folder(host: HostView, folders: Collection[str], going: Collection[str] = ()) -> bool:
    """Return whether one of ``folders`` is there and has nothing in it but what is ``going``.

    They were made for a file that is gone: an undo was stopped before it removed them. Where somebody else uses one,
    nothing is left to do.
    """
    return any(
        host.look(Probe(folder, glob=folder, contents=False)).data and _names_in(host, folder) <= {*going, *folders}
        for folder in folders
    )


def _names_in(host: HostView, folder: str) -> frozenset[str]:
    """Return the paths of all that is in ``folder``; of one that cannot be listed what could be seen."""
    patterns = (f"{folder}/{name}" for name in ("*", ".*"))
    captures = [host.look(Probe(pattern, glob=pattern, contents=False)) for pattern in patterns]
    return frozenset(found.path for capture in captures for found in decode_found(capture.data))


def read_package_database(host: HostView) -> Database:
    """Return the package database; empty if there is none.

    Raises:
        Undetermined: it is there and cannot be read.
    """
    for system in SYSTEMS:
        file = system.database_file
        # The probe that facts come from, so that a rehearsal finds its answer in the capture.
        capture = host.look(next(probe for probe in system.probes if probe.path == file))
        if capture.outcome == "ok":
            return system.database(capture.text)
        if capture.outcome != "absent":
            raise Undetermined(
                "cannot tell what belongs to which package",
                why=f"{file}: {capture.error or capture.outcome}",
                hint=f"look at it with `ls -l {file}`, then run the command again",
            )
    return SYSTEMS[0].database("")
