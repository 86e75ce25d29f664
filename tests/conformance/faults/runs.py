"""gpunode's command line in forked processes, so that Python starts once, under strace(1), which makes calls fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

from tests.conformance.warming import start_no_isolation_for_missing_programs
from tests.needs import lacking

# Every call that changes a disk, by effect; not every machine has all of them.
KINDS: Mapping[str, tuple[str, ...]] = {
    "open": ("open", "openat", "openat2", "creat"),
    "write": ("write", "writev", "pwrite64", "pwritev", "pwritev2", "sendfile", "copy_file_range", "splice"),
    "size": ("truncate", "ftruncate", "fallocate"),
    "sync": ("fsync", "fdatasync", "sync", "syncfs", "sync_file_range"),
    "rename": ("rename", "renameat", "renameat2"),
    "link": ("link", "linkat", "symlink", "symlinkat"),
    "unlink": ("unlink", "unlinkat"),
    "mkdir": ("mkdir", "mkdirat", "mknod", "mknodat"),
    "rmdir": ("rmdir",),
    "mode": ("chmod", "fchmod", "fchmodat", "fchmodat2"),
    "owner": ("chown", "fchown", "lchown", "fchownat"),
    "attribute": ("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
    "time": ("utime", "utimes", "utimensat", "futimesat"),
}
_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}
_CALL = re.compile(r"(\w+)\((.*)\) += (\S+)(.*)")
_STANDARD = re.compile(r"[12][,<]")
_OPENED_TO_WRITE = re.compile(r"O_(?:WRONLY|RDWR|CREAT|TRUNC)")

Prepare: TypeAlias = Callable[[], None]


class AnotherCall(Exception):
    """The fault hit an unintended call: the number of opens for reading sometimes differs by one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The exit code of a command, and its output."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Call:
    """A system call as strace wrote it: ``number`` counts the calls of its name, as ``when=`` does."""

    name: str
    number: int
    arguments: str
    result: str
    injected: bool = False

    @property
    def kind(self) -> str:
        """The kind of call; a key of ``KINDS``."""
        return _KIND_OF[self.name]

    @property
    def answers(self) -> bool:
        """True if it writes to the user's terminal."""
        return self.name == "write" and _STANDARD.match(self.arguments) is not None

    @property
    def writes(self) -> bool:
        """True if it changes the content of a disk."""
        return self.kind != "open" or _OPENED_TO_WRITE.search(self.arguments) is not None


@dataclass(frozen=True, slots=True)
class Fault:
    """``error`` is the answer to the ``number``-th call of that name; the call itself is not made."""

    call: str
    number: int
    error: str

    def __str__(self) -> str:
        return f"{self.call}:error={self.error}:when={self.number}"


def why_not() -> str:
    """Return the reason why this machine cannot run such tests; empty if it can."""
    if os.geteuid() != 0:
        return "needs root: setup does"
    if reason := lacking("strace"):
        return reason
    return "" if _strace_attaches() else "strace may not attach to a process here"


def _strace_attaches() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        try:
            _finish(_forked(lambda: os._exit(0), Path(folder), ("-o", str(log))))
        except OSError:
            return False
        return log.exists()


def run(arguments: Sequence[str], fault: Fault | None = None, prepare: Prepare = lambda: None) -> Answer:
    """Return gpunode's answer to ``arguments``, in its own process that called ``prepare``.

    Raises:
        AnotherCall: ``fault`` was given, and hit a call that does not write, or none.
    """
    with _scratch() as folder:
        options = ["-e", f"trace={fault.call}", "-e", f"inject={fault}", "-o", str(folder / "log")] if fault else []
        answer = _command(arguments, folder, options, prepare)
        if fault:
            met = [call for call in _parsed((folder / "log").read_text()) if call.injected]
            if not met or not met[0].writes:
                raise AnotherCall(str(met))
        return answer


def calls(arguments: Sequence[str]) -> tuple[Call, ...]:
    """Return the writing calls of an undisturbed run, each with its number, except those of its threads."""
    with _scratch() as folder:
        names = ",".join(f"?{name}" for name in _KIND_OF)
        answer = _command(arguments, folder, ["-e", f"trace={names}", "-o", str(folder / "log")], lambda: None)
        assert answer.exit_code == 0, answer
        return tuple(call for call in _parsed((folder / "log").read_text()) if call.writes)


def calls_of_python(arguments: Sequence[str]) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
    """Return the writing calls of a new ``python -m gpunode``, including those of its threads and children."""
    with _scratch() as folder:
        names = ",".join(f"?{name}" for name in _KIND_OF)
        strace = ("strace", "-f", "-y", "-e", f"trace={names}", "-o", str(folder / "log"))
        with (folder / "answer").open("wb") as answer:
            subprocess.run(
                [*strace, sys.executable, "-m", "gpunode", *arguments],
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=answer,
                stderr=answer,
                check=True,
            )
        lines = [line.split(maxsplit=1) for line in (folder / "log").read_text().splitlines()]
    ours = "\n".join(rest for pid, rest in lines if pid == lines[0][0])
    others = "\n".join(rest for pid, rest in lines if pid != lines[0][0])
    return tuple(c for c in _parsed(ours) if c.writes), tuple(c for c in _parsed(others) if c.writes)


def _parsed(log: str) -> Iterator[Call]:
    counts: dict[str, int] = {}
    for line in log.splitlines():
        if (found := _CALL.match(line)) is not None:
            name = found[1]
            counts[name] = counts.get(name, 0) + 1
            yield Call(name, counts[name], found[2], found[3], "(INJECTED)" in found[4])


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        yield Path(folder)


def _command(arguments: Sequence[str], folder: Path, strace: Sequence[str], prepare: Prepare) -> Answer:
    def child() -> NoReturn:
        prepare()
        _main(arguments)

    exit_code = _finish(_forked(child, folder, strace))
    out, err = ((folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    return Answer(exit_code, out, err)


def _main(arguments: Sequence[str]) -> NoReturn:
    """Run ``python -m gpunode`` in this very process."""
    from gpunode.__main__ import main

    start_no_isolation_for_missing_programs()
    sys.argv = ["gpunode", *arguments]
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, mode, closefd=False) for n, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass(frozen=True, slots=True)
class _Child:
    pid: int
    tracer: subprocess.Popen[bytes] | None


def _forked(body: Callable[[], object], folder: Path, strace: Sequence[str] = ()) -> _Child:
    """Return a process that runs ``body`` once strace watches it; its output goes to files in ``folder``."""
    ready, go = os.pipe()
    # Opened before the fork: on a busy machine strace would count a call of the child's own as the program's first.
    names = (Path(os.devnull), folder / "stdout", folder / "stderr")
    streams = tuple(os.open(name, os.O_RDWR | os.O_CREAT, 0o600) for name in names)
    pid = os.fork()
    if pid == 0:
        os.close(go)
        _child(body, streams, ready)
    for stream in (ready, *streams):
        os.close(stream)
    try:
        tracer = _watch(pid, strace) if strace else None
    finally:
        os.close(go)
    return _Child(pid, tracer)


def _child(body: Callable[[], object], streams: Sequence[int], ready: int) -> NoReturn:
    code = 99
    try:
        os.read(ready, 1)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.close(ready)
        body()
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _watch(pid: int, options: Sequence[str]) -> subprocess.Popen[bytes]:
    tracer = subprocess.Popen(["strace", "-p", str(pid), *options], stderr=subprocess.PIPE)
    assert tracer.stderr is not None
    said = tracer.stderr.readline()
    if b"attached" not in said:
        tracer.wait()
        raise OSError(said.decode())
    return tracer


def _finish(child: _Child) -> int:
    _, status = os.waitpid(child.pid, 0)
    if child.tracer is not None:
        with child.tracer:
            pass
    return os.waitstatus_to_exitcode(status)
