"""A mounted root to manipulate, and gpunode run on it in a process with little memory."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.faults.runs import run
from tests.conformance.warming import warm_up

TOP: Final = Path(__file__).parents[3]
DAEMON_JSON: Final = "etc/docker/daemon.json"
CONFIG_TOML: Final = "etc/containerd/config.toml"
# gpunode's own files; everything else belongs to the node.
OWN: Final = ("var/lib/gpunode", "var/log/gpunode", "run")
# Beyond what a start takes; reading 50 MiB twice would not fit.
MEMORY: Final = 234 << 20
PATIENCE_S: Final = 120

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gpunode setup does")

_STATUS = "Package: {}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {}\nDescription: x\n\n"
_PACKAGES = {"dpkg": "1.21.22", "containerd": "1.6.20~ds1-1+b1", "docker.io": "20.10.24+dfsg1-1+deb12u1"}
_FILES = {
    "etc/os-release": 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian 12"\n',
    "var/lib/dpkg/status": "".join(_STATUS.format(*row) for row in _PACKAGES.items()),
    DAEMON_JSON: '{"log-driver":"json-file"}\n',
    CONFIG_TOML: "version = 2\n",
}


@dataclass(frozen=True, slots=True)
class Done:
    """An answer of gpunode."""

    exit_code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


@dataclass(frozen=True, slots=True)
class Image:
    """A root without any program in it, so that files alone are changed.

    Attributes:
        more: text appended to its recipes.
    """

    folder: Path
    more: str = ""

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def path(self, name: str) -> Path:
        return self.root / name

    def recipe(self, runtime: str = "docker") -> Path:
        path = self.folder / f"{runtime}.toml"
        text = f'[driver]\nversion = "none"\n[toolkit]\nversion = "none"\n[runtime]\nname = "{runtime}"\n'
        path.write_text(f"schema = 1\n{text}{self.more}")
        return path

    def setup(self, runtime: str = "docker", *more: str, env: Mapping[str, str] | None = None) -> Done:
        return gpunode("setup", str(self.recipe(runtime)), "--root", str(self.root), "--yes", *more, env=env)

    def rollback(self, *more: str) -> Done:
        return gpunode("rollback", "--root", str(self.root), *more)

    def tree(self) -> dict[str, tuple[object, ...]]:
        """Return everything in it except gpunode's own files."""
        return dict(_rows(self.root))


def make_image(folder: Path, more: str = "") -> Image:
    """Return a new image below ``folder``."""
    image = Image(folder, more)
    for name, text in _FILES.items():
        image.path(name).parent.mkdir(parents=True, exist_ok=True)
        image.path(name).write_text(text)
    for name in ("var/log", "run", "etc/apt/sources.list.d", "etc/apt/preferences.d", "etc/modprobe.d"):
        image.path(name).mkdir(parents=True)
    return image


def gpunode(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Done:
    """Return gpunode's answer to ``arguments``; the test fails if it exceeds memory or time."""
    _load_gpunode()

    def prepare() -> None:
        os.environ.update(env or {})
        os.chdir(cwd or "/")
        signal.alarm(PATIENCE_S)
        started = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (started + MEMORY, started + MEMORY))

    answer = run(arguments, prepare=prepare)
    return Done(answer.exit_code, answer.stdout, answer.stderr)


@cache
def _load_gpunode() -> None:
    """Load what most commands need before the first fork."""
    with tempfile.TemporaryDirectory() as folder:
        image = make_image(Path(folder))
        root = ("--root", str(image.root))
        warm_up(("plan", str(image.recipe()), *root))
        if os.geteuid() == 0:
            warm_up(("setup", str(image.recipe("containerd")), *root, "--yes"))
            warm_up(("rollback", *root, "--yes"))


def command() -> tuple[str, ...]:
    return (sys.executable, "-m", "gpunode")


def shell(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Done:
    """Return the answer of a command that runs gpunode."""
    environment = {**os.environ, "PYTHONPATH": str(TOP), **(env or {})}
    ran = subprocess.run(
        argv, capture_output=True, env=environment, timeout=PATIENCE_S, cwd=cwd, stdin=subprocess.DEVNULL, check=False
    )
    return Done(ran.returncode, ran.stdout.decode("utf-8", "replace"), ran.stderr.decode("utf-8", "replace"))


def _rows(root: Path) -> list[tuple[str, tuple[object, ...]]]:
    rows: list[tuple[str, tuple[object, ...]]] = []
    for path in sorted(root.rglob("*")):
        name, status = str(path.relative_to(root)), path.lstat()
        if name in {"var/lib", "var/log"} or name.startswith(OWN):
            continue
        content: object = os.readlink(path) if path.is_symlink() else status.st_size
        if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20:
            content = path.read_bytes()
        rows.append((name, (status.st_mode, status.st_uid, status.st_gid, content)))
    return rows
