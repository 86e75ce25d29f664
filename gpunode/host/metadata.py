"""A file's metadata beside mode and owner: kept when the file is replaced, or the file is refused.

A file is named by an open folder and its name in it, as ``files`` finds it; ``path`` is what the user calls it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gpunode.command import command
from gpunode.errors import ChangeFailed, Refused

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


def attributes(folder: int, name: str) -> tuple[tuple[str, bytes], ...]:
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


def keep_attributes(path: str, wanted: Sequence[tuple[str, bytes]], fd: int) -> None:
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


def copy_flags(folder: int, name: str, fd: int) -> None:
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


def refuse_sealed(path: str, folder: int, name: str | None) -> None:
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


def refuse_other_names(path: str, status: os.stat_result) -> None:
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


def refuse_mount_point(path: str, folder: int, name: str) -> None:
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


def refuse_read_only(path: str, folder: int) -> None:
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
