"""Lines put on a stream: coloured on a terminal, plain elsewhere; a reader who went away does no harm."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TextIO

from gpunode.cli.screen.text import Line, in_ascii, wrap
from gpunode.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

READER_GONE = 141
"""128 + SIGPIPE, as the shell has it."""
_RICH: Mapping[str, str] = {
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
    """Whether only ASCII can be shown: by the stream's encoding, or because the locale is C.

    Python itself makes LC_CTYPE C.UTF-8 of a plain C (PEP 538), which says nothing of the terminal.
    """
    if not encoding.lower().replace("-", "").startswith("utf"):
        return True
    coerced = environment.get("LC_CTYPE") == "C.UTF-8"
    order = ("LC_ALL", "LANG") if coerced else ("LC_ALL", "LC_CTYPE", "LANG")
    return next((environment[name] for name in order if environment.get(name)), "") in {"C", "POSIX"}


class Printer:
    """Puts lines on ``stream``.

    Args:
        width: columns, where they are not the terminal's.

    Attributes:
        is_terminal: whether a person's terminal is at the other end, so that colours and movement make sense.
        keep_going: set once the node is being changed: from then on a reader who went away stops nothing.
    """

    def __init__(self, stream: TextIO, *, width: int = 0) -> None:
        self.stream = stream
        self.ascii = needs_ascii(getattr(stream, "encoding", None) or "utf-8", os.environ)
        self.is_terminal = stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}
        self.keep_going = False
        wished = os.environ.get("COLUMNS", "")
        self._width = width or (int(wished) if re.fullmatch("[0-9]{1,4}", wished) and not self.is_terminal else 0)
        self._console: Console | None = None
        self._gone = False

    @property
    def console(self) -> Console:
        """Rich's console on the stream; rich is loaded only now."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(file=self.stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        return self._console

    @property
    def width(self) -> int:
        """Columns at which lines are broken; 0, not at all, where no terminal shows them and COLUMNS says nothing."""
        if self._width or not self.is_terminal:
            return self._width
        return self.console.width

    def put(self, lines: Iterable[Line]) -> None:
        """``lines`` stand on the stream; raises as ``attempt`` does."""
        rows = [row for one in lines for row in wrap(one, self.width)]
        if self.is_terminal:
            self.attempt(lambda: self.console.print(*map(self.styled, rows), sep="\n", soft_wrap=True))
        else:
            self.attempt(lambda: self._write("".join(f"{self.shown(row.text.rstrip())}\n" for row in rows)))

    def raw(self, text: str) -> None:
        """``text`` byte for byte, for what another program or an editor reads."""
        self.attempt(lambda: self._write(text))

    def styled(self, row: Line) -> Text:
        """``row`` as rich prints it; nothing in it is taken for markup."""
        from rich.text import Text

        text = Text(no_wrap=True, end="")
        for span in row.spans:
            text.append(self.shown(span.text), _RICH[span.style])
        return text

    def shown(self, text: str) -> str:
        """``text`` in the signs that the stream can take."""
        if self.ascii:
            return in_ascii(text)
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def _write(self, text: str) -> None:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self.stream.flush()

    def attempt(self, write: Callable[[], None]) -> None:
        """``write``, if anybody still reads; once the node is being changed, a lost reader stops nothing.

        Raises:
            BrokenPipeError: the reader has gone.
            UsageError: the stream takes no more, such as a file on a full disk.
        """
        if self._gone:
            return
        try:
            write()
        except OSError as error:
            self._gone = True
            forget(self.stream)
            if self.keep_going:
                return
            if error.errno in {errno.EPIPE, errno.EIO}:  # EIO: the terminal was closed
                raise BrokenPipeError from error
            raise UsageError(
                "the output cannot be written", why=error.strerror or str(error), hint="free space, or write elsewhere"
            ) from error


def forget(stream: TextIO) -> None:
    """``stream`` leads nowhere from now on, so that Python does not complain of a lost reader at its own end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(nowhere)


def tell_program(answer: str) -> int:
    """``answer`` stands on standard output as one line, or standard error says why it could not.

    Returns:
        0, or the exit code of an answer that was lost and has none of its own: what was done stays done, though.
    """
    try:
        standard_output().raw(f"{answer}\n")
    except BrokenPipeError:
        return READER_GONE
    except UsageError as error:
        standard_error().raw(f"gpunode: {error.what}: {error.why}\n")
        return error.exit_code
    return 0


def standard_output() -> Printer:
    """The printer of answers."""
    return Printer(sys.stdout)


def standard_error() -> Printer:
    """The printer of errors."""
    return Printer(sys.stderr)
