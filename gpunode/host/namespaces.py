"""Isolation of one command in a mounted root, so that it sees nothing else of this machine.

chroot(8) does not confine root: mkdir, chroot and a few ``..`` lead out, and so do mknod of the disk, ptrace of a host
process and a kernel module. So the command gets its own mount, pid, IPC and UTS namespaces, the root by pivot_root(2),
a /dev without disks, a read-only /sys, and the few capabilities that maintainer scripts need. The kernel's keys and new
user namespaces need no capability, so a seccomp filter forbids them. All mounts are in the command's namespace: nothing
is left to unmount, whatever is killed.

An isolated Python runs this file as a script, which imports nothing of gpunode. Once in the root, it imports nothing at
all: any module there is the image's.
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

EXIT_NOT_ISOLATED: Final = 125
"""The exit status if isolation failed; standard error then begins with ``NOT_ISOLATED_ERROR_PREFIX``."""
NOT_ISOLATED_ERROR_PREFIX: Final = "gpunode cannot isolate the command: "

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>, <linux/capability.h>
_NEW_NAMESPACE_FLAGS: Final = 0x20000 | 0x20000000 | 0x8000000 | 0x4000000  # CLONE_NEWNS, NEWPID, NEWIPC, NEWUTS
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _REC, _PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_MOUNT_FLAGS: Final = {
    "ro": _RDONLY,
    "nosuid": _NOSUID,
    "nodev": _NODEV,
    "noexec": _NOEXEC,
    "noatime": 0x400,
    "nodiratime": 0x800,
    "relatime": 0x200000,
}
_UMOUNT_DETACH_FLAG: Final = 2
_SET_DUMPABLE, _CAPBSET_DROP, _CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL = 4, 24, 47, 4
_CAPABILITY_VERSION_3: Final = 0x20080522
# Docker's default set, without those that can leave the root or make devices (SYS_CHROOT, MKNOD) and the network's.
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, AUDIT_WRITE (useradd's PAM), SETFCAP (ping's postinst).
# DAC_READ_SEARCH is left out: with it, open_by_handle_at(2) opens any file of the disk.
_KEPT_CAPABILITIES: Final = (0, 1, 3, 4, 5, 6, 7, 29, 31)

_DEVICE_NODE_NAMES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS: Final = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
# Source: runc's default specification. A write below /proc/sys or to sysrq-trigger reaches the kernel of this machine.
_READ_ONLY_PROC_ENTRIES: Final = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_HIDDEN_PROC_ENTRIES: Final = ("acpi", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list")
# Keys belong to a user id, and no namespace here separates those: the command would have root's, such as Kerberos
# tickets and keys of encrypted folders. In a user namespace of its own it would regain every capability. Sources:
# <linux/audit.h> for the architectures, unistd.h of each for add_key, request_key, keyctl; clone, unshare.
_FILTERED_SYSTEM_CALLS: Final = (
    (0xC000003E, (248, 249, 250), (56, 272)),  # x86_64
    (0x40000003, (286, 287, 288), (120, 310)),  # i386
    (0xC00000B7, (217, 218, 219), (220, 97)),  # aarch64
    (0x40000028, (309, 310, 311), (120, 337)),  # arm
)
_CLONE3, _NEWUSER, _X32 = 435, 0x10000000, 0x40000000
_SET_SECCOMP, _FILTER = 22, 2
# <linux/landlock.h>; the calls have the same numbers everywhere (scripts/syscall.tbl).
_CREATE_RULESET, _RESTRICT_SELF, _SCOPE_ABSTRACT_SOCKETS = 444, 446, 1
# <linux/bpf_common.h>, <linux/seccomp.h>; a filter sees the call's number at 0, the architecture at 4, arguments at 16.
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
# invoke-rc.d(8): 101 forbids the action; maintainer scripts then go on without it.
_POLICY_RC_SCRIPT: Final = "#!/bin/sh\nexit 101\n"

_libc: Final = ctypes.CDLL(None, use_errno=True)


def isolated_command(root: str, argv: Sequence[str], *, policy: str = "", resolver: str = "") -> tuple[str, ...]:
    """Return the command line that runs ``argv`` in ``root``.

    ``policy`` and ``resolver`` are the files in the root over which a policy-rc.d that forbids every start and this
    machine's resolv.conf are mounted; none if empty.
    """
    # -I and -S: neither the caller's environment nor .pth files have any effect.
    return (sys.executable, "-I", "-S", os.path.abspath(__file__), root, policy, resolver, *argv)


def main(root: str, policy: str, resolver: str, argv: Sequence[str]) -> NoReturn:
    """Run the command and exit with its status, or with ``EXIT_NOT_ISOLATED`` if it cannot be isolated."""
    # Signals for the command go to its whole process group: the command handles them, and these two wait for it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        _require_call_success(_libc.unshare(_NEW_NAMESPACE_FLAGS), "unshare")
        first = os.fork()  # alone in the new pid namespace
        if not first:
            _run_init(root, policy, resolver, argv)
        status = _shell_status(os.waitpid(first, 0)[1])
    except OSError as error:
        status = _report_error(error)
    os._exit(status)


def _run_init(root: str, policy: str, resolver: str, argv: Sequence[str]) -> NoReturn:
    """Run as process 1 of the namespace: start the command, reap, and end everything by exiting."""
    try:
        # /proc/1/exe is this machine's Python; without this call, the image's root could open it for writing.
        _require_call_success(_libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0), "prctl")
        sys.meta_path.clear()
        _mount_root(root, policy, resolver)
        _enter_root()
        child = os.fork()
        if not child:
            _exec_command(argv)
        pid, status = os.wait()
        while pid != child:
            pid, status = os.wait()
        os._exit(_shell_status(status))
    except Exception as error:
        os._exit(_report_error(error))


def _shell_status(waited: int) -> int:
    """Return the exit status as a shell does: 128 + N for a signal N."""
    code = os.waitstatus_to_exitcode(waited)
    return code if code >= 0 else 128 - code


def _report_error(error: Exception) -> int:
    what = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else repr(error)
    os.write(2, f"{NOT_ISOLATED_ERROR_PREFIX}{what}\n".encode("utf-8", "surrogateescape"))
    return EXIT_NOT_ISOLATED


def _require_call_success(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _mount_filesystem(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind, data)]
    _require_call_success(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), target)


def _bind_mount(source: str, target: str, flags: int = 0) -> None:
    """Bind-mount ``source`` at ``target``, then remount with ``flags``, which the kernel ignores at first."""
    _mount_filesystem(source, target, "", _BIND)
    if flags:
        _mount_filesystem("", target, "", _BIND | _REMOUNT | flags)


def _mount_root(root: str, policy: str, resolver: str) -> None:
    """Mount ``root`` and everything it needs, and make it the working directory."""
    # Otherwise mounts made here would propagate to the whole machine.
    _mount_filesystem("", "/", "", _REC | _PRIVATE)
    _mount_filesystem(root, root, "", _BIND | _REC)
    for place, flags in _mounts_below(root):
        _disable_devices(place, flags)
    os.chdir(root)
    if _is_folder("proc"):
        _mount_filesystem("proc", "proc", "proc", _NOSUID | _NODEV | _NOEXEC)
        _restrict_proc()
    # There is no /sys in mkosi's scripts.
    if _is_folder("sys") and os.path.isdir("/sys"):
        _bind_mount("/sys", "sys", _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    if _is_folder("dev"):
        _make_devices()
    if policy:
        _forbid_service_starts(policy.lstrip("/"))
    if resolver:
        _bind_mount(os.path.realpath("/etc/resolv.conf"), resolver.lstrip("/"), _RDONLY | _NOSUID | _NODEV)


def _disable_devices(place: str, flags: int) -> None:
    """Disable device nodes in the image, which could open this machine's disks."""
    try:
        _mount_filesystem("", place, "", _BIND | _REMOUNT | flags | _NODEV)
    except OSError as error:
        # Another mount hides this one, from the command too.
        if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.EINVAL}:
            raise


def _mounts_below(root: str) -> Iterator[tuple[str, int]]:
    """Yield every mount point in ``root`` and its current flags."""
    with open("/proc/self/mountinfo", "rb") as file:
        rows = [line.split(b" ") for line in file.read().splitlines()]
    for row in rows:
        place = row[4]
        for mark in (b"040", b"011", b"012", b"134"):  # proc(5): as octal numbers, the backslash too
            place = place.replace(b"\\" + mark, bytes((int(mark, 8),)))
        if place == os.fsencode(root) or place.startswith(os.fsencode(f"{root}/")):
            yield os.fsdecode(place), sum(_MOUNT_FLAGS.get(word, 0) for word in os.fsdecode(row[5]).split(","))


def _is_folder(path: str) -> bool:
    """Return True for a folder, but not a link, which could lead anywhere."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder in the image", f"/{path}")
    return True


def _restrict_proc() -> None:
    for name in _READ_ONLY_PROC_ENTRIES:
        if os.path.lexists(f"proc/{name}"):
            _bind_mount(f"proc/{name}", f"proc/{name}", _RDONLY | _NOSUID | _NODEV | _NOEXEC)
    for name in _HIDDEN_PROC_ENTRIES:
        path = f"proc/{name}"
        if os.path.isdir(path):
            _mount_filesystem("tmpfs", path, "tmpfs", _RDONLY | _NOSUID | _NODEV | _NOEXEC)
        elif os.path.lexists(path):
            _bind_mount("/dev/null", path, _RDONLY | _NOSUID | _NOEXEC)


def _make_devices() -> None:
    _mount_filesystem("tmpfs", "dev", "tmpfs", _NOSUID | _NODEV, "mode=0755")
    for name in _DEVICE_NODE_NAMES:
        if os.path.exists(f"/dev/{name}"):
            os.close(os.open(f"dev/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            # Read-only protects the mode and owner of this machine's own node; the device stays writable.
            _bind_mount(f"/dev/{name}", f"dev/{name}", _RDONLY | _NOSUID | _NOEXEC)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"dev/{name}")
    os.mkdir("dev/pts", 0o755)
    _mount_filesystem("devpts", "dev/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    os.mkdir("dev/shm", 0o755)
    _mount_filesystem("shm", "dev/shm", "tmpfs", _NOSUID | _NODEV | _NOEXEC, "mode=1777")


def _forbid_service_starts(place: str) -> None:
    """Mount the policy from a file in our executable /dev, and unlink its name there at once."""
    fd = os.open("dev/policy-rc.d", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o755)
    os.write(fd, _POLICY_RC_SCRIPT.encode())
    os.fchmod(fd, 0o755)
    os.close(fd)
    _bind_mount("dev/policy-rc.d", place)
    os.unlink("dev/policy-rc.d")


def _enter_root() -> None:
    """Make the working directory the root, and detach the old one."""
    _require_call_success(_libc.pivot_root(b".", b"."), "pivot_root")
    _require_call_success(_libc.umount2(b".", _UMOUNT_DETACH_FLAG), "umount")
    os.chdir("/")


def _exec_command(argv: Sequence[str]) -> NoReturn:
    """Replace this process by the command, with few capabilities."""
    _scope_abstract_sockets()
    _install_system_call_filter()  # needs a capability that is dropped next
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


def _scope_abstract_sockets() -> None:
    """Keep the command from the abstract sockets of this machine's daemons, which would take it for root.

    They belong to the network namespace, which is shared. Kernels before Linux 6.12 or without Landlock cannot do this,
    and the command runs all the same.
    """
    attributes = struct.pack("=QQQ", 0, 0, _SCOPE_ABSTRACT_SOCKETS)  # file system, network, scopes
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset >= 0:
        _require_call_success(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
        os.close(ruleset)


def _install_system_call_filter() -> None:
    """Install the system call filter, unless the processor is unknown."""
    rows = list(_filter_instructions())
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
    whole = struct.pack("@HP", len(rows), ctypes.addressof(program))
    _require_call_success(_libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), whole, 0, 0), "seccomp")


def _filter_instructions() -> Iterator[tuple[int, int, int, int]]:
    """Yield the filter's instructions, each with its jumps if true and if false."""
    for architecture, keys, makers in _FILTERED_SYSTEM_CALLS:
        block = [
            (_LOAD, 0, 0, 0),
            (_AT_LEAST, 0, 1, _X32),
            (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
            # clone3's flags are in memory, which a filter cannot read; without clone3, libraries use clone.
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
    while number in _KEPT_CAPABILITIES or _libc.prctl(_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    if number <= max(_KEPT_CAPABILITIES):  # the first that the kernel does not know comes after all of these
        _require_call_success(-1, "prctl")
    _libc.prctl(_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    kept = sum(1 << one for one in _KEPT_CAPABILITIES)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # Effective, permitted, inheritable: the lower 32 of each, then the upper ones.
    data = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    _require_call_success(_libc.capset(header, data), "capset")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
