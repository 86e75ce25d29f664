"""Backups on the disk, each in a file that is named by the sha256 of its content: ``<2 digits>/<sha256>``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from gpunode.change import digest
from gpunode.errors import ChangeFailed, JournalDamaged
from gpunode.host.files import write_all
from gpunode.host.ownership import read_own_file

# As much as is ever read of a file that is to be replaced; some of a driver's libraries have more than 64 MiB.
MAX_BACKUP_BYTES = 1 << 30


class BackupStore:
    """The backups in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Return the path of the backup with that name."""
        return self.folder / name[:2] / name

    def path_of_content(self, content: bytes) -> str:
        """Return the path of the backup that has this ``content``, whether it is there or not."""
        return str(self.path(digest(content)))

    def save(self, content: bytes) -> str:
        """Save ``content`` durably and return the name of its backup. Raises OSError."""
        name = digest(content)
        path = self.path(name)
        make_folder(path.parent)
        if not _is_intact(path, content):
            draft = path.with_name(f".{name}.{os.getpid()}")
            try:
                write_file(draft, content)
                draft.rename(path)
            except OSError:
                draft.unlink(missing_ok=True)
                raise
        # Also when it was there: a run that was killed may have named it so and not come to this.
        sync_folder(path.parent)
        return name

    def find(self, name: str, run: str = "some run") -> bytes | None:
        """Return the bytes of a backup that ``run`` needs; None if it is gone.

        Raises:
            JournalDamaged: it cannot be read, or is not what was saved.
        """
        path = self.path(name)
        try:
            content = read_own_file(path, MAX_BACKUP_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise damaged_backup_error(path, run, f"cannot be read: {error.strerror}") from error
        if digest(content) != name:
            raise damaged_backup_error(path, run, "is not what was saved: its sha256 differs")
        return content

    def remove_temporary_files(self) -> None:
        """Delete the partial backups of a killed run."""
        for draft in self.folder.glob("??/.*"):
            with contextlib.suppress(OSError):
                draft.unlink()

    def keep_only(self, needed: Collection[str]) -> None:
        """Delete all others."""
        for path in [path for path in self.folder.glob("??/*") if path.name not in needed]:
            path.unlink(missing_ok=True)


def damaged_backup_error(path: Path, run: str, problem: str) -> JournalDamaged:
    """Return the error for a backup that is not as it was saved."""
    return JournalDamaged(
        f"a backup of run {run} {problem}",
        why=str(path),
        hint="Nothing was changed. Restore that file from a backup of this machine;\n"
        "other runs can still be undone: gpunode rollback --list",
    )


def _is_intact(path: Path, content: bytes) -> bool:
    """Return whether the object is there and whole; one that cannot be read is replaced."""
    try:
        return read_own_file(path, MAX_BACKUP_BYTES) == content
    except OSError:
        return False


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


@contextlib.contextmanager
def raise_as_change_failed(what: str, place: Path) -> Iterator[None]:
    """Turn an OSError into a ChangeFailed that says ``what``."""
    try:
        yield
    except OSError as error:
        raise ChangeFailed(
            what,
            why=f"{place}: {error.strerror or error}",
            hint=f"free some space and check write access for {place}, then run the same command again",
        ) from error
