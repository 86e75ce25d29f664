"""Commands that a message tells the user to run, built from words: shell-quoted, and checked by the tests. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final

CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def quoted(word: str) -> str:
    """``word`` as a shell takes it, on one line: ``$'…'`` where it holds line ends or control characters."""
    if not CONTROL.search(word):
        return shlex.quote(word)
    shown = word.encode("unicode_escape").decode().replace("'", "\\'")
    return f"$'{shown}'"


@dataclass(frozen=True, slots=True)
class Command:
    """A command as the user would type it; ``str`` quotes each word for a shell."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(map(quoted, self.words))


def gpunode(*words: str) -> Command:
    """``gpunode`` with ``words``."""
    return Command(("gpunode", *words))


def sudo_gpunode(*words: str) -> Command:
    """The same as root."""
    return Command(("sudo", "gpunode", *words))
