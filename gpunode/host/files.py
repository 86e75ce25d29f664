"""A node's files: read without ever blocking, replaced atomically and durably, and never outside the node's root.

Paths are walked one component at a time on open folders, so a symbolic link, absolute or with ``..``, leads to where it
leads *inside* the root, and nobody who moves a folder meanwhile can change that.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from gpunode.change import FileState
from gpunode.command import command
from gpunode.errors import ChangeFailed, Refused
from gpunode.facts.evidence import Capture, Found, Ownership, encode_found
from gpunode.host import metadata

# The kernel's own limit (path_resolution(7)).
_MOST_LINKS = 40
_TEMPORARY = re.compile(r"\.gpunode-[0-9a-f]{8}")
_LARGEST_STATE = 64 << 20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_IN_USE = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, *_ABSENT})


@dataclass(slots=True)
class _Place:
    """Where a path leads: an open folder and a name in it; ``folders`` are the open ones above, the root first."""

    folders: list[int]
    names: list[str] = field(default_factory=list)
    name: str = "."
    made: list[str] = field(default_factory=list)
    exposed: str = ""

    @property
    def folder(self) -> int:
        return self.folders[-1]

    @property
    def path(self) -> str:
        """The path without symbolic links, inside the root."""
        return "/" + "/".join(self.names + ([] if self.name == "." else [self.name]))

    def enter(self, name: str, *, make: bool) -> None:
        try:
            self.folders.append(_open_folder(name, self.folder))
        except FileNotFoundError:
            if not make:
                raise
            _make_folder(name, self.folder)
            self.folders.append(_open_folder(name, self.folder))
            self.names.append(name)
            self.made.append(self.path)
        else:
            self.names.append(name)
        self.exposed = self.exposed or _exposed_folder("/" + "/".join(self.names), os.fstat(self.folder))

    def leave(self) -> None:
        if self.names:
            os.close(self.folders.pop())
            self.names.pop()

    def to_root(self) -> None:
        while self.names:
            self.leave()

    def close(self) -> None:
        for fd in self.folders:
            os.close(fd)


def _open_folder(name: str, folder: int | None = None) -> int:
    follow = 0 if folder is None else os.O_NOFOLLOW
    return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | follow, dir_fd=folder)


def _exposed_folder(path: str, status: os.stat_result) -> str:
    """By what right somebody else than root could replace what stands in the folder; empty when nobody could."""
    if status.st_uid not in {0, os.geteuid()}:
        return f"{path} belongs to the user with the id {status.st_uid}"
    mode = stat.S_IMODE(status.st_mode)
    by_others = mode & stat.S_IWOTH or (mode & stat.S_IWGRP and status.st_gid not in {0, os.getegid()})
    # Of a sticky folder nobody but an entry's owner can take anything away.
    return f"others may write to {path} (mode {mode:04o})" if by_others and not mode & stat.S_ISVTX else ""


def _make_folder(name: str, folder: int) -> None:
    """A folder as a package would make it: 0755 and root's own, whatever the umask and a set-group-id bit above."""
    # Made with its mode: after a power cut the folder may be there and what was changed of it afterwards not.
    os.mkdir(name, 0o755, dir_fd=folder)
    try:
        os.chown(name, os.geteuid(), os.getegid(), dir_fd=folder)
        os.chmod(name, 0o755, dir_fd=folder)  # noqa: S103
        sync_folder(folder)
    except OSError:
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder)
        raise


@contextmanager
def _readable(folder: int) -> Iterator[int]:
    """The folder, opened to be listed and synced, which a descriptor to walk by cannot."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_folder(folder: int) -> None:
    """Sync the open folder, so that new and renamed files are on the disk."""
    with _readable(folder) as fd:
        os.fsync(fd)


def names(folder: int) -> list[str]:
    """The names in the open folder, sorted."""
    with _readable(folder) as fd, os.scandir(fd) as entries:
        return sorted(entry.name for entry in entries)


def _link(name: str, folder: int) -> str | None:
    """The target of a symbolic link; None for anything else, also for nothing."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.EINVAL, *_ABSENT}:
            return None
        raise


def _parts(path: str) -> list[str]:
    """The components of a path, the last first."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]


@contextmanager
def _place(path: str, root: str, *, make: bool = False) -> Iterator[_Place]:
    """Where ``path`` leads inside ``root``; the last component may be missing, with ``make`` its folders too.

    Whatever then fails, the folders that were made are gone again, unless something stands in them.
    """
    place = _Place([_open_folder(root)])
    try:
        _walk(place, path, make=make)
        yield place
    except BaseException:
        remove_folders(place.made, root=root)
        raise
    finally:
        place.close()


class ForeignLinkError(OSError):
    """A symbolic link of another user has a target that is not his."""

    def __init__(self, link: str, owner: int) -> None:
        why = f"{link} is a symbolic link of uid {owner}, and its target belongs to another user"
        super().__init__(errno.EACCES, why, link)


@dataclass(frozen=True, slots=True)
class _Owned:
    """Stands in a walk after the target of ``link``, where it must have come to something that is ``owner``'s."""

    link: str
    owner: int

    def check(self, place: _Place) -> None:
        """Nothing, unless it is somebody else's, or nothing is there yet that could be his."""
        status = os.fstat(place.folder) if place.name == "." else _lstat(place)
        if status is None or status.st_uid != self.owner:
            raise ForeignLinkError(self.link, self.owner)


def _walk(place: _Place, path: str, *, make: bool) -> None:
    todo: list[str | _Owned] = [*_parts(path)]
    links = 0
    while todo:
        part = todo.pop()
        if isinstance(part, _Owned):
            part.check(place)
            continue
        if part == "..":
            place.leave()
            continue
        target = _link(part, place.folder)
        if target is not None:
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target, owner = _link_and_owner(part, place.folder)
            # As the kernel does in /tmp (protected_symlinks, proc_sys_fs(5)), but everywhere: root follows his own
            # links, root's, and those that lead a user to what is his.
            if owner not in {0, os.geteuid()}:
                place.exposed = place.exposed or f"it goes through a link made by the user with the id {owner}"
                todo.append(_Owned("/".join(("", *place.names, part)), owner))
            if target.startswith("/"):
                place.to_root()
            todo += _parts(target)
        elif any(isinstance(one, str) for one in todo):
            place.enter(part, make=make)
        else:
            place.name = part


def _link_and_owner(name: str, folder: int) -> tuple[str, int]:
    """Both of one link, whatever is put in its place meanwhile."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.readlink("", dir_fd=fd), os.fstat(fd).st_uid
    finally:
        os.close(fd)


@contextmanager
def folder(path: str, *, root: str = "/") -> Iterator[int]:
    """The open folder at ``path``, every symbolic link followed that may be.

    Raises:
        OSError: it is none, or not to be entered.
    """
    with _place(f"{path}/.", root) as place:
        if place.name != ".":
            place.enter(place.name, make=False)
        yield place.folder


def resolve(path: str, *, root: str = "/") -> str:
    """Where ``path`` leads inside ``root``, as a path in it, every symbolic link followed.

    Raises:
        OSError: a folder on the way is missing, or links lead in a circle.
    """
    with _place(path, root) as place:
        return place.path


def read(path: str, limit: int = _LARGEST_STATE, *, root: str = "/", source: str = "") -> Capture:
    """What the file holds; never raises and never waits, whatever stands there.

    Args:
        path: absolute, inside ``root``.
        limit: in bytes; a longer file has failed, since half a file is no evidence.
        root: the node's root.
        source: the name of the capture; the path unless given.
    """
    try:
        with _place(path, root) as place:
            return _read_at(place, limit, source or path)
    except OSError as error:
        return _unread(source or path, error)


def _unread(source: str, error: OSError) -> Capture:
    why = error.strerror or str(error)
    if error.errno in _ABSENT:
        return Capture(source, "absent", error=why)
    is_denied = error.errno in _DENIED and not isinstance(error, ForeignLinkError)  # which root is told, too
    return Capture(source, "denied" if is_denied else "failed", error=why)


def _read_at(place: _Place, limit: int, source: str) -> Capture:
    # Asked before it is opened: opening a device can start it, and a named pipe would wait for a writer.
    status = os.lstat(place.name, dir_fd=place.folder)
    if not stat.S_ISREG(status.st_mode):
        return Capture(source, "failed", error=f"it is {_kind(status)}")
    fd = os.open(place.name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
    try:
        owner = _ownership(os.fstat(fd), place.exposed)
        data = _read_up_to(fd, limit + 1)
    finally:
        os.close(fd)
    if len(data) > limit:
        return Capture(source, "failed", data[:limit], f"longer than {limit} bytes", ownership=owner)
    return Capture(source, "ok", data, ownership=owner)


def _read_up_to(fd: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (chunk := os.read(fd, min(1 << 20, count - len(data)))):
        data += chunk
    return bytes(data)


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file")


def _ownership(status: os.stat_result, exposed: str = "") -> Ownership:
    # From before the clock was set back: such a date says nothing about what came later.
    changed = status.st_ctime if status.st_ctime <= time.time() else None
    return Ownership(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, changed, exposed)


def state(path: str, *, root: str = "/") -> FileState | None:
    """The file's present state; None if there is none.

    Raises:
        Refused: something is there that cannot be read as a file.
    """
    capture = read(path, root=root)
    if capture.outcome == "absent":
        return None
    if capture.outcome != "ok" or capture.ownership is None:
        raise Refused(
            f"{path} cannot be read", why=capture.error, hint=f"look at it with `{command('ls', '-ld', path)}`"
        )
    owner = capture.ownership
    return FileState(capture.data, owner.mode, owner.uid, owner.gid)


def attributes(path: str, *, root: str = "/") -> tuple[tuple[str, bytes], ...]:
    """The extended attributes of the file, by name, but for those that belong to its present content alone.

    Raises:
        OSError: there is no such file, or they cannot be read.
    """
    with _place(path, root) as place:
        return metadata.attributes(place.folder, place.name)


def missing_folders(path: str, *, root: str = "/") -> tuple[str, ...]:
    """The missing folders above ``path``, outermost first.

    Raises:
        OSError: something on the way is no folder, or cannot be entered.
    """
    missing: list[str] = []
    above = path.rpartition("/")[0]
    while above:
        try:
            with _place(f"{above}/.", root) as place:
                if place.name != ".":
                    place.enter(place.name, make=False)
                break
        except FileNotFoundError:
            missing.append(above)
        above = above.rpartition("/")[0]
    return tuple(reversed(missing))


def find(pattern: str, limit: int, *, contents: bool, root: str = "/") -> Capture:
    """What matches ``pattern`` (``*``, ``?`` and ``[…]`` in any component), as ``encode_found`` writes it.

    Nothing matched is an answer too: the outcome is ok and the data empty. A folder that could not be listed makes it
    denied or failed, with what was found elsewhere as the data.

    Args:
        pattern: absolute, inside ``root``.
        limit: in bytes, of each file; the content of a longer one is left out.
        contents: whether the files are read; folders are left out then.
        root: the node's root.
    """
    problems: list[OSError] = []
    found = encode_found(iter(_find("", _parts(pattern), limit if contents else None, root, problems)))
    if problems:
        worst = _unread(pattern, problems[0])
        return Capture(pattern, worst.outcome, found, f"{problems[0].filename}: {worst.error}")
    return Capture(pattern, "ok", found)


def _find(above: str, todo: list[str], limit: int | None, root: str, problems: list[OSError]) -> Iterable[Found]:
    *later, part = todo
    if later and not _is_pattern(part):
        return _find(f"{above}/{part}", later, limit, root, problems)
    try:
        with _place(f"{above}/.", root) as place:
            if place.name != ".":
                place.enter(place.name, make=False)
            names = _matches(place.folder, part)
            if not later:
                if limit is not None:
                    names = [name for name in names if not _is_folder(name, place.folder)]
                return [_found(f"{above}/{name}", name, place, limit, root) for name in names]
    except OSError as error:
        if error.errno not in _ABSENT:
            error.filename = above or "/"
            problems.append(error)
        return ()
    return [one for name in names for one in _find(f"{above}/{name}", later, limit, root, problems)]


def _is_folder(name: str, folder: int) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode)
    return False


def _is_pattern(part: str) -> bool:
    return any(mark in part for mark in "*?[")


def _matches(folder: int, part: str) -> list[str]:
    if not _is_pattern(part):
        with suppress(FileNotFoundError):
            os.lstat(part, dir_fd=folder)
            return [part]
        return []
    hidden = part.startswith(".")
    return [name for name in names(folder) if fnmatch.fnmatchcase(name, part) and hidden == name.startswith(".")]


def _found(path: str, name: str, place: _Place, limit: int | None, root: str) -> Found:
    link = _link(name, place.folder)
    if limit is not None:
        capture = read(path, limit, root=root)
        data = capture.data if capture.outcome == "ok" else None
        return Found(path, link, data, capture.ownership, denied=capture.outcome == "denied")
    with suppress(OSError):
        return Found(path, link, None, None if link else _ownership(os.lstat(name, dir_fd=place.folder)))
    return Found(path, link)


Still: TypeAlias = Callable[[FileState | None], None]


def _whatever(_: FileState | None) -> None:
    """The file may be anything."""


def replace(path: str, state: FileState, *, root: str = "/", still: Still = _whatever) -> None:
    """The file is as ``state`` says, whole and on the disk; before that it is the old one, whole.

    A symbolic link stays and its target is replaced. A former file's extended attributes (SELinux label, ACL,
    capabilities) and flags (chattr(1)) stay; one that comes back gets those of ``state``. Missing folders above are
    made, mode 0755.

    Args:
        path: absolute, inside ``root``.
        state: what it shall be.
        root: the node's root.
        still: called with the file as it is right before it is replaced; raises to leave it.

    Raises:
        Refused: what stands there would lose something; see ``check``.
        ChangeFailed: it could not be written; everything is as it was.
    """
    try:
        with _place(path, root, make=True) as place:
            _replace_at(place, path, state, still)
    except OSError as error:
        raise _failed(path, "written", error) from error


def _replace_at(place: _Place, path: str, state: FileState, still: Still) -> None:
    former = _checked(place, path)
    _sweep(place.folder)
    with _temporary(place.folder) as (name, fd):
        _fill(fd, path, state, place if former else None)
        still(_state_at(place, path))
        os.rename(name, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    # Above a new file also folders that were there: a run that was killed may have made them and not synced them.
    _settle(place, f"{path} was replaced, but may be the old one again after a power cut", new=former is None)


def _settle(place: _Place, otherwise: str, *, new: bool = False) -> None:
    try:
        for folder in reversed(place.folders if new else place.folders[-1:]):
            sync_folder(folder)
    except OSError as error:
        why = f"its folder could not be synced: {error.strerror}"
        raise ChangeFailed(otherwise, why=why, hint=f"{_HINTS[errno.EIO]}, then run the command again") from error


def _state_at(place: _Place, path: str) -> FileState | None:
    """What is there now; of a file that is too long its beginning, which nobody expects either."""
    _refuse_unless_file(path, _lstat(place))
    with suppress(FileNotFoundError):
        capture = _read_at(place, _LARGEST_STATE, path)
        if capture.ownership is not None:
            return FileState(capture.data, capture.ownership.mode, capture.ownership.uid, capture.ownership.gid)
    return None


def _checked(place: _Place, path: str) -> os.stat_result | None:
    """The status of the file that is there, which may be replaced."""
    status = _lstat(place)
    _refuse_unless_file(path, status)
    metadata.refuse_sealed(path, place.folder, place.name if status else None)
    if status is not None:
        metadata.refuse_other_names(path, status)
        metadata.refuse_mount_point(path, place.folder, place.name)
    return status


def check(path: str, *, root: str = "/") -> None:
    """Raise unless the file, if there is one, can be replaced or removed without losing anything.

    Raises:
        Refused: a folder, a device, a pipe or a socket stands there; or a file that has other names, is a mount
            point, is kept from changes by chattr(1) or fs-verity; or the file system is mounted read-only.
    """
    # What else is wrong there is found, and said, by whoever makes the change.
    with suppress(OSError):
        # Where the first missing folder would be made, it is that which must be allowed.
        nearest = next(iter(missing_folders(path, root=root)), path)
        with _place(nearest, root) as place:
            _checked(place, nearest)
            metadata.refuse_read_only(nearest, place.folder)


def _lstat(place: _Place) -> os.stat_result | None:
    try:
        return os.lstat(place.name, dir_fd=place.folder)
    except FileNotFoundError:
        return None


def _refuse_unless_file(path: str, status: os.stat_result | None) -> None:
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise Refused(
            f"{path} is {_kind(status)}, not a file",
            why="gpunode replaces and removes regular files only; nothing was changed",
            hint=f"look at it with `{command('ls', '-ld', path)}`, move it away, then run the command again",
        )


def sweep(path: str, *, root: str = "/") -> None:
    """No temporary file of a run that was killed stands beside ``path`` any more, and what it wrote is on the disk."""
    with suppress(OSError), _place(path, root) as place:
        _sweep(place.folder)
        for folder in place.folders:
            sync_folder(folder)


def _sweep(folder: int) -> None:
    """What a run that was killed in the middle of a write left here is gone; there is only one run at a time."""
    for name in filter(_TEMPORARY.fullmatch, names(folder)):
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)


@contextmanager
def _temporary(folder: int) -> Iterator[tuple[str, int]]:
    """A new file in the folder and a descriptor to write it; gone afterwards unless it was renamed."""
    name = f".gpunode-{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        yield name, fd
    finally:
        # It was synced, so closing has nothing to tell; a draft that cannot be taken away is swept by the next run.
        with suppress(OSError):
            os.close(fd)
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)


def _fill(fd: int, path: str, state: FileState, former: _Place | None) -> None:
    """Flags, content, owner, attributes, mode, in this order.

    btrfs takes the flag C of an empty file alone; a change of owner clears capabilities and set-id bits.
    """
    if former is not None:
        metadata.copy_flags(former.folder, former.name, fd)
    _write(fd, state.content)
    os.fchown(fd, state.uid, state.gid)
    if former is not None:
        metadata.keep_attributes(path, metadata.attributes(former.folder, former.name), fd)
    elif state.attributes:
        metadata.keep_attributes(path, state.attributes, fd)
    os.fchmod(fd, state.mode)
    os.fsync(fd)


def _write(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def prepare(path: str, *, root: str = "/") -> tuple[str, tuple[str, ...]]:
    """Where ``path`` leads inside ``root``, and the folders that were made so that something can stand there.

    Raises:
        ChangeFailed: one could not be made.
    """
    try:
        with _place(path, root, make=True) as place:
            return place.path, tuple(place.made)
    except OSError as error:
        raise _failed(path, "prepared", error, "") from error


def remove_folders(made: Sequence[str], *, root: str = "/") -> None:
    """Remove the folders that were created for a file, unless they contain something else."""
    for path in reversed(made):
        with suppress(OSError), _place(path, root) as place:
            os.rmdir(place.name, dir_fd=place.folder)


def remove_empty(folders: Sequence[str], *, root: str = "/") -> None:
    """The ``folders``, outermost first, are gone, but for those in which something stands by now.

    Raises:
        ChangeFailed: one could not be removed.
    """
    for path in reversed(folders):
        _remove_empty(path, root)


def _remove_empty(path: str, root: str) -> None:
    try:
        with _place(path, root) as place:
            os.rmdir(place.name, dir_fd=place.folder)
            sync_folder(place.folder)
    except OSError as error:
        if error.errno not in _IN_USE:
            raise _failed(path, "removed", error, "; the folder is empty") from error


def remove(path: str, *, root: str = "/", still: Still = _whatever) -> None:
    """There is no file any more, which is on the disk; a symbolic link stays and its target goes, so it can come back.

    Args:
        path: absolute, inside ``root``.
        root: the node's root.
        still: called with the file as it is right before it is removed; raises to leave it.

    Raises:
        Refused: what stands there would lose something; see ``check``.
        ChangeFailed: it could not be removed; it is as it was.
    """
    try:
        with _place(path, root) as place:
            if _checked(place, path) is not None:
                still(_state_at(place, path))
                os.unlink(place.name, dir_fd=place.folder)
                _settle(place, f"{path} was removed, but may be there again after a power cut")
    except OSError as error:
        if error.errno not in _ABSENT:
            raise _failed(path, "removed", error) from error


def create(path: Path, content: bytes) -> None:
    """Create a file with ``content``, readable by its owner only; complete, or not at all.

    Raises:
        FileExistsError: something is there already, be it a link to nothing; it is as it was.
        OSError: it could not be written.
    """
    folder = _open_folder(str(path.parent))
    try:
        with _temporary(folder) as (name, fd):
            _write(fd, content)
            os.fsync(fd)
            _name(name, path.name, folder)
        sync_folder(folder)
    finally:
        os.close(folder)


def _name(draft: str, name: str, folder: int) -> None:
    """``draft`` is called ``name``, too, which was free."""
    try:
        # Not a rename, which would replace what has come there meanwhile.
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        # FAT and some network file systems have no second names.
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP}:
            raise
        if name in names(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def candidate(path: str, content: bytes, *, root: str = "/") -> Iterator[str]:
    """A file with ``content`` beside ``path``, for root alone, and its path inside ``root``; gone afterwards.

    Beside it, so that what the content says relative to its own place means the same.

    Raises:
        ChangeFailed: it could not be written.
    """
    try:
        with _place(path, root, make=True) as place:
            try:
                with _temporary(place.folder) as (name, fd):
                    _write(fd, content)
                    yield "/".join(("", *place.names, name))
            finally:
                remove_folders(place.made, root=root)
    except OSError as error:
        raise _failed(path, "written beside", error) from error


_HINTS = {
    errno.ENOSPC: "free space there (`df -h {folder}`, `df -i {folder}`), then run the command again",
    errno.EDQUOT: "raise the quota there, then run the command again",
    errno.EROFS: "mount it writable (`findmnt -T {folder}`), then run the command again",
    errno.EACCES: "run the command as root",
    errno.EPERM: "run the command as root; `lsattr -d {folder} {path}` shows whether it is immutable",
    errno.EBUSY: "it is a mount point of its own (`findmnt {path}`); unmount it, then run the command again",
    errno.ELOOP: "its symbolic links form a loop (`namei {path}`); correct them, then run the command again",
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`), then run the command again",
    errno.EIO: "the disk reports an error (`dmesg | tail`)",
}


def _failed(path: str, verb: str, error: OSError, then: str = "; the file is as it was") -> ChangeFailed:
    if isinstance(error, ForeignLinkError):
        hint = f"name the file itself, or make the link root's: {command('chown', '-h', 'root', str(error.filename))}"
        return ChangeFailed(f"{path} could not be {verb}", why=f"{error.strerror}{then}", hint=hint)
    hint = _HINTS.get(error.errno or 0, "correct that, then run the command again")
    folder = path.rpartition("/")[0] or "/"
    return ChangeFailed(
        f"{path} could not be {verb}",
        why=f"{error.strerror or error}{then}",
        hint=hint.format(path=shlex.quote(path), folder=shlex.quote(folder)),
    )
