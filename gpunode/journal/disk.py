"""Durable writes: what is written is on the disk when the call returns, and survives a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpunode.errors import ChangeFailed


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Create ``folder`` durably; its parents get the permissions that packages give them."""
    if not folder.is_dir():
        if not folder.parent.is_dir():
            make_folder(folder.parent, 0o755)
        folder.mkdir(mode=mode, exist_ok=True)
    # Also when it was there: a run that was killed may have made it and not come to this.
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the entries of ``folder`` to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, which is no link, readable by its owner alone; the name is not yet synced."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, which one call may not do; nothing is synced."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def unwritable(what: str, place: Path) -> Iterator[None]:
    """Turn an OSError into a ChangeFailed that says ``what``."""
    try:
        yield
    except OSError as error:
        raise ChangeFailed(
            what,
            why=f"{place}: {error.strerror or error}",
            hint=f"free some space and check write access for {place}, then run the same command again",
        ) from error
