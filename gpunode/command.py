"""Commands that a message tells the user to run, built from words: shell-quoted, and checked by the tests. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command as the user would type it; ``str`` quotes each word for a shell."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.words)


def gpunode(*words: str) -> Command:
    """``gpunode`` with ``words``."""
    return Command(("gpunode", *words))


def sudo_gpunode(*words: str) -> Command:
    """The same as root."""
    return Command(("sudo", "gpunode", *words))
