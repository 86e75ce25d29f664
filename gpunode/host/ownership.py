"""Folders and files that are gpunode's own: what another user could put there, root would later read and obey."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from gpunode.command import command
from gpunode.errors import Refused

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# linux/posix_acl_xattr.h and linux/posix_acl.h: a version, then entries of whom they are for, rights and an id.
_ACL_HEADER, _ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP, _ACL_WRITE = 4, 0x02, 0x04, 0x08, 0x02


def why_foreign(folder: Path) -> str:
    """Why what stands in ``folder`` may be another user's work; empty when it cannot, also when nothing is there.

    Raises:
        PermissionError: this user may not look; root, who would obey what stands there, may.
    """
    ours = {0, os.geteuid()}
    try:
        itself = folder.lstat()
        if stat.S_ISLNK(itself.st_mode) and itself.st_uid not in ours:
            return f"it is a link that the user with the id {itself.st_uid} made"
        status = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "it is a link to nothing" if folder.is_symlink() else ""
    except PermissionError:
        raise
    except OSError as error:  # such as links in a circle
        return error.strerror or str(error)
    if status.st_uid not in ours:
        return f"it belongs to the user with the id {status.st_uid}"
    if status.st_mode & _OTHERS_WRITE:
        return f"others may write to it (its mode is {stat.S_IMODE(status.st_mode):04o})"
    return ""


def refuse_foreign(folder: Path, root: Path) -> None:
    """``folder`` is nobody else's and inside ``root``, or is not there yet.

    Raises:
        Refused: it is not; nothing was read from it and nothing made in it.
        PermissionError: as ``why_foreign``.
    """
    leads = Path(os.path.realpath(folder))
    if not leads.is_relative_to(os.path.realpath(root)):
        raise Refused(
            f"{folder} is a link out of {root}",
            why=f"it leads to {leads}, so what belongs to this image would land on another system",
            hint="replace the link by a folder",
        )
    if why := why_foreign(folder):
        raise Refused(
            f"{folder} is not used: it may hold another user's work",
            why=f"{why}; root would later put back what is recorded there",
            hint=f"look at it (`{command('ls', '-la', str(folder))}`); if all of it is yours:\n"
            f"  {command('chown', '-Rh', 'root:root', str(folder))}\n"
            f"  {command('chmod', '-R', 'go-rwx', str(folder))}\n"
            "else move it away; then run the command again",
        )


def why_others_write(path: Path, *, trusted: frozenset[int] = frozenset({0})) -> str:
    """Why a user outside ``trusted`` can change what root reads at ``path``; empty when none can.

    The file, what its links lead to and every folder above them count, as for sshd's StrictModes, and so do their
    POSIX ACLs. In a sticky folder such as /tmp nobody can replace another user's file. What cannot be looked at can be
    changed by nobody else either.
    """
    for place in _ways_to(path):
        try:
            status = place.lstat()
        except OSError:
            continue
        if status.st_uid not in trusted:
            return f"{place} belongs to {_user(status.st_uid)}"
        if not stat.S_ISLNK(status.st_mode) and (who := _writers(place, status, trusted)):
            return f"{who} can write to {place}"
    return ""


def _ways_to(path: Path) -> Iterator[Path]:
    """Everything that decides what ``path`` leads to: itself, its real place, and the folders above both."""
    named, real = path.absolute(), Path(os.path.realpath(path))
    yield from dict.fromkeys((named, *named.parents, real, *real.parents))


def _writers(place: Path, status: os.stat_result, trusted: frozenset[int]) -> str:
    """Who but its owner and ``trusted`` users can write there, in words; empty for nobody."""
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "every user"
    if not status.st_mode & stat.S_IWGRP:
        return ""  # with an ACL these bits are its mask (acl(5)), so that lets nobody else write either
    for tag, number in _group_writers(place, status.st_gid):
        if tag == _ACL_USER and number not in trusted:
            return _user(number)
        if tag != _ACL_USER and _has_members(number):
            return f"the group {number}"
    return ""


def _group_writers(place: Path, gid: int) -> Iterator[tuple[int, int]]:
    """To whom the group bits let write: the file's group, or the users and groups of its ACL, each with its id."""
    try:
        acl = os.getxattr(place, "system.posix_acl_access")
    except OSError:  # it has none, or its file system knows none
        yield _ACL_GROUP_OBJ, gid
        return
    for tag, rights, number in struct.iter_unpack("<HHI", acl[_ACL_HEADER:]):
        if rights & _ACL_WRITE and tag in {_ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP}:
            yield tag, gid if tag == _ACL_GROUP_OBJ else number


def _has_members(gid: int) -> bool:
    """Whether anybody but root is in the group; Debian's /usr/local belongs to ``staff``, which has no member."""
    import grp
    import pwd

    try:
        named = grp.getgrgid(gid).gr_mem
    except KeyError:
        return True
    return any(name != "root" for name in named) or any(one.pw_gid == gid and one.pw_uid for one in pwd.getpwall())


def _user(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user with the id {uid}"


def read(path: Path, limit: int, *, private: bool = False) -> bytes:
    """The content of a file of gpunode's own; never waits.

    Raises:
        OSError: it, or its folder, is a link; it is no regular file, or longer than ``limit`` bytes; or it should be
            ``private``, and is another user's or open to others.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if private and (status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o077):
            whose = f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
            raise OSError(errno.EPERM, f"it is not root's alone ({whose})", str(path))
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it is longer than {limit >> 20} MiB", str(path))
        return file.readall()
