"""Trust checks for gpunode's folders and files: root must not act on what another user can put there."""

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
# linux/posix_acl_xattr.h and linux/posix_acl.h: a version, then entries of tag, permissions and id.
_ACL_HEADER, _ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP, _ACL_WRITE = 4, 0x02, 0x04, 0x08, 0x02


def explain_untrusted_folder(folder: Path) -> str:
    """Explain why another user may have written in ``folder``; empty if none can, or if it does not exist.

    Raises:
        PermissionError: if this user may not read it; root may.
    """
    ours = {0, os.geteuid()}
    try:
        itself = folder.lstat()
        if stat.S_ISLNK(itself.st_mode) and itself.st_uid not in ours:
            return f"it is a link made by uid {itself.st_uid}"
        status = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "it is a dangling link" if folder.is_symlink() else ""
    except PermissionError:
        raise
    except OSError as error:  # such as a symlink loop
        return error.strerror or str(error)
    if status.st_uid not in ours:
        return f"it belongs to uid {status.st_uid}"
    if status.st_mode & _OTHERS_WRITE:
        return f"others can write to it (its mode is {stat.S_IMODE(status.st_mode):04o})"
    return ""


def refuse_untrusted_folder(folder: Path, root: Path) -> None:
    """Refuse if another user can write in ``folder``, or it is outside ``root``.

    Raises:
        Refused: if so; nothing was read or written.
        PermissionError: as ``explain_untrusted_folder``.
    """
    leads = Path(os.path.realpath(folder))
    if not leads.is_relative_to(os.path.realpath(root)):
        raise Refused(
            f"{folder} is a link out of {root}",
            why=f"it leads to {leads}, so files of this image would end up on another system",
            hint="replace the link with a folder",
        )
    if why := explain_untrusted_folder(folder):
        look = f"look at it (`{command('ls', '-la', str(leads))}`)"
        # chmod would follow the link, to a folder that others need, such as /tmp.
        hint = f"{folder} is a link to {leads}; {look}, then remove the link:\n  {command('rm', str(folder))}\n"
        if not folder.is_symlink():
            hint = (
                f"{look}; if all of it is yours:\n"
                f"  {command('chown', '-Rh', 'root:root', str(folder))}\n"
                f"  {command('chmod', '-R', 'go-rwx', str(folder))}\n"
                "else move it away; "
            )
        raise Refused(
            f"{folder} is not used: it may hold another user's work",
            why=f"{why}; root would later restore what is recorded there",
            hint=f"{hint}then run the command again",
        )


def explain_writable_by_others(path: Path, *, trusted: frozenset[int] = frozenset({0})) -> str:
    """Explain how a user outside ``trusted`` can change what root reads at ``path``; empty if none can.

    The file, what its links lead to and every folder above them count, as for sshd's StrictModes, and so do their
    POSIX ACLs. In a sticky folder such as /tmp nobody can replace another user's file. What this user
    cannot read counts as safe.
    """
    for place in _relevant_paths(path):
        try:
            status = place.lstat()
        except OSError:
            continue
        if status.st_uid not in trusted:
            return f"{place} belongs to {_describe_user(status.st_uid)}"
        if not stat.S_ISLNK(status.st_mode) and (who := _describe_writers(place, status, trusted)):
            return f"{who} can write to {place}"
    return ""


def _relevant_paths(path: Path) -> Iterator[Path]:
    """Yield the paths that decide where ``path`` leads: itself, its real path, and the folders above both."""
    named, real = path.absolute(), Path(os.path.realpath(path))
    yield from dict.fromkeys((named, *named.parents, real, *real.parents))


def _describe_writers(place: Path, status: os.stat_result, trusted: frozenset[int]) -> str:
    """Describe who other than its owner and ``trusted`` users can write there; empty if nobody can."""
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "every user"
    if not status.st_mode & stat.S_IWGRP:
        return ""  # with an ACL these bits are its mask (acl(5)), so nobody else can write
    for tag, number in _group_writers(place, status.st_gid):
        if tag == _ACL_USER and number not in trusted:
            return _describe_user(number)
        if tag != _ACL_USER and _has_members(number):
            return f"the group {number}"
    return ""


def _group_writers(place: Path, gid: int) -> Iterator[tuple[int, int]]:
    """Yield who can write through the group bits: the file's group, or the users and groups of its ACL."""
    try:
        acl = os.getxattr(place, "system.posix_acl_access")
    except OSError:  # no ACL, or the file system has none
        yield _ACL_GROUP_OBJ, gid
        return
    for tag, rights, number in struct.iter_unpack("<HHI", acl[_ACL_HEADER:]):
        if rights & _ACL_WRITE and tag in {_ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP}:
            yield tag, gid if tag == _ACL_GROUP_OBJ else number


def _has_members(gid: int) -> bool:
    """Return whether the group has members other than root; Debian's ``staff``, of /usr/local, has none."""
    import grp
    import pwd

    try:
        named = grp.getgrgid(gid).gr_mem
    except KeyError:
        return True
    return any(name != "root" for name in named) or any(one.pw_gid == gid and one.pw_uid for one in pwd.getpwall())


def _describe_user(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


def read_regular_file(name: str, folder: int, limit: int, *, private: bool = False) -> bytes:
    """Read a file that gpunode wrote in the open ``folder``, without blocking.

    Raises:
        OSError: if it is a link or no regular file; if it is longer than ``limit`` bytes; or if it should be
            ``private`` but belongs to another user or is open to others.
    """
    # Check the type before opening: opening a device can start it.
    if not stat.S_ISREG(os.lstat(name, dir_fd=folder).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", name)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if private and (status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o077):
            whose = f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
            raise OSError(errno.EPERM, f"it does not belong to root alone ({whose})", name)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it is longer than {limit >> 20} MiB", name)
        return file.readall()
