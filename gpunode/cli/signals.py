"""Signals that end a command, and what they do while it waits."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from gpunode.errors import Interrupted, Terminated


def interruptible_wait() -> AbstractContextManager[None]:
    """Let signals end the command at once while it only waits."""

    def stop(number: int, _: FrameType | None) -> None:
        kind = Interrupted if number == signal.SIGINT else Terminated
        raise kind("stopped before anything was changed", why="it received a signal", hint="run the command again")

    return handle_signals(stop)


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals that end a run; one that was ignored at the start, as under nohup, stays ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    former = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, previous in former.items():
            signal.signal(number, previous)
