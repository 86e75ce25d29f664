"""Holders of package managers' locks, and waiting for them; gpunode itself takes none."""

from __future__ import annotations

import fcntl
import math
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from gpunode.errors import Busy
from gpunode.fast_dataclass import dataclass
from gpunode.host import rooted_paths
from gpunode.host.port import OnProgress, Progress
from gpunode.redaction.secrets import redact_text as redact

# struct flock, native: type, whence, start, length, pid (fcntl(2)).
_FLOCK_STRUCT_FORMAT = "hhqqi0q"
# Kept short: a signal is not handled between two polls.
_POLL_INTERVAL_S = 0.2
_MAX_COMMAND_LENGTH = 160
# Set for every package manager that gpunode starts, and inherited by all of its children.
STARTED_BY_GPUNODE_VARIABLE = ("GPUNODE_STARTED", "1")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock.

    Attributes:
        pid: 0 if the kernel does not report it, as for a process outside this PID namespace.
        command: its shortened command line, secrets redacted; empty if it has exited.
        orphan: True if an earlier gpunode started it, which must be gone, since this one holds gpunode's lock.
    """

    path: str
    pid: int
    command: str
    orphan: bool = False

    def __str__(self) -> str:
        if not self.pid:
            return "a process that is not visible from here"
        since = ", left behind by an earlier gpunode" if self.orphan else ""
        return f"process {self.pid} ({self.command or 'its command is not known'}{since})"


def find_holder(path: str, *, root: str = "/") -> LockHolder | None:
    """Return the holder of the POSIX lock on ``path`` inside ``root``; None if it is free, or no file is there."""
    try:
        with rooted_paths.open_path(path, root) as place:
            status = place.status()
            # Check the type before opening: opening a device can start it.
            if status is None or not stat.S_ISREG(status.st_mode):
                return None
            pid = _query_lock_pid(place)
    except OSError:
        return None
    if pid is None:
        pid = _search_proc_locks(status)
    return None if pid is None else make_holder(f"{root.rstrip('/')}{path}", max(pid, 0))


def make_holder(path: str, pid: int, *, proc: Path = Path("/proc")) -> LockHolder:
    """Return the process ``pid`` as the holder of ``path``, as far as /proc describes it."""
    words = _read_process_file(pid, "cmdline", proc).decode("utf-8", "replace").replace("\0", " ").split()
    line = redact(" ".join(words))
    if len(line) > _MAX_COMMAND_LENGTH:
        line = f"{line[:_MAX_COMMAND_LENGTH].rpartition(' ')[0]} …"
    variables = _read_process_file(pid, "environ", proc).split(b"\0")
    return LockHolder(path, pid, line, "=".join(STARTED_BY_GPUNODE_VARIABLE).encode() in variables)


def _query_lock_pid(place: rooted_paths.OpenedPath) -> int | None:
    """Return the holder's PID with F_GETLK, which needs the file open for reading and takes no lock."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        fd = os.open(place.name, flags, dir_fd=place.folder)
    except OSError:
        return None
    try:
        request = struct.pack(_FLOCK_STRUCT_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK_STRUCT_FORMAT, fcntl.fcntl(fd, fcntl.F_GETLK, request))
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else int(pid)


def _search_proc_locks(status: os.stat_result) -> int | None:
    """Return the holder's PID from /proc/locks, for users who may not open the file (mode 0640)."""
    try:
        table = Path("/proc/locks").read_text()
    except OSError:
        return None
    return find_lock_pid(table, os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)


def find_lock_pid(table: str, major: int, minor: int, inode: int) -> int | None:
    """Return the PID in /proc/locks for a file; None if it is not locked. Source: proc_locks(5)."""
    wanted = f"{major:02x}:{minor:02x}:{inode}"
    for line in table.splitlines():
        fields = line.split()
        # A waiting process has "->" as its second field.
        if len(fields) >= 6 and fields[1] != "->" and fields[5] == wanted:
            return int(fields[4])
    return None


def _read_process_file(pid: int, file_name: str, proc: Path) -> bytes:
    """Read a file of a process in /proc; empty if it has exited or may not be read."""
    try:
        return (proc / str(pid) / file_name).read_bytes() if pid > 0 else b""
    except OSError:
        return b""


def find_first_holder(paths: Sequence[str], *, root: str = "/") -> LockHolder | None:
    """Return the holder of the first lock of ``paths`` inside ``root`` that is held."""
    return next((found for path in paths if (found := find_holder(path, root=root))), None)


def wait_until_free(
    paths: Sequence[str],
    deadline: float,
    on_progress: OnProgress,
    *,
    root: str = "/",
) -> None:
    """Wait until none of ``paths`` inside ``root`` is locked.

    Raises:
        Busy: if a lock is still held at ``deadline``, on the monotonic clock; the message names the holder.
    """
    get_holder = partial(find_first_holder, paths, root=root)
    describe: Callable[[LockHolder], str] = lambda found: f"{found} holds {found.path}"  # noqa: E731
    wait_while(get_holder, describe, busy_error, deadline, on_progress)


def wait_while(
    get_holder: Callable[[], LockHolder | None],
    describe: Callable[[LockHolder], str],
    error: Callable[[LockHolder, float], Busy],
    deadline: float,
    on_progress: OnProgress,
    *,
    poll_s: float = _POLL_INTERVAL_S,
) -> None:
    """Wait until ``get_holder`` returns None.

    ``error`` makes the error raised at ``deadline``, on the monotonic clock, from the holder and the seconds waited.
    """
    started = time.monotonic()
    while holder := get_holder():
        now = time.monotonic()
        if now >= deadline:
            raise error(holder, now - started)
        detail = f"up to {deadline - started:.0f} s: {describe(holder)}"
        on_progress(Progress("wait", 100 * (now - started) / (deadline - started), detail))
        time.sleep(min(poll_s, deadline - now))


def script_pids(script: str, *, proc: Path = Path("/proc")) -> Iterator[int]:
    """Yield the PIDs that run ``script``, directly or through its interpreter."""
    for folder in proc.glob("[0-9]*"):
        words = _read_process_file(int(folder.name), "cmdline", proc).split(b"\0")
        if any(word.rpartition(b"/")[2] == script.encode() for word in words[:2]):
            yield int(folder.name)


def wait_until_script_ended(
    script: str, limit_s: float, on_progress: OnProgress, *, proc: Path = Path("/proc")
) -> None:
    """Wait up to ``limit_s`` seconds until no process runs ``script``, which has no lock."""

    def describe() -> str:
        pid = next(script_pids(script, proc=proc), 0)
        return f"up to {limit_s:.0f} s: {make_holder(script, pid, proc=proc)} is already running" if pid else ""

    wait_until_reason_is_gone(limit_s, describe, on_progress)


def wait_until_reason_is_gone(seconds: float, describe: Callable[[], str], on_progress: OnProgress) -> None:
    """Wait until ``describe`` returns an empty reason, or ``seconds`` have passed."""
    rounds = math.ceil(seconds / _POLL_INTERVAL_S)
    for number in range(rounds):
        if not (reason := describe()):
            return
        on_progress(Progress("wait", 100 * number / rounds, reason))
        time.sleep(seconds / rounds)


def busy_error(holder: LockHolder, waited_s: float) -> Busy:
    """Return the error that names the lock's holder."""
    look = f":\n  ps -fp {holder.pid}" if holder.pid else ""
    return Busy(
        f"{holder.path} is locked by {holder}",
        why=f"another program is using the package manager; gpunode waited {waited_s:.0f} s for it",
        hint=f"wait until it has finished, then run the same command again{look}",
    )
