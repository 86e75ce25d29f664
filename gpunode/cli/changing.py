"""What every command that changes a node has around it: the lock, the log, signals, and an answer when it stops."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpunode.cli.compose import announcer
from gpunode.cli.envelope import Envelope
from gpunode.cli.human import Screen, answers_to_signals
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.resume import program_risk
from gpunode.errors import GpunodeError, Interrupted, Terminated
from gpunode.host.command_log import CommandLog
from gpunode.host.local import LocalHost
from gpunode.journal.history import InterruptedRun, made_changes, steps_by_change
from gpunode.journal.store import Store
from gpunode.workflow.events import Notice
from gpunode.workflow.recovery import possible_temporary_files, record_what_was_made

if TYPE_CHECKING:
    from gpunode.host.port import OnProgress, Progress

# What packages' scripts make must be readable by the daemons that it is for, however strict the caller's own umask is.
UMASK = 0o022
LOCK_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Session:
    """A node that only this command changes, and what it is changed with.

    Attributes:
        stop: remembers a signal until it may be heeded.
    """

    host: LocalHost
    store: Store
    screen: Screen
    stop: SignalGuard
    log: CommandLog

    def tell(self, text: str) -> None:
        """What the user should know; nothing for nothing."""
        if text:
            self.screen.tell(Notice(text))

    def swept(self) -> InterruptedRun | None:
        """Return the newest run if it was cut short, its half files gone; what earlier runs made is recorded."""
        cut = self.store.interrupted_run()
        if cut is not None:
            self.store.sweep()
            self.host.sweep(possible_temporary_files(cut))
        record_what_was_made(self.store, self.host)
        return cut


@contextmanager
def session(
    verb: str, how: OutputOptions, root: str, lock_timeout_s: float, *, yes: bool | None = None, others: bool = True
) -> Iterator[Session]:
    """No other gpunode changes the node at ``root`` meanwhile, nor is anybody at work on it when it begins.

    In the middle of somebody else's transaction packages look broken, and what is planned on that fails. A rollback
    of the configuration alone leaves the ``others`` be: it mends what is broken now, and needs none of theirs.

    Args:
        verb: names the log.
        how: where a person reads.
        root: of the node.
        lock_timeout_s: how long it is waited for others.
        yes: whether programs of an image may be run without asking; None runs none.
        others: whether it is waited for other programs, too.
    """
    screen = how.screen()
    os.umask(UMASK)
    store, log = Store(root, announce=announcer(root)), CommandLog(verb, root=root)
    stop = SignalGuard(screen.stopping)
    consent = None if yes is None else screen.consent(verb, root, yes=yes)
    host = LocalHost(root, stop.heeded(screen.progress), log, lock_timeout_s=lock_timeout_s, consent=consent)
    found = Session(host, store, screen, stop, log)
    with screen, ExitStack() as stack:
        if risk := program_risk():
            found.tell(f"{risk}, so that user can change what root runs here; `sudo make install` makes a safe copy")
        with answers_to_signals():
            stack.enter_context(store.lock(lock_timeout_s, screen.progress))
            if others:
                host.wait_until_alone()
        with stop:
            yield found


class SignalGuard:
    """Remembers a signal until the atomic write in progress is over.

    Args:
        heard: called at the first signal, so that whoever sent it has an answer at once.
    """

    def __init__(self, heard: Callable[[], None]) -> None:
        self._signal, self._heard = 0, heard

    def __enter__(self) -> SignalGuard:
        import signal

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # What whoever started gpunode wants ignored, as nohup does, stays ignored.
        heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        self._former = {number: signal.signal(number, self._note) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        import signal

        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        if not self._signal:
            self._heard()
        self._signal = number

    def heeded(self, on_progress: OnProgress) -> OnProgress:
        """``on_progress``, which also ends a wait for somebody else, in which nothing is being written."""

        def hear(progress: Progress) -> None:
            on_progress(progress)
            if progress.phase == "wait":
                self.pause()

        return hear

    def pause(self) -> None:
        """Nothing, unless a signal came.

        Raises:
            Interrupted: SIGINT came; ``Terminated`` for the others.
        """
        if self._signal:
            from gpunode.cli.screen.commands import same_command

            kind = Interrupted if self._signal == 2 else Terminated
            raise kind(
                "stopped by a signal, between two changes",
                why="every change made so far is complete and recorded",
                hint=f"the same command continues from there:\n{same_command(sys.argv[1:])}",
            )


@contextmanager
def told_what_was_done(command: str, how: OutputOptions, store: Store) -> Iterator[None]:
    """A program hears of a run that stopped in its middle with what it had changed by then."""
    before = store.ids()
    try:
        yield
    except GpunodeError as error:
        if how.json:
            how.answer(stopped(command, error, store, before))
        raise


def stopped(command: str, error: GpunodeError, store: Store, before: Sequence[str]) -> Envelope:
    """The answer of a run that ``error`` ended, if one was begun since those of ``before``."""
    begun = [run for run in store.ids() if run not in before]
    changes = made_changes(store.read(begun[-1])) if begun else ()
    answer = Envelope(
        command,
        changed=bool(changes),
        changes=changes,
        steps=steps_by_change(store.read(begun[-1])) if begun else {},
        result={"run": begun[-1]} if begun else {},
    )
    return answer.ending_in(error)
