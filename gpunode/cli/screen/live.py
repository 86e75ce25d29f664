"""The progress line: animated on a terminal, elsewhere printed once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpunode.cli.screen.printer import Printer
from gpunode.cli.screen.text import Line, Span, cell_width, line, span
from gpunode.cli.screen.words import format_seconds

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

    from gpunode.host.port import Progress

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_FRAMES = "|/-\\"
_BAR = 20
# The two spaces before the line, and room for the ^C that a terminal writes behind it, which must not wrap.
_SPARE = 6
_PHASES = {"download": "downloading", "install": "installing", "build": "building", "wait": "waiting", "run": ""}


@dataclass(slots=True)
class LiveTask:
    """The task in progress."""

    title: str
    started: float
    progress: Progress | None = None
    waited_for: set[str] = field(default_factory=set)


def live_task_line(title: str, progress: Progress | None, elapsed: float, frame: str, width: int) -> Line:
    """``⠹ packages  downloading libcuda1  43 % ━━━━────  12 s``, cut so that it stays one row."""
    clock = span(f"  {format_seconds(elapsed)}", "dim")
    head = (Span(f"{frame} ", "change"), span(title, "bold"))
    if progress is None:
        return Line((*head, clock))
    tail = (*_progress_bar(progress), clock)
    room = width - sum(cell_width(part.text) for part in tail) - cell_width(frame) - 1
    head = (head[0], Span(_truncate(title, room), "bold"))
    taken = sum(cell_width(part.text) for part in (*head, *tail))
    detail = f"{_PHASES[progress.phase]} {progress.detail}".strip()
    shown = _truncate(span(f"  {detail}").text, width - taken - 1)
    return Line((*head, Span(shown, "warn" if progress.phase == "wait" else ""), *tail))


def _progress_bar(progress: Progress) -> tuple[Span, ...]:
    if progress.phase not in {"download", "install", "build"}:
        return ()
    full = round(_BAR * min(max(progress.percent, 0), 100) / 100)
    return (Span("  "), Span("━" * full, "good"), Span("━" * (_BAR - full), "dim"), Span(f" {progress.percent:3.0f} %"))


def _truncate(text: str, room: int) -> str:
    if cell_width(text) <= room:
        return text
    while text and cell_width(text) >= max(room, 1):
        text = text[:-1]
    return f"{text}…" if text.strip() else ""


class LiveLine:
    """A progress line below the printed lines."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._live: Live | None = None
        self._running: LiveTask | None = None

    def begin(self, title: str) -> None:
        """Show ``title`` as the task in progress."""
        self._running = LiveTask(title, time.monotonic())
        if self._printer.is_terminal and self._live is None:
            from rich.live import Live

            self._live = Live(
                self, console=self._printer.console, transient=True, refresh_per_second=10,
                redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop",
            )  # fmt: skip
            self._printer.attempt(self._live.start)
        if self._live is not None:
            self._printer.attempt(self._live.refresh)

    def update(self, progress: Progress) -> None:
        """Update the progress; without a terminal only print waits, once for each reason."""
        if self._running is None:
            self.begin("not started")
        running = self._running
        assert running is not None
        running.progress = progress
        if progress.phase == "wait" and progress.detail not in running.waited_for:
            running.waited_for.add(progress.detail)
            if not self._printer.is_terminal:
                self._printer.put([line(Span("! ", "warn"), f"waiting {progress.detail}", hang=2)])

    def end(self) -> tuple[str, float] | None:
        """End the task and return its title and seconds; None if there was none."""
        running, self._running = self._running, None
        return (running.title, time.monotonic() - running.started) if running else None

    def close(self) -> None:
        """Clear the line."""
        live, self._live = self._live, None
        if live is not None:
            self._printer.attempt(live.stop)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the line for rich."""
        del options
        if (running := self._running) is None:
            return
        elapsed = time.monotonic() - running.started
        frames = _ASCII_FRAMES if self._printer.ascii else _FRAMES
        frame = frames[int(elapsed * 8) % len(frames)]
        row = live_task_line(running.title, running.progress, elapsed, frame, console.width - _SPARE)
        yield self._printer.to_rich_text(Line((Span("  "), *row.spans)))
