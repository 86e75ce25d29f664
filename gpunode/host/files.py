"""A node's files: read without ever blocking, replaced atomically and durably, and never outside the node's root.

``places`` resolves the paths.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

from gpunode.change import FileState
from gpunode.command import command
from gpunode.errors import ChangeFailed, Refused
from gpunode.facts.evidence import OTHER_FILE_KIND_ERROR_PREFIX, Capture, Ownership
from gpunode.facts.patterns import Pattern
from gpunode.facts.reader import make_file_state
from gpunode.host.rooted_paths import (
    ABSENT_ERRNOS,
    ForeignLinkError,
    OpenedPath,
    list_names,
    missing_folders,
    open_path,
    remove_folders,
    sync_folder,
)

_TEMPORARY_FILE_NAME = Pattern(r"\.gpunode-[0-9a-f]{8}")
_MAX_FILE_BYTES = 64 << 20
_FILE_KIND_WORDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_ACCESS_DENIED_ERRNOS = frozenset({errno.EACCES, errno.EPERM})
_TOLERATED_RMDIR_ERRNOS = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, *ABSENT_ERRNOS})


def read_file(path: str, limit: int = _MAX_FILE_BYTES, *, root: str = "/") -> Capture:
    """Read a file, without blocking or raising, whatever kind of file it is.

    A file longer than ``limit`` bytes counts as failed, since half a file is no evidence.
    """
    try:
        with open_path(path, root) as place:
            return _read_opened_path(place, limit, path)
    except OSError as error:
        return capture_error(path, error)


def capture_error(source: str, error: OSError) -> Capture:
    """Return the capture of something that could not be read."""
    why = error.strerror or str(error)
    if error.errno in ABSENT_ERRNOS:
        return Capture(source, "absent", error=why)
    is_denied = error.errno in _ACCESS_DENIED_ERRNOS and not isinstance(error, ForeignLinkError)  # raised for root, too
    return Capture(source, "denied" if is_denied else "failed", error=why)


def _read_opened_path(place: OpenedPath, limit: int, source: str) -> Capture:
    # Check the type before opening: opening a device can start it, and a named pipe would wait for a writer.
    status = os.lstat(place.name, dir_fd=place.folder)
    if not stat.S_ISREG(status.st_mode):
        return Capture(source, "failed", error=f"{OTHER_FILE_KIND_ERROR_PREFIX}{_describe_kind(status)}")
    fd = os.open(place.name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
    try:
        owner = make_ownership(os.fstat(fd), place.exposed)
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


def _describe_kind(status: os.stat_result) -> str:
    return _FILE_KIND_WORDS.get(stat.S_IFMT(status.st_mode), "not a regular file")


def make_ownership(status: os.stat_result, exposed: str = "") -> Ownership:
    """Return owner, mode and times of a file's status."""
    # A future time is from before the clock was set back, and tells nothing about the order of events.
    changed = status.st_ctime if status.st_ctime <= time.time() else None
    return Ownership(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, changed, exposed, status.st_mtime)


def read_state(path: str, *, root: str = "/") -> FileState | None:
    """Return the file's current state; None if it does not exist.

    Raises:
        Refused: if it cannot be read as a file.
    """
    capture = read_file(path, root=root)
    if capture.outcome == "absent":
        return None
    if capture.outcome != "ok" or capture.ownership is None:
        raise Refused(
            f"{path} cannot be read", why=capture.error, hint=f"look at it with `{command('ls', '-ld', path)}`"
        )
    return make_file_state(capture.data, capture.ownership)


def read_attributes(path: str, *, root: str = "/") -> tuple[tuple[str, bytes], ...]:
    """Return the file's extended attributes by name, without those bound to its current content.

    Raises:
        OSError: if there is no such file, or they cannot be read.
    """
    with open_path(path, root) as place:
        return _read_attributes(place.folder, place.name)


PreReplaceCheck: TypeAlias = Callable[[FileState | None], None]


def replace_file(path: str, state: FileState, *, root: str = "/", precheck: PreReplaceCheck = lambda _: None) -> None:
    """Replace a file atomically and durably.

    A symbolic link stays and its target is replaced. An existing file keeps its extended attributes (SELinux label,
    ACL, capabilities); a restored one gets those of ``state``. Missing folders are made, mode 0755.

    ``precheck`` is called with the current state right before the replacement; it raises to cancel it.

    Raises:
        Refused: if the replacement would lose something; see ``refuse_unreplaceable``.
        ChangeFailed: if it could not be written; nothing has changed.
    """
    try:
        with open_path(path, root, make=True) as place:
            _replace_opened_path(place, path, state, precheck)
    except OSError as error:
        raise _write_error(path, "written", error) from error


def _replace_opened_path(place: OpenedPath, path: str, state: FileState, precheck: PreReplaceCheck) -> None:
    former = _replaceable_status(place, path)
    _remove_temporary_files(place.folder)
    with _temporary_file(place.folder) as (name, fd):
        _write_metadata_and_content(fd, path, state, place if former else None)
        precheck(_read_opened_state(place, path))
        os.rename(name, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    # For a new file sync all folders above it, too: a killed run may have made them without syncing them.
    _sync_parent(place, f"{path} was replaced, but a power cut may bring the old one back", new=former is None)


def _sync_parent(place: OpenedPath, otherwise: str, *, new: bool = False) -> None:
    try:
        for folder in reversed(place.folders if new else place.folders[-1:]):
            sync_folder(folder)
    except OSError as error:
        why = f"its folder could not be synced: {error.strerror}"
        raise ChangeFailed(
            otherwise, why=why, hint=f"{_HINT_BY_ERRNO[errno.EIO]}, then run the command again"
        ) from error


def _read_opened_state(place: OpenedPath, path: str) -> FileState | None:
    """Return the current state; for an overlong file its beginning, which matches no expectation."""
    _refuse_unless_file(path, place.status())
    with suppress(FileNotFoundError):
        capture = _read_opened_path(place, _MAX_FILE_BYTES, path)
        if capture.ownership is not None:
            return make_file_state(capture.data, capture.ownership)
    return None


def _replaceable_status(place: OpenedPath, path: str) -> os.stat_result | None:
    """Return the existing file's status, after checking that it may be replaced."""
    status = place.status()
    _refuse_unless_file(path, status)
    # In an append-only folder not even a temporary file could be removed again.
    _refuse_sealed(path.rpartition("/")[0] or "/", place.folder, ".")
    if status is not None:
        _refuse_sealed(path, place.folder, place.name)
        _refuse_hard_links(path, status)
    return status


def refuse_unreplaceable(path: str, *, root: str = "/") -> None:
    """Refuse if replacing or removing the file would lose something.

    Raises:
        Refused: if it is a folder, device, pipe or socket, has other names, is sealed by chattr(1), or its file system
            is mounted read-only.
    """
    # Other problems are found and reported when the change is made.
    with suppress(OSError):
        # If folders are missing, check the place where the first one would be made.
        nearest = next(iter(missing_folders(path, root=root)), path)
        with open_path(nearest, root) as place:
            _replaceable_status(place, nearest)
            _refuse_read_only(nearest, place.folder)


def _refuse_unless_file(path: str, status: os.stat_result | None) -> None:
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise Refused(
            f"{path} is {_describe_kind(status)}, not a file",
            why="gpunode replaces and removes regular files only; nothing was changed",
            hint=f"look at it with `{command('ls', '-ld', path)}`, move it away, then run the command again",
        )


def remove_leftover_temporary_files(path: str, *, root: str = "/") -> None:
    """Remove temporary files of a killed run beside ``path``, and sync what it wrote."""
    with suppress(OSError), open_path(path, root) as place:
        _remove_temporary_files(place.folder)
        for folder in place.folders:
            sync_folder(folder)


def _remove_temporary_files(folder: int) -> None:
    """Remove temporary files of a killed run; there is only one run at a time."""
    for name in filter(_TEMPORARY_FILE_NAME.fullmatch, list_names(folder)):
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)


@contextmanager
def _temporary_file(folder: int) -> Iterator[tuple[str, int]]:
    """Yield a new file's name and descriptor; delete it afterwards unless it was renamed."""
    name = f".gpunode-{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        yield name, fd
    finally:
        # The file is synced, so errors on closing do not matter; the next run removes a draft that is left over.
        with suppress(OSError):
            os.close(fd)
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)


def _write_metadata_and_content(fd: int, path: str, state: FileState, former: OpenedPath | None) -> None:
    """Write content, owner, attributes and mode, in this order: a new owner clears capabilities and set-id bits."""
    write_all(fd, state.content)
    os.fchown(fd, state.uid, state.gid)
    if former is not None:
        _restore_attributes(path, _read_attributes(former.folder, former.name), fd)
    elif state.xattrs:
        _restore_attributes(path, state.xattrs, fd)
    os.fchmod(fd, state.mode)
    os.fsync(fd)


def write_all(fd: int, content: bytes) -> None:
    """Write all of ``content``, which may take several calls; do not sync."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def make_parents(path: str, *, root: str = "/") -> tuple[str, tuple[str, ...]]:
    """Make the missing folders above ``path``; return where it leads inside ``root``, and the new folders.

    Raises:
        ChangeFailed: if one could not be made.
    """
    try:
        with open_path(path, root, make=True) as place:
            return place.path, tuple(place.made_folders)
    except OSError as error:
        raise _write_error(path, "prepared", error, "") from error


def remove_empty_folders(folders: Sequence[str], *, root: str = "/") -> None:
    """Remove those of ``folders``, outermost first, that are empty.

    Raises:
        ChangeFailed: if one could not be removed.
    """
    for path in reversed(folders):
        _remove_if_empty(path, root)


def _remove_if_empty(path: str, root: str) -> None:
    try:
        with open_path(path, root) as place:
            os.rmdir(place.name, dir_fd=place.folder)
            sync_folder(place.folder)
    except OSError as error:
        if error.errno not in _TOLERATED_RMDIR_ERRNOS:
            raise _write_error(path, "removed", error, "; the folder is empty") from error


def remove_file(path: str, *, root: str = "/", precheck: PreReplaceCheck = lambda _: None) -> None:
    """Remove a file durably; a symbolic link stays and its target is removed, so that it can be restored.

    ``precheck`` is called with the current state right before the removal; it raises to cancel it.

    Raises:
        Refused: if the removal would lose something; see ``refuse_unreplaceable``.
        ChangeFailed: if it could not be removed; nothing has changed.
    """
    try:
        with open_path(path, root) as place:
            if _replaceable_status(place, path) is not None:
                precheck(_read_opened_state(place, path))
                os.unlink(place.name, dir_fd=place.folder)
                _sync_parent(place, f"{path} was removed, but a power cut may bring it back")
    except OSError as error:
        if error.errno not in ABSENT_ERRNOS:
            raise _write_error(path, "removed", error) from error


@contextmanager
def candidate_file(path: str, content: bytes, *, root: str = "/") -> Iterator[str]:
    """Write a temporary root-only file beside ``path``, and yield its path inside ``root``.

    It is beside ``path`` so that relative paths in the content mean the same.

    Raises:
        ChangeFailed: if it could not be written.
    """
    try:
        with open_path(path, root, make=True) as place:
            try:
                with _temporary_file(place.folder) as (name, fd):
                    write_all(fd, content)
                    yield "/".join(("", *place.names, name))
            finally:
                remove_folders(place.made_folders, root=root)
    except OSError as error:
        raise _write_error(path, "written", error) from error


_HINT_BY_ERRNO = {
    errno.ENOSPC: "free space there (`df -h {folder}`, `df -i {folder}`), then run the command again",
    errno.EDQUOT: "raise the quota there, then run the command again",
    errno.EROFS: "mount it writable (`findmnt -T {folder}`), then run the command again",
    errno.EACCES: "run the command as root",
    errno.EPERM: "run the command as root; `lsattr -d {folder} {path}` shows whether it is immutable",
    errno.EBUSY: "it is a separate mount point (`findmnt {path}`); unmount it, then run the command again",
    errno.ELOOP: "its symbolic links form a loop (`namei {path}`); correct them, then run the command again",
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`), then run the command again",
    errno.EIO: "the disk reports an error (`dmesg | tail`)",
}


def _write_error(path: str, verb: str, error: OSError, then: str = "; the file is as it was") -> ChangeFailed:
    if isinstance(error, ForeignLinkError):
        hint = f"name the file itself, or give the link to root: {command('chown', '-h', 'root', str(error.filename))}"
        return ChangeFailed(f"{path} could not be {verb}", why=f"{error.strerror}{then}", hint=hint)
    hint = _HINT_BY_ERRNO.get(error.errno or 0, "correct that, then run the command again")
    folder = path.rpartition("/")[0] or "/"
    return ChangeFailed(
        f"{path} could not be {verb}",
        why=f"{error.strerror or error}{then}",
        hint=hint.format(path=shlex.quote(path), folder=shlex.quote(folder)),
    )


# These hold a digest of the old content, so they are not copied.
_CONTENT_BOUND_ATTRIBUTES = frozenset({"security.ima", "security.evm"})
# A folder's default ACL sets this on every new file in it.
_ACL_ATTRIBUTE = "system.posix_acl_access"
# The disk is full or failing, so the attribute is not to blame.
_DISK_FAILURE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
# FS_IOC_GETFLAGS of linux/fs.h: declared with a long, though an int is passed.
_GET_FLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
_IMMUTABLE, _APPEND_ONLY = 0x10, 0x20
_LEFT_UNCHANGED = "it was left as it is"


def _read_attributes(folder: int, name: str) -> tuple[tuple[str, bytes], ...]:
    """Return the extended attributes not bound to the current content. Raises OSError."""
    # Through /proc, since the xattr calls take no directory descriptor.
    path = f"/proc/self/fd/{folder}/{name}"
    names = sorted(set(_list_attributes(path)) - _CONTENT_BOUND_ATTRIBUTES)
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)


def _list_attributes(path: str) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno in {errno.ENOTSUP, errno.ENOENT}:
            return []
        raise


def _restore_attributes(path: str, attributes: Sequence[tuple[str, bytes]], fd: int) -> None:
    """Set ``attributes``, and remove an ACL inherited from the folder."""
    present: dict[str, bytes] = {}
    with suppress(OSError):
        present.update((name, os.getxattr(fd, name)) for name in os.listxattr(fd))
    for name, value in attributes:
        if present.get(name) != value:
            _set_attribute(path, name, value, fd)
    if _ACL_ATTRIBUTE in present and _ACL_ATTRIBUTE not in dict(attributes):
        os.removexattr(fd, _ACL_ATTRIBUTE)


def _set_attribute(path: str, name: str, value: bytes, fd: int) -> None:
    try:
        os.setxattr(fd, name, value)
    except OSError as error:
        if error.errno in _DISK_FAILURE_ERRNOS:
            raise
        raise ChangeFailed(
            f"{path} could not be written",
            why=f"its extended attribute {name} cannot be kept: {error.strerror}; the file is as it was",
            hint=f"look at it with `{command('getfattr', '-d', '-m', '-', path)}`; if it is not needed, "
            f"`{command('setfattr', '-x', name, path)}`, then run the command again",
        ) from error


def _read_flags(fd: int) -> int:
    """Return the flags of chattr(1); none if the file system has no such flags."""
    try:
        return int(struct.unpack("I", fcntl.ioctl(fd, _GET_FLAGS, bytes(4)))[0])
    except OSError:
        return 0


def _refuse_sealed(path: str, folder: int, name: str) -> None:
    """Refuse a file or folder that is immutable or append-only."""
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        flags = _read_flags(fd)
    finally:
        os.close(fd)
    for bit, letter, what in ((_IMMUTABLE, "i", "is immutable"), (_APPEND_ONLY, "a", "may only be added to")):
        if flags & bit:
            raise Refused(
                f"{path} {what}",
                why=f"somebody protected it with chattr(1); {_LEFT_UNCHANGED}",
                hint=f"if it may change, `{command('chattr', f'-{letter}', path)}`, then run the command again",
            )


def _refuse_hard_links(path: str, status: os.stat_result) -> None:
    """Refuse if the file has other hard links, which the new one would lose."""
    if status.st_nlink > 1:
        own = f"{path}.own"
        separate = f"{command('cp', '--preserve=all', path, own)} && {command('mv', own, path)}"
        raise Refused(
            f"{path} is one of {status.st_nlink} names of one file (hard links)",
            why=f"only this name would get the new content, the others would keep the old; {_LEFT_UNCHANGED}",
            hint=f"list the others:\n  {command('find', '/', '-xdev', '-samefile', path)}\n"
            f"and to make this one a separate file:\n  {separate}\nthen run the command again",
        )


def _refuse_read_only(path: str, folder: int) -> None:
    """Refuse if the folder's file system is mounted read-only."""
    if os.statvfs(f"/proc/self/fd/{folder}").f_flag & os.ST_RDONLY:
        findmnt = command("findmnt", "-T", path.rpartition("/")[0] or "/")
        raise Refused(
            f"{path} is on a file system that is mounted read-only",
            why=_LEFT_UNCHANGED,
            hint=f"mount it writable (`{findmnt}`), then run the command again",
        )
