"""A reboot, once, and the unit that has gpunode go on after it and then removes itself."""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.change import CommandChange, FileChange, FileState, Trigger
from gpunode.errors import UsageError
from gpunode.facts.probes import RESUME_UNIT
from gpunode.workflow.apply import Applier

UNIT = RESUME_UNIT
_NAME = UNIT.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Resume:
    """The command with which the next boot goes on.

    Attributes:
        argv: carries no --reboot, for one run reboots at most once. What is still to be done then is told by the facts
            of the new boot.
        folder: where it was typed, so that a relative path in it means the same.
    """

    argv: tuple[str, ...]
    folder: str = "/"


def resume_unit(resume: Resume) -> bytes:
    """A unit that goes on once, at the next boot; it goes even when gpunode fails, so nothing loops.

    It waits for the whole boot: before that, daemons which are about to start would be found stopped.
    """
    return f"""# Written by gpunode: it goes on with a setup that needed a reboot, then removes this unit.
[Unit]
Description=gpunode goes on after its reboot
Wants=network-online.target
After=network-online.target multi-user.target

[Service]
Type=oneshot
WorkingDirectory=-{_specifiers(resume.folder)}
ExecStart={" ".join(map(_quoted, resume.argv))}
ExecStopPost=/bin/systemctl disable {_NAME}
ExecStopPost=/bin/rm -f {UNIT}
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
""".encode()


def _quoted(word: str) -> str:
    """``word`` as systemd.syntax(7) and systemd.service(5) want it: quoted, ``%`` and ``$`` not expanded."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_specifiers(escaped)}"'


def _specifiers(word: str) -> str:
    """``word`` with no specifier in it (systemd.unit(5))."""
    if any(ord(char) < 32 for char in word):
        raise UsageError(
            f"{word!r} cannot stand in a systemd unit", hint="run setup without --reboot and reboot by hand"
        )
    return word.replace("%", "%%")


def arrange(applier: Applier, resume: Resume, present: FileState | None) -> None:
    """The next boot goes on with ``resume``; journaled as every change is.

    Args:
        applier: of the run.
        resume: the command.
        present: the unit of an earlier run, when it is still there.

    Raises:
        ChangeFailed: the unit could not be written or enabled.
    """
    why = "setup goes on after the reboot"
    reload = frozenset({Trigger("daemon-reload")})
    applier.one("kernel", "reboot", FileChange(UNIT, present, FileState(resume_unit(resume)), reload), why)
    applier.settle([Trigger("daemon-reload")])
    enable = CommandChange(("systemctl", "enable", _NAME), why, ("systemctl", "disable", _NAME))
    applier.one("kernel", "reboot", enable, why)
