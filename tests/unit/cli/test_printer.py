from __future__ import annotations

import errno
import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from gpunode.cli.screen.printer import LiveLine, Printer, live_task_line, needs_ascii
from gpunode.cli.screen.text import cell_width, line, span
from gpunode.errors import UsageError
from gpunode.host.port import Progress

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


class Terminal:
    """A pseudo-terminal: output written to ``stream`` can be read back."""

    def __init__(self) -> None:
        self._here, there = pty.openpty()
        self.stream: TextIO = os.fdopen(there, "w", encoding="utf-8")

    def shown(self) -> str:
        """Return everything written so far."""
        self.stream.flush()
        os.set_blocking(self._here, False)
        parts = []
        while True:
            try:
                parts.append(os.read(self._here, 65536))
            except BlockingIOError:
                return b"".join(parts).decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self._here)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "LC_ALL", "LC_CTYPE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("COLUMNS", "60")
    found = Terminal()
    yield found
    found.close()


def test_terminal_gets_colours(terminal: Terminal) -> None:
    Printer(terminal.stream).put([line(span("✓ ", "good"), "works")])
    assert COLOUR.search(terminal.shown())


def test_no_color_is_honoured(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    Printer(terminal.stream).put([line(span("✓ ", "good"), span("works", "bad"))])
    shown = terminal.shown()
    assert not COLOUR.search(shown)
    assert "works" in shown


def test_dumb_terminal_gets_plain_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    Printer(terminal.stream).put([line(span("✓ ", "good"), "works")])
    assert terminal.shown() == "✓ works\r\n"


def test_rich_markup_in_text_is_printed_literally(terminal: Terminal) -> None:
    text = "/etc/[bold]x[/bold]/[foo] :smile: [/] \\[red]"
    Printer(terminal.stream).put([line(text)])
    assert re.sub(r"\x1b\[[0-9;]*m", "", terminal.shown()) == f"{text}\r\n"


def test_lines_are_wrapped_at_the_terminal_width(terminal: Terminal) -> None:
    Printer(terminal.stream).put([line("word " * 40)])
    rows = terminal.shown().splitlines()
    assert len(rows) > 1
    assert all(len(row) <= 60 for row in rows)


def test_lines_are_plain_and_unwrapped_without_a_terminal() -> None:
    stream = io.StringIO()
    Printer(stream).put([line(span("✓ ", "good"), "word " * 60)])
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_columns_variable_sets_the_width_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream = io.StringIO()
    Printer(stream).put([line("word " * 20)])
    assert max(map(len, stream.getvalue().splitlines())) <= 30


def test_characters_outside_the_stream_encoding_are_replaced() -> None:
    data = io.BytesIO()
    stream = io.TextIOWrapper(data, encoding="ascii")
    printer = Printer(stream)
    printer.put([line(span("✓ ", "good"), "Gerät")])
    printer.print_raw("Gerät\n")
    assert data.getvalue() == b"+ Ger\\xe4t\nGer\\xe4t\n"


@pytest.mark.parametrize(
    ("encoding", "environment", "wanted"),
    [
        ("utf-8", {}, False),
        ("UTF8", {"LANG": "de_DE.UTF-8"}, False),
        ("iso8859-1", {"LANG": "de_DE"}, True),
        ("utf-8", {"LANG": "C"}, True),
        ("utf-8", {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ("utf-8", {"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, True),
        ("utf-8", {"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
        ("utf-8", {"LC_CTYPE": "en_US.UTF-8", "LANG": "C"}, False),
    ],
)
def test_ascii_is_used_where_the_locale_needs_it(encoding: str, environment: dict[str, str], wanted: bool) -> None:
    assert needs_ascii(encoding, environment) is wanted


class Failing(io.StringIO):
    """A stream that fails like a file."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.writes = number, 0

    def write(self, text: str) -> int:
        self.writes += 1
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO])
def test_broken_pipe_ends_a_read_only_command(number: int) -> None:
    with pytest.raises(BrokenPipeError):
        Printer(Failing(number)).put([line("x")])


def test_full_disk_is_reported() -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        Printer(Failing(errno.ENOSPC)).put([line("x")])


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_output_errors_do_not_stop_a_change(number: int) -> None:
    stream = Failing(number)
    printer = Printer(stream)
    printer.keep_going = True
    printer.put([line("x")])
    printer.put([line("y")])
    assert stream.writes == 1


@pytest.mark.usefixtures("allow_subprocess")
def test_closed_pipe_prints_no_error() -> None:
    command = f"{sys.executable} -m gpunode recipe show containerd | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() in {"0", "141"}


def test_live_line_shows_progress_and_is_erased(terminal: Terminal) -> None:
    printer = Printer(terminal.stream)
    live = LiveLine(printer)
    live.begin("apt, 18 packages")
    live.update(Progress("download", 43.0, "libcuda1"))
    live.end()
    printer.put([line("done [x]")])
    live.close()
    shown = terminal.shown()
    assert "apt, 18 packages" in shown
    assert "done [x]" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor is hidden and shown again


def test_progress_without_a_terminal_prints_each_wait_once() -> None:
    stream = io.StringIO()
    live = LiveLine(Printer(stream))
    live.begin("apt")
    for percent in range(100):
        live.update(Progress("download", float(percent), "libcuda1"))
        live.update(Progress("wait", float(percent), "up to 9 s: process 7 (apt) holds the lock"))
    assert stream.getvalue().splitlines() == ["! waiting up to 9 s: process 7 (apt) holds the lock"]


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("percent", [-1.0, 0.0, 43.0, 100.0, 250.0])
def test_live_line_fits_in_one_row(width: int, percent: float) -> None:
    for phase in ("download", "install", "build", "wait", "run"):
        one = live_task_line("apt", Progress(phase, percent, "a-very-long-package-name " * 20), 12.0, "*", width)
        assert cell_width(one.text) <= width
        assert "12 s" in one.text
