"""Constructed roots for the crash tests: a node as a tree of files, its content, and the litter to look for."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

# gpunode's own files: its journal and backups, its log, its lock.
_OWN: Final = ("var/lib/gpunode", "var/log/gpunode", "run/gpunode")
_TEMPORARY: Final = re.compile(r"\.gpunode-[0-9a-f]{8}|\.[0-9a-f]{64}\.\d+|gpunode-\w+")
_FOLDERS: Final = (
    *("proc", "sys", "dev/pts", "run", "usr/sbin", "var/lib/dpkg", "var/log"),
    *("etc/containerd", "etc/docker", "etc/modprobe.d"),
)
_STATUS: Final = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21.22\n"
_CONTAINERD: Final = b'# by hand\nversion = 2\n\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "pause:3.9"\n'
_DOCKER: Final = b'{\n    "log-driver": "journald"\n}\n'

Row: TypeAlias = tuple[int, int, int, bytes]
Tree: TypeAlias = dict[str, Row]
"""Type and mode, owner, group, and content of everything in a root, by path."""


@dataclass(frozen=True, slots=True)
class Case:
    """A way in which setup writes configuration.

    Attributes:
        options: further options of setup besides the root.
        command: the command to run instead of setup, with its options.
        path: the file that other processes keep reading.
        files: the initial content of the root, with mode, owner and group.
        undo: options of the rollback that undoes everything.
    """

    id: str
    options: tuple[str, ...]
    path: str
    files: tuple[tuple[str, bytes, int, int, int], ...] = ()
    undo: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def make(self, root: Path) -> Path:
        """Make ``root`` the node before setup."""
        for folder in _FOLDERS:
            (root / folder).mkdir(parents=True)
        release = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'
        (root / "etc/os-release").write_text(release)
        (root / "var/lib/dpkg/status").write_text(_STATUS)
        for name, content, mode, uid, gid in self.files:
            path = root / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            os.chown(path, uid, gid)
            path.chmod(mode)
        return root

    def setup(self, root: Path) -> tuple[str, ...]:
        """Return the command line that sets ``root`` up."""
        if self.command:
            return (*self.command, "--root", str(root), "--json")
        return ("setup", "--root", str(root), "--gpu", "10de:1eb8", *self.options, "--yes", "--json")

    def rollback(self, root: Path) -> tuple[str, ...]:
        """Return the command line that rolls it back."""
        return ("rollback", "--root", str(root), *self.undo, "--yes", "--json")


REPLACED: Final = Case(
    "containerd-replaced",
    ("--runtime", "containerd", "--only", "runtime-config"),
    "etc/containerd/config.toml",
    (("etc/containerd/config.toml", _CONTAINERD, 0o640, 1, 4),),
)
CREATED: Final = Case("docker-created", ("--runtime", "docker", "--only", "runtime-config"), "etc/docker/daemon.json")
EDITED: Final = Case(
    "docker-replaced",
    ("--runtime", "docker", "--only", "runtime-config"),
    "etc/docker/daemon.json",
    (("etc/docker/daemon.json", _DOCKER, 0o600, 0, 0),),
)

# Two files of one runtime, one of them in a new folder; there is no containerd to ask.
DROP_IN: Final = Case(
    "ctk-drop-in",
    (),
    "etc/containerd/config.toml",
    (("etc/containerd/config.toml", _CONTAINERD, 0o640, 1, 4),),
    command=("ctk", "runtime", "configure", "--runtime=containerd", "--mode=drop-in"),
)

# Two files, and an initramfs to rebuild, for which an image's proc, sys and dev are mounted.
IMAGE: Final = Case(
    "image-mounted",
    ("--runtime", "docker", "--only", "runtime-config", "--only", "nouveau"),
    "etc/docker/daemon.json",
    (("bin/sh", b"", 0o755, 0, 0), ("etc/docker/daemon.json", _DOCKER, 0o600, 0, 0)),
    undo=("--packages",),
)


def tree(root: Path) -> Tree:
    """Return everything in ``root`` except gpunode's own files; temporary files of a killed run are included."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.startswith(_OWN):
            continue
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[name] = (status.st_mode, status.st_uid, status.st_gid, content)
    return found


def row(root: Path, name: str) -> Row | None:
    """Return the file ``name`` of ``root`` in the form of ``tree``, opened anew as any other program would."""
    try:
        descriptor = os.open(root / name, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        status, content = os.fstat(descriptor), b""
        while chunk := os.read(descriptor, 1 << 16):
            content += chunk
    finally:
        os.close(descriptor)
    return status.st_mode, status.st_uid, status.st_gid, content


def copy(root: Path, target: Path) -> Path:
    """Copy ``root`` to ``target``, including owners."""
    shutil.copytree(root, target, symlinks=True)
    for path in root.rglob("*"):
        status = path.lstat()
        os.chown(target / path.relative_to(root), status.st_uid, status.st_gid, follow_symlinks=False)
    return target


def litter(root: Path) -> list[str]:
    """Return the files that a killed run left in ``root`` and no later run removed."""
    names = (path.relative_to(root).as_posix() for path in root.rglob("*"))
    left = [name for name in names if _TEMPORARY.fullmatch(name.rpartition("/")[2])]
    left += [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(root) in line]
    if not _is_free(root / "run/gpunode/lock"):
        left.append("the lock is held")
    return left


def _is_free(lock: Path) -> bool:
    if not lock.exists():
        return True
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
