"""The lock for programs that change a node. The kernel holds it; the file's content only names its holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gpunode.errors import Busy, ChangeFailed
from gpunode.host.locks import LockHolder, make_holder, wait_while
from gpunode.host.port import OnProgress, ignore_progress
from gpunode.journal.objects import RecordFolder

_LOCK_FILE_NAME = "lock"
_POLL_INTERVAL_S = 0.2


@contextlib.contextmanager
def hold_lock(place: RecordFolder, timeout_s: float = 0.0, on_progress: OnProgress = ignore_progress) -> Iterator[None]:
    """Hold the lock in ``place`` for the duration; it is freed even if its holder dies.

    Args:
        place: the folder of the lock file; it is created.
        timeout_s: how long to wait for it.
        on_progress: called with the holder while waiting.

    Raises:
        Busy: another process holds it after ``timeout_s``; its pid and command are named.
        ChangeFailed: the file cannot be opened for writing.
    """
    descriptor = _acquire(place, time.monotonic() + timeout_s, on_progress)
    try:
        _write_holder(descriptor, f"{os.getpid()} {_process_start('self')}\n{' '.join(sys.argv)}\n")
        yield
    finally:
        _write_holder(descriptor, "")
        os.close(descriptor)


def read_holder(place: RecordFolder) -> LockHolder | None:
    """Return the living process that holds the lock in ``place``, without locking; None if it cannot be read."""
    try:
        with place.open() as folder:
            _refuse_unless_file(folder)
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(_LOCK_FILE_NAME, flags, dir_fd=folder)
    except OSError:
        return None
    try:
        return _parse_holder(descriptor, place.path(_LOCK_FILE_NAME))
    finally:
        os.close(descriptor)


def _acquire(place: RecordFolder, deadline: float, on_progress: OnProgress) -> int:
    """Lock the file that is in ``place`` now and return its descriptor; a lock on a deleted file excludes nobody."""
    while True:
        descriptor = _open_lock_file(place)
        try:
            _wait_for_lock(descriptor, place.path(_LOCK_FILE_NAME), deadline, on_progress)
            if _is_same_file(descriptor, place):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _open_lock_file(place: RecordFolder) -> int:
    try:
        with place.open(make=True) as folder:
            with contextlib.suppress(FileNotFoundError):
                _refuse_unless_file(folder)
            return os.open(_LOCK_FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    except OSError as error:
        raise _unusable_error(place.path(_LOCK_FILE_NAME), error) from error


def _refuse_unless_file(folder: int) -> None:
    """Refuse an image's device before it is opened, which may have side effects. Raises OSError."""
    if not stat.S_ISREG(os.lstat(_LOCK_FILE_NAME, dir_fd=folder).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", _LOCK_FILE_NAME)


def _wait_for_lock(descriptor: int, path: Path, deadline: float, on_progress: OnProgress) -> None:
    def find_other_holder() -> LockHolder | None:
        return None if _try_lock(descriptor, path) else _parse_holder(descriptor, path) or LockHolder(str(path), 0, "")

    wait_while(find_other_holder, _describe_wait, _busy_error, deadline, on_progress, poll_s=_POLL_INTERVAL_S)


def _describe_wait(holder: LockHolder) -> str:
    """Return who holds the lock; a process that has just taken it may not have written its pid yet."""
    return "another gpunode is changing this node" + (f": {holder}" if holder.pid else "")


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unusable_error(path, error) from error
    return True


def _is_same_file(descriptor: int, place: RecordFolder) -> bool:
    try:
        with place.open() as folder:
            return os.path.samestat(os.fstat(descriptor), os.lstat(_LOCK_FILE_NAME, dir_fd=folder))
    except OSError:
        return False


def _write_holder(descriptor: int, text: str) -> None:
    """Write the holder into the lock file, if there is space, replacing a dead one."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode("utf-8", "replace"), 0)


def _parse_holder(descriptor: int, path: Path) -> LockHolder | None:
    """Return the process that the lock file names, if it is still the same: its pid may have been reused."""
    with contextlib.suppress(OSError):
        pid, _, started = os.pread(descriptor, 4096, 0).partition(b"\n")[0].decode("ascii", "replace").partition(" ")
        if pid.isdecimal() and started and started == _process_start(pid):
            return make_holder(str(path), int(pid))
    return None


def _process_start(pid: str) -> str:
    """Return when the process started, in ticks since boot; empty if there is none. Source: proc_pid_stat(5)."""
    try:
        stat = Path("/proc", pid, "stat").read_text(errors="replace")
    except OSError:
        return ""
    # The second field is a name in parentheses, which may contain anything.
    return stat.rpartition(")")[2].split()[19]


def _busy_error(holder: LockHolder, waited_s: float) -> Busy:
    return Busy(
        _describe_wait(holder),
        why=f"it holds {holder.path}; gpunode waited {waited_s:.0f} s for it",
        hint="wait until it is done, then run the same command again"
        + ("; `gpunode status` works meanwhile" if holder.path.startswith("/run/") else ""),
    )


def _unusable_error(path: Path, error: OSError) -> ChangeFailed:
    return ChangeFailed(
        f"the lock {path} cannot be taken, so nothing was changed",
        why=error.strerror or str(error),
        hint=f"free some space and check write access for {path.parent}, then run the same command again",
    )
