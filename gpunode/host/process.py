"""Running commands to their end, however they behave; the only user of ``sh``.

``sh`` starts and reaps commands that may change a system. Commands that only read are spawned, so that a run that finds
nothing to do need not import ``sh``, which takes as long as typer. Streams, time limits and process groups are our own
(docs/decisions/0030-sh-starts-distro-names.md).
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, final

from gpunode.errors import ChangeFailed
from gpunode.fast_dataclass import dataclass
from gpunode.redaction.secrets import redact_text as redact

if TYPE_CHECKING:
    from gpunode.host.command_log import CommandLog

_TERM_PATIENCE_S = 5.0
_KILL_PATIENCE_S = 5.0
# The exit status is this plus N if signal N ended the command, as in a shell.
SIGNAL_EXIT_STATUS_BASE = 128
# A command that only reads has nothing to clean up, and its leftover output is not needed.
_READ_ONLY_COMMAND_PATIENCE_S = 0.5
# How long the pipes of a finished command are still read: a daemon that it started may hold them for ever.
_PIPE_PATIENCE_S = 1.0
_MAX_LINE_BYTES = 1 << 16

OnLine: TypeAlias = Callable[[str], None]


class OutputStream:
    """An output stream of a command, of which the first ``limit`` bytes are kept."""

    def __init__(self, fd: int, limit: int, on_line: OnLine | None) -> None:
        self.fd = fd
        self.kept = bytearray()
        self.dropped = 0
        self._limit = limit
        self._on_line = on_line
        self._line = bytearray()

    def read(self) -> bool:
        """Read what has arrived; return whether more may come."""
        try:
            chunk = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return True
        room = self._limit - len(self.kept)
        self.kept += chunk[:room]
        self.dropped += max(0, len(chunk) - room)
        if self._on_line is not None:
            self._report_lines(chunk, self._on_line)
        return bool(chunk)

    def _report_lines(self, chunk: bytes, on_line: OnLine) -> None:
        *lines, rest = (self._line + chunk).split(b"\n")
        if not chunk or len(rest) > _MAX_LINE_BYTES:
            lines, rest = ([*lines, rest] if rest else lines), bytearray()
        self._line = rest
        for line in lines:
            on_line(line.decode("utf-8", "replace").rstrip("\r"))


@final
class OutputPump:
    """Reader of a running command's streams, which ends the command at its timeout."""

    def __init__(self, process: Any, streams: Sequence[OutputStream], *, is_hurried: bool = False) -> None:
        self._process = process
        self._patience_s = (_READ_ONLY_COMMAND_PATIENCE_S,) * 2 if is_hurried else (_TERM_PATIENCE_S, _KILL_PATIENCE_S)
        self._bounded = tuple(streams) if is_hurried else ()
        self._exited_at: float | None = None
        self._selector = selectors.DefaultSelector()
        for stream in streams:
            self._selector.register(stream.fd, selectors.EVENT_READ, stream)
        self._exit_fd = _open_exit_descriptor(process.pid)
        if self._exit_fd is not None:
            self._selector.register(self._exit_fd, selectors.EVENT_READ, None)

    def __enter__(self) -> OutputPump:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._end_group()
        self._selector.close()
        if self._exit_fd is not None:
            os.close(self._exit_fd)

    def run(self, deadline: float) -> bool:
        """Read until the command has ended; return False if it was ended at ``deadline``."""
        if self._pump_until(deadline, _PIPE_PATIENCE_S):
            return True
        has_said_enough = self._has_exceeded_limit()
        self._end_group()
        return has_said_enough

    def exit_status(self) -> int:
        """Return the exit status of the ended command, as a shell reports it."""
        code = int(self._process.wait())
        return code if code >= 0 else SIGNAL_EXIT_STATUS_BASE - code

    def _end_group(self) -> None:
        """End the whole process group: with SIGTERM, then with SIGKILL."""
        to_end, to_die = self._patience_s
        self._signal_group(signal.SIGTERM)
        self._pump_until(time.monotonic() + to_end, to_end)
        self._signal_group(signal.SIGKILL)
        # A process in uninterruptible sleep, as in a stuck driver call, survives even SIGKILL and is left behind.
        if self._pump_until(time.monotonic() + to_die, _PIPE_PATIENCE_S):
            self._process.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _pump_until(self, deadline: float, linger: float) -> bool:
        """Read until the command has ended and its pipes are closed, or ``linger`` seconds have passed since its end.

        Returns:
            True if it has ended; False at ``deadline``, or if it exceeded its output limit.
        """
        was_enough = self._has_exceeded_limit()
        while True:
            now = time.monotonic()
            if self._exited_at is None and self._has_exited():
                self._exited_at = now
            if self._exited_at is None:
                end, ended = deadline, False
            else:
                end, ended = self._exited_at + linger, True
                if not any(key.data is not None for key in self._selector.get_map().values()):
                    return True
            if now >= end or (not ended and not was_enough and self._has_exceeded_limit()):
                return ended
            self._read(end - now)

    def _has_exceeded_limit(self) -> bool:
        return any(stream.dropped for stream in self._bounded)

    def _has_exited(self) -> bool:
        """Return whether the command has exited; kernels before 5.3 have no pidfd, so ask ``sh``."""
        if self._exit_fd is None:
            return not self._process.is_alive()[0]
        return self._exit_fd not in self._selector.get_map()

    def _read(self, patience: float) -> None:
        for key, _ in self._selector.select(patience if self._exit_fd is not None else min(patience, 0.05)):
            if key.data is None or not key.data.read():
                self._selector.unregister(key.fd)


def _open_exit_descriptor(pid: int) -> int | None:
    """Open a descriptor that becomes readable when the process exits; None if the kernel has no pidfd."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
# If the reader exits before the writer, discard the rest.
_PIPE_RELAY_SCRIPT = "trap '' PIPE; /bin/cat 2>/dev/null || exec /bin/cat >/dev/null"
_EMPTY_ENV: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class FinishedCommand:
    """A command that has ended, or does not exist.

    Attributes:
        exit_status: the command's; 124 after a timeout, 126 if it cannot be executed, 127 if it is missing, 128 + N if
            signal N ended it, as in a shell.
        dropped_bytes: the output of both streams lost past the limit.
    """

    argv: tuple[str, ...]
    exit_status: int
    stdout: bytes
    stderr: bytes
    seconds: float
    timed_out: bool
    dropped_bytes: int = 0

    @property
    def ok(self) -> bool:
        """True if it exited with 0 and in time."""
        return self.exit_status == 0 and not self.timed_out

    @property
    def is_program_missing(self) -> bool:
        """True if there is no such program."""
        return self.exit_status == 127

    @property
    def text(self) -> str:
        """Its standard output as text."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error(self) -> str:
        """Its standard error as text."""
        return self.stderr.decode("utf-8", "replace")

    def last_lines(self, count: int = 20) -> str:
        """Return the last lines of its output, standard error first, secrets redacted."""
        output = self.stderr.strip() or self.stdout.strip()
        return redact("\n".join(output.decode("utf-8", "replace").splitlines()[-count:]))


@dataclass(frozen=True, slots=True)
class RootMountPoints:
    """Files of a mounted root over which a policy-rc.d and this machine's resolv.conf are mounted, if not empty."""

    policy: str = ""
    resolver: str = ""


Consent: TypeAlias = Callable[[], None]


class Runner:
    """Runner of commands on this system, or isolated in a mounted root.

    Attributes:
        is_image: whether it is a mounted root.
        consent: called before a program of a mounted root is run; raises if the user declines. Without it none is run,
            and each counts as missing.
    """

    def __init__(self, root: str = "/", log: CommandLog | None = None, consent: Consent | None = None) -> None:
        self.root, self.is_image = root, root != "/"
        self.log = log
        self.consent = consent
        self.places = RootMountPoints()

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] = _EMPTY_ENV,
        limit_bytes: int = 1 << 20,
        on_line: OnLine | None = None,
        status: OnLine | None = None,
        survives_gpunode: bool = False,
        only_reads: bool = False,
    ) -> FinishedCommand:
        """Run a command to its end or, after ``timeout_s``, end its whole process group.

        It runs in its own session, so Ctrl-C does not reach it. Signals to gpunode are handled after it ends. Daemons
        that it starts keep running.

        Args:
            argv: the program by name or absolute path; ``{status_fd}`` in it becomes the number of the status pipe.
            timeout_s: the time after which it gets SIGTERM, and SIGKILL 5 s later.
            stdin: its whole standard input.
            env: added to the environment, which is otherwise fixed but for the proxies.
            limit_bytes: how much of each output stream is kept.
            on_line: called with each line of standard output and standard error as it comes.
            status: called with each line of the status pipe.
            survives_gpunode: if gpunode is killed, it continues undisturbed; others die of SIGPIPE at their next line.
            only_reads: after its timeout it gets half a second to end instead of five, and it is ended once it has
                printed more than ``limit_bytes``.
        """
        if self.is_image and self.consent is None:
            return FinishedCommand(tuple(argv), 127, b"", f"programs of {self.root} are not run".encode(), 0.0, False)
        if self.is_image and self.consent is not None:
            self.consent()  # raises if the user declines
        with hold_signals(), _Descriptors(stdin, with_status=status is not None, relayed=survives_gpunode) as fd:
            started, timed_out = time.monotonic(), False
            words = tuple(word.replace("{status_fd}", str(fd.child_status)) if status else word for word in argv)
            whole = self._isolate(words) if self.is_image else words
            spawn = only_reads and status is None
            environment = _make_environment(env)
            child = _start_process(
                whole, fd.stdin, fd.child_out, fd.child_err, environment, fd.child_status, spawn=spawn
            )
            fd.close_childs()
            out, err = OutputStream(fd.out, limit_bytes, on_line), OutputStream(fd.err, limit_bytes, on_line)
            if isinstance(child, _StartFailure):
                code, stderr = child.exit_status, child.why.encode("utf-8", "replace")
            else:
                streams = [out, err] if status is None else [out, err, OutputStream(fd.status, 0, status)]
                with OutputPump(child, streams, is_hurried=only_reads) as pump:
                    timed_out = not pump.run(started + timeout_s)
                    code = 124 if timed_out else pump.exit_status()
                stderr = bytes(err.kept)
            took, dropped = time.monotonic() - started, out.dropped + err.dropped
            finished = FinishedCommand(words, code, bytes(out.kept), stderr, took, timed_out, dropped)
        if self.log is not None:
            self.log.append(finished)
        if self.is_image:
            self._refuse_unisolated(finished)
        return finished

    def _isolate(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        from gpunode.host import namespaces

        return namespaces.isolated_command(self.root, argv, policy=self.places.policy, resolver=self.places.resolver)

    def _refuse_unisolated(self, finished: FinishedCommand) -> None:
        from gpunode.host import namespaces

        error = finished.error.strip()
        if finished.exit_status == namespaces.EXIT_NOT_ISOLATED and error.startswith(
            namespaces.NOT_ISOLATED_ERROR_PREFIX
        ):
            raise ChangeFailed(
                f"{finished.argv[0]} was not run in {self.root}: it cannot be isolated from this machine",
                why=error.removeprefix(namespaces.NOT_ISOLATED_ERROR_PREFIX),
                hint="run gpunode as root on the host itself, or in a container that may mount (CAP_SYS_ADMIN)",
            )


@dataclass(frozen=True, slots=True)
class _StartFailure:
    exit_status: int
    why: str


def _make_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that is the same for every caller, so that output does not depend on the user."""
    home = "/root" if os.geteuid() == 0 else os.environ.get("HOME", "/")
    fixed = {"PATH": PATH, "LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", "TERM": "dumb", "HOME": home}
    return {**fixed, **proxy_variables(), **extra}


def proxy_variables() -> dict[str, str]:
    """Return the caller's proxy variables, for commands; a value may contain a password."""
    return {
        name: os.environ[name] for lower in _PROXY_VARIABLES for name in (lower, lower.upper()) if name in os.environ
    }


def _find_program(program: str) -> str | None:
    """Return the program's absolute path in our PATH, not the caller's."""
    candidates = [program] if "/" in program else [f"{folder}/{program}" for folder in PATH.split(":")]
    # os.path returns False if a parent folder may not be entered; Path raises.
    return next((path for path in candidates if os.path.isfile(path) and os.access(path, os.X_OK)), None)  # noqa: PTH113


@final
class _Descriptors:
    """Descriptors of a command: we read ``out``, ``err`` and ``status``; the ``child_`` ones are the child's."""

    def __init__(self, stdin: bytes, *, with_status: bool, relayed: bool) -> None:
        self._open: set[int] = set()
        self._relays: list[Any] = []
        self.stdin = self._open_stdin(stdin)
        channel = self._relayed_pipe if relayed else self._pipe
        self.out, self.child_out = channel()
        self.err, self.child_err = channel()
        self.status, self.child_status = channel() if with_status else (-1, -1)
        if with_status:
            os.set_inheritable(self.child_status, True)

    def _open_stdin(self, data: bytes) -> int:
        """Make standard input a file in memory: unlike a pipe it needs no writer, so nothing can deadlock."""
        fd = os.memfd_create("stdin") if data else os.open(os.devnull, os.O_RDONLY)
        self._open.add(fd)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if data:
            os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def _pipe(self) -> tuple[int, int]:
        ours, childs = os.pipe()
        os.set_blocking(ours, False)
        self._open |= {ours, childs}
        return ours, childs

    def _relayed_pipe(self) -> tuple[int, int]:
        """Make a pipe with a relay process that keeps reading after our end is gone."""
        (ours, theirs), (relays, childs) = self._pipe(), os.pipe()
        self._open |= {relays, childs}
        started = _start_process(("/bin/sh", "-c", _PIPE_RELAY_SCRIPT), relays, theirs, theirs, _make_environment({}))
        if isinstance(started, _StartFailure):
            raise ChangeFailed("no command can be started", why=started.why, hint="look at `ulimit -u` and `free -m`")
        self._relays.append(started)
        self._close({relays, theirs})
        return ours, childs

    def close_childs(self) -> None:
        """Close our copies of the child's ends, so that its end of file reaches us."""
        self._close({self.stdin, self.child_out, self.child_err, self.child_status} & self._open)

    def _close(self, fds: set[int]) -> None:
        # Close each exactly once: the second time, the number may belong to another thread's file.
        self._open -= fds
        for fd in fds:
            os.close(fd)

    def __enter__(self) -> _Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        self._close(set(self._open))
        for relay in self._relays:
            relay.is_alive()  # reaps it; a relay whose pipe a daemon still uses lives as long as that daemon


def _start_process(
    argv: tuple[str, ...],
    stdin: int,
    out: int,
    err: int,
    env: Mapping[str, str],
    status: int = -1,
    *,
    spawn: bool = False,
) -> Any:
    """Return the running process, or why there is none.

    With ``spawn``, posix_spawn starts it: this process is not forked, and ``sh`` is not needed.
    """
    program = _find_program(argv[0])
    if program is None:
        return _StartFailure(127, f"{argv[0]}: command not found")
    if spawn:
        streams = [(os.POSIX_SPAWN_DUP2, ours, number) for number, ours in enumerate((stdin, out, err))]
        heeded = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
        try:
            pid = os.posix_spawn(program, argv, dict(env), file_actions=streams, setsid=True, setsigdef=heeded)
            return _SpawnedProcess(pid)
        except OSError as error:
            return _StartFailure(126, f"{argv[0]}: {error.strerror}")
    import sh

    # All three streams are our descriptors, so sh reads nothing and starts no reader thread. bg is 1, not True: with
    # True the child, and every daemon that it starts, would ignore SIGHUP.
    options: dict[str, Any] = {
        "_in": stdin,
        "_out": out,
        "_err": err,
        "_env": dict(env),
        "_pass_fds": {status} if status >= 0 else set(),
        "_new_session": True,
        "_tty_out": False,
        "_bg": 1,
        "_bg_exc": False,
    }
    try:
        return sh.Command(program)(*argv[1:], **options).process
    except sh.ForkException as error:
        return _StartFailure(126, f"{argv[0]}: {str(error).strip().splitlines()[-1].strip()}")


class _SpawnedProcess:
    """A process started by ``posix_spawn``, with the interface that ``OutputPump`` needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def wait(self) -> int:
        """Wait for its end; return the exit status, or the negative signal number."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def is_alive(self) -> tuple[bool, int | None]:
        """Return whether it still runs, and the exit status if not."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is None, self._code


@contextmanager
def hold_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until afterwards.

    Only the main thread handles signals, so other threads defer nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    heeded = (signal.SIGINT, signal.SIGTERM)
    former = [(number, signal.signal(number, lambda one, _: came.append(one))) for number in heeded]
    try:
        yield
    finally:
        for number, handler in former:
            # None: the handler was not installed from Python, so Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for one in dict.fromkeys(came):
            signal.raise_signal(one)
