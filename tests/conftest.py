"""Keep unit tests and laws isolated: a subprocess, a connection or a write outside pytest's folder fails the test.

An audit hook (PEP 578) sees what every library does, C code included; it cannot be removed, so it is switched on and
off.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from gpunode.host import process
from tests.fakes.skipped_time import SkippedTime
from tests.screen import Screen

# `make test` tries the same examples in each run; `make test-long` tries twenty times as many new ones and prints the
# seed. `make mutants` tries a few, the same in each run, so that a surviving mutant survives again. It does not shrink
# them.
hypothesis.settings.register_profile("usual", deadline=None, max_examples=50, derandomize=True, database=None)
hypothesis.settings.register_profile("long", deadline=None, max_examples=1000)
hypothesis.settings.register_profile(
    "mutants",
    deadline=None,
    max_examples=30,
    derandomize=True,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the project's own options."""
    parser.addoption("--skipped-to", metavar="FILE", help="write there which tests were skipped, one a line")


def pytest_configure(config: pytest.Config) -> None:
    """Show the progress of the run, in the process that the user sees."""
    # As gpunode's own program does: a search for cycles among so many objects takes long and finds little.
    gc.set_threshold(100_000)
    # readline, which pytest loads, sets it for the processes of pytest-xdist, and gpunode wraps lines there.
    os.environ.pop("COLUMNS", None)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Screen(config))


_HERE = Path(__file__).parent
_PURE = (_HERE / "unit", _HERE / "laws")
_PROCESS_EVENTS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"})
# The positions of the event's path arguments, each with that of the folder's descriptor (sys.audit's table).
_WRITE_EVENTS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.setxattr": ((0, None),),
}
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Paths that Python, pytest and Hypothesis use for themselves.
_OWN = ("__pycache__", ".hypothesis", ".pytest_cache")
_OWN_FILES = ("/dev/null", "/dev/tty")
# The programs that every Linux has and that stand-ins use.
_EVERYWHERE = (
    *(
        "basename",
        "cat",
        "chmod",
        "chroot",
        "cp",
        "cut",
        "date",
        "dd",
        "dirname",
        "env",
        "false",
        "grep",
        "head",
        "kill",
        "ln",
    ),
    *("ls", "mkdir", "mv", "printf", "readlink", "rm", "sed", "seq", "sh", "sleep", "sort", "stat", "tail", "test"),
    *("touch", "tr", "true", "uname", "wc", "yes"),
)


@dataclass
class _Guard:
    folder: Path | None = None
    processes: bool = False
    sockets: bool = False

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in _PROCESS_EVENTS and not self.processes:
            pytest.fail(f"unexpected subprocess ({event}); ask for the fixture allow_subprocess", pytrace=True)
        if event == "socket.connect" and not self.sockets and not self._is_ours(arguments[1]):
            pytest.fail(f"unexpected connection to {arguments[1]!r}; ask for the fixture allow_socket")
        if event == "open" and arguments[1] is not None and any(mark in arguments[1] for mark in "wax+"):
            self.check(arguments[0], None)
        for path, folder in _WRITE_EVENTS.get(event, ()):
            self.check(arguments[path], None if folder is None else arguments[folder])

    def check(self, path: object, dir_fd: int | None) -> None:
        if isinstance(path, int) or self.folder is None:
            return
        above = os.getcwd() if dir_fd in {None, -1} else os.readlink(f"/proc/self/fd/{dir_fd}")
        full = Path(os.path.abspath(os.path.join(above, os.fsdecode(path))))  # type: ignore[arg-type]
        if not full.is_relative_to(self.folder) and not _is_own(full):
            pytest.fail(f"unexpected write to {full}, outside tmp_path")

    def _is_ours(self, address: object) -> bool:
        return isinstance(address, str) and self.folder is not None and Path(address).is_relative_to(self.folder)


def _is_own(path: Path) -> bool:
    return str(path) in _OWN_FILES or any(part in _OWN for part in path.parts) or str(path).startswith("/proc/self/")


_guard = _Guard()
sys.addaudithook(_guard.audit)


@pytest.fixture
def skipped_time(monkeypatch: pytest.MonkeyPatch) -> SkippedTime:
    """Let no time pass while gpunode waits."""
    return SkippedTime(monkeypatch)


@pytest.fixture
def allow_subprocess() -> None:
    """Allow the test to start processes."""


@pytest.fixture
def allow_socket() -> None:
    """Allow the test to connect somewhere."""


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Give signals the effect that they have in a terminal, even if a shell started pytest in the background."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    former[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder that holds only the programs that every machine has."""
    folder = tmp_path_factory.mktemp("programs")
    for name in _EVERYWHERE:
        if found := shutil.which(name, path=process.PATH):
            (folder / name).symlink_to(found)
    return str(folder)


@pytest.fixture(autouse=True)
def isolate_from_machine(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    programs: str,
) -> Iterator[None]:
    """Keep unit tests and laws from changing the machine and from seeing its programs."""
    if not any(Path(request.node.path).is_relative_to(folder) for folder in _PURE):
        yield
        return
    real_open = os.open

    def checked_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        # The audit event of os.open does not name the folder's descriptor.
        if flags & _WRITE_FLAGS:
            _guard.check(path, dir_fd)
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(process, "PATH", programs)
    monkeypatch.setattr(os, "open", checked_open)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.getbasetemp().resolve()))
    _guard.processes = "allow_subprocess" in request.fixturenames
    _guard.sockets = "allow_socket" in request.fixturenames
    _guard.folder = tmp_path_factory.getbasetemp().resolve()
    try:
        yield
    finally:
        _guard.folder = None


@dataclass(frozen=True)
class Tools:
    """Programs that come first on gpunode's own PATH; each records how it was called."""

    folder: Path

    def add(self, name: str, script: str) -> None:
        """Add a program ``name`` that runs ``script`` under sh, where ``$T`` is ``folder``."""
        program = self.folder / "bin" / name
        program.write_text(f'#!/bin/sh\nT={self.folder}\necho "{name} $*" >> $T/calls\n{script}\n')
        program.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        """Every call so far, with its arguments."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allow_subprocess: None, isolate_from_machine: None, programs: str
) -> Tools:
    """Return stand-in programs, for tests of how gpunode uses their answers."""
    folder = tmp_path / "tools"
    (folder / "bin").mkdir(parents=True)
    monkeypatch.setattr(process, "PATH", f"{folder}/bin:{programs}")
    return Tools(folder)
