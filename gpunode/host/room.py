"""Disk space for a run's triggers, checked before anything is changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gpunode.change import Change, triggers
from gpunode.errors import Refused
from gpunode.packages import SYSTEMS

_MIB = 1 << 20


def _free_bytes(folder: Path) -> int:
    """Return the bytes that root can still write there, including its reserve."""
    status = os.statvfs(folder)
    return status.f_bfree * status.f_frsize


def refuse_full_boot(
    changes: Sequence[Change], root: str = "/", free_bytes: Callable[[Path], int] = _free_bytes
) -> None:
    """Refuse changes that trigger a new initramfs if /boot has no room for one.

    A new image is written beside the old one and renamed, so the largest one must fit once more (initramfs-tools
    0.142, generate_initramfs).

    Args:
        changes: of the whole run.
        root: the node's root.
        free_bytes: what can still be written to a folder.

    Raises:
        Refused: if it would not fit.
    """
    if not any(trigger.kind == "initramfs" for trigger in triggers(changes)):
        return
    boot, images = Path(root, "boot"), SYSTEMS[0].initramfs_image("*").lstrip("/")
    with suppress(OSError):  # whoever rebuilds it finds out what is wrong there
        needed = max((image.stat().st_size for image in Path(root).glob(images)), default=0)
        free = free_bytes(boot)
        if free < needed:
            raise Refused(
                f"/boot is too full for a new initramfs: {free / _MIB:.1f} MiB are free",
                why=f"the largest existing one has {needed / _MIB:.0f} MiB, and a new one is written beside it; "
                "nothing was changed",
                hint="remove kernels that this node no longer needs, or enlarge /boot; then run the same command again",
            )
