"""Progress of a pytest run and the time left; one screen of results when it ends or is interrupted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.results import Outcome, Results, group_of, reason_of

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Seconds between progress lines if there is no terminal for a bar.
_LINE_EVERY_S: Final = 30.0
# The rough duration of a folder's tests; the first match counts. Used only to estimate the remaining time.
_USUAL_S: Final = (
    ("tests/conformance/crash/", 5.0),
    ("tests/conformance/power/", 4.0),
    ("tests/conformance/ansible/", 2.0),
    ("tests/conformance/faults/", 0.7),
    ("tests/conformance/hostile/", 0.4),
    ("tests/conformance/runtimes/test_vectors.py", 0.3),
    ("tests/conformance/", 0.05),
    ("tests/laws/", 0.2),
    ("tests/scenarios/", 0.04),
    ("tests/e2e/", 10.0),
    ("", 0.02),
)
_ELSEWHERE: Final = (
    ("make test-e2e", "real apt, dpkg, containerd, docker and systemd in chroots: needs root, takes about 25 minutes"),
    ("make test-long", "the whole corpus, every kill and fault, twenty times the examples: hours"),
)


class Screen:
    """Follows the run from the process that the user sees, whichever processes run the tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._results = Results()
        self._skipped: list[str] = []
        self._to_come: dict[str, float] = {}
        self._total_s = 1.0
        self._left_s = 1.0
        self._begun = self._told = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID

    def pytest_sessionstart(self) -> None:
        """End the run on SIGTERM in the same way as on Ctrl-C."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(terminal, pytest.TerminalReporter)
        self._terminal = terminal
        self._terminal.showfspath = False
        signal.signal(signal.SIGTERM, _interrupt)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the tests to run in this process."""
        if session.items:
            self._begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Record the tests to run in several processes, each of which collects the same tests."""
        if not self._to_come:
            self._begin(ids)

    def _begin(self, names: list[str]) -> None:
        self._to_come = {name: next(s for folder, s in _USUAL_S if name.startswith(folder)) for name in names}
        self._total_s = self._left_s = sum(self._to_come.values())
        self._begun = self._told = time.monotonic()
        if self._terminal.isatty and self._is_terse:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            console = Console(file=self._terminal._tw._file, force_terminal=True)
            columns = (BarColumn(20), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console, transient=True, redirect_stdout=False)
            self._task = self._bar.add_task(f"{len(names)} tests", total=self._total_s)
            self._bar.start()

    @property
    def _is_terse(self) -> bool:
        return int(self._config.getoption("verbose")) <= 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no sign for a single test unless ``-v`` is given."""
        outcome = _outcome(report)
        return (outcome.replace("errors", "error") if outcome else "", "", "") if self._is_terse else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the end of a test's setup, call or teardown."""
        self._results.seconds[group_of(report.nodeid)] += report.duration
        outcome = _outcome(report)
        if outcome is None:
            return
        reason = reason_of(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
        self._results.add(group_of(report.nodeid), outcome, report.nodeid, reason)
        self._skipped += [report.nodeid] * (outcome == "skipped")
        self._left_s -= self._to_come.pop(report.nodeid, 0.0)
        if self._is_terse:
            self._tell(report.nodeid if outcome in {"failed", "errors"} else "")

    def _tell(self, failure: str) -> None:
        if self._bar is not None:
            if failure:
                self._bar.console.print(f"FAILED {failure}", markup=False, highlight=False)
            self._bar.update(self._task, completed=self._total_s - self._left_s, description=self._line)
        elif failure or time.monotonic() - self._told > _LINE_EVERY_S:
            self._told = time.monotonic()
            self._terminal.write_line(f"FAILED {failure}" if failure else self._line, flush=True)

    @property
    def _line(self) -> str:
        ended, failed = self._results.done, len(self._results.failures)
        gone_s, part = time.monotonic() - self._begun, 1 - self._left_s / self._total_s
        # At first the speed of this machine is not known.
        left_s = max(0.0, gone_s * (1 - part) / part if part > 0.02 else self._left_s / (os.cpu_count() or 1))
        counts = f"{ended} of {ended + len(self._to_come)} tests, {failed} failed"
        return f"{counts}; {_minutes(gone_s)} gone, about {_minutes(left_s)} to come"

    def pytest_keyboard_interrupt(self) -> None:
        """Confirm the interrupt to the user: the processes that run tests have seconds to end them."""
        self._take_bar_away()
        self._terminal.write_line("\ninterrupted: the tests under way are ended", flush=True)

    def _take_bar_away(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Remove the bar, and list the skipped tests if requested."""
        self._take_bar_away()
        if listed := self._config.getoption("skipped_to"):
            Path(listed).write_text("".join(f"{name}\n" for name in self._skipped))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the screen."""
        if not self._results.done:
            return
        terminalreporter.section("results")
        for line in self._results.lines():
            terminalreporter.write_line(line)
        if self._to_come:
            terminalreporter.write_line(f"\ncut short: {len(self._to_come)} tests were not run")
        terminalreporter.write_line("\nnot part of this run")
        for command, what in _ELSEWHERE[1 if "e2e" in self._results.counts else 0 :]:
            terminalreporter.write_line(f"  {command:15} {what}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _outcome(report: pytest.TestReport) -> Outcome | None:
    """Return how a test ended; None if this phase does not decide it."""
    if report.failed:
        return "failed" if report.when == "call" else "errors"
    if report.skipped:
        return "skipped"
    return "passed" if report.when == "call" else None


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
