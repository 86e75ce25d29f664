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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias

from gpunode.host import places

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Larger than any file that gpunode writes: one that somebody else puts there must not fill the memory.
_MOST_BYTES = 64 << 20
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
        _replace_in(folder, path.name, write, mode)


def _replace_in(folder: int, name: str, write: Write, mode: int) -> None:
    draft = _draft(name)
    try:
        _create(draft, folder, write, mode)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    places.sync_folder(folder)


class OutputFolder:
    """A folder of files, one folder deep, in which each folder is opened once and never through a link.

    Whoever owns the folder may move and replace things meanwhile: what is read, written and removed is in the folders
    that were opened.
    """

    def __init__(self, folder: int) -> None:
        self._folders = {"": folder}

    def close(self) -> None:
        """Close the folders inside."""
        for name, fd in self._folders.items():
            if name:
                os.close(fd)

    def enter(self, name: str, *, make: bool = False) -> bool:
        """Open the inner folder ``name``, which is made if it may be; return False if there is none.

        Raises:
            NotADirectoryError: something else is there, such as a link.
        """
        if name not in self._folders:
            try:
                self._folders[name] = _entered(name, self._folders[""], make=make)
            except FileNotFoundError:
                return False
        return True

    def is_enterable(self, name: str) -> bool:
        """Return whether ``name`` is an inner folder or nothing yet, and no link or other file."""
        try:
            self.enter(name)
        except NotADirectoryError:
            return False
        return True

    def names(self, name: str) -> list[str]:
        """Return the names in the inner folder ``name``, sorted; none if it is not there."""
        return places.names(self._folders[name]) if self.enter(name) else []

    def is_there(self, path: str) -> bool:
        """Return whether there is anything at ``path``."""
        return path.rpartition("/")[2] in self.names(path.rpartition("/")[0])

    def read(self, path: str) -> bytes | None:
        """Return what the file at ``path`` holds; None if no plain file is there: a link is none."""
        within, _, name = path.rpartition("/")
        if not self.enter(within):
            return None
        with _plain_file(name, self._folders[within]) as file:
            return file.read(_MOST_BYTES) if file else None

    def replace(self, path: str, content: bytes, mode: int) -> None:
        """Write ``content`` at ``path``, complete or not at all; its folder is made. A link there is replaced."""
        within, _, name = path.rpartition("/")
        self.enter(within, make=True)
        _replace_in(self._folders[within], name, lambda file: file.write(content), mode)

    def remove(self, path: str, is_ours: Callable[[bytes], bool]) -> bool:
        """Remove the plain file at ``path`` if it ``is_ours`` by what it holds now; return whether it was."""
        within, _, name = path.rpartition("/")
        folder = self._folders[within]
        with _plain_file(name, folder) as file:
            if file is None or not is_ours(file.read(_MOST_BYTES)):
                return False
            if not os.path.samestat(os.lstat(name, dir_fd=folder), os.fstat(file.fileno())):
                return False
            os.unlink(name, dir_fd=folder)
            return True


@contextmanager
def tree(path: Path) -> Iterator[OutputFolder]:
    """Open the folder at ``path``; it is made, with those above it.

    Raises:
        NotADirectoryError: something else is there.
        OSError: it cannot be entered, or not be made.
    """
    whole = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow every link
    with ExitStack() as stack:
        missing = places.missing_folders(f"{whole}/.")
        above = missing[0].rpartition("/")[0] if missing else whole
        fd = stack.enter_context(places.folder(above))
        for one in missing:
            fd = _entered(one.rpartition("/")[2], fd, make=True)
            stack.callback(os.close, fd)
        found = OutputFolder(fd)
        stack.callback(found.close)
        yield found


def _entered(name: str, folder: int, *, make: bool) -> int:
    """Return the open folder ``name``, which is no link.

    Raises:
        FileNotFoundError: it is not there, and not to be made.
        NotADirectoryError: something else is there.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:  # what some file systems say of a link
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from error
        raise


@contextmanager
def _plain_file(name: str, folder: int) -> Iterator[IO[bytes] | None]:
    """Yield the open file; None if it is none, such as a link, a folder or a pipe, or may not be read."""
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
        draft = _draft(path.name)
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
        draft = _draft(path.name)
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


def _draft(name: str) -> str:
    return f".{name}.{secrets.token_hex(4)}"


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
