"""Errors on the screen: what happened, why, what to do next, and which lines are commands. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from gpunode.cli.screen.text import Line, Span, Style, indent_lines, line, mark_commands, span
from gpunode.errors import GpunodeError

_COMMAND_PROGRAMS: Final = frozenset(
    {"sudo", "gpunode", "systemctl", "dkms", "modprobe", "mount", "curl", "ps", "journalctl", "dmesg", "containerd"}
)


def is_command(line: str) -> bool:
    """Return whether a line of a hint is a complete, runnable command."""
    from gpunode.packages import deb  # loaded on use: most commands do not fail

    programs = _COMMAND_PROGRAMS.union(deb.COMMAND_PROGRAMS)
    if line.split(" ", 1)[0] not in programs or ", " in line or "`" in line:
        return False
    try:
        words = shlex.split(line)
    except ValueError:
        return False  # an apostrophe, so it is prose
    # Placeholders such as RUN and FILE must be filled in by a person.
    return not any(len(word) > 1 and word.isupper() and word.isalpha() for word in words)


def commands_in(hint: str) -> tuple[str, ...]:
    """Return the lines of ``hint`` that are commands."""
    return tuple(line for line in map(str.strip, hint.split("\n")) if line and is_command(line))


# How gpunode's own lines after quoted output begin.
_OWN_SENTENCE_STARTS = ("restored:", "nothing was", "still to do:")


def error_lines(error: GpunodeError) -> Iterator[Line]:
    """Yield the error in red, its cause, and what to do."""
    first, *rest = error.what.split("\n")
    yield line(span("gpunode: ", "bad"), span(first, "bad"), hang=2)
    yield from indent_lines((line(span(text)) for text in rest), 2)
    yield from _cause_lines(error.why)
    if error.hint.strip():
        yield from indent_lines(hint_lines(error.hint), 2)


def _cause_lines(text: str) -> Iterator[Line]:
    """Yield the cause; lines after the first, mostly a log or a diff, are indented and not rewrapped."""
    for number, part in enumerate(text.rstrip().split("\n") if text else ()):
        is_said = number == 0 or part.startswith(_OWN_SENTENCE_STARTS)
        style: Style = "" if is_said else "dim"
        yield Line(
            (Span("  " if is_said else "    "), span(part, style)),
            2 if is_said else 4,
            breaks_anywhere=not is_said and part.startswith(tuple("+-@ ")),
        )


def hint_lines(hint: str) -> tuple[Line, ...]:
    """Return the hint; commands stay on lines of their own."""
    first, *rest = (text.strip() for text in hint.split("\n") if text.strip())
    head = line(span("next: ", "bold"), *mark_commands(first, _hint_style(first)), hang=6)
    return (head, *indent_lines((line(*mark_commands(text, _hint_style(text))) for text in rest), 6))


def _hint_style(text: str) -> Style:
    """Return the style of a hint's line."""
    return "command" if is_command(text) else ""
