"""An error as a person reads it: what happened, why, what to do next. Pure; it loads no workflow."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.cli.screen.text import Line, Span, Style, indented, line, prose, span
from gpunode.errors import GpunodeError

# Lines of a cause that gpunode says itself, after what a tool said.
_OWN_WORDS = ("put back:", "nothing was", "still to do:")


def error_lines(error: GpunodeError) -> Iterator[Line]:
    """The three parts apart: the first in red, the cause beneath it, then what to do."""
    first, *rest = error.what.split("\n")
    yield line(span("gpunode: ", "bad"), span(first, "bad"), hang=2)
    yield from indented([line(span(text)) for text in rest], 2)
    yield from _why(error.why)
    if error.hint.strip():
        yield from indented(next_lines(error.hint), 2)


def _why(text: str) -> Iterator[Line]:
    """The cause; the lines after its first, mostly a log or a diff, stand further in and as they are."""
    for number, part in enumerate(text.rstrip().split("\n") if text else ()):
        is_said = number == 0 or part.startswith(_OWN_WORDS)
        style: Style = "" if is_said else "dim"
        yield Line((Span("  " if is_said else "    "), span(part, style)), 2 if is_said else 4, fold=not is_said)


def next_lines(hint: str) -> tuple[Line, ...]:
    """What to do next; a command that stands on a line of its own stays there."""
    first, *rest = (text.strip() for text in hint.split("\n") if text.strip())
    head = line(span("next: ", "bold"), *prose(first, _hint_style(first)), hang=6)
    return (head, *indented([line(*prose(text, _hint_style(text))) for text in rest], 6))


def _hint_style(text: str) -> Style:
    """A line that is a command and nothing but that is set off as one."""
    from gpunode.cli.hints import is_command  # loaded on use: most commands fail nowhere

    return "command" if is_command(text) else ""
