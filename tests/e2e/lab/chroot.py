"""A test node without an init: apt, dpkg, dkms, gpunode and, on demand, the container daemons run for real in it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tests.e2e.lab import tree
from tests.e2e.lab.commands import LabError, Result
from tests.e2e.lab.pci import Device
from tests.e2e.lab.sandbox import Sandbox
from tests.e2e.lab.server import Server
from tests.e2e.lab.tree import ADDRESS, PORT, PROJECT, SITE, Base, Hardware

if TYPE_CHECKING:
    from typing_extensions import Self

ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEV_LINKS: Final = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
# The daemons' storage lies beside the overlay, for an overlay cannot hold another one's upper folder.
_STORAGE: Final = ("docker", "containerd")
_POLICY: Final = "#!/bin/sh\nexit 101\n"


class Archives(Protocol):
    """What a node's apt can be pointed at."""

    @property
    def root(self) -> Path:
        """The folder to be served."""
        ...

    @property
    def debian_keyring(self) -> bytes:
        """The key of the lab's Debian archive."""
        ...


class Code(Protocol):
    """gpunode as it is mounted into a node."""

    @property
    def project(self) -> Path:
        """The folder that holds the package ``gpunode``."""
        ...

    @property
    def site(self) -> Path:
        """The folder that holds what gpunode imports."""
        ...


class Chroot:
    """A node in private namespaces; leaving the context leaves nothing of it on the machine.

    Args:
        scratch: a folder that does not exist yet; gone afterwards.
        devices: on the PCI bus, beside a host bridge.
        archives: served to the node on ``ADDRESS``; without them apt has no source.
        kernel: the release that ``uname -r`` answers, if not the base's.
    """

    def __init__(
        self,
        base: Base,
        scratch: Path,
        *,
        devices: Iterable[Device] = (),
        archives: Archives | None = None,
        code: Code | None = None,
        kernel: str = "",
    ) -> None:
        self.base = base
        self.kernel = kernel or base.kernel
        self.sandbox = Sandbox(scratch)
        self._devices = tuple(devices)
        self._archives = archives
        self._code = code
        self._server: Server | None = None
        self._merged = scratch / "merged"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.sandbox.scratch.mkdir(parents=True)
        try:
            self.sandbox.__enter__()
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No process, mount or file of the node is left."""
        self.halt()
        shutil.rmtree(self.sandbox.scratch)

    def halt(self) -> None:
        """No process or mount is left; the node's own files are still in ``upper``."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.sandbox.close()
        for daemon in self._daemons:
            daemon.wait()
        self._daemons.clear()

    @property
    def upper(self) -> Path:
        """What the node has written, as overlayfs keeps it."""
        return self.sandbox.scratch / "upper"

    @property
    def server(self) -> Server:
        """The repositories' server, to be broken at will."""
        if self._server is None:
            raise LabError("this node was made without archives")
        return self._server

    def finish(self, *argv: str, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 300) -> Result:
        """What ``argv`` said inside and how it ended."""
        settings = [f"{name}={value}" for name, value in {**ENVIRONMENT, **(env or {})}.items()]
        inside = ("chroot", os.fspath(self._merged), "env", "--ignore-environment", *settings, *argv)
        return self.sandbox.finish(*inside, stdin=stdin, timeout=timeout)

    def run(self, *argv: str, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 300) -> Result:
        """As `finish`, for a command that has to succeed."""
        result = self.finish(*argv, env=env, stdin=stdin, timeout=timeout)
        if result.returncode:
            raise LabError(f"status {result.returncode}: {argv}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}")
        return result

    def start(self, *argv: str, log: str) -> subprocess.Popen[bytes]:
        """A daemon of the node; it writes to ``log`` inside and dies with the node at the latest."""
        settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        inside = self.sandbox.argv("chroot", os.fspath(self._merged), "env", "--ignore-environment", *settings, *argv)
        with self.path(log).open("ab") as output:
            daemon = subprocess.Popen(inside, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._daemons.append(daemon)
        return daemon

    def gpunode(self, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 300) -> Result:
        """What ``gpunode ARGUMENTS`` said and how it ended."""
        # Compiled modules go to a place that is neither the project nor the node's disk.
        python = {"PYTHONPATH": f"{PROJECT}:{SITE}", "PYTHONPYCACHEPREFIX": "/run/lab-pycache"}
        return self.finish("python3", "-m", "gpunode", *arguments, env={**python, **(env or {})}, timeout=timeout)

    def path(self, path: str) -> Path:
        """Where this process finds the node's ``path``; absolute symlinks in it lead outside the node."""
        return self.sandbox.inside(self._merged / path.lstrip("/"))

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        """``path`` holds ``text``, its folders exist."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
        return target

    def read(self, path: str) -> str:
        """The text of ``path``."""
        return self.path(path).read_text()

    def installed(self) -> dict[str, str]:
        """Version by name of every installed package."""
        listing = self.run("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Version}\n").stdout
        rows = (line.split() for line in listing.splitlines())
        return {row[1]: row[2] for row in rows if row[0].startswith("ii")}

    def fingerprint(self, *folders: str) -> str:
        """A hash over names, contents, modes, owners and modification times of all files in ``folders``."""
        digest = hashlib.sha256()
        for folder in folders:
            for row in _rows(self.path(folder), folder):
                digest.update(row)
        return digest.hexdigest()

    def _build(self) -> None:
        tree.mount_overlay(self.sandbox, self.base)
        hardware = tree.make_hardware(self.sandbox.scratch / "hardware", self.kernel, self._devices)
        tree.furnish(self.path("/"), self.base, hardware)
        self.write("/usr/sbin/policy-rc.d", _POLICY, 0o755)
        self._mount_kernel()
        self._mount_hardware(hardware)
        self._mount_devices()
        self._mount_storage()
        if self._code is not None:
            self.sandbox.bind(self._code.project, self._merged / PROJECT.lstrip("/"), read_only=True)
            self.sandbox.bind(self._code.site, self._merged / SITE.lstrip("/"), read_only=True)
        if self._archives is not None:
            tree.use_archive(self.path("/"), self.base, self._archives.debian_keyring)
            self._server = Server(self._archives.root, self.sandbox.listen(PORT))

    def _mount_kernel(self) -> None:
        mount, merged = self.sandbox.mount, self._merged
        mount("-t", "proc", "proc", merged / "proc")
        # The kernel is the machine's own: its settings stay as they are, but for the node's private network.
        mount("--bind", "/proc/sys", merged / "proc/sys")
        mount("-o", "remount,bind,ro", merged / "proc/sys")
        mount("--bind", "/proc/sys/net", merged / "proc/sys/net")
        mount("-t", "sysfs", "-o", "ro", "sysfs", merged / "sys")
        mount("-t", "cgroup2", "none", merged / "sys/fs/cgroup")
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", merged / "run")
        (self.path("/run/lock")).mkdir(mode=0o1777)

    def _mount_hardware(self, hardware: Hardware) -> None:
        for target, source in hardware.mounts().items():
            self.sandbox.bind(source, self._merged / target.lstrip("/"))

    def _mount_devices(self) -> None:
        dev = self._merged / "dev"
        self.sandbox.mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", dev)
        for name in _DEVICES:
            real = Path("/dev", name).stat()
            os.mknod(self.path(f"/dev/{name}"), stat.S_IFCHR | 0o666, real.st_rdev)
            self.path(f"/dev/{name}").chmod(0o666)
        for name, target in _DEV_LINKS.items():
            self.path(f"/dev/{name}").symlink_to(target)
        for name, options in (("pts", "newinstance,ptmxmode=0666,mode=620,gid=5"), ("shm", "mode=1777")):
            self.path(f"/dev/{name}").mkdir()
            self.sandbox.mount("-t", "devpts" if name == "pts" else "tmpfs", "-o", options, name, dev / name)

    def _mount_storage(self) -> None:
        for name in _STORAGE:
            source = self.sandbox.scratch / name
            source.mkdir(mode=0o711)
            self.path(f"/var/lib/{name}").mkdir(exist_ok=True)
            self.sandbox.bind(source, self._merged / "var/lib" / name)


def _rows(folder: Path, name: str) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        row = (name, path.relative_to(folder).as_posix(), state.st_mode, state.st_uid, state.st_gid, state.st_mtime_ns)
        yield repr(row).encode()
        if path.is_symlink():
            yield os.readlink(path).encode()
        elif path.is_file():
            yield path.read_bytes()


__all__ = ["ADDRESS", "Chroot"]
