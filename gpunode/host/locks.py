"""Who holds a package manager's lock, and waiting for it; gpunode itself never takes one of them."""

from __future__ import annotations

import fcntl
import math
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpunode.errors import Busy
from gpunode.host.port import OnProgress, Progress
from gpunode.redaction.secrets import redact_text as redact

# struct flock, native: type, whence, start, length, pid (fcntl(2)).
_FLOCK = "hhqqi0q"
# No longer: between two looks a signal is not heeded.
_POLL_S = 0.2
_LONGEST_COMMAND = 160
# In the environment of every package manager that gpunode starts, and so in that of all that they start.
MARK = ("GPUNODE_STARTED", "1")


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        pid: 0 when the kernel does not say, as of a process outside this PID namespace.
        command: its command line on one line, cut, secrets redacted; empty when it ended meanwhile.
        orphan: a gpunode started it that is no more: whoever asks has the lock of those who change this node.
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


def holder(path: Path, *, proc: Path = Path("/proc")) -> Holder | None:
    """The holder of the POSIX lock on ``path``; None when it is free or does not exist."""
    pid = _asked(path)
    if pid is None:
        pid = _listed(path, proc)
    return None if pid is None else named(str(path), max(pid, 0), proc=proc)


def named(path: str, pid: int, *, proc: Path = Path("/proc")) -> Holder:
    """The process ``pid`` as the holder of ``path``, as far as it can be asked."""
    return Holder(path, pid, _command(pid, proc), "=".join(MARK).encode() in _told(pid, "environ", proc).split(b"\0"))


def _asked(path: Path) -> int | None:
    """What F_GETLK says; it needs the file opened, though not for writing, and takes no lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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
    words = _told(pid, "cmdline", proc).decode("utf-8", "replace").replace("\0", " ").split()
    line = redact(" ".join(words))
    return line if len(line) <= _LONGEST_COMMAND else f"{line[:_LONGEST_COMMAND].rpartition(' ')[0]} …"


def _told(pid: int, what: str, proc: Path) -> bytes:
    """What /proc tells of a process; nothing of one that has ended or that may not be asked."""
    try:
        return (proc / str(pid) / what).read_bytes() if pid > 0 else b""
    except OSError:
        return b""


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
    """Wait until none of ``paths`` is locked.

    Raises:
        Busy: a lock is still held at ``deadline``, which is on ``clock``; its holder is named.
    """

    def say(found: Holder) -> str:
        return f"{found} holds {found.path}"

    wait_while(lambda: first_holder(paths), say, busy, deadline, on_progress, clock=clock, sleep=sleep)


def wait_while(
    who: Callable[[], Holder | None],
    say: Callable[[Holder], str],
    error: Callable[[Holder, float], Busy],
    deadline: float,
    on_progress: OnProgress,
    *,
    poll_s: float = _POLL_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until ``who`` returns nobody.

    Args:
        who: is asked again and again.
        say: what the user reads meanwhile.
        error: what is raised at ``deadline``; it takes how many seconds were waited.
        deadline: on ``clock``.
        on_progress: hears it.
        poll_s: how often it is asked.
        clock: seconds that only go up.
        sleep: waits for some of them.
    """
    started = clock()
    while found := who():
        now = clock()
        if now >= deadline:
            raise error(found, now - started)
        detail = f"up to {deadline - started:.0f} s: {say(found)}"
        on_progress(Progress("wait", 100 * (now - started) / (deadline - started), detail))
        sleep(min(poll_s, deadline - now))


def runner_of(script: str, *, proc: Path = Path("/proc")) -> Holder | None:
    """The process that runs ``script``, by itself or through its interpreter; None when there is none."""
    return next((named(script, pid, proc=proc) for pid in running(script, proc=proc)), None)


def running(script: str, *, proc: Path = Path("/proc")) -> Iterator[int]:
    """The processes that run ``script``, by itself or through its interpreter."""
    for folder in proc.glob("[0-9]*"):
        words = _told(int(folder.name), "cmdline", proc).split(b"\0")
        if any(word.rpartition(b"/")[2] == script.encode() for word in words[:2]):
            yield int(folder.name)


def wait_until_ended(
    script: str,
    limit_s: float,
    on_progress: OnProgress,
    *,
    proc: Path = Path("/proc"),
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Nobody runs ``script``, which knows no lock of its own, or ``limit_s`` seconds have passed."""

    def say() -> str:
        found = runner_of(script, proc=proc)
        return f"up to {limit_s:.0f} s: {found} is already running" if found else ""

    wait_for(limit_s, say, on_progress, sleep=sleep)


def wait_for(
    seconds: float,
    say: Callable[[], str],
    on_progress: OnProgress,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """``say`` has no reason to wait any more, or ``seconds`` have passed."""
    rounds = math.ceil(seconds / _POLL_S)
    for number in range(rounds):
        if not (reason := say()):
            return
        on_progress(Progress("wait", 100 * number / rounds, reason))
        sleep(seconds / rounds)


def busy(found: Holder, waited_s: float) -> Busy:
    """The error that names who holds the lock."""
    look = f":\n  ps -fp {found.pid}" if found.pid else ""
    return Busy(
        f"{found.path} is locked by {found}",
        why=f"another program is using the package manager; gpunode waited {waited_s:.0f} s for it",
        hint=f"wait until it has finished, then run the same command again{look}",
    )
