"""A test node of any kind: its commands, files, repositories and cleanup."""

from __future__ import annotations

import hashlib
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tests.e2e.lab import tree
from tests.e2e.lab.commands import LabError, Result, finish, run
from tests.e2e.lab.pci import Device
from tests.e2e.lab.sandbox import Sandbox
from tests.e2e.lab.server import Server
from tests.e2e.lab.tree import COMPILED, PORT, PROJECT, SITE, Base, Hardware

if TYPE_CHECKING:
    from typing_extensions import Self

ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
# The daemons' storage is outside the overlay, since an overlay cannot hold another's upper folder.
STORAGE: Final = ("docker", "containerd")


class Archives(Protocol):
    """The archives that a node's apt can be pointed at."""

    @property
    def root(self) -> Path:
        """The folder to be served."""
        ...

    @property
    def debian_keyring(self) -> bytes:
        """The key of the lab's Debian archive."""
        ...


class Code(Protocol):
    """The folders of gpunode that are mounted into a node."""

    @property
    def project(self) -> Path:
        """The folder that holds the package ``gpunode``."""
        ...

    @property
    def site(self) -> Path:
        """The folder that holds what gpunode imports."""
        ...

    @property
    def compiled(self) -> Path:
        """The folder for both as compiled, which the nodes write to."""
        ...


class Node(ABC):
    """A node in private namespaces; leaving the context removes everything of it from the machine.

    Args:
        scratch: a folder that does not exist yet; gone afterwards.
        devices: the devices on the PCI bus, besides a host bridge.
        archives: the archives to serve to the node on ``tree.ADDRESS``; without them apt has no source.
        kernel: the release that ``uname -r`` prints, if not the base's.
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
        self.devices = tuple(devices)
        self.archives = archives
        self.code = code
        self._server: Server | None = None
        self.merged = scratch / "merged"
        self.hardware = Hardware(scratch / "hardware")
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.sandbox.scratch.mkdir(parents=True)
        try:
            self.sandbox.__enter__()
            self._furnish()
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove every process, mount and file of the node."""
        self.halt()
        run(["rm", "-rf", "--one-file-system", os.fspath(self.sandbox.scratch)])

    def halt(self) -> None:
        """End every process and mount; the node's own files are still in ``upper``."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.sandbox.close()
        for daemon in self._daemons:
            daemon.wait()
        self._daemons.clear()

    @property
    def upper(self) -> Path:
        """The files that the node has written, as overlayfs keeps them."""
        return self.sandbox.scratch / "upper"

    @property
    def server(self) -> Server:
        """The repositories' server, which a test can break at will."""
        if self._server is None:
            raise LabError("this node was made without archives")
        return self._server

    def finish(self, *argv: str, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 300) -> Result:
        """Return the output and the exit code of ``argv``, run inside."""
        settings = [f"{name}={value}" for name, value in {**ENVIRONMENT, **(env or {})}.items()]
        inside = self.enter("env", "--ignore-environment", *settings, *argv)
        return finish(inside, stdin=stdin, timeout=timeout)

    def run(self, *argv: str, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 300) -> Result:
        """Run a command as `finish` does; it has to succeed."""
        result = self.finish(*argv, env=env, stdin=stdin, timeout=timeout)
        if result.returncode:
            raise LabError(f"status {result.returncode}: {argv}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}")
        return result

    def start(self, *argv: str, log: str) -> subprocess.Popen[bytes]:
        """Start a daemon of the node; it writes to ``log`` inside and ends with the node at the latest."""
        settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return self.spawn(self.enter("env", "--ignore-environment", *settings, *argv), self.path(log))

    def spawn(self, argv: list[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process of the machine that ends with the node at the latest; it writes to ``log``."""
        with log.open("ab") as output:
            daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._daemons.append(daemon)
        return daemon

    def gpunode(self, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 300) -> Result:
        """Return the output and the exit code of ``gpunode ARGUMENTS``."""
        python = {"PYTHONPATH": f"{PROJECT}:{SITE}", "PYTHONPYCACHEPREFIX": COMPILED}
        return self.finish("python3", "-m", "gpunode", *arguments, env={**python, **(env or {})}, timeout=timeout)

    def path(self, path: str) -> Path:
        """Return this process's path of the node's ``path``; absolute symlinks in it lead outside the node."""
        return self.sandbox.inside(self.merged / path.lstrip("/"))

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        """Write ``text`` to ``path``, and make its folders."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
        return target

    def read(self, path: str) -> str:
        """Return the text of ``path``."""
        return self.path(path).read_text()

    def installed(self) -> dict[str, str]:
        """Return the version by name of every installed package."""
        listing = self.run("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Version}\n").stdout
        rows = (line.split() for line in listing.splitlines())
        return {row[1]: row[2] for row in rows if row[0].startswith("ii")}

    def fingerprint(self, *folders: str) -> str:
        """Return a hash over names, contents, modes, owners and modification times of all files in ``folders``."""
        digest = hashlib.sha256()
        for folder in folders:
            for row in _rows(self.path(folder), folder):
                digest.update(row)
        return digest.hexdigest()

    @abstractmethod
    def enter(self, *argv: str) -> list[str]:
        """Return the command line that runs ``argv`` in the node."""

    @abstractmethod
    def _boot(self) -> None:
        """Boot the node, whose files exist; afterwards commands can run in it."""

    def bound(self) -> dict[str, Path]:
        """Return the read-only mounts, by their place."""
        return {} if self.code is None else {PROJECT: self.code.project, SITE: self.code.site}

    def shared(self) -> dict[str, Path]:
        """Return the writable mounts that the nodes of a session share, by their place."""
        return {} if self.code is None else {COMPILED: self.code.compiled}

    def storage(self) -> dict[str, Path]:
        """Return the folders for the daemons' storage, by where they are mounted."""
        return {f"/var/lib/{name}": self.sandbox.scratch / name for name in STORAGE}

    def _furnish(self) -> None:
        tree.mount_overlay(self.sandbox, self.base)
        tree.make_hardware(self.hardware.folder, self.kernel, self.devices)
        root = self.sandbox.inside(self.merged)
        tree.furnish(root, self.hardware)
        for target, folder in self.storage().items():
            folder.mkdir(mode=0o711)
            (root / target.lstrip("/")).mkdir(mode=0o711, exist_ok=True)
        if self.archives is not None:
            tree.use_archive(root, self.base, self.archives.debian_keyring)
            self._server = Server(self.archives.root, self.sandbox.listen(PORT))


def _rows(folder: Path, name: str) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        row = (name, path.relative_to(folder).as_posix(), state.st_mode, state.st_uid, state.st_gid, state.st_mtime_ns)
        yield repr(row).encode()
        if path.is_symlink():
            yield os.readlink(path).encode()
        elif path.is_file():
            yield path.read_bytes()
