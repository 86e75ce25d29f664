"""Backups on disk, each in a file named by the sha256 of its content: ``<2 digits>/<sha256>``."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpunode.change import digest
from gpunode.errors import ChangeFailed, JournalDamaged
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.host import rooted_paths
from gpunode.host.files import write_all
from gpunode.host.ownership import read_regular_file

# The largest file that is read before it is replaced; some driver libraries exceed 64 MiB.
MAX_BACKUP_BYTES = 1 << 30
OBJECTS_FOLDER: Final = "objects"
_BACKUP_FOLDER_NAME: Final = Pattern(r"[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class RecordFolder:
    """The folder with gpunode's journals and backups, at ``relative_path`` inside ``root``.

    An image may contain a hostile one, and its programs may replace parts of it at any time. So each folder is opened
    from its parent, inside the root, and no link below ``relative_path`` is followed.
    """

    root: str
    relative_path: str

    def path(self, *names: str) -> Path:
        """Return the path of ``names`` below it, for messages."""
        return Path(self.root, self.relative_path.lstrip("/"), *names)

    @contextlib.contextmanager
    def open(self, *names: str, make: bool = False) -> Iterator[int]:
        """Open the folder ``names``, each inside the one before; ``make`` creates missing ones durably.

        Raises:
            FileNotFoundError: there is none.
            NotADirectoryError: something else is there, such as a link; names the path.
        """
        with rooted_paths.open_path(self.relative_path, self.root, make=make) as opened:
            above = len(opened.folders)
            try:
                for name in (opened.name, *names):
                    opened.enter(name, make=make, mode=0o700)
            except NotADirectoryError as error:
                raise not_a_folder_error(self.path(*names[: len(opened.folders) - above])) from error
            if make and not opened.made_folders:
                # A killed run may have created it without this sync.
                rooted_paths.sync_folder(opened.folders[-2])
            yield opened.folder


def not_a_folder_error(path: Path) -> NotADirectoryError:
    """Return the error for something else in place of a folder."""
    return NotADirectoryError(errno.ENOTDIR, f"{path} is not a folder but a link or a file", str(path))


class BackupStore:
    """The backups in ``record``."""

    def __init__(self, record: RecordFolder) -> None:
        self._record = record
        self.folder = record.path(OBJECTS_FOLDER)

    def path(self, name: str) -> Path:
        """Return the path of the backup with that name."""
        return self.folder / name[:2] / name

    def path_of_content(self, content: bytes) -> str:
        """Return the path of the backup for this ``content``, whether it exists or not."""
        return str(self.path(digest(content)))

    def save(self, content: bytes) -> str:
        """Save ``content`` durably and return the name of its backup. Raises OSError."""
        name = digest(content)
        with self._record.open(OBJECTS_FOLDER, name[:2], make=True) as folder:
            if not _is_backup_intact(name, folder, content):
                draft = f".{name}.{os.getpid()}"
                try:
                    replace_private_file(draft, folder, content)
                    os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    remove_file(draft, folder)
                    raise
            # Even if it existed: a killed run may have renamed it without this sync.
            rooted_paths.sync_folder(folder)
        return name

    def find(self, name: str, run: str = "some run") -> bytes | None:
        """Return the bytes of a backup that ``run`` needs; None if it is gone.

        Raises:
            JournalDamaged: it cannot be read, or differs from what was saved.
        """
        path = self.path(name)
        try:
            with self._record.open(OBJECTS_FOLDER, name[:2]) as folder:
                content = read_regular_file(name, folder, MAX_BACKUP_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise damaged_backup_error(path, run, f"cannot be read: {error.strerror}") from error
        if digest(content) != name:
            raise damaged_backup_error(path, run, "is not what was saved: its sha256 differs")
        return content

    def remove_files(self, is_surplus: Callable[[str], bool]) -> None:
        """Delete the files whose name ``is_surplus``; the partial backup of a killed run begins with a dot."""
        for digits in self.folder_names():
            with self._record.open(OBJECTS_FOLDER, digits) as folder:
                for name in filter(is_surplus, rooted_paths.list_names(folder)):
                    remove_file(name, folder)

    def folder_names(self) -> list[str]:
        """Return the names of the folders with backups; none if there is no record yet.

        Raises:
            NotADirectoryError: one of them is not a folder, such as a link.
        """
        try:
            with self._record.open(OBJECTS_FOLDER) as folder:
                names = list(filter(_BACKUP_FOLDER_NAME.fullmatch, rooted_paths.list_names(folder)))
                for name in names:
                    if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                        raise not_a_folder_error(self.folder / name)
        except FileNotFoundError:
            return []
        return names


def damaged_backup_error(path: Path, run: str, problem: str) -> JournalDamaged:
    """Return the error for a backup that differs from what was saved."""
    return JournalDamaged(
        f"a backup of run {run} {problem}",
        why=str(path),
        hint="Nothing was changed. Restore that file from a backup of this machine;\n"
        "other runs can still be undone: gpunode rollback --list",
    )


def _is_backup_intact(name: str, folder: int, content: bytes) -> bool:
    """Return whether the object exists and is complete; one that cannot be read is replaced."""
    try:
        return read_regular_file(name, folder, MAX_BACKUP_BYTES) == content
    except OSError:
        return False


def remove_file(name: str, folder: int) -> None:
    """Delete a file in the open ``folder``, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def replace_private_file(name: str, folder: int, content: bytes) -> None:
    """Write ``content`` to a new file in place of ``name``, readable only by its owner; the name is not synced yet."""
    # Do not open an existing file: a pipe would wait for a reader, and a device would be written.
    remove_file(name, folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
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
