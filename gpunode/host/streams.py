"""The output of a command, read as it comes until the command has ended or its time is up."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, final

_TERM_PATIENCE_S = 5.0
_KILL_PATIENCE_S = 5.0
# One that only reads has nothing to put in order before its end, and nobody waits for what it leaves.
_READER_PATIENCE_S = 0.5
# How long the pipes of a finished command are still read: a daemon that it started may hold them for ever.
_LINGER_S = 1.0
_LONGEST_LINE = 1 << 16

OnLine: TypeAlias = Callable[[str], None]


class Stream:
    """One stream of a command, read as it comes; the first ``limit`` bytes are kept."""

    def __init__(self, fd: int, limit: int, on_line: OnLine | None) -> None:
        self.fd = fd
        self.kept = bytearray()
        self.dropped = 0
        self._limit = limit
        self._on_line = on_line
        self._line = bytearray()

    def read(self) -> bool:
        """What has come is taken.

        Returns:
            Whether more may come.
        """
        try:
            chunk = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return True
        room = self._limit - len(self.kept)
        self.kept += chunk[:room]
        self.dropped += max(0, len(chunk) - room)
        if self._on_line is not None:
            self._tell(chunk, self._on_line)
        return bool(chunk)

    def _tell(self, chunk: bytes, on_line: OnLine) -> None:
        *lines, rest = (self._line + chunk).split(b"\n")
        if not chunk or len(rest) > _LONGEST_LINE:
            lines, rest = ([*lines, rest] if rest else lines), bytearray()
        self._line = rest
        for line in lines:
            on_line(line.decode("utf-8", "replace").rstrip("\r"))


@final
class Pump:
    """Reads the streams of a running command until it has ended, and ends it when its time is up."""

    def __init__(self, process: Any, streams: Sequence[Stream], *, hurried: bool = False) -> None:
        self._process = process
        self._patience_s = (_READER_PATIENCE_S,) * 2 if hurried else (_TERM_PATIENCE_S, _KILL_PATIENCE_S)
        self._bounded = tuple(streams) if hurried else ()
        self._exited_at: float | None = None
        self._selector = selectors.DefaultSelector()
        for stream in streams:
            self._selector.register(stream.fd, selectors.EVENT_READ, stream)
        self._exit_fd = _exit_descriptor(process.pid)
        if self._exit_fd is not None:
            self._selector.register(self._exit_fd, selectors.EVENT_READ, None)

    def __enter__(self) -> Pump:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._end_group()
        self._selector.close()
        if self._exit_fd is not None:
            os.close(self._exit_fd)

    def run(self, deadline: float) -> bool:
        """The command has ended.

        Returns:
            Whether it did so before ``deadline``, by itself or because it had said more than it may.
        """
        if self._until(deadline, _LINGER_S):
            return True
        has_said_enough = self._has_said_enough()
        self._end_group()
        return has_said_enough

    def exit_status(self) -> int:
        """The status of the ended command, as a shell says it."""
        code = int(self._process.wait())
        return code if code >= 0 else 128 - code

    def _end_group(self) -> None:
        """Nothing of the process group runs on: asked to stop first, then killed."""
        to_end, to_die = self._patience_s
        self._signal_group(signal.SIGTERM)
        self._until(time.monotonic() + to_end, to_end)
        self._signal_group(signal.SIGKILL)
        # A process in uninterruptible sleep, as a stuck driver call makes it, outlives even that and is left behind.
        if self._until(time.monotonic() + to_die, _LINGER_S):
            self._process.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _until(self, deadline: float, linger: float) -> bool:
        """Reads until the command has ended and its pipes have too, or ``linger`` seconds have passed since its end.

        Returns:
            Whether it has ended; it has not when ``deadline`` came first, or when it has said more than it may.
        """
        was_enough = self._has_said_enough()
        while True:
            now = time.monotonic()
            if self._exited_at is None and self._has_exited():
                self._exited_at = now
            if self._exited_at is None:
                end, ended = deadline, False
            else:
                end, ended = self._exited_at + linger, True
                if not self._streams():
                    return True
            if now >= end or (not ended and not was_enough and self._has_said_enough()):
                return ended
            self._read(end - now)

    def _has_said_enough(self) -> bool:
        return any(stream.dropped for stream in self._bounded)

    def _has_exited(self) -> bool:
        """Kernels before 5.3 have no descriptor that tells, so ``sh`` is asked."""
        if self._exit_fd is None:
            return not self._process.is_alive()[0]
        return self._exit_fd not in self._selector.get_map()

    def _streams(self) -> bool:
        return any(key.data is not None for key in self._selector.get_map().values())

    def _read(self, patience: float) -> None:
        for key, _ in self._selector.select(patience if self._exit_fd is not None else min(patience, 0.05)):
            if key.data is None or not key.data.read():
                self._selector.unregister(key.fd)


def _exit_descriptor(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
