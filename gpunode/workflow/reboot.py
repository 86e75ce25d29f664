"""A reboot, once, and the unit that has gpunode go on after it and then removes itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpunode.change import CommandChange, FileChange, FileState, Trigger
from gpunode.errors import UsageError
from gpunode.facts.probes import RESUME_UNIT
from gpunode.workflow.apply import Applier

UNIT = RESUME_UNIT
_NAME = UNIT.rpartition("/")[2]


def resume_unit(argv: Sequence[str], folder: str = "/") -> bytes:
    """A unit that runs ``argv`` once, at the next boot; it goes even when gpunode fails, so nothing loops.

    It waits for the whole boot: before that, daemons that are about to start would be found stopped.
    ``argv`` carries no --reboot: one run reboots at most once. What is still to be done then is told by the facts of
    the new boot. It runs in ``folder``, where the paths of ``argv`` begin, if that is there then.

    Raises:
        UsageError: a word cannot stand in a unit.
    """
    return f"""# Written by gpunode: it goes on with a setup that needed a reboot, then removes this unit.
[Unit]
Description=gpunode goes on after its reboot
Wants=network-online.target
After=network-online.target multi-user.target

[Service]
Type=oneshot
WorkingDirectory=-{_plain(folder).replace("%", "%%")}
ExecStart={" ".join(map(_quoted, argv))}
ExecStopPost=/bin/systemctl disable {_NAME}
ExecStopPost=/bin/rm -f {UNIT}
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
""".encode()


def _quoted(word: str) -> str:
    """``word`` as systemd.syntax(7) and systemd.service(5) want it: quoted, ``%`` and ``$`` not expanded."""
    escaped = _plain(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _plain(word: str) -> str:
    # Lone surrogates are the bytes of an argument that is not UTF-8; systemd passes over lines that are not.
    if any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in word):
        raise UsageError(
            f"{word!r} cannot stand in a systemd unit",
            why="it holds a control character, or is not UTF-8",
            hint="run setup without --reboot and reboot by hand",
        )
    return word


def arrange(applier: Applier, argv: Sequence[str], present: FileState | None) -> None:
    """The next boot goes on with ``argv``; journaled as every change is.

    Args:
        applier: of the run.
        argv: the command.
        present: the unit of an earlier run, when it is still there.

    Raises:
        ChangeFailed: the unit could not be written or enabled.
    """
    why = "setup goes on after the reboot"
    reload = frozenset({Trigger("daemon-reload")})
    applier.one(
        "kernel", "reboot", FileChange(UNIT, present, FileState(resume_unit(argv, str(Path.cwd()))), reload), why
    )
    applier.settle([Trigger("daemon-reload")])
    enable = CommandChange(("systemctl", "enable", _NAME), why, ("systemctl", "disable", _NAME))
    applier.one("kernel", "reboot", enable, why)
