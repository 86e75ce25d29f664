"""Which lines of a hint are commands, and whether one is enough or a person has to act. Pure."""

from __future__ import annotations

import shlex
from typing import Final

_PROGRAMS: Final = frozenset(
    {
        "sudo",
        "gpunode",
        "systemctl",
        "dkms",
        "modprobe",
        "mount",
        "curl",
        "ps",
        "journalctl",
        "dmesg",
        "containerd",
    }
)


def is_command(line: str) -> bool:
    """Return whether a line of a hint is a command and nothing but that, and one that can be run as it is."""
    from gpunode.packages import SYSTEMS  # loaded on use: most commands fail nowhere

    programs = _PROGRAMS.union(*(system.programs for system in SYSTEMS))
    if line.split(" ", 1)[0] not in programs or ", " in line or "`" in line:
        return False
    try:
        words = shlex.split(line)
    except ValueError:
        return False  # an apostrophe: it is prose
    # RUN, FILE and the like stand for what a person knows.
    return not any(len(word) > 1 and word.isupper() and word.isalpha() for word in words)


def commands_in(hint: str) -> tuple[str, ...]:
    """Return the commands that stand on lines of their own in ``hint``, in their order."""
    return tuple(line for line in map(str.strip, hint.split("\n")) if line and is_command(line))


def is_manual(hint: str) -> bool:
    """Return whether what comes next takes a person: no line of ``hint`` is a command."""
    return not commands_in(hint)
