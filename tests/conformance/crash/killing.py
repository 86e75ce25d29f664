"""gpunode in a child process that is killed midway: at a counted boundary, or when a signal arrives."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from tests.conformance.warming import start_no_isolation_for_missing_programs

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Calls that change a disk without an audit event; calls with one are counted by it (sys.audit's table).
_PATCHED: Final = ("write", "pwrite", "fsync", "ftruncate")
_AUDITED: Final = frozenset(
    f"os.{name}" for name in ("mkdir", "remove", "rmdir", "rename", "link", "symlink", "chmod", "chown", "setxattr")
) | {"fcntl.flock", "subprocess.Popen", "os.fork"}
# Shorter than a sync of a disk, between whose writes a wrong content would stand; without a pause, the readers took a
# third of the tests' time.
_BETWEEN_READS_S: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run of gpunode.

    Attributes:
        status: the exit code, or minus the signal that killed it.
    """

    status: int
    said: str
    seconds: float

    @property
    def envelope(self) -> dict[str, Any]:
        """The answer to ``--json``."""
        answer: dict[str, Any] = json.loads(self.said.splitlines()[-1])
        return answer


class Boundaries:
    """Counts the calls by which a process changes files, and kills it at a chosen one.

    Args:
        kill_at: the number of the call before which the process ends; never for -1.
        torn: kill it in the middle of a write, after half of the bytes.
    """

    def __init__(self, kill_at: int = -1, *, torn: bool = False) -> None:
        self.seen: list[str] = []
        self._kill_at = kill_at
        self._torn = torn

    def watch(self) -> None:
        """Watch this process from now until it ends."""
        for name in _PATCHED:
            setattr(os, name, self._patched(name, getattr(os, name)))
        sys.addaudithook(self._audit)

    def _patched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name == "write" and self._torn and len(self.seen) == self._kill_at:
                real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            self._passed(f"{name} {_named(arguments[0])}")
            return real(*arguments)

        return call

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _AUDITED:
            self._passed(f"{event} {arguments[:1]}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            self._passed(f"open {arguments[0]}")

    def _passed(self, what: str) -> None:
        if len(self.seen) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(what)


def _named(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return str(descriptor)


def boundaries(arguments: Sequence[str]) -> list[str]:
    """Return the calls by which a whole run with ``arguments`` changes files, in order."""
    counted = Boundaries()
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "seen")
        child = _fork(arguments, Path(folder, "said"), counted, then=lambda: _list(counted, names))
        _reaped(child)
        return names.read_text().splitlines()


def _list(counted: Boundaries, target: Path) -> None:
    target.write_text("\n".join(tuple(counted.seen)))


def run(arguments: Sequence[str], watched: Boundaries | None = None, *, sent: int = 0, after_s: float = 0.0) -> Ended:
    """Return how ``gpunode ARGUMENTS`` ended.

    Args:
        arguments: the command line.
        watched: the boundaries, which may kill it.
        sent: a signal to send to it.
        after_s: the seconds between its start and the signal.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "said")
        said.touch()
        started = time.monotonic()
        child = _fork(arguments, said, watched)
        if sent:
            time.sleep(after_s)
            os.kill(child, sent)
        status = _reaped(child)
        return Ended(status, said.read_text(), time.monotonic() - started)


def _fork(
    arguments: Sequence[str],
    said: Path,
    watched: Boundaries | None = None,
    then: Callable[[], None] = lambda: None,
) -> int:
    child = os.fork()
    if child == 0:
        _be_gpunode(list(arguments), said, watched, then)
    return child


def _be_gpunode(arguments: list[str], said: Path, watched: Boundaries | None, then: Callable[[], None]) -> NoReturn:
    """Be ``gpunode ARGUMENTS`` for the rest of this process, as a shell would start it."""
    status = 99
    try:
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            signal.signal(number, handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, target)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "r" if n == 0 else "w", closefd=False) for n in range(3))
        sys.argv = ["gpunode", *arguments]
        start_no_isolation_for_missing_programs()
        from gpunode.cli.boundary import run_cli as main

        if watched is not None:
            watched.watch()
        status = main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        then()
    except KeyboardInterrupt:
        status = 130  # the signal came before gpunode began or after it ended: Python itself reports it
    finally:
        os._exit(status)


def _reaped(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class Poller:
    """A process that keeps opening and reading a file, and records content that must never appear.

    Args:
        read: returns the current content.
        allowed: every permitted content.

    Attributes:
        saw: the forbidden content, known at the end; so is how it ``ended``, which it must not do by itself.
    """

    def __init__(self, read: Callable[[], Any], allowed: Sequence[Any]) -> None:
        self.saw, self.ended = "", 0
        self._ours, theirs = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._ours)
            _poll(read, allowed, theirs)
        os.close(theirs)

    def __enter__(self) -> Poller:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._child, signal.SIGKILL)
        self.ended = _reaped(self._child)
        with os.fdopen(self._ours) as pipe:
            self.saw = pipe.read()


def _poll(read: Callable[[], Any], allowed: Sequence[Any], pipe: int) -> NoReturn:
    try:
        os.nice(5)
        parent = os.getppid()
        while os.getppid() == parent:
            if (seen := read()) not in allowed:
                os.write(pipe, f"{seen!r}\n".encode())
            time.sleep(_BETWEEN_READS_S)
    finally:
        os._exit(99)
