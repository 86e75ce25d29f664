"""The lock of those who change a node. The kernel holds it; what the file says only names its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpunode.errors import Busy, ChangeFailed

_POLL_S = 0.1
_SHOWN = 160


@contextlib.contextmanager
def held(path: Path, timeout_s: float = 0.0) -> Iterator[None]:
    """The lock at ``path`` is held meanwhile; it is freed even when its holder dies.

    Raises:
        Busy: another process holds it after ``timeout_s``; its pid and command are named.
        ChangeFailed: the file cannot be opened for writing.
    """
    descriptor = _open(path)
    try:
        _acquire(descriptor, path, timeout_s)
        _sign(descriptor)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ChangeFailed(
            f"the lock {path} cannot be opened, so nothing was changed",
            why=error.strerror or str(error),
            hint=f"make room and write access for {path.parent}, then run the same command again",
        ) from error


@dataclass(frozen=True, slots=True)
class _Holder:
    pid: int
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command})"


def _acquire(descriptor: int, path: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not _taken(descriptor):
        if time.monotonic() >= deadline:
            raise _busy(descriptor, path)
        time.sleep(_POLL_S)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(descriptor: int) -> None:
    """The lock file names its holder, if the disk has room; content that a dead one left is overwritten."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{' '.join(sys.argv)}\n".encode("utf-8", "replace"), 0)


def _busy(descriptor: int, path: Path) -> Busy:
    holder = _holder(os.pread(descriptor, 4096, 0))
    return Busy(
        "another gpunode is changing this node" + (f": {holder}" if holder else ""),
        why=f"it holds {path}",
        hint="wait until it is done, then run the same command again; `gpunode status` works meanwhile",
    )


def _holder(signature: bytes) -> _Holder | None:
    """The process that signed the lock, as far as it lives; its command as the kernel tells it."""
    pid, _, command = signature.decode("utf-8", "replace").partition("\n")
    if not pid.isdecimal():
        return None
    try:
        running = Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return None
    words = running.replace(b"\0", b" ").decode("utf-8", "replace").split() or command.split()
    return _Holder(int(pid), " ".join(words)[:_SHOWN])
