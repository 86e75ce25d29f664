"""Write output files that the user requested: complete or not at all, through open folders.

The parent folder is opened once, without following another user's links. Files are made, checked and renamed through
that descriptor, so the folder's owner can spoil the result but reach nothing outside it.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias

from gpunode.host import rooted_paths

_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
ContentWriter: TypeAlias = Callable[[IO[bytes]], object]


def write_output(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write ``content`` to ``path`` with ``mode``, atomically.

    This needs only write access to the folder. A link at ``path`` is replaced, never followed. The temporary file
    beside it is hidden and has no suffix of ``path``, so that nothing mistakes it for the file.

    Raises:
        OSError: if it could not be written; the old file stays.
    """
    write_output_with(path, lambda file: file.write(content), mode)


def write_output_with(path: Path, write: ContentWriter, mode: int = 0o600) -> None:
    """Write ``path`` as ``write_output`` does, with the content that ``write`` produces.

    Raises:
        OSError: if it could not be written; the old file stays.
    """
    with _open_parent(path) as folder:
        draft = _draft_name(path.name)
        try:
            _create_draft(draft, folder, write, mode)
            os.rename(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise
        rooted_paths.sync_folder(folder)


def remove_output(path: Path) -> None:
    """Remove the file at ``path``.

    Raises:
        OSError: if it could not be removed.
    """
    with _open_parent(path) as folder:
        os.unlink(path.name, dir_fd=folder)


def create_output(path: Path, content: bytes) -> None:
    """Create a private file with ``content``, complete or not at all.

    Raises:
        FileExistsError: if something exists, even a dangling link; it is left alone.
        OSError: if it could not be written.
    """
    with _open_parent(path) as folder:
        draft = _draft_name(path.name)
        try:
            _create_draft(draft, folder, lambda file: file.write(content), 0o600)
            _link_draft(draft, path.name, folder)
        finally:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
        rooted_paths.sync_folder(folder)


def _link_draft(draft: str, name: str, folder: int) -> None:
    """Link ``draft`` as ``name``, which must be free."""
    try:
        # A rename would replace a file that has appeared meanwhile.
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        # FAT and some network file systems have no hard links.
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP}:
            raise
        if name in rooted_paths.list_names(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _open_parent(path: Path) -> Iterator[int]:
    with rooted_paths.open_folder(os.path.abspath(path.parent)) as fd:  # noqa: PTH100 - resolve() would follow every link
        yield fd


def _draft_name(name: str) -> str:
    return f".{name}.{secrets.token_hex(4)}"


def _create_draft(name: str, folder: int, write: ContentWriter, mode: int) -> None:
    with os.fdopen(os.open(name, _NEW_FILE_FLAGS, 0o600, dir_fd=folder), "wb") as file:
        write(file)
        file.flush()
        os.fchmod(file.fileno(), mode)  # ignore the umask: another user's program may have to read it
        os.fsync(file.fileno())
