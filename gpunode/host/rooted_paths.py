"""Path resolution inside a node's root, one component at a time on open folders.

Symbolic links, absolute or with ``..``, are resolved *inside* the root, even if somebody moves a folder meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field

from gpunode.fast_dataclass import dataclass

# The kernel's own limit (path_resolution(7)).
_MAX_FOLLOWED_LINKS = 40
ABSENT_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR})


@dataclass(slots=True)
class OpenedPath:
    """A resolved path: an open folder and a name in it.

    Attributes:
        folders: descriptors of the folders above, the root first, without missing ones.
        made_folders: those that were made.
        missing: those that would have to be made, outermost first; they are in ``names`` but not in ``folders``.
    """

    folders: list[int]
    names: list[str] = field(default_factory=list)
    name: str = "."
    made_folders: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    exposed: str = ""

    @property
    def folder(self) -> int:
        """The open folder of the name."""
        return self.folders[-1]

    @property
    def path(self) -> str:
        """The path without symbolic links, inside the root."""
        return "/" + "/".join(self.names + ([] if self.name == "." else [self.name]))

    @property
    def is_missing(self) -> bool:
        """True in a folder that would have to be made."""
        return len(self.names) >= len(self.folders)

    def enter(self, name: str, *, make: bool = False, pretend: bool = False, mode: int = 0o755) -> None:
        """Enter the folder ``name``; a missing one is made with ``mode`` if ``make``, and noted if ``pretend``."""
        if pretend and (self.is_missing or self._is_absent(name)):
            self.names.append(name)
            self.missing += [] if self.path in self.missing else [self.path]  # ``a/../a`` visits it twice
            return
        try:
            self.folders.append(_open_folder(name, self.folder))
        except FileNotFoundError:
            if not make:
                raise
            _make_folder(name, self.folder, mode)
            self.folders.append(_open_folder(name, self.folder))
            self.names.append(name)
            self.made_folders.append(self.path)
        else:
            self.names.append(name)
        self.exposed = self.exposed or _describe_folder_exposure("/" + "/".join(self.names), os.fstat(self.folder))

    def _is_absent(self, name: str) -> bool:
        try:
            os.lstat(name, dir_fd=self.folder)
        except FileNotFoundError:
            return True
        return False

    def leave(self) -> None:
        """Go up one folder, but not above the root."""
        if self.names:
            if not self.is_missing:
                os.close(self.folders.pop())
            self.names.pop()

    def return_to_root(self) -> None:
        """Go to the root."""
        while self.names:
            self.leave()

    def status(self) -> os.stat_result | None:
        """Return the status of the name; None if it does not exist."""
        if self.is_missing:
            return None
        try:
            return os.lstat(self.name, dir_fd=self.folder)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """Close the folders."""
        for fd in self.folders:
            os.close(fd)


def _open_folder(name: str, folder: int | None = None) -> int:
    follow = 0 if folder is None else os.O_NOFOLLOW
    return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | follow, dir_fd=folder)


def _describe_folder_exposure(path: str, status: os.stat_result) -> str:
    """Return how users other than root could replace files in the folder; empty if none could."""
    if status.st_uid not in {0, os.geteuid()}:
        return f"{path} belongs to uid {status.st_uid}"
    mode = stat.S_IMODE(status.st_mode)
    by_others = mode & stat.S_IWOTH or (mode & stat.S_IWGRP and status.st_gid not in {0, os.getegid()})
    # In a sticky folder only an entry's owner can remove it.
    return f"others can write to {path} (mode {mode:04o})" if by_others and not mode & stat.S_ISVTX else ""


def _make_folder(name: str, folder: int, mode: int) -> None:
    """Make a folder as a package would: with ``mode``, owned by root, regardless of umask and set-group-id bits."""
    # Create it with its mode: after a power cut the folder may exist without a later chmod.
    os.mkdir(name, mode, dir_fd=folder)
    try:
        os.chown(name, os.geteuid(), os.getegid(), dir_fd=folder)
        os.chmod(name, mode, dir_fd=folder)
        sync_folder(folder)
    except OSError:
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder)
        raise


@contextmanager
def _open_readable(folder: int) -> Iterator[int]:
    """Open the folder for listing and syncing, which a path descriptor does not allow."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_folder(folder: int) -> None:
    """Sync the open folder, so that new and renamed files are on the disk."""
    with _open_readable(folder) as fd:
        os.fsync(fd)


def list_names(folder: int) -> list[str]:
    """Return the names in the open folder, sorted."""
    with _open_readable(folder) as fd, os.scandir(fd) as entries:
        return sorted(entry.name for entry in entries)


def read_link_target(name: str, folder: int) -> str | None:
    """Return the target of a symbolic link; None if it is not a link or does not exist."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.EINVAL, *ABSENT_ERRNOS}:
            return None
        raise


def split_path_reversed(path: str) -> list[str]:
    """Return the components of a path, the last first."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]


@contextmanager
def open_path(path: str, root: str, *, make: bool = False) -> Iterator[OpenedPath]:
    """Resolve ``path`` inside ``root``; the last component may be missing, and its folders are made with ``make``.

    On an error, folders that were made are removed again if they are empty.
    """
    place = OpenedPath([_open_folder(root)])
    try:
        _walk_path(place, path, make=make)
        yield place
    except BaseException:
        remove_folders(place.made_folders, root=root)
        raise
    finally:
        place.close()


class ForeignLinkError(OSError):
    """A symbolic link of a user other than root leads to a target of another user."""

    def __init__(self, link: str, owner: int) -> None:
        why = f"{link} is a symbolic link of uid {owner}, and its target belongs to another user"
        super().__init__(errno.EACCES, why, link)


@dataclass(frozen=True, slots=True)
class _OwnerCheck:
    """A marker after the target of ``link``, which must belong to ``owner``."""

    link: str
    owner: int

    def check(self, place: OpenedPath) -> None:
        """Raise unless the target exists and belongs to the owner."""
        is_folder = place.name == "." and not place.is_missing
        status = os.fstat(place.folder) if is_folder else place.status()
        if status is None or status.st_uid != self.owner:
            raise ForeignLinkError(self.link, self.owner)


def _walk_path(place: OpenedPath, path: str, *, make: bool = False, pretend: bool = False) -> None:
    todo: list[str | _OwnerCheck] = [*split_path_reversed(path)]
    links = 0
    while todo:
        part = todo.pop()
        if isinstance(part, _OwnerCheck):
            part.check(place)
            continue
        if part == "..":
            place.leave()
            continue
        target = None if place.is_missing else read_link_target(part, place.folder)
        if target is not None:
            links += 1
            if links > _MAX_FOLLOWED_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target, owner = _read_link_and_owner(part, place.folder)
            # Apply the kernel's rule for /tmp (protected_symlinks, proc_sys_fs(5)) everywhere: follow links of this
            # user and of root, and those whose owner also owns the target.
            if owner not in {0, os.geteuid()}:
                place.exposed = place.exposed or f"its path contains a link made by uid {owner}"
                todo.append(_OwnerCheck("/".join(("", *place.names, part)), owner))
            if target.startswith("/"):
                place.return_to_root()
            todo += split_path_reversed(target)
        elif any(isinstance(one, str) for one in todo):
            place.enter(part, make=make, pretend=pretend)
        else:
            place.name = part


def _read_link_and_owner(name: str, folder: int) -> tuple[str, int]:
    """Read target and owner of the same link, even if it is replaced meanwhile."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.readlink("", dir_fd=fd), os.fstat(fd).st_uid
    finally:
        os.close(fd)


@contextmanager
def open_folder(path: str, *, root: str = "/") -> Iterator[int]:
    """Open the folder at ``path``, following permitted symbolic links.

    Raises:
        OSError: if it is not a folder, or cannot be entered.
    """
    with open_path(f"{path}/.", root) as place:
        if place.name != ".":
            place.enter(place.name)
        yield place.folder


def resolve_path(path: str, *, root: str = "/") -> str:
    """Resolve every symbolic link of ``path`` inside ``root``, and return the path in it; folders may be missing.

    Raises:
        OSError: if links form a loop.
    """
    return _look_up(path, root).path


def missing_folders(path: str, *, root: str = "/") -> tuple[str, ...]:
    """Return the missing folders above what ``path`` leads to, outermost first.

    Raises:
        OSError: if a component is not a folder, or cannot be entered.
    """
    return tuple(_look_up(path, root).missing)


def _look_up(path: str, root: str) -> OpenedPath:
    place = OpenedPath([_open_folder(root)])
    try:
        _walk_path(place, path, pretend=True)
        if path.endswith("/."):
            last, place.name = place.name, "."
            place.enter(last, pretend=True)
    finally:
        place.close()
    return place


def remove_folders(folders: Sequence[str], *, root: str = "/") -> None:
    """Remove the folders that were created for a file, unless they contain something else."""
    for path in reversed(folders):
        with suppress(OSError), open_path(path, root) as place:
            os.rmdir(place.name, dir_fd=place.folder)
