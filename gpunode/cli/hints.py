"""Which lines of a hint are commands, and whether one is enough or a person has to act. Pure."""

from __future__ import annotations

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
    """Return whether a line of a hint is a command and nothing but that."""
    from gpunode.packages import SYSTEMS  # loaded on use: most commands fail nowhere

    programs = _PROGRAMS.union(*(system.programs for system in SYSTEMS))
    return line.split(" ", 1)[0] in programs and ", " not in line


def commands_in(hint: str) -> tuple[str, ...]:
    """Return the commands that stand on lines of their own in ``hint``, in their order."""
    return tuple(line for line in map(str.strip, hint.split("\n")) if line and is_command(line))


def is_manual(hint: str) -> bool:
    """Return whether what comes next takes a person: no line of ``hint`` is a command."""
    return not commands_in(hint)
