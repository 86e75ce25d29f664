"""The driver of NVIDIA's .run installer, removed by its own uninstaller where --remove-runfile-driver asks for that."""

from __future__ import annotations

from typing import Final

from gpunode.change import CommandChange, Trigger
from gpunode.facts.model import Facts, known
from gpunode.facts.project import UNINSTALL_RUN_DRIVER
from gpunode.outcome import Outcome, Planned, Refusal

# The uninstaller does not rebuild it, and the old module or the file against nouveau may be in it.
_INITRAMFS: Final = frozenset({Trigger("initramfs")})
_LEAVES: Final = (
    "the uninstaller restores files that the .run installer had replaced, and leaves /var/log/nvidia-installer.log, "
    "/usr/share/nvidia and, if somebody edited it, its file against nouveau"
)
_NOTES: Final = (
    _LEAVES,
    "no rollback brings the .run driver back: for that, keep the installer that it came from",
)


def plan_removal(facts: Facts) -> Outcome:
    """Plan the uninstallation of a .run driver, in a stage before the packages.

    Debian's nvidia-installer-cleanup would meet it in the transaction otherwise, and fails there without a terminal.
    """
    if not known(facts.run_installer, default=False):
        return Planned((), "NVIDIA's .run installer has no driver here")
    if facts.is_image:
        return Refusal(
            what="a driver of NVIDIA's .run installer is in this image, and its uninstaller is not run there",
            why="it unloads kernel modules, which would be those of this machine",
            hint="boot the image and run the same command there without --root",
        )
    change = CommandChange(UNINSTALL_RUN_DRIVER, "two drivers in the same places do not work", triggers=_INITRAMFS)
    reason = "NVIDIA's .run installer has installed a driver; its own uninstaller knows its files"
    return Planned((change,), reason, change_notes=_NOTES)
