"""Print lines, coloured on a terminal and plain elsewhere, with a progress line below."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from gpunode.cli.screen.text import Line, Span, cell_width, span, to_ascii, warning_line, wrap_line
from gpunode.errors import UsageError
from gpunode.fast_dataclass import dataclass
from gpunode.wording import format_seconds

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.text import Text

    from gpunode.host.port import Progress


BROKEN_PIPE_EXIT_CODE = 141
"""128 + SIGPIPE, as in a shell."""
_RICH_STYLES: Mapping[str, str] = {
    "": "",
    "dim": "dim",
    "bold": "bold",
    "good": "green",
    "change": "bold cyan",
    "warn": "yellow",
    "bad": "bold red",
    "add": "green",
    "remove": "red",
    "hunk": "cyan",
    "command": "bold",
}


def needs_ascii(encoding: str, environment: Mapping[str, str]) -> bool:
    """Return whether only ASCII can be shown, because of the stream's encoding or because the locale is C.

    Python turns LC_CTYPE C into C.UTF-8 (PEP 538), which says nothing about the terminal.
    """
    if not encoding.lower().replace("-", "").startswith("utf"):
        return True
    coerced = environment.get("LC_CTYPE") == "C.UTF-8"
    order = ("LC_ALL", "LANG") if coerced else ("LC_ALL", "LC_CTYPE", "LANG")
    return next((environment[name] for name in order if environment.get(name)), "") in {"C", "POSIX"}


class Printer:
    """Prints lines to ``stream``.

    Args:
        width: the number of columns; 0 for the terminal's.

    Attributes:
        is_terminal: whether the stream is a terminal with colours.
        keep_going: set once the node is being changed; from then on a closed pipe does not stop the run.
    """

    def __init__(self, stream: TextIO, *, width: int = 0) -> None:
        self.stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self.ascii = needs_ascii(self._encoding, os.environ)
        self.is_terminal = stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}
        self.keep_going = False
        wished = os.environ.get("COLUMNS", "")
        self._width = width or (int(wished) if re.fullmatch("[0-9]{1,4}", wished) and not self.is_terminal else 0)
        self._gone = False

    @cached_property
    def console(self) -> Console:
        """Rich's console for the stream, loaded on first use."""
        from rich.console import Console

        return Console(file=self.stream, highlight=False, markup=False, emoji=False, soft_wrap=True)

    @property
    def width(self) -> int:
        """The column to wrap lines at; 0, without a terminal and COLUMNS, for no wrapping."""
        if self._width or not self.is_terminal:
            return self._width
        return self.console.width

    def put(self, lines: Iterable[Line]) -> None:
        """Print ``lines``; raises as ``guard_write`` does."""
        rows = [row for line in lines for row in wrap_line(line, self.width)]
        if self.is_terminal:
            self.guard_write(lambda: self.console.print(*map(self.to_rich_text, rows), sep="\n", soft_wrap=True))
        else:
            self.guard_write(lambda: self._write("".join(f"{self.encode_text(row.text.rstrip())}\n" for row in rows)))

    def print_raw(self, text: str) -> None:
        """Print ``text`` byte for byte, for another program or an editor."""
        self.guard_write(lambda: self._write(text))

    def to_rich_text(self, row: Line) -> Text:
        """Convert ``row`` for rich, without markup."""
        from rich.text import Text

        text = Text(no_wrap=True, end="")
        for part in row.spans:
            text.append(self.encode_text(part.text), _RICH_STYLES[part.style])
        return text

    def encode_text(self, text: str) -> str:
        """Replace characters that the stream cannot encode."""
        return to_ascii(text) if self.ascii else text.encode(self._encoding, "backslashreplace").decode(self._encoding)

    def _write(self, text: str) -> None:
        self.stream.write(text.encode(self._encoding, "backslashreplace").decode(self._encoding))
        self.stream.flush()

    def guard_write(self, write: Callable[[], None]) -> None:
        """Call ``write`` unless the stream has failed before; with ``keep_going`` a failure is ignored.

        Raises:
            BrokenPipeError: the reader has closed the pipe.
            UsageError: the stream cannot be written, as on a full disk.
        """
        if self._gone:
            return
        try:
            write()
        except OSError as error:
            self._gone = True
            discard_stream(self.stream)
            if self.keep_going:
                return
            if error.errno in {errno.EPIPE, errno.EIO}:  # EIO: the terminal was closed
                raise BrokenPipeError from error
            raise UsageError(
                "the output cannot be written", why=error.strerror or str(error), hint="free space, or write elsewhere"
            ) from error


def discard_stream(stream: TextIO) -> None:
    """Redirect ``stream`` to /dev/null, so that Python does not complain at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(nowhere)


def write_answer(answer: str) -> int:
    """Print ``answer`` as one line; if that fails, print the reason to standard error.

    Returns:
        0, or the exit code for a lost answer.
    """
    try:
        standard_output().print_raw(f"{answer}\n")
    except BrokenPipeError:
        return BROKEN_PIPE_EXIT_CODE
    except UsageError as error:
        standard_error().print_raw(f"gpunode: {error.what_and_why}\n")
        return error.exit_code
    return 0


def standard_output() -> Printer:
    """Return the printer of answers."""
    return Printer(sys.stdout)


def standard_error() -> Printer:
    """Return the printer of errors."""
    return Printer(sys.stderr)


_SPINNER_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_SPINNER_FRAMES = "|/-\\"
_PROGRESS_BAR_WIDTH = 20
# Two spaces before the line, and room for the ^C that a terminal writes behind it, so that it does not wrap.
_PROGRESS_RESERVED_WIDTH = 6
_WORD_BY_PHASE = {"download": "downloading", "install": "installing", "build": "building", "wait": "waiting", "run": ""}


@dataclass(slots=True)
class LiveTask:
    """The task in progress."""

    title: str
    started: float
    progress: Progress | None = None
    reported_waits: set[str] = field(default_factory=set)


def live_task_line(title: str, progress: Progress | None, elapsed: float, frame: str, width: int) -> Line:
    """Return ``⠹ packages  downloading libcuda1  43 % ━━━━────  12 s``, cut to fit one row."""
    clock = span(f"  {format_seconds(elapsed)}", "dim")
    head = (Span(f"{frame} ", "change"), span(title, "bold"))
    if progress is None:
        return Line((*head, clock))
    tail = (*_progress_bar(progress), clock)
    room = width - sum(cell_width(part.text) for part in tail) - cell_width(frame) - 1
    head = (head[0], Span(_truncate(title, room), "bold"))
    taken = sum(cell_width(part.text) for part in (*head, *tail))
    detail = f"{_WORD_BY_PHASE[progress.phase]} {progress.detail}".strip()
    shown = _truncate(span(f"  {detail}").text, width - taken - 1)
    return Line((*head, Span(shown, "warn" if progress.phase == "wait" else ""), *tail))


def _progress_bar(progress: Progress) -> tuple[Span, ...]:
    if progress.phase not in {"download", "install", "build"}:
        return ()
    full = round(_PROGRESS_BAR_WIDTH * min(max(progress.percent, 0), 100) / 100)
    return (
        Span("  "),
        Span("━" * full, "good"),
        Span("━" * (_PROGRESS_BAR_WIDTH - full), "dim"),
        Span(f" {progress.percent:3.0f} %"),
    )


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
            self._printer.guard_write(self._live.start)
        if self._live is not None:
            self._printer.guard_write(self._live.refresh)

    def update(self, progress: Progress) -> None:
        """Update the progress; without a terminal, only print waits, once for each reason."""
        if self._running is None:
            self.begin("not started")
        running = self._running
        assert running is not None
        running.progress = progress
        if progress.phase == "wait" and progress.detail not in running.reported_waits:
            running.reported_waits.add(progress.detail)
            if not self._printer.is_terminal:
                self._printer.put([warning_line(f"waiting {progress.detail}")])

    def end(self) -> tuple[str, float] | None:
        """End the task and return its title and seconds; None if there was none."""
        running, self._running = self._running, None
        return (running.title, time.monotonic() - running.started) if running else None

    def close(self) -> None:
        """Clear the line."""
        live, self._live = self._live, None
        if live is not None:
            self._printer.guard_write(live.stop)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the line for rich."""
        del options
        if (running := self._running) is None:
            return
        elapsed = time.monotonic() - running.started
        frames = _ASCII_SPINNER_FRAMES if self._printer.ascii else _SPINNER_FRAMES
        frame = frames[int(elapsed * 8) % len(frames)]
        row = live_task_line(running.title, running.progress, elapsed, frame, console.width - _PROGRESS_RESERVED_WIDTH)
        yield self._printer.to_rich_text(Line((Span("  "), *row.spans)))
