"""Write output files that the user requested: complete or not at all, through open folders.

The parent folder is opened once, without following another user's links. Files are made, checked and renamed through
that descriptor, so the folder's owner can spoil the result but reach nothing outside it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias

from gpunode.host import places

_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Larger than any file that gpunode writes; a file that somebody else puts there must not exhaust memory.
_MAX_READ_BYTES = 64 << 20
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
        _replace_file_in_folder(folder, path.name, write, mode)


def _replace_file_in_folder(folder: int, name: str, write: ContentWriter, mode: int) -> None:
    draft = _draft_name(name)
    try:
        _create_draft(draft, folder, write, mode)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    places.sync_folder(folder)


class OutputFolder:
    """A folder of files, one level deep, in which each folder is opened once and never through a link.

    Its owner may move and replace things meanwhile: files are read, written and removed in the opened folders only.
    """

    def __init__(self, folder: int) -> None:
        self._folders = {"": folder}

    def close(self) -> None:
        """Close the folders inside."""
        for name, fd in self._folders.items():
            if name:
                os.close(fd)

    def enter(self, name: str, *, make: bool = False) -> bool:
        """Open the inner folder ``name``, made if ``make``; return False if there is none.

        Raises:
            NotADirectoryError: if something else is there, such as a link.
        """
        if name not in self._folders:
            try:
                self._folders[name] = _open_inner_folder(name, self._folders[""], make=make)
            except FileNotFoundError:
                return False
        return True

    def can_be_folder(self, name: str) -> bool:
        """Return whether ``name`` is an inner folder or nothing yet, and no link or other file."""
        try:
            self.enter(name)
        except NotADirectoryError:
            return False
        return True

    def list_names(self, name: str) -> list[str]:
        """Return the names in the inner folder ``name``, sorted; none if it is not there."""
        return places.list_names(self._folders[name]) if self.enter(name) else []

    def has_entry(self, path: str) -> bool:
        """Return whether there is anything at ``path``."""
        return path.rpartition("/")[2] in self.list_names(path.rpartition("/")[0])

    def read(self, path: str) -> bytes | None:
        """Return the content of ``path``; None unless it is a plain file, and no link."""
        within, _, name = path.rpartition("/")
        if not self.enter(within):
            return None
        with _open_plain_file(name, self._folders[within]) as file:
            return file.read(_MAX_READ_BYTES) if file else None

    def replace(self, path: str, content: bytes, mode: int) -> None:
        """Write ``content`` at ``path``, complete or not at all; its folder is made. A link there is replaced."""
        within, _, name = path.rpartition("/")
        self.enter(within, make=True)
        _replace_file_in_folder(self._folders[within], name, lambda file: file.write(content), mode)

    def remove(self, path: str, is_ours: Callable[[bytes], bool]) -> bool:
        """Remove the plain file at ``path`` if ``is_ours`` accepts its content; return whether it did."""
        within, _, name = path.rpartition("/")
        folder = self._folders[within]
        with _open_plain_file(name, folder) as file:
            if file is None or not is_ours(file.read(_MAX_READ_BYTES)):
                return False
            if not os.path.samestat(os.lstat(name, dir_fd=folder), os.fstat(file.fileno())):
                return False
            os.unlink(name, dir_fd=folder)
            return True


@contextmanager
def open_output_folder(path: Path) -> Iterator[OutputFolder]:
    """Open the folder at ``path``; create it and its parents if needed.

    Raises:
        NotADirectoryError: if something else is there.
        OSError: if it cannot be entered or made.
    """
    whole = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow every link
    with ExitStack() as stack:
        missing = places.missing_folders(f"{whole}/.")
        above = missing[0].rpartition("/")[0] if missing else whole
        fd = stack.enter_context(places.open_folder(above))
        for one in missing:
            fd = _open_inner_folder(one.rpartition("/")[2], fd, make=True)
            stack.callback(os.close, fd)
        output_folder = OutputFolder(fd)
        stack.callback(output_folder.close)
        yield output_folder


def _open_inner_folder(name: str, folder: int, *, make: bool) -> int:
    """Return the open folder ``name``, which must not be a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:  # some file systems report a link this way
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from error
        raise


@contextmanager
def _open_plain_file(name: str, folder: int) -> Iterator[IO[bytes] | None]:
    """Yield the open file; None if it is not a plain file (a link, folder or pipe) or may not be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:
            raise
        yield None
        return
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        yield None
        return
    with os.fdopen(fd, "rb") as file:
        yield file


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
        places.sync_folder(folder)


def _link_draft(draft: str, name: str, folder: int) -> None:
    """Link ``draft`` as ``name``, which must be free."""
    try:
        # A rename would replace a file that has appeared meanwhile.
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        # FAT and some network file systems have no hard links.
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP}:
            raise
        if name in places.list_names(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _open_parent(path: Path) -> Iterator[int]:
    with places.open_folder(os.path.abspath(path.parent)) as fd:  # noqa: PTH100 - resolve() would follow every link
        yield fd


def _draft_name(name: str) -> str:
    return f".{name}.{secrets.token_hex(4)}"


def _create_draft(name: str, folder: int, write: ContentWriter, mode: int) -> None:
    with os.fdopen(os.open(name, _NEW_FILE_FLAGS, 0o600, dir_fd=folder), "wb") as file:
        write(file)
        file.flush()
        os.fchmod(file.fileno(), mode)  # ignore the umask: another user's program may have to read it
        os.fsync(file.fileno())
