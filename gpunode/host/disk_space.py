"""Checks of the disk space that a run needs beyond its own files, before anything is changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpunode.change import Change, triggers_of
from gpunode.errors import Refused
from gpunode.facts.project import UNINSTALL_RUN_DRIVER
from gpunode.packages import deb

_MIB = 1 << 20
# Driver 550.163.01 of Debian 13 unpacks to 625 MiB below /usr (Installed-Size in its index); below /var are 255 MB of
# archives, and the module is built there. Later branches are larger.
_FOLDERS_FILLED_BY_DRIVER: Final = ("usr", "var")
_DRIVER_INSTALLED_BYTES: Final = 1 << 30


def _free_bytes(folder: Path) -> int:
    """Return the bytes that root can still write there, including its reserve."""
    status = os.statvfs(folder)
    return status.f_bfree * status.f_frsize


def refuse_unusable_boot(changes: Sequence[Change], root: str = "/") -> None:
    """Refuse changes that trigger a new initramfs if /boot is not mounted, is read-only, or has no room for one.

    A new image is written beside the old one and renamed, so the largest one must fit once more (initramfs-tools
    0.142, generate_initramfs).

    Raises:
        Refused: if it would not fit.
    """
    if not any(trigger.kind == "initramfs" for trigger in triggers_of(changes)):
        return
    boot, images = Path(root, "boot"), deb.initramfs_image_path("*").lstrip("/")
    with suppress(OSError):  # the rebuild itself reports what is wrong there
        # An image's partitions may be mounted elsewhere.
        if root == "/" and not boot.is_mount() and _has_own_boot(Path("/etc/fstab")):
            raise Refused(
                "/boot is a separate file system, which is not mounted",
                why="/etc/fstab has it, and a new initramfs would be written below it, where no boot finds it; "
                "nothing was changed",
                hint="sudo mount /boot\nthen run the same command again",
            )
        if os.statvfs(boot).f_flag & os.ST_RDONLY:
            raise Refused(
                "/boot is mounted read-only",
                why="a new initramfs is written there; nothing was changed",
                hint="sudo mount -o remount,rw /boot\nthen run the same command again",
            )
        needed = max((image.stat().st_size for image in Path(root).glob(images)), default=0)
        free = _free_bytes(boot)
        if free < needed:
            raise Refused(
                f"/boot is too full for a new initramfs: {free / _MIB:.1f} MiB are free",
                why=f"the largest existing one has {needed / _MIB:.0f} MiB, and a new one is written beside it; "
                "nothing was changed",
                hint="remove kernels that this node no longer needs, or enlarge /boot; then run the same command again",
            )


def _has_own_boot(fstab: Path) -> bool:
    """Return whether fstab(5) lists a file system for /boot."""
    with suppress(OSError):
        rows = (line.split() for line in fstab.read_text("utf-8", "replace").splitlines() if line.lstrip()[:1] != "#")
        return any(len(row) > 1 and row[1].rstrip("/") == "/boot" for row in rows)
    return False


def refuse_removal_without_room(changes: Sequence[Change], root: str = "/") -> None:
    """Refuse to remove a .run driver if its successor may not fit: no rollback can restore it.

    Raises:
        Refused: if a file system has less room than the packages and the build of the module need.
    """
    if not any(change.runs_command(*UNINSTALL_RUN_DRIVER) for change in changes):
        return
    by_device: dict[int, list[Path]] = {}
    for folder in (Path(root, name) for name in _FOLDERS_FILLED_BY_DRIVER):
        by_device.setdefault(folder.stat().st_dev, []).append(folder)
    for folders in by_device.values():
        free, needed = _free_bytes(folders[0]), len(folders) * _DRIVER_INSTALLED_BYTES
        if free < needed:
            named = " and ".join(f"/{folder.name}" for folder in folders)
            raise Refused(
                f"{named} {'have' if folders[1:] else 'has'} too little room for the next driver: "
                f"{free / _MIB:.0f} MiB are free",
                why=f"packages and the build of the kernel module may take {needed // _MIB} MiB, and no rollback "
                "restores a removed .run driver; nothing was changed",
                hint="free some space, then run the same command again",
            )
