"""One command of a mounted root, run where it sees that root and nothing else of this machine.

chroot(8) holds nobody who is root: mkdir, chroot and a few ``..`` lead out, and so do mknod of the disk, ptrace of a
host process and a kernel module. So the command gets mount, pid, IPC and UTS namespaces of its own, the root by
pivot_root(2), a /dev without disks, a /sys for reading only, and the few capabilities that maintainer scripts need. The
kernel's keys and new user namespaces need no capability, so a seccomp filter forbids them. All mounts are in its own
namespace: nothing is left to unmount, whatever is killed.

This file is run as a script by an isolated Python and imports nothing of gpunode. From the root on, it imports nothing
at all: what it would find there is the image's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

FAILED: Final = 125
"""The exit status when the command could not be isolated; standard error then begins with ``PREFIX``."""
PREFIX: Final = "gpunode cannot isolate the command: "

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>, <linux/capability.h>
_NAMESPACES: Final = 0x20000 | 0x20000000 | 0x8000000 | 0x4000000  # CLONE_NEWNS, NEWPID, NEWIPC, NEWUTS
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _REC, _PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_OPTIONS: Final = {
    "ro": _RDONLY,
    "nosuid": _NOSUID,
    "nodev": _NODEV,
    "noexec": _NOEXEC,
    "noatime": 0x400,
    "nodiratime": 0x800,
    "relatime": 0x200000,
}
_DETACH: Final = 2
_SET_DUMPABLE, _CAPBSET_DROP, _CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL = 4, 24, 47, 4
_CAPABILITY_VERSION_3: Final = 0x20080522
# Docker's default set, without what can leave the root or make devices (SYS_CHROOT, MKNOD) and without the network's.
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, AUDIT_WRITE (useradd's PAM), SETFCAP (ping's postinst).
# DAC_READ_SEARCH is none of them: open_by_handle_at(2) opens any file of the disk with it.
_KEPT: Final = (0, 1, 3, 4, 5, 6, 7, 29, 31)

_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS: Final = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
# Source: runc's default specification. A write below /proc/sys or to sysrq-trigger reaches the kernel of this machine.
_READ_ONLY: Final = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_HIDDEN: Final = ("acpi", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list")
# Keys belong to a user id, and no namespace here separates those: root's, such as Kerberos tickets and those of
# encrypted folders, would be the command's. In a user namespace of its own it would have every capability again.
# Sources: <linux/audit.h> for the architectures, unistd.h of each for add_key, request_key, keyctl; clone, unshare.
_SYSTEM_CALLS: Final = (
    (0xC000003E, (248, 249, 250), (56, 272)),  # x86_64
    (0x40000003, (286, 287, 288), (120, 310)),  # i386
    (0xC00000B7, (217, 218, 219), (220, 97)),  # aarch64
    (0x40000028, (309, 310, 311), (120, 337)),  # arm
)
_CLONE3, _NEWUSER, _X32 = 435, 0x10000000, 0x40000000
_SET_SECCOMP, _FILTER = 22, 2
# <linux/bpf_common.h>, <linux/seccomp.h>; a filter sees the call's number at 0, the architecture at 4, arguments at 16.
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
# invoke-rc.d(8): 101 forbids the action; maintainer scripts go on as if the service were none of their business.
_POLICY: Final = "#!/bin/sh\nexit 101\n"

_libc: Final = ctypes.CDLL(None, use_errno=True)


def command(root: str, argv: Sequence[str], *, policy: str = "", resolver: str = "") -> tuple[str, ...]:
    """The command line that runs ``argv`` in ``root``.

    Args:
        root: an absolute path without symbolic links.
        argv: the program, by name or by its path in the root.
        policy: the file in the root over which a policy-rc.d is mounted that forbids every start; none if empty.
        resolver: the file in the root over which this machine's resolv.conf is mounted; none if empty.
    """
    # -I and -S: neither the caller's environment nor a .pth file has a say.
    return (sys.executable, "-I", "-S", os.path.abspath(__file__), root, policy, resolver, *argv)


def main(root: str, policy: str, resolver: str, argv: Sequence[str]) -> NoReturn:
    """Ends as the command does; with ``FAILED`` where it cannot be isolated."""
    # Whoever ends the command signals the whole process group: the command hears it, and these two await its end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        _check(_libc.unshare(_NAMESPACES), "unshare")
        first = os.fork()  # alone in the new pid namespace
        if not first:
            _init(root, policy, resolver, argv)
        status = _status(os.waitpid(first, 0)[1])
    except OSError as error:
        status = _complain(error)
    os._exit(status)


def _init(root: str, policy: str, resolver: str, argv: Sequence[str]) -> NoReturn:
    """Process 1 of the namespace: it starts the command, reaps, and ends everything by its own end."""
    try:
        # Its /proc/1/exe is this machine's Python, which the image's root could open to write without this.
        _check(_libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0), "prctl")
        sys.meta_path.clear()
        _furnish(root, policy, resolver)
        _enter()
        child = os.fork()
        if not child:
            _become(argv)
        pid, status = os.wait()
        while pid != child:
            pid, status = os.wait()
        os._exit(_status(status))
    except Exception as error:
        os._exit(_complain(error))


def _status(waited: int) -> int:
    """As a shell says it: 128 + N for a signal N."""
    code = os.waitstatus_to_exitcode(waited)
    return code if code >= 0 else 128 - code


def _complain(error: Exception) -> int:
    what = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else repr(error)
    os.write(2, f"{PREFIX}{what}\n".encode("utf-8", "surrogateescape"))
    return FAILED


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind, data)]
    _check(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), target)


def _bind(source: str, target: str, flags: int = 0) -> None:
    """``source`` is at ``target`` too, with ``flags``, which the kernel takes of a bind mount only afterwards."""
    _mount(source, target, "", _BIND)
    if flags:
        _mount("", target, "", _BIND | _REMOUNT | flags)


def _furnish(root: str, policy: str, resolver: str) -> None:
    """The working folder is ``root``, a mount of its own with all that belongs in it."""
    # Otherwise what is mounted here would be mounted for everybody.
    _mount("", "/", "", _REC | _PRIVATE)
    _mount(root, root, "", _BIND | _REC)
    for place, flags in _mounts_below(root):
        _close_devices(place, flags)
    os.chdir(root)
    if _is_folder("proc"):
        _mount("proc", "proc", "proc", _NOSUID | _NODEV | _NOEXEC)
        _close_proc()
    # mkosi's scripts see none.
    if _is_folder("sys") and os.path.isdir("/sys"):
        _bind("/sys", "sys", _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    if _is_folder("dev"):
        _make_devices()
    if policy:
        _forbid_services(policy.lstrip("/"))
    if resolver:
        _bind(os.path.realpath("/etc/resolv.conf"), resolver.lstrip("/"), _RDONLY | _NOSUID | _NODEV)


def _close_devices(place: str, flags: int) -> None:
    """A device that somebody put into the image opens no disk of this machine."""
    try:
        _mount("", place, "", _BIND | _REMOUNT | flags | _NODEV)
    except OSError as error:
        # Another mount hides this one, from the command too.
        if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.EINVAL}:
            raise


def _mounts_below(root: str) -> Iterator[tuple[str, int]]:
    """Every mount point in ``root`` and its flags, as they are now."""
    with open("/proc/self/mountinfo", "rb") as file:
        rows = [line.split(b" ") for line in file.read().splitlines()]
    for row in rows:
        place = row[4]
        for mark in (b"040", b"011", b"012", b"134"):  # proc(5): as octal numbers, the backslash too
            place = place.replace(b"\\" + mark, bytes((int(mark, 8),)))
        if place == os.fsencode(root) or place.startswith(os.fsencode(f"{root}/")):
            yield os.fsdecode(place), sum(_OPTIONS.get(word, 0) for word in os.fsdecode(row[5]).split(","))


def _is_folder(path: str) -> bool:
    """Whether there is a folder; a link could lead anywhere."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder in the image", f"/{path}")
    return True


def _close_proc() -> None:
    for name in _READ_ONLY:
        if os.path.lexists(f"proc/{name}"):
            _bind(f"proc/{name}", f"proc/{name}", _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    for name in _HIDDEN:
        path = f"proc/{name}"
        if os.path.isdir(path):
            _mount("tmpfs", path, "tmpfs", _RDONLY | _NOSUID | _NODEV | _NOEXEC)
        elif os.path.lexists(path):
            _bind("/dev/null", path, _RDONLY | _NOSUID | _NOEXEC)


def _make_devices() -> None:
    _mount("tmpfs", "dev", "tmpfs", _NOSUID | _NODEV, "mode=0755")
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            os.close(os.open(f"dev/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            # Read-only: not the device, but the mode and the owner of this machine's own node.
            _bind(f"/dev/{name}", f"dev/{name}", _RDONLY | _NOSUID | _NOEXEC)
    for name, target in _LINKS.items():
        os.symlink(target, f"dev/{name}")
    os.mkdir("dev/pts", 0o755)
    _mount("devpts", "dev/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    os.mkdir("dev/shm", 0o755)
    _mount("shm", "dev/shm", "tmpfs", _NOSUID | _NODEV | _NOEXEC, "mode=1777")


def _forbid_services(place: str) -> None:
    """The policy is a file of our /dev, whose file system may be executed from; its name there goes at once."""
    fd = os.open("dev/policy-rc.d", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o755)
    os.write(fd, _POLICY.encode())
    os.fchmod(fd, 0o755)
    os.close(fd)
    _bind("dev/policy-rc.d", place)
    os.unlink("dev/policy-rc.d")


def _enter() -> None:
    """The working folder is the root, and of the former one nothing can be reached."""
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _DETACH), "umount")
    os.chdir("/")


def _become(argv: Sequence[str]) -> NoReturn:
    """The command runs in place of this process, with few capabilities."""
    _forbid_calls()  # afterwards it may not
    _drop_capabilities()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    program, status, why = argv[0], 127, "command not found"
    for folder in [""] if "/" in program else os.environ.get("PATH", "").split(":"):
        path = f"{folder}/{program}" if folder else program
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            try:
                os.execve(path, list(argv), os.environ)
            except OSError as error:
                status, why = 126, str(error.strerror)
            break
    os.write(2, f"{program}: {why}\n".encode("utf-8", "surrogateescape"))
    os._exit(status)


def _forbid_calls() -> None:
    """Where the processor is none of the table, nothing is forbidden."""
    rows = list(_filter())
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
    whole = struct.pack("@HP", len(rows), ctypes.addressof(program))
    _check(_libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), whole, 0, 0), "seccomp")


def _filter() -> Iterator[tuple[int, int, int, int]]:
    """The filter: each instruction with how many to pass over where its test holds, and where it does not."""
    for architecture, keys, makers in _SYSTEM_CALLS:
        block = [
            (_LOAD, 0, 0, 0),
            (_AT_LEAST, 0, 1, _X32),
            (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
            # Its flags are in memory, which a filter cannot read; without it libraries take clone.
            (_EQUAL, 0, 1, _CLONE3),
            (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
            *(row for key in keys for row in ((_EQUAL, 0, 1, key), (_RETURN, 0, 0, _ERROR | errno.EPERM))),
            (_EQUAL, 1, 0, makers[0]),
            (_EQUAL, 0, 3, makers[1]),
            (_LOAD, 0, 0, 16),
            (_HAS_BITS, 0, 1, _NEWUSER),
            (_RETURN, 0, 0, _ERROR | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ]
        yield (_LOAD, 0, 0, 4)
        yield (_EQUAL, 0, len(block), architecture)
        yield from block
    yield (_RETURN, 0, 0, _ALLOW)


def _drop_capabilities() -> None:
    number = 0
    while number in _KEPT or _libc.prctl(_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    if number <= max(_KEPT):  # the first that the kernel does not know comes after all of these
        _check(-1, "prctl")
    _libc.prctl(_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    kept = sum(1 << one for one in _KEPT)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # Effective, permitted, inheritable: the lower 32 of each, then the upper ones.
    data = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    _check(_libc.capset(header, data), "capset")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
