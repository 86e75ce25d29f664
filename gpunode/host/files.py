"""A node's files: read without ever blocking, replaced atomically and durably, and never outside the node's root.

Where a path leads is ``places``' business.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from gpunode.change import FileState
from gpunode.command import command
from gpunode.errors import ChangeFailed, Refused
from gpunode.facts.evidence import Capture, Ownership
from gpunode.host.places import ABSENT, ForeignLinkError, Place, at, missing_folders, names, remove_folders, sync_folder

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
_IN_USE = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, *ABSENT})


def read(path: str, limit: int = _LARGEST_STATE, *, root: str = "/", source: str = "") -> Capture:
    """What the file holds; never raises and never waits, whatever stands there.

    Args:
        path: absolute, inside ``root``.
        limit: in bytes; a longer file has failed, since half a file is no evidence.
        root: the node's root.
        source: the name of the capture; the path unless given.
    """
    try:
        with at(path, root) as place:
            return _read_at(place, limit, source or path)
    except OSError as error:
        return unread(source or path, error)


def unread(source: str, error: OSError) -> Capture:
    """What is captured of something that could not be read."""
    why = error.strerror or str(error)
    if error.errno in ABSENT:
        return Capture(source, "absent", error=why)
    is_denied = error.errno in _DENIED and not isinstance(error, ForeignLinkError)  # which root is told, too
    return Capture(source, "denied" if is_denied else "failed", error=why)


def _read_at(place: Place, limit: int, source: str) -> Capture:
    # Asked before it is opened: opening a device can start it, and a named pipe would wait for a writer.
    status = os.lstat(place.name, dir_fd=place.folder)
    if not stat.S_ISREG(status.st_mode):
        return Capture(source, "failed", error=f"it is {_kind(status)}")
    fd = os.open(place.name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
    try:
        owner = ownership(os.fstat(fd), place.exposed)
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


def ownership(status: os.stat_result, exposed: str = "") -> Ownership:
    """Return whose it is, when that or its content was last changed, and when the content was last written."""
    # From before the clock was set back: such a date says nothing about what came later.
    changed = status.st_ctime if status.st_ctime <= time.time() else None
    return Ownership(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, changed, exposed, status.st_mtime)


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
    with at(path, root) as place:
        return _attributes_in(place.folder, place.name)


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
        with at(path, root, make=True) as place:
            _replace_at(place, path, state, still)
    except OSError as error:
        raise _failed(path, "written", error) from error


def _replace_at(place: Place, path: str, state: FileState, still: Still) -> None:
    former = _checked(place, path)
    _sweep(place.folder)
    with _temporary(place.folder) as (name, fd):
        _fill(fd, path, state, place if former else None)
        still(_state_at(place, path))
        os.rename(name, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    # Above a new file also folders that were there: a run that was killed may have made them and not synced them.
    _settle(place, f"{path} was replaced, but may be the old one again after a power cut", new=former is None)


def _settle(place: Place, otherwise: str, *, new: bool = False) -> None:
    try:
        for folder in reversed(place.folders if new else place.folders[-1:]):
            sync_folder(folder)
    except OSError as error:
        why = f"its folder could not be synced: {error.strerror}"
        raise ChangeFailed(otherwise, why=why, hint=f"{_HINTS[errno.EIO]}, then run the command again") from error


def _state_at(place: Place, path: str) -> FileState | None:
    """What is there now; of a file that is too long its beginning, which nobody expects either."""
    _refuse_unless_file(path, place.status())
    with suppress(FileNotFoundError):
        capture = _read_at(place, _LARGEST_STATE, path)
        if capture.ownership is not None:
            return FileState(capture.data, capture.ownership.mode, capture.ownership.uid, capture.ownership.gid)
    return None


def _checked(place: Place, path: str) -> os.stat_result | None:
    """The status of the file that is there, which may be replaced."""
    status = place.status()
    _refuse_unless_file(path, status)
    _refuse_sealed(path, place.folder, place.name if status else None)
    if status is not None:
        _refuse_other_names(path, status)
        _refuse_mount_point(path, place.folder, place.name)
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
        with at(nearest, root) as place:
            _checked(place, nearest)
            _refuse_read_only(nearest, place.folder)


def _refuse_unless_file(path: str, status: os.stat_result | None) -> None:
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise Refused(
            f"{path} is {_kind(status)}, not a file",
            why="gpunode replaces and removes regular files only; nothing was changed",
            hint=f"look at it with `{command('ls', '-ld', path)}`, move it away, then run the command again",
        )


def sweep(path: str, *, root: str = "/") -> None:
    """No temporary file of a run that was killed stands beside ``path`` any more, and what it wrote is on the disk."""
    with suppress(OSError), at(path, root) as place:
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


def _fill(fd: int, path: str, state: FileState, former: Place | None) -> None:
    """Flags, content, owner, attributes, mode, in this order.

    btrfs takes the flag C of an empty file alone; a change of owner clears capabilities and set-id bits.
    """
    if former is not None:
        _copy_flags(former.folder, former.name, fd)
    _write(fd, state.content)
    os.fchown(fd, state.uid, state.gid)
    if former is not None:
        _keep_attributes(path, _attributes_in(former.folder, former.name), fd)
    elif state.attributes:
        _keep_attributes(path, state.attributes, fd)
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
        with at(path, root, make=True) as place:
            return place.path, tuple(place.made)
    except OSError as error:
        raise _failed(path, "prepared", error, "") from error


def remove_empty(folders: Sequence[str], *, root: str = "/") -> None:
    """The ``folders``, outermost first, are gone, but for those in which something stands by now.

    Raises:
        ChangeFailed: one could not be removed.
    """
    for path in reversed(folders):
        _remove_empty(path, root)


def _remove_empty(path: str, root: str) -> None:
    try:
        with at(path, root) as place:
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
        with at(path, root) as place:
            if _checked(place, path) is not None:
                still(_state_at(place, path))
                os.unlink(place.name, dir_fd=place.folder)
                _settle(place, f"{path} was removed, but may be there again after a power cut")
    except OSError as error:
        if error.errno not in ABSENT:
            raise _failed(path, "removed", error) from error


@contextmanager
def candidate(path: str, content: bytes, *, root: str = "/") -> Iterator[str]:
    """A file with ``content`` beside ``path``, for root alone, and its path inside ``root``; gone afterwards.

    Beside it, so that what the content says relative to its own place means the same.

    Raises:
        ChangeFailed: it could not be written.
    """
    try:
        with at(path, root, make=True) as place:
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


# They hold a digest of the old content and belong to it alone.
_CONTENT_BOUND = frozenset({"security.ima", "security.evm"})
# What a folder's default ACL gives to every new file in it.
_INHERITED = "system.posix_acl_access"
# The file system has no room or no life: nothing that the attribute is to blame for.
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
# FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of linux/fs.h: declared with a long, though an int is passed.
_GET_FLAGS, _SET_FLAGS = (
    way << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | number for way, number in ((2, 1), (1, 2))
)
_IMMUTABLE, _APPEND_ONLY, _VERITY = 0x10, 0x20, 0x100000
# chattr's s, u, c, S, d, A, m, j, t and C: what a user may set and a new file can have.
_KEPT_FLAGS = 0x1 | 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x400 | 0x4000 | 0x8000 | 0x800000
_LEFT = "it was left as it is"


def _attributes_in(folder: int, name: str) -> tuple[tuple[str, bytes], ...]:
    """The extended attributes by name, but for those that belong to the present content alone. Raises OSError."""
    # By way of /proc, since the calls on a name cannot start at an open folder.
    path = f"/proc/self/fd/{folder}/{name}"
    names = sorted(set(_listed(path)) - _CONTENT_BOUND)
    return tuple((one, os.getxattr(path, one, follow_symlinks=False)) for one in names)


def _listed(path: str) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in {errno.ENOTSUP, errno.ENOENT}:
            return []
        raise


def _keep_attributes(path: str, wanted: Sequence[tuple[str, bytes]], fd: int) -> None:
    """The new file has the ``wanted`` attributes, and no ACL that its folder gave it beside them.

    Raises:
        ChangeFailed: one of them cannot be set, such as a label in a container.
        OSError: the file system takes none any more.
    """
    present = dict(_present(fd))
    for name, value in wanted:
        if present.get(name) != value:
            _set_attribute(path, name, value, fd)
    if _INHERITED in present and _INHERITED not in dict(wanted):
        os.removexattr(fd, _INHERITED)


def _present(fd: int) -> Iterator[tuple[str, bytes]]:
    with suppress(OSError):
        yield from ((name, os.getxattr(fd, name)) for name in os.listxattr(fd))


def _set_attribute(path: str, name: str, value: bytes, fd: int) -> None:
    try:
        os.setxattr(fd, name, value)
    except OSError as error:
        if error.errno in _DISK:
            raise
        raise ChangeFailed(
            f"{path} could not be written",
            why=f"its extended attribute {name} cannot be kept: {error.strerror}; the file is as it was",
            hint=f"look at it with `{command('getfattr', '-d', '-m', '-', path)}`; if it is not needed, "
            f"`{command('setfattr', '-x', name, path)}`, then run the command again",
        ) from error


def _copy_flags(folder: int, name: str, fd: int) -> None:
    """The new file has the flags (chattr(1)) of the one at ``name``; those that no new file can have are refused."""
    with _opened(folder, name) as old:
        wanted = _flags(old) & _KEPT_FLAGS
    present = _flags(fd)
    if present & _KEPT_FLAGS != wanted:
        fcntl.ioctl(fd, _SET_FLAGS, struct.pack("I", present & ~_KEPT_FLAGS | wanted))


@contextmanager
def _opened(folder: int, name: str) -> Iterator[int]:
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def _flags(fd: int) -> int:
    """The flags that chattr(1) sets; none where the file system has no such thing."""
    try:
        return int(struct.unpack("I", fcntl.ioctl(fd, _GET_FLAGS, bytes(4)))[0])
    except OSError:
        return 0


def _refuse_sealed(path: str, folder: int, name: str | None) -> None:
    """Raise if somebody has sealed the file (None if there is none yet) or its folder.

    Of the folder it is asked since in one that may only be added to not even a draft could be taken away again.

    Raises:
        Refused: it is immutable, append-only, or sealed by fs-verity.
    """
    _refuse_flags(path.rpartition("/")[0] or "/", folder, ".")
    if name is not None:
        _refuse_flags(path, folder, name)


def _refuse_flags(path: str, folder: int, name: str) -> None:
    with _opened(folder, name) as fd:
        flags = _flags(fd)
    for bit, letter, what in ((_IMMUTABLE, "i", "is immutable"), (_APPEND_ONLY, "a", "may only be added to")):
        if flags & bit:
            raise Refused(
                f"{path} {what}",
                why=f"somebody has sealed it with chattr(1); {_LEFT}",
                hint=f"if it may change, `{command('chattr', f'-{letter}', path)}`, then run the command again",
            )
    if flags & _VERITY:
        raise Refused(
            f"{path} is sealed by fs-verity",
            why=f"the new file would not be, and whoever relies on the seal would not notice; {_LEFT}",
            hint=f"if it may change, make it an ordinary file, then run the command again:\n{_own_copy(path)}",
        )


def _refuse_other_names(path: str, status: os.stat_result) -> None:
    """Raise if the file has other names, which the new one would not have.

    Raises:
        Refused: it has; how to find them, and how to make this one a file of its own.
    """
    if status.st_nlink > 1:
        raise Refused(
            f"{path} is one of {status.st_nlink} names of one file (hard links)",
            why=f"only this name would get the new content, the others would keep the old; {_LEFT}",
            hint=f"list the others:\n  {command('find', '/', '-xdev', '-samefile', path)}\n"
            f"and to make this one a separate file:\n  {_own_copy(path)}\nthen run the command again",
        )


def _own_copy(path: str) -> str:
    own = f"{path}.own"
    return f"{command('cp', '--preserve=all', path, own)} && {command('mv', own, path)}"


def _refuse_mount_point(path: str, folder: int, name: str) -> None:
    """Raise if the file is a mount point, as single files in containers are.

    Raises:
        Refused: it is: whoever mounted it would not see a new file, and the kernel lets nobody put one there.
    """
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        is_mount_point = _mount(fd) != _mount(folder)
    finally:
        os.close(fd)
    if is_mount_point:
        raise Refused(
            f"{path} is a mount point of its own",
            why=f"a mounted file cannot be replaced; {_LEFT}",
            hint=f"see where it comes from (`{command('findmnt', path)}`), change it there or unmount it, "
            "then run the command again",
        )


def _mount(fd: int) -> str:
    """The id of the mount that an open file is on (proc(5))."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii").splitlines()
    return next((line for line in lines if line.startswith("mnt_id:")), "")


def _refuse_read_only(path: str, folder: int) -> None:
    """Raise if the folder's file system is mounted read-only.

    Raises:
        Refused: it is.
    """
    if os.statvfs(f"/proc/self/fd/{folder}").f_flag & os.ST_RDONLY:
        findmnt = command("findmnt", "-T", path.rpartition("/")[0] or "/")
        raise Refused(
            f"{path} is on a file system that is mounted read-only",
            why=_LEFT,
            hint=f"mount it writable (`{findmnt}`), then run the command again",
        )
