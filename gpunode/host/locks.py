"""Who holds a lock of apt or dpkg, and waiting for it; gpunode itself never takes one of them."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpunode.errors import Busy
from gpunode.host.port import OnProgress, Progress
from gpunode.host.process import redact

# struct flock, native: type, whence, start, length, pid (fcntl(2)).
_FLOCK = "hhqqi0q"
_POLL_S = 1.0
_LONGEST_COMMAND = 160


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        pid: 0 when it runs outside this PID namespace, so the kernel does not say.
        command: its command line on one line, cut, secrets redacted; empty when it ended meanwhile.
    """

    path: str
    pid: int
    command: str

    def __str__(self) -> str:
        if not self.pid:
            return "a process outside this container"
        return f"process {self.pid} ({self.command or 'its command is not known'})"


def holder(path: Path, *, proc: Path = Path("/proc")) -> Holder | None:
    """The holder of the POSIX lock on ``path``; None when it is free or does not exist."""
    pid = _asked(path)
    if pid is None:
        pid = _listed(path, proc)
    return None if pid is None else Holder(str(path), max(pid, 0), _command(pid, proc))


def _asked(path: Path) -> int | None:
    """What F_GETLK says; it needs the file opened, though not for writing, and takes no lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, request))
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else int(pid)


def _listed(path: Path, proc: Path) -> int | None:
    """What /proc/locks says, for those who may not open the file (its mode is 0640)."""
    try:
        status = path.stat()
        table = (proc / "locks").read_text()
    except OSError:
        return None
    return locked_by(table, os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)


def locked_by(table: str, major: int, minor: int, inode: int) -> int | None:
    """The pid that /proc/locks gives for a file; None when nobody holds it. Source: proc_locks(5)."""
    wanted = f"{major:02x}:{minor:02x}:{inode}"
    for line in table.splitlines():
        fields = line.split()
        # A waiting process has "->" as its second field.
        if len(fields) >= 6 and fields[1] != "->" and fields[5] == wanted:
            return int(fields[4])
    return None


def _command(pid: int, proc: Path) -> str:
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes() if pid > 0 else b""
    except OSError:
        return ""
    return redact(" ".join(raw.decode("utf-8", "replace").replace("\0", " ").split()))[:_LONGEST_COMMAND]


def first_holder(paths: Sequence[Path]) -> Holder | None:
    """The holder of the first lock of ``paths`` that is not free."""
    return next((found for path in paths if (found := holder(path))), None)


def wait_until_free(
    paths: Sequence[Path],
    deadline: float,
    on_progress: OnProgress,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """None of ``paths`` is locked by anybody.

    Raises:
        Busy: a lock is still held at ``deadline``, which is on ``clock``; its holder is named.
    """
    started = clock()
    while found := first_holder(paths):
        now = clock()
        if now >= deadline:
            raise busy(found, now - started)
        on_progress(Progress("wait", 100 * (now - started) / (deadline - started), f"{found} holds {found.path}"))
        sleep(min(_POLL_S, deadline - now))


def runner_of(script: str, *, proc: Path = Path("/proc")) -> Holder | None:
    """The process that runs ``script``, by itself or through its interpreter; None when there is none."""
    for folder in proc.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile
        if any(word.rpartition(b"/")[2] == script.encode() for word in words[:2]):
            return Holder(script, int(folder.name), _command(int(folder.name), proc))
    return None


def wait_until_ended(
    script: str,
    limit_s: float,
    on_progress: OnProgress,
    *,
    proc: Path = Path("/proc"),
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Nobody runs ``script``, which knows no lock of its own, or ``limit_s`` seconds have passed."""
    waited = 0.0
    while waited < limit_s and (found := runner_of(script, proc=proc)):
        on_progress(Progress("wait", 100 * waited / limit_s, f"{found} is at it already"))
        sleep(_POLL_S)
        waited += _POLL_S


def busy(found: Holder, waited_s: float) -> Busy:
    """The error that names who holds the lock."""
    look = f":\n  ps -fp {found.pid}" if found.pid else ""
    return Busy(
        f"{found.path} is locked by {found}",
        why=f"another program is using apt or dpkg; gpunode waited {waited_s:.0f} s for it",
        hint=f"wait until it has finished, then run the same command again{look}",
    )
