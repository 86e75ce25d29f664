"""A test node without an init, in which apt, dpkg, dkms, gpunode and, on demand, container daemons really run."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from tests.e2e.lab.node import Node

_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS: Final = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_POLICY: Final = "#!/bin/sh\nexit 101\n"


class Chroot(Node):
    """A node whose services do not start by themselves (policy-rc.d says so)."""

    def enter(self, *argv: str) -> list[str]:
        """Return the command line that runs ``argv`` in the node."""
        return self.sandbox.argv("chroot", os.fspath(self.merged), *argv)

    def _boot(self) -> None:
        self.write("/usr/sbin/policy-rc.d", _POLICY, 0o755)
        self._mount_kernel()
        for target, source in {**self.hardware.mounts(), **self.storage(), **self.shared()}.items():
            self.sandbox.bind(source, self._inside(target))
        self._mount_devices()
        for target, source in self.bound().items():
            self.sandbox.bind(source, self._inside(target), read_only=True)

    def _mount_kernel(self) -> None:
        mount, inside = self.sandbox.mount, self._inside
        mount("-t", "proc", "proc", inside("/proc"))
        # The kernel is the machine's own: its settings stay, except those of the node's private network.
        mount("--bind", "/proc/sys", inside("/proc/sys"))
        mount("-o", "remount,bind,ro", inside("/proc/sys"))
        mount("--bind", "/proc/sys/net", inside("/proc/sys/net"))
        mount("-t", "sysfs", "-o", "ro", "sysfs", inside("/sys"))
        mount("-t", "cgroup2", "none", inside("/sys/fs/cgroup"))
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", inside("/run"))
        self.path("/run/lock").mkdir(mode=0o1777)

    def _mount_devices(self) -> None:
        self.sandbox.mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", self._inside("/dev"))
        for name in _DEVICES:
            os.mknod(self.path(f"/dev/{name}"), stat.S_IFCHR, Path("/dev", name).stat().st_rdev)
            self.path(f"/dev/{name}").chmod(0o666)
        for name, target in _LINKS.items():
            self.path(f"/dev/{name}").symlink_to(target)
        for name, options in (("pts", "newinstance,ptmxmode=0666,mode=620,gid=5"), ("shm", "mode=1777")):
            self.path(f"/dev/{name}").mkdir()
            kind = "devpts" if name == "pts" else "tmpfs"
            self.sandbox.mount("-t", kind, "-o", options, name, self._inside(f"/dev/{name}"))

    def _inside(self, path: str) -> Path:
        return self.merged / path.lstrip("/")
