"""Commands for messages to the user, built from words: shell-quoted, and checked by the tests. Pure."""

from __future__ import annotations

import re
import shlex
from typing import Final

CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def quote_word(word: str) -> str:
    """Quote ``word`` for a shell, on one line: as ``$'…'`` if it contains line ends or control characters."""
    if not CONTROL_CHARACTER.search(word):
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{CONTROL_CHARACTER.sub(_escape_control_character, escaped)}'"


def _escape_control_character(sign: re.Match[str]) -> str:
    # Beyond ASCII, bash reads \x as one byte, and the meaning of \u depends on the locale.
    return repr(sign[0])[1:-1] if sign[0].isascii() else "".join(f"\\x{byte:02x}" for byte in sign[0].encode())


class Command(str):
    """A command for the user's shell; only ``command`` and ``diagnoses.commands`` create one."""

    __slots__ = ()


class Shell(Command):
    """A command, or part of one, in shell syntax; only made from literals, never from others' text."""

    __slots__ = ()


def command(*words: str) -> Command:
    """Return the command with these words; each except ``Shell`` is quoted as one word of the shell."""
    return Command(" ".join(word if isinstance(word, Shell) else quote_word(word) for word in words))


def gpunode_command(*words: str) -> Command:
    """Return the command ``gpunode`` with ``words``."""
    return command("gpunode", *words)


def sudo_gpunode(*words: str) -> Command:
    """Return the command ``sudo gpunode`` with ``words``."""
    return command("sudo", "gpunode", *words)
