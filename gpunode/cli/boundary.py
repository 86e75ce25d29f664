"""From any exception to a message that helps, and an exit code that means one thing."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Final

import typer

from gpunode.cli import CommandExit
from gpunode.errors import BUG, GpunodeError, Interrupted, UsageError

# What people type first, after the command that they typed it to, and gpunode's command for it.
_COMMON_GUESSES: Final = {
    ("gpunode", "apply"): ("setup", "--help"),
    ("gpunode", "install"): ("setup", "--help"),
    ("gpunode", "undo"): ("rollback", "--list"),
    ("gpunode", "uninstall"): ("remove", "--help"),
    ("gpunode recipe", "validate"): ("recipe", "check", "--help"),
    ("gpunode setup", "--dry-run"): ("plan", "--help"),
    ("gpunode setup", "--recipe"): ("recipe", "list"),
    ("gpunode plan", "--recipe"): ("recipe", "list"),
}
# Words that are no command yet: the one that follows is.
_GROUPS = frozenset({"recipe", "ctk", "runtime", "k8s"})


def run(arguments: list[str]) -> int:
    """Runs the command that ``arguments`` name; every way it can end has its exit code."""
    _open_standard_streams()
    from gpunode.cli.app import app_for

    if "_GPUNODE_COMPLETE" in os.environ:  # set by the files in gpunode/completions
        from typer._completion_classes import completion_init

        completion_init()
    command = typer.main.get_command(app_for(arguments))
    try:
        command.main(args=arguments, prog_name="gpunode", standalone_mode=False)
    except CommandExit as answer:
        return answer.exit_code
    except GpunodeError as error:
        return _fail(arguments, error)
    except KeyboardInterrupt:
        return _fail(arguments, Interrupted("interrupted", why="SIGINT came", hint="run the command again"))
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        return _unwritten(arguments, error) if {"-h", "--help"} & set(arguments) else _bug(arguments, error)
    except Exception as error:  # the one broad except: what is not ours is a bug, and is kept for its report
        return _typer_error(arguments, error)
    return 0


def _open_standard_streams() -> None:
    """Whoever closed one of them (``>&-``) gets it led nowhere: else the next file would take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _unwritten(arguments: list[str], error: OSError) -> int:
    """The help that typer prints, onto a full disk."""
    from gpunode.cli.screen.printer import forget

    forget(sys.stdout)
    what = UsageError("the help cannot be written", why=error.strerror or "", hint="free space, or write elsewhere")
    return _fail(arguments, what)


def _fail(arguments: list[str], error: GpunodeError) -> int:
    """The error is told, as far as anybody can be told; the exit code says it too."""
    error.quote(arguments)
    with suppress(UsageError, BrokenPipeError):
        _tell(arguments, error)
    return error.exit_code


def _tell(arguments: list[str], error: GpunodeError) -> None:
    if "--json" in arguments:
        from gpunode.cli.envelope import Envelope
        from gpunode.cli.screen.printer import tell_program

        tell_program(Envelope(_command(arguments)).ending_in(error).as_json())
    else:
        from gpunode.cli.screen.failures import error_lines
        from gpunode.cli.screen.printer import standard_error

        standard_error().put(error_lines(error))


def _command(arguments: list[str]) -> str:
    """The command as its envelope names it: ``plan``, ``ctk runtime check``."""
    words = [word for word in arguments if not word.startswith("-")]
    depth = next((index for index, word in enumerate(words) if word not in _GROUPS), len(words)) + 1
    return " ".join(words[:depth]) or "gpunode"


def _typer_error(arguments: list[str], error: Exception) -> int:
    """Typer's own usage errors keep their text; anything else is a bug."""
    format_message = getattr(error, "format_message", None)
    if type(error).__name__ == "NoArgsIsHelpError" and format_message is not None:
        sys.stderr.write(f"{format_message()}\n")
        return UsageError.exit_code
    if format_message is not None:
        command = getattr(getattr(error, "ctx", None), "command_path", "gpunode")
        hint = _meant_command(error) or f"`{command} --help` says what it takes"
        return _fail(arguments, UsageError(str(format_message()), hint=hint))
    if type(error).__name__ in {"Exit", "Abort"}:
        return int(getattr(error, "exit_code", 1))
    return _bug(arguments, error)


def _meant_command(error: Exception) -> str:
    """Return the command for a word that other tools have and gpunode calls otherwise; empty for any other word."""
    from gpunode.command import gpunode

    path = str(getattr(getattr(error, "ctx", None), "command_path", ""))
    unknown = re.match(r"No such command '([\w-]+)'", str(getattr(error, "message", "")))
    words = _COMMON_GUESSES.get((path, unknown[1] if unknown else str(getattr(error, "option_name", ""))))
    return str(gpunode(*words)) if words else ""


def _bug(arguments: list[str], error: Exception) -> int:
    import traceback

    place = _keep("".join(traceback.format_exception(error)))
    what = f"a bug in gpunode: {type(error).__name__}: {error}"
    if "--json" in arguments:
        from gpunode.cli.envelope import bug
        from gpunode.cli.screen.printer import tell_program

        tell_program(bug(_command(arguments), what, place).as_json())
        return BUG[0]
    sys.stderr.write(
        f"gpunode: {what}\n"
        f"  the traceback is in {place}; please report it with that file\n"
        f"  command: gpunode {' '.join(arguments)}\n"
    )
    return BUG[0]


def _keep(text: str) -> str:
    """Where the traceback now is."""
    import time

    from gpunode.host import bugs

    # Two in one second are two bugs.
    try:
        return bugs.keep(text, time.strftime(f"bug-%Y%m%dT%H%M%SZ-{os.getpid()}.txt", time.gmtime()))
    except OSError:
        sys.stderr.write(text)
        return "the lines above"


def _reader_gone() -> int:
    """Whoever read our output has gone (``| head``)."""
    from gpunode.cli.screen.printer import READER_GONE, forget

    forget(sys.stdout)
    return READER_GONE
