"""Write output files that the user requested: complete or not at all, through open folders.

The folder above is opened once, by the walk that follows no link of another user's. What is made in it is made, checked
and renamed by that descriptor, so whoever owns the folder can spoil the result and reach nothing outside of it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias

from gpunode.host import places

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
Write: TypeAlias = Callable[[IO[bytes]], object]


def replace(path: Path, content: bytes, mode: int = 0o644) -> None:
    """The file at ``path`` is ``content``, with ``mode``; before that it is the old one, whole.

    It needs the right to write in its folder, and no other. A link at ``path`` is replaced, never followed. The draft
    beside it is hidden and keeps no suffix of ``path``, so that nobody takes it for the file.

    Raises:
        OSError: it could not be written; the old one is as it was.
    """
    replace_by(path, lambda file: file.write(content), mode)


def replace_by(path: Path, write: Write, mode: int = 0o600) -> None:
    """As ``replace``, with what ``write`` writes.

    Raises:
        OSError: it could not be written; the old one is as it was.
    """
    with _above(path) as folder:
        draft = _draft(path)
        try:
            _create(draft, folder, write, mode)
            os.rename(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise
        places.sync_folder(folder)


def make_folder(path: Path, members: Mapping[str, bytes]) -> None:
    """The folder at ``path`` is new and holds ``members``, all of it for its owner alone.

    Args:
        path: where nothing is, or an empty folder.
        members: by name, at most one folder deep.

    Raises:
        OSError: it could not be written, or somebody put another folder in its place; nothing of ours is left.
    """
    with _above(path) as above:
        _refuse_occupied(path, above)
        draft = _draft(path)
        os.mkdir(draft, 0o700, dir_fd=above)
        with _own_folder(draft, above) as folder:
            try:
                _fill(folder, members)
                os.rename(draft, path.name, src_dir_fd=above, dst_dir_fd=above)
                _refuse_another(path.name, above, folder)
            except BaseException:
                _empty(folder, members)
                with suppress(OSError):
                    os.rmdir(draft, dir_fd=above)
                raise
        places.sync_folder(above)


def create(path: Path, content: bytes) -> None:
    """A new file with ``content``, readable by its owner only; complete, or not at all.

    Raises:
        FileExistsError: something is there already, be it a link to nothing; it is as it was.
        OSError: it could not be written.
    """
    with _above(path) as folder:
        draft = _draft(path)
        try:
            _create(draft, folder, lambda file: file.write(content), 0o600)
            _name(draft, path.name, folder)
        finally:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
        places.sync_folder(folder)


def _name(draft: str, name: str, folder: int) -> None:
    """``draft`` is called ``name``, too, which was free."""
    try:
        # Not a rename, which would replace what has come there meanwhile.
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        # FAT and some network file systems have no second names.
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP}:
            raise
        if name in places.names(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def _above(path: Path) -> Iterator[int]:
    with places.folder(os.path.abspath(path.parent)) as fd:  # noqa: PTH100 - resolve() would follow every link
        yield fd


def _draft(path: Path) -> str:
    return f".{path.name}.{secrets.token_hex(4)}"


def _create(name: str, folder: int, write: Write, mode: int) -> None:
    with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as file:
        write(file)
        file.flush()
        os.fchmod(file.fileno(), mode)  # whatever the umask: another user's program may read it
        os.fsync(file.fileno())


def _refuse_occupied(path: Path, above: int) -> None:
    with suppress(FileNotFoundError):
        is_folder = stat.S_ISDIR(os.lstat(path.name, dir_fd=above).st_mode)
        if is_folder:
            with _opened(path.name, above) as folder:
                is_folder = not places.names(folder)
        if not is_folder:
            raise FileExistsError(errno.EEXIST, "it is there and is not an empty folder", str(path))


@contextmanager
def _opened(name: str, above: int) -> Iterator[int]:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _own_folder(name: str, above: int) -> Iterator[int]:
    """The new folder ``name``, which is ours, closed to others and empty; not what came there in its place."""
    with _opened(name, above) as folder:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077 or places.names(folder):
            raise _swapped()
        yield folder


def _refuse_another(name: str, above: int, folder: int) -> None:
    if not os.path.samestat(os.lstat(name, dir_fd=above), os.fstat(folder)):
        raise _swapped()


def _swapped() -> OSError:
    return OSError(errno.EPERM, "somebody with write access to its folder replaced it meanwhile")


def _fill(folder: int, members: Mapping[str, bytes]) -> None:
    for name in _folders(members):
        os.mkdir(name, 0o700, dir_fd=folder)
    for name, data in members.items():
        within, _, base = name.rpartition("/")
        with _opened(within or ".", folder) as where:
            _create(base, where, lambda file, data=data: file.write(data), 0o600)  # type: ignore[misc]


def _folders(members: Mapping[str, bytes]) -> list[str]:
    return [name for name in dict.fromkeys(name.rpartition("/")[0] for name in members) if name]


def _empty(folder: int, members: Mapping[str, bytes]) -> None:
    """Nothing of ours is in the folder, wherever it is by now."""
    for name in members:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
    for name in _folders(members):
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder)
