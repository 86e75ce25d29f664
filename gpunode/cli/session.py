"""The common parts of every command that changes a node: lock, command log, signals, answer of a stopped run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import create_announcer
from gpunode.cli.node_screen import Screen
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.resume import explain_program_risk
from gpunode.cli.screen.commands import repeat_command
from gpunode.cli.signals import handle_signals, interruptible_wait
from gpunode.errors import GpunodeError, Interrupted, Terminated
from gpunode.fast_dataclass import dataclass
from gpunode.host.command_log import CommandLog
from gpunode.host.local import LocalHost
from gpunode.journal.history import RunRecord
from gpunode.journal.store import Store
from gpunode.workflow.events import Notice

if TYPE_CHECKING:
    from types import TracebackType

    from gpunode.host.port import OnProgress, Progress

# Daemons must be able to read the files that package scripts create, however strict the caller's umask is.
UMASK = 0o022
LOCK_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Session:
    """A node locked for this command, and the means to change it.

    Attributes:
        signals: holds back a signal until the change in progress is complete.
        waited_for_package_managers: whether the command waited for package managers.
    """

    host: LocalHost
    store: Store
    screen: Screen
    signals: SignalGuard
    log: CommandLog
    waited_for_package_managers: bool = True

    def notify(self, text: str) -> None:
        """Show ``text`` as a notice, unless it is empty."""
        if text:
            self.screen.show_event(Notice(self.adapt_hint(text)))

    def adapt_hint(self, hint: str) -> str:
        """Return the hint; for an image with package commands that run in it, not on the machine that builds it."""
        if self.host.root == "/":
            return hint
        from gpunode.host.image_apt import enter_image_in_hint  # only for an image

        return enter_image_in_hint(hint, self.host.root)

    def clean_up_after_interruption(self) -> RunRecord | None:
        """Delete the temporary files of the newest run if it was interrupted, and return that run."""
        interrupted = self.store.find_interrupted_run()
        if interrupted is not None:
            from gpunode.workflow.apply import possible_temporary_files  # loaded on use: most runs end

            self.store.remove_temporary_files()
            self.host.remove_temporary_files(possible_temporary_files(interrupted))
        if self.store.find_open_intents():
            from gpunode.workflow.apply import record_change_outcomes

            record_change_outcomes(self.store, self.host, is_idle=self.waited_for_package_managers)
        return interrupted


@contextmanager
def exclusive_session(
    command: str,
    output: OutputOptions,
    root: str,
    lock_timeout_s: float,
    *,
    yes: bool | None = None,
    wait_for_others: bool = True,
) -> Iterator[Session]:
    """Lock the node at ``root`` against other gpunode runs and package managers for the duration.

    During another transaction, packages look broken, and a plan made from that fails. A rollback of only the
    configuration need not wait for package managers: it changes no package.

    Args:
        command: names the log file.
        output: how to show progress.
        root: the node's root folder.
        lock_timeout_s: how long to wait for other programs.
        yes: whether to run programs of an image without asking; None runs none.
        wait_for_others: whether to wait for package managers as well as for gpunode.
    """
    screen = output.open_screen()
    screen.place = screen.place if root == "/" else root
    os.umask(UMASK)
    store, log = Store(root, announce=create_announcer(root)), CommandLog(command, root=root)
    stop = SignalGuard(screen.announce_stopping)
    consent = None if yes is None else screen.image_consent(command, root, yes=yes)
    host = LocalHost(
        root, stop.interruptible(screen.update_progress), log, lock_timeout_s=lock_timeout_s, consent=consent
    )
    node = Session(host, store, screen, stop, log, waited_for_package_managers=wait_for_others)
    with screen, ExitStack() as stack:
        if risk := explain_program_risk():
            node.notify(f"{risk}, so that user can change what root runs here; `sudo make install` makes a safe copy")
        with interruptible_wait():
            stack.enter_context(store.lock(lock_timeout_s, screen.update_progress))
            if wait_for_others:
                host.wait_until_idle()
        screen.end_wait()
        with stop:
            try:
                yield node
            except GpunodeError as error:
                error.hint = node.adapt_hint(error.hint)
                raise


class SignalGuard:
    """A handler that holds back a signal until the atomic write in progress is over.

    Args:
        on_signal: called at the first signal, to show at once that it was received.
    """

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._signal, self._on_signal = 0, on_signal
        self._handled = handle_signals(self._remember)

    def __enter__(self) -> SignalGuard:
        self._handled.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._handled.__exit__(kind, error, at)

    def _remember(self, number: int, _: object) -> None:
        if not self._signal:
            self._on_signal()
        self._signal = number

    def interruptible(self, on_progress: OnProgress) -> OnProgress:
        """Return ``on_progress`` with a check for signals during waits, when nothing is being written."""

        def report(progress: Progress) -> None:
            on_progress(progress)
            if progress.phase == "wait":
                self.raise_if_received()

        return report

    def raise_if_received(self) -> None:
        """Stop the run if a signal was received.

        Raises:
            Interrupted: on SIGINT; ``Terminated`` on SIGTERM and SIGHUP.
        """
        if self._signal:
            kind = Interrupted if self._signal == 2 else Terminated
            raise kind(
                "stopped by a signal, between two changes",
                why="every change made so far is complete and recorded",
                hint=f"the same command continues from there:\n{repeat_command(sys.argv[1:])}",
            )


@contextmanager
def report_partial_run(
    command: str, output: OutputOptions, store: Store, adapt_hint: Callable[[str], str] = str
) -> Iterator[None]:
    """Answer with the changes made so far if the run is interrupted and JSON output was requested.

    ``adapt_hint`` completes the commands in the error's hint; the caller could do that only after the answer.
    """
    before = store.ids()
    try:
        yield
    except GpunodeError as error:
        if output.json:
            error.hint = adapt_hint(error.hint)
            output.emit(partial_run_envelope(command, error, store, before))
        raise


def partial_run_envelope(command: str, error: GpunodeError, store: Store, earlier_runs: Sequence[str]) -> Envelope:
    """Return the answer for the run that ``error`` ended, if a run began that is not in ``earlier_runs``."""
    new_runs = [run for run in store.ids() if run not in earlier_runs]
    run = RunRecord(store.read_with_contents(new_runs[-1]) if new_runs else ())
    changes = run.changes("done")
    answer = Envelope(
        command,
        changed=bool(changes),
        changes=changes,
        steps=run.steps_by_change,
        result={"run": new_runs[-1]} if new_runs else {},
    )
    return answer.with_failure(error)
