"""Prepare a mounted root for maintainer scripts, and clean up: no service starts, names resolve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from gpunode.change import FileState
from gpunode.errors import GpunodeError, UsageError
from gpunode.host import files, rooted_paths
from gpunode.host.process import RootMountPoints, Runner, hold_signals

_POLICY_RC_FILE = "/usr/sbin/policy-rc.d"
_RESOLV_CONF_FILE = "/etc/resolv.conf"
_MOUNT_POINT_PLACEHOLDER = b"# gpunode mounts another file over this one while it works here, and then removes it.\n"


@contextmanager
def prepare_root(runner: Runner) -> Iterator[None]:
    """Keep commands in the root of ``runner`` from starting services, and give them this machine's name servers.

    Both are files mounted over a file of the root, for the command only (``host/namespaces.py``). If the root lacks
    that file, an inert placeholder is made and removed at the end. A policy-rc.d of the image stays in force. For ``/``
    there is nothing to do.

    Raises:
        UsageError: if not root, or there is no system.
        ChangeFailed: if a placeholder cannot be made; none stays.
    """
    if not runner.is_image or runner.places != RootMountPoints():
        yield
        return
    _refuse_without_system(runner.root)
    with ExitStack() as stack:
        try:
            policy = _make_mount_point(_POLICY_RC_FILE, runner.root, stack)
            has_resolver = os.path.exists(_RESOLV_CONF_FILE)  # noqa: PTH110
            resolver = _make_mount_point(_RESOLV_CONF_FILE, runner.root, stack) if has_resolver else ""
            stack.callback(setattr, runner, "places", runner.places)
            is_own = bool(policy) and not _is_mount_point_file(policy, runner.root)
            runner.places = RootMountPoints("" if is_own else policy, resolver)
            yield
        finally:
            with hold_signals():
                stack.close()


def _refuse_without_system(root: str) -> None:
    if os.geteuid() != 0:
        raise UsageError(
            f"--root {root} needs root", why="the programs of an image run as root", hint="run the command with sudo"
        )
    for place in ("bin/sh", "proc", "sys", "dev"):
        if not os.path.lexists(f"{root}/{place}"):
            raise UsageError(
                f"{root} is not the root of a system",
                why=f"there is no {root}/{place}",
                hint="mount the image there, or create one with debootstrap or mmdebstrap",
            )


def _make_mount_point(path: str, root: str, stack: ExitStack) -> str:
    """Resolve ``path`` inside the root, with a placeholder file until the stack is closed.

    A link may lead to a folder that only a running system has (``/run/systemd/resolve``), which is made and removed.
    """
    leads, made = files.make_parents(path, root=root)
    stack.callback(rooted_paths.remove_folders, made, root=root)
    if files.read_file(leads, root=root).outcome == "absent":
        files.replace_file(leads, FileState(_MOUNT_POINT_PLACEHOLDER), root=root)
    if _is_mount_point_file(leads, root):
        stack.callback(_remove_placeholder_file, leads, root)
    return leads


def _remove_placeholder_file(path: str, root: str) -> None:
    with suppress(GpunodeError):
        files.remove_file(path, root=root)


def _is_mount_point_file(path: str, root: str) -> bool:
    """Return True for a placeholder file, which a killed run leaves."""
    return files.read_file(path, len(_MOUNT_POINT_PLACEHOLDER) + 1, root=root).data == _MOUNT_POINT_PLACEHOLDER


def remove_mount_points(root: str) -> None:
    """Remove the placeholder files that a killed run left as mount points."""
    for path in (_POLICY_RC_FILE, _RESOLV_CONF_FILE):
        if _is_mount_point_file(path, root):
            _remove_placeholder_file(path, root)
