"""A mounted root made fit for package scripts: their mounts are there, no service starts, and all of it goes again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gpunode.errors import ChangeFailed, UsageError
from gpunode.host.files import prepare, remove_folders, resolve
from gpunode.host.process import Runner, signals_held

_POLICY = "/usr/sbin/policy-rc.d"
# invoke-rc.d(8): 101 forbids the action; maintainer scripts go on as if the service were none of their business.
_POLICY_SCRIPT = "#!/bin/sh\nexit 101\n"
_RESOLVER = "/etc/resolv.conf"
_STAND_IN = "# gpunode mounts another file over this one while it works here, and then removes it.\n"
# <linux/sched.h>, <linux/mount.h>
_CLONE_NEWNS, _MS_REC, _MS_SLAVE = 0x20000, 0x4000, 0x80000
_MOUNT_TIMEOUT_S = 30.0
# sysfs for reading only, as the kernel below is not the image's; a bind leaves cgroups and EFI variables out.
_SYSTEM = (
    ("/proc", ("-t", "proc", "-o", "nosuid,nodev,noexec", "proc")),
    ("/sys", ("-o", "bind,ro", "/sys")),
    ("/dev", ("--bind", "/dev")),
    ("/dev/pts", ("--bind", "/dev/pts")),
)


def keep_mounts_private() -> None:
    """What this process mounts from now on it sees alone with its children, and it goes with the last of them.

    So nothing stays mounted in an image when gpunode is killed, and what lives on of it keeps what it works with.
    """
    import ctypes

    # Where this is not permitted, mounting is not either, and will be told when something is to be mounted.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None)


@contextmanager
def mounted(root: str, runner: Runner | None = None) -> Iterator[None]:
    """Commands under chroot(8) in ``root`` find proc, sys, dev and a resolver, and start no service.

    What is mounted there already is used and stays, as does a policy-rc.d of its own. All else goes in reverse order,
    whatever happens meanwhile. For ``/`` there is nothing to do.

    Args:
        root: the folder; a system must be in it.
        runner: runs mount(8) on this system; the one without a log unless given.

    Raises:
        UsageError: not root, or no system is there.
        ChangeFailed: something could not be mounted; what was is gone again.
    """
    if root == "/":
        yield
        return
    _need_system(root)
    with ExitStack() as stack:
        mounts = _Mounts(root, runner or Runner(), stack)
        try:
            for target, arguments in _SYSTEM:
                mounts.folder(target, arguments)
            mounts.policy()
            mounts.resolver()
            yield
        finally:
            with signals_held():
                stack.close()


def _need_system(root: str) -> None:
    if os.geteuid() != 0:
        raise UsageError(f"--root {root} needs root", why="mount(8) and chroot(8) do", hint="run the command with sudo")
    if not Path(root, "bin/sh").is_symlink() and not Path(root, "bin/sh").exists():
        raise UsageError(
            f"{root} is not the root of a system",
            why=f"there is no {root.rstrip('/')}/bin/sh",
            hint="mount the image there, or make one with debootstrap or mmdebstrap",
        )


class _Mounts:
    """Mounts below a root, each with its undoing on a stack before it is made."""

    def __init__(self, root: str, runner: Runner, stack: ExitStack) -> None:
        self._root = root.rstrip("/")
        self._runner = runner
        self._stack = stack

    def folder(self, target: str, arguments: tuple[str, ...]) -> None:
        """The folder ``target`` is a mount point, as it was or newly."""
        place = self._inside(target)
        if place not in _mount_points():
            self._make(place, folder=True)
            self._mount(place, arguments)

    def policy(self) -> None:
        """No package starts a service; a policy that the image has is the image's decision."""
        place = self._inside(_POLICY)
        if (Path(place).exists() and not _is_stand_in(place)) or place in _mount_points():
            return
        # The file below cannot be executed, so one that a power cut leaves behind forbids nothing.
        self._make(place, folder=False)
        store = f"/run/gpunode-{os.urandom(4).hex()}"
        self._make(store, folder=True)
        # A file system of its own: /run and /tmp are often mounted noexec, which a bind of their files would inherit.
        self._mount(store, ("-t", "tmpfs", "-o", "mode=0755,size=64k,nosuid,nodev", "gpunode"))
        script = Path(store, "policy-rc.d")
        script.write_text(_POLICY_SCRIPT)
        script.chmod(0o755)
        self._mount(place, ("--bind", str(script)))

    def resolver(self) -> None:
        """Names resolve inside as they do here."""
        ours = os.path.realpath(_RESOLVER)
        place = self._inside(_RESOLVER)
        if Path(ours).is_file() and place not in _mount_points():
            self._make(place, folder=False)
            self._mount(place, ("-o", "bind,ro", ours))

    def _inside(self, path: str) -> str:
        """Where ``path`` leads inside the root, from outside.

        A link may lead to a folder that only a running system has (``/run/systemd/resolve``); it is made, and goes.
        """
        leads, made = prepare(path, root=self._root)
        self._stack.callback(remove_folders, made, root=self._root)
        return self._root + leads

    def _make(self, place: str, *, folder: bool) -> None:
        path = Path(place)
        if path.exists() and not _is_stand_in(place):
            return
        if folder:
            path.mkdir(mode=0o755)
            self._stack.callback(_ignoring_errors, path.rmdir)
        else:
            path.write_text(_STAND_IN)
            path.chmod(0o644)
            self._stack.callback(_ignoring_errors, path.unlink)

    def _mount(self, place: str, arguments: tuple[str, ...]) -> None:
        self._stack.callback(self._unmount, place)
        done = self._runner.run(("mount", *arguments, place), timeout_s=_MOUNT_TIMEOUT_S)
        if not done.ok:
            raise ChangeFailed(
                f"{place} could not be mounted",
                why=f"{done.last_lines(3)}; what was mounted for this run is unmounted again",
                hint="run it on the host, or in a container that may mount",
            )

    def _unmount(self, place: str) -> None:
        if place in _mount_points() and not self._runner.run(("umount", place), timeout_s=_MOUNT_TIMEOUT_S).ok:
            # A process that a package left running keeps it busy; detached, it goes with that process.
            self._runner.run(("umount", "--lazy", place), timeout_s=_MOUNT_TIMEOUT_S)


def _is_stand_in(place: str) -> bool:
    """Whether a file is one over which a run mounted another; it is still there when that run was killed."""
    path = Path(place)
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_STAND_IN) + 1) == _STAND_IN.encode()


def sweep(root: str) -> None:
    """The files over which a run that was killed has mounted others are gone."""
    for path in (_POLICY, _RESOLVER):
        with suppress(OSError):
            place = root.rstrip("/") + resolve(path, root=root)
            if _is_stand_in(place):
                Path(place).unlink()


def _ignoring_errors(act: Callable[[], None]) -> None:
    with suppress(OSError):
        act()


def _mount_points() -> frozenset[str]:
    """Every mount point of this process; st_dev would not show a bind from the same file system."""
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    return frozenset(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split(" ")[4]) for line in lines)
