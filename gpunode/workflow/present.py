"""The present state of a node, for changes that depend on every byte of it."""

from __future__ import annotations

from gpunode.change import FileState
from gpunode.command import command
from gpunode.errors import Undetermined
from gpunode.facts.evidence import Probe
from gpunode.host.port import HostView

_DPKG_STATUS = "/var/lib/dpkg/status"
_LIMIT = 64 << 20


def state(host: HostView, path: str) -> FileState | None:
    """The file as it is; None where there is none.

    Raises:
        Undetermined: it cannot be read.
    """
    capture = host.look(Probe(path, path=path, limit_bytes=_LIMIT))
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


def dpkg_status(host: HostView) -> str:
    """The text of dpkg's status file; empty where no dpkg manages the packages.

    Raises:
        Undetermined: it is there and cannot be read.
    """
    capture = host.look(Probe("dpkg-status", path=_DPKG_STATUS, limit_bytes=_LIMIT))
    if capture.outcome not in {"ok", "absent"}:
        raise Undetermined(
            "cannot tell what belongs to which package",
            why=f"{_DPKG_STATUS}: {capture.error or capture.outcome}",
            hint=f"look at it with `ls -l {_DPKG_STATUS}`, then run the command again",
        )
    return capture.text
