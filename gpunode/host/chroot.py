"""Prepare a mounted root for maintainer scripts, and clean up: no service starts, names resolve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from gpunode.change import FileState
from gpunode.errors import GpunodeError, UsageError
from gpunode.host import files, places
from gpunode.host.process import Places, Runner, signals_held

_POLICY = "/usr/sbin/policy-rc.d"
_RESOLVER = "/etc/resolv.conf"
_STAND_IN = b"# gpunode mounts another file over this one while it works here, and then removes it.\n"


@contextmanager
def furnished(runner: Runner) -> Iterator[None]:
    """What ``runner`` runs in its root starts no service and resolves names as this machine does.

    Both are files that are mounted over a file of the root, for the command alone (``host/namespaces.py``). Where there
    is none, a stand-in is made that means nothing by itself and is removed at the end. A policy-rc.d of the image stays
    the image's decision. For ``/`` there is nothing to do.

    Raises:
        UsageError: not root, or no system is there.
        ChangeFailed: a stand-in cannot be made; none stays.
    """
    if runner.root == "/" or runner.places != Places():
        yield
        return
    _need_system(runner.root)
    with ExitStack() as stack:
        try:
            policy = _stand_in(_POLICY, runner.root, stack)
            resolver = _stand_in(_RESOLVER, runner.root, stack) if os.path.exists(_RESOLVER) else ""  # noqa: PTH110
            stack.callback(setattr, runner, "places", runner.places)
            is_own = bool(policy) and not _is_stand_in(policy, runner.root)
            runner.places = Places("" if is_own else policy, resolver)
            yield
        finally:
            with signals_held():
                stack.close()


def _need_system(root: str) -> None:
    if os.geteuid() != 0:
        raise UsageError(
            f"--root {root} needs root", why="the programs of an image run as root", hint="run the command with sudo"
        )
    for place in ("bin/sh", "proc", "sys", "dev"):
        if not os.path.lexists(f"{root}/{place}"):
            raise UsageError(
                f"{root} is not the root of a system",
                why=f"there is no {root}/{place}",
                hint="mount the image there, or make one with debootstrap or mmdebstrap",
            )


def _stand_in(path: str, root: str, stack: ExitStack) -> str:
    """Where ``path`` leads inside the root; a file is there until the stack is closed.

    A link may lead to a folder that only a running system has (``/run/systemd/resolve``); it is made, and goes.
    """
    leads, made = files.prepare(path, root=root)
    stack.callback(places.remove_folders, made, root=root)
    if files.read(leads, root=root).outcome == "absent":
        files.replace(leads, FileState(_STAND_IN), root=root)
    if _is_stand_in(leads, root):
        stack.callback(_remove, leads, root)
    return leads


def _remove(path: str, root: str) -> None:
    with suppress(GpunodeError):
        files.remove(path, root=root)


def _is_stand_in(path: str, root: str) -> bool:
    """Whether a file is one over which a run mounted another; it is still there when that run was killed."""
    return files.read(path, len(_STAND_IN) + 1, root=root).data == _STAND_IN


def sweep(root: str) -> None:
    """Remove the placeholder files that a killed run left as mount points."""
    for path in (_POLICY, _RESOLVER):
        if _is_stand_in(path, root):
            _remove(path, root)
