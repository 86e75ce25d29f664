"""Commands that a message tells the user to run, built from words: shell-quoted, and checked by the tests. Pure."""

from __future__ import annotations

import re
import shlex
from typing import Final

CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def quote_word(word: str) -> str:
    """``word`` as a shell takes it, on one line: ``$'…'`` where it holds line ends or control characters."""
    if not CONTROL_CHARACTER.search(word):
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{CONTROL_CHARACTER.sub(_escape_control_character, escaped)}'"


def _escape_control_character(sign: re.Match[str]) -> str:
    # Beyond ASCII, \x is one byte to bash, and what \u means to it depends on the locale.
    return repr(sign[0])[1:-1] if sign[0].isascii() else "".join(f"\\x{byte:02x}" for byte in sign[0].encode())


class Command(str):
    """A command as the user types it in a shell; only ``command`` and ``diagnoses.commands`` make one."""

    __slots__ = ()


class Shell(Command):
    """A command, or words of one, as this program writes them: of literals alone, never of what others wrote."""

    __slots__ = ()


def command(*words: str) -> Command:
    """The command of these words; each but those of ``Shell`` is one word to the shell, whatever is in it."""
    return Command(" ".join(word if isinstance(word, Shell) else quote_word(word) for word in words))


def gpunode(*words: str) -> Command:
    """``gpunode`` with ``words``."""
    return command("gpunode", *words)


def sudo_gpunode(*words: str) -> Command:
    """The same as root."""
    return command("sudo", "gpunode", *words)
