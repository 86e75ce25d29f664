"""The line of what goes on right now: on a terminal it moves, elsewhere it is said once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpunode.cli.screen.printer import Printer
from gpunode.cli.screen.text import Line, Span, cells, line, span
from gpunode.cli.screen.words import seconds

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
class Running:
    """What goes on, since when, and how far it is."""

    title: str
    started: float
    progress: Progress | None = None
    waited_for: set[str] = field(default_factory=set)


def running_line(title: str, progress: Progress | None, elapsed: float, frame: str, width: int) -> Line:
    """``⠹ packages  downloading libcuda1  43 % ━━━━────  12 s``, cut so that it stays one row."""
    clock = span(f"  {seconds(elapsed)}", "dim")
    head = (Span(f"{frame} ", "change"), span(title, "bold"))
    if progress is None:
        return Line((*head, clock))
    tail = (*_bar(progress), clock)
    room = width - sum(cells(part.text) for part in tail) - cells(frame) - 1
    head = (head[0], Span(_cut(title, room), "bold"))
    taken = sum(cells(part.text) for part in (*head, *tail))
    detail = f"{_PHASES[progress.phase]} {progress.detail}".strip()
    shown = _cut(span(f"  {detail}").text, width - taken - 1)
    return Line((*head, Span(shown, "warn" if progress.phase == "wait" else ""), *tail))


def _bar(progress: Progress) -> tuple[Span, ...]:
    if progress.phase not in {"download", "install", "build"}:
        return ()
    full = round(_BAR * min(max(progress.percent, 0), 100) / 100)
    return (Span("  "), Span("━" * full, "good"), Span("━" * (_BAR - full), "dim"), Span(f" {progress.percent:3.0f} %"))


def _cut(text: str, room: int) -> str:
    if cells(text) <= room:
        return text
    while text and cells(text) >= max(room, 1):
        text = text[:-1]
    return f"{text}…" if text.strip() else ""


class LiveLine:
    """Shows what goes on beneath what is done."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._live: Live | None = None
        self._running: Running | None = None

    def begin(self, title: str) -> None:
        """``title`` goes on from now."""
        self._running = Running(title, time.monotonic())
        if self._printer.is_terminal and self._live is None:
            from rich.live import Live

            self._live = Live(
                self, console=self._printer.console, transient=True, refresh_per_second=10,
                redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop",
            )  # fmt: skip
            self._printer.attempt(self._live.start)
        if self._live is not None:
            self._printer.attempt(self._live.refresh)

    def progress(self, progress: Progress) -> None:
        """How far it is; where nothing moves, only a wait is said, once for each reason."""
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
        """Nothing goes on any more; what did, and for how many seconds."""
        running, self._running = self._running, None
        return (running.title, time.monotonic() - running.started) if running else None

    def close(self) -> None:
        """The line is gone from the screen."""
        live, self._live = self._live, None
        if live is not None:
            self._printer.attempt(live.stop)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The line of this moment, as rich asks for it."""
        del options
        if (running := self._running) is None:
            return
        elapsed = time.monotonic() - running.started
        frames = _ASCII_FRAMES if self._printer.ascii else _FRAMES
        frame = frames[int(elapsed * 8) % len(frames)]
        row = running_line(running.title, running.progress, elapsed, frame, console.width - _SPARE)
        yield self._printer.styled(Line((Span("  "), *row.spans)))
