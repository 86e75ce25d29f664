"""The one reboot of a setup, and the unit that continues it afterwards and then removes itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpunode.change import CommandChange, FileChange, FileState, Trigger
from gpunode.errors import UsageError
from gpunode.facts.probes import RESUME_UNIT
from gpunode.workflow.apply import Applier

UNIT = RESUME_UNIT
_NAME = UNIT.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Resume:
    """The way in which setup continues after a reboot.

    Attributes:
        command: what the boot runs, for the id of the run that it continues.
        request: the recipe and options; kept with the run, where root alone can change it.
    """

    command: Callable[[str], tuple[str, ...]]
    request: bytes


def resume_unit(argv: Sequence[str]) -> bytes:
    """Return a unit that runs ``argv`` once, at the next boot; it goes even if gpunode fails, so nothing loops.

    It waits for the whole boot: before that, daemons that are about to start would be found stopped.
    ``argv`` carries no --reboot: one run reboots at most once. The facts of the new boot say what is left to do.

    Raises:
        UsageError: if a word cannot be written into a unit.
    """
    return f"""# Written by gpunode: it continues a setup that needed a reboot, then removes this unit.
[Unit]
Description=gpunode continues after its reboot
Wants=network-online.target
After=network-online.target multi-user.target

[Service]
Type=oneshot
WorkingDirectory=/
ExecStart={" ".join(map(_quote_word, argv))}
ExecStopPost=/bin/systemctl disable {_NAME}
ExecStopPost=/bin/rm -f {UNIT}
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
""".encode()


def _quote_word(word: str) -> str:
    """Return ``word`` quoted, ``%`` and ``$`` escaped. Source: systemd.syntax(7), systemd.service(5)."""
    escaped = (
        _refuse_control_characters(word).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    )
    return f'"{escaped}"'


def _refuse_control_characters(word: str) -> str:
    # Lone surrogates are the bytes of an argument that is not UTF-8; systemd passes over lines that are not.
    if any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in word):
        raise UsageError(
            f"{word!r} cannot be written into a systemd unit",
            why="it holds a control character, or is not UTF-8",
            hint="run setup without --reboot and reboot by hand",
        )
    return word


def arrange_resume(applier: Applier, resume: Resume, present: FileState | None) -> None:
    """Have the next boot continue the run; journaled as every change is.

    Args:
        applier: of the run.
        resume: how it continues.
        present: the unit of an earlier run, when it is still there.

    Raises:
        ChangeFailed: the unit could not be written or enabled.
    """
    why = "setup continues after the reboot"
    reload = frozenset({Trigger("daemon-reload")})
    applier.run.keep_request(resume.request)
    unit = resume_unit(resume.command(applier.run.id))
    applier.apply_change("kernel", "reboot", FileChange(UNIT, present, FileState(unit), reload), why)
    applier.settle([Trigger("daemon-reload")])
    enable = CommandChange(("systemctl", "enable", _NAME), why, ("systemctl", "disable", _NAME))
    applier.apply_change("kernel", "reboot", enable, why)
