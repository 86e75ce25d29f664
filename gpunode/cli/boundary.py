"""Run a command, and turn every exception into a message and an exit code."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Final

import typer

from gpunode.cli import CommandExit
from gpunode.errors import BUG_EXIT_CODE, GpunodeError, Interrupted, UsageError

# Commands and options of other tools, by the command path where they are typed, with gpunode's equivalent.
_SUGGESTED_COMMANDS: Final = {
    ("gpunode", "apply"): ("setup", "--help"),
    ("gpunode", "install"): ("setup", "--help"),
    ("gpunode", "undo"): ("rollback", "--list"),
    ("gpunode", "uninstall"): ("remove", "--help"),
    ("gpunode recipe", "validate"): ("recipe", "check", "--help"),
    ("gpunode setup", "--dry-run"): ("plan", "--help"),
    ("gpunode setup", "--recipe"): ("recipe", "list"),
    ("gpunode plan", "--recipe"): ("recipe", "list"),
}
# Command groups, which need a subcommand.
_COMMAND_GROUPS = frozenset({"recipe", "ctk", "runtime", "k8s"})


def run_cli(arguments: list[str]) -> int:
    """Run the command that ``arguments`` name, and return its exit code."""
    _open_standard_streams()
    from gpunode.cli.app import choose_app

    if "_GPUNODE_COMPLETE" in os.environ:  # set by the files in gpunode/completions
        from typer._completion_classes import completion_init

        completion_init()
    app = choose_app(arguments)
    try:
        _refuse_empty_arguments(arguments)
        _call_command(app, arguments)
    except CommandExit as answer:
        return answer.exit_code
    except GpunodeError as error:
        return _report_error(arguments, error)
    except (KeyboardInterrupt, typer.Abort):
        return _report_error(
            arguments, Interrupted("interrupted", why="it received SIGINT (Ctrl-C)", hint="run the command again")
        )
    except BrokenPipeError:  # the reader has gone (``| head``)
        from gpunode.cli.screen.printer import BROKEN_PIPE_EXIT_CODE, discard_stream

        discard_stream(sys.stdout)
        return BROKEN_PIPE_EXIT_CODE
    except Exception as error:  # the one broad except: anything else is a bug, saved for its report
        if isinstance(error, OSError) and {"-h", "--help"} & set(arguments):
            return _report_help_write_error(arguments, error)
        return _report_uncaught_error(arguments, error)
    return 0


def _call_command(app: typer.Typer, arguments: list[str]) -> None:
    """Call the command; typer turns Ctrl-C into a result, and some versions into ``typer.Abort``."""
    command = typer.main.get_command(app)
    if command.main(args=arguments, prog_name="gpunode", standalone_mode=False) == Interrupted.exit_code:
        raise KeyboardInterrupt


def _refuse_empty_arguments(arguments: list[str]) -> None:
    """Refuse an empty argument: ``--root ""`` would be this machine, and ``--lock ""`` any version.

    The commands below ``ctk`` take empty values, as nvidia-ctk does.

    Raises:
        UsageError: if there is one.
    """
    if arguments[:1] != ["ctk"] and any(not word or re.fullmatch(r"--[a-z-]+=", word) for word in arguments):
        from gpunode.command import gpunode_command

        raise UsageError(
            f"an argument is empty: {gpunode_command(*arguments)}",
            why="an unset variable in a script leaves one, and gpunode does not guess what it was for",
            hint="give it a value, or leave the option out",
        )


def _open_standard_streams() -> None:
    """Open closed standard streams (``>&-``) on /dev/null, so that no other file gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, so this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _report_help_write_error(arguments: list[str], error: OSError) -> int:
    """Report that typer could not print its help, as on a full disk."""
    from gpunode.cli.screen.printer import discard_stream

    discard_stream(sys.stdout)
    failure = UsageError("the help cannot be written", why=error.strerror or "", hint="free space, or write elsewhere")
    return _report_error(arguments, failure)


def _report_error(arguments: list[str], error: GpunodeError) -> int:
    """Print the error, if anything still reads, and return its exit code."""
    error.add_quoted_words(arguments)
    with suppress(UsageError, BrokenPipeError):
        _print_error(arguments, error)
    return error.exit_code


def _print_error(arguments: list[str], error: GpunodeError) -> None:
    if "--json" in arguments:
        from gpunode.cli.envelope import Envelope
        from gpunode.cli.screen.printer import write_answer

        write_answer(Envelope(_command_name(arguments)).with_failure(error).as_json())
    else:
        from gpunode.cli.screen.failures import error_lines
        from gpunode.cli.screen.printer import standard_error

        standard_error().put(error_lines(error))


def _command_name(arguments: list[str]) -> str:
    """Return the command's name for the envelope: ``plan``, ``ctk runtime check``."""
    words = [word for word in arguments if not word.startswith("-")]
    if words[:3] == ["ctk", "config", "default"]:
        return " ".join(words[:3])
    depth = next((index for index, word in enumerate(words) if word not in _COMMAND_GROUPS), len(words)) + 1
    return " ".join(words[:depth]) or "gpunode"


def _report_uncaught_error(arguments: list[str], error: Exception) -> int:
    """Report typer's usage errors in its own words, anything else as a bug."""
    format_message = getattr(error, "format_message", None)
    if type(error).__name__ == "NoArgsIsHelpError" and format_message is not None:
        sys.stderr.write(f"{format_message()}\n")
        return UsageError.exit_code
    if format_message is not None:
        command = getattr(getattr(error, "ctx", None), "command_path", "gpunode")
        hint = _suggest_command(error) or f"`{command} --help` lists its options"
        return _report_error(arguments, UsageError(str(format_message()), hint=hint))
    if type(error).__name__ in {"Exit", "Abort"}:
        return int(getattr(error, "exit_code", 1))
    return _report_bug(arguments, error)


def _suggest_command(error: Exception) -> str:
    """Return gpunode's command for another tool's command or option; empty if unknown."""
    from gpunode.command import gpunode_command

    path = str(getattr(getattr(error, "ctx", None), "command_path", ""))
    unknown = re.match(r"No such command '([\w-]+)'", str(getattr(error, "message", "")))
    words = _SUGGESTED_COMMANDS.get((path, unknown[1] if unknown else str(getattr(error, "option_name", ""))))
    return str(gpunode_command(*words)) if words else ""


def _report_bug(arguments: list[str], error: Exception) -> int:
    import traceback

    traceback_path = _save_traceback("".join(traceback.format_exception(error)))
    what = f"a bug in gpunode: {type(error).__name__}: {error}"
    if "--json" in arguments:
        from gpunode.cli.envelope import bug_envelope
        from gpunode.cli.screen.printer import write_answer

        write_answer(bug_envelope(_command_name(arguments), what, traceback_path).as_json())
        return BUG_EXIT_CODE
    from gpunode.cli.screen.text import escape_controls
    from gpunode.redaction.secrets import redact_text

    rows = (
        f"gpunode: {redact_text(what)}",
        f"  the traceback is in {traceback_path}; please report it with that file",
        f"  command: gpunode {redact_text(' '.join(arguments))}",
    )
    sys.stderr.write("".join(f"{escape_controls(row)}\n" for row in rows))
    return BUG_EXIT_CODE


def _save_traceback(text: str) -> str:
    """Save the traceback and return its path."""
    import time

    from gpunode.host import bugs

    # The process id separates two bugs in the same second.
    try:
        return bugs.save_traceback(text, time.strftime(f"bug-%Y%m%dT%H%M%SZ-{os.getpid()}.txt", time.gmtime()))
    except OSError:
        sys.stderr.write(text)
        return "the lines above"
