"""A small constructed system, the commands run on it, and gpunode itself, started by a fork."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpunode.journal.store import Store
from tests.conformance.power.disk import Event, Node, Tree
from tests.conformance.power.recording import record, tree_of
from tests.conformance.warming import start_no_isolation_for_missing_programs

CONTAINERD = "/etc/containerd/config.toml"
DOCKER = "/etc/docker/daemon.json"
_ONLY = ("--only", "runtime-config", "--yes")
_OS_RELEASE = b'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
_STATUS = b"".join(
    b"Package: %s\nStatus: install ok installed\nArchitecture: amd64\nVersion: %s\n\n" % package
    for package in ((b"containerd", b"1.6.20~ds1-1+deb12u1"), (b"docker.io", b"20.10.24+dfsg1-1+deb12u1"))
)
# Longer than a disk's sector and than a page, so that it can tear in several places.
_WRITTEN_BY_HAND = b"version = 2\n\n" + b"".join(
    b"# Line %d of what this node's keeper knows.\n" % n for n in range(120)
)
_RECIPE = """\
schema = 1
[driver]
version = "none"
[toolkit]
version = "none"
[runtime]
name = "{runtime}"
set_as_default = {default}
"""


def recipe(runtime: str, *, default: bool = False) -> str:
    """Return a recipe that requests only the configuration of ``runtime``."""
    return _RECIPE.format(runtime=runtime, default=str(default).lower())


def small_system() -> Tree:
    """Return a root with the few files that ``--only runtime-config`` reads."""
    files = {
        "/etc/os-release": Node(0o644, 0, 0, _OS_RELEASE),
        "/var/lib/dpkg/status": Node(0o644, 0, 0, _STATUS),
        CONTAINERD: Node(0o640, 1, 2, _WRITTEN_BY_HAND),
        # gpunode makes no runtime the default if its program is missing.
        "/usr/bin/nvidia-container-runtime": Node(0o755, 0, 0, b"#!/bin/sh\n"),
    }
    folders = {str(above): Node(0o755, 0, 0, None) for path in files for above in Path(path).parents}
    return {**folders, "/var/log": Node(0o755, 0, 0, None), "/run": Node(0o755, 0, 0, None), **files}


def build(tree: Tree, root: Path) -> None:
    """Make ``root``, with the content of ``tree``."""
    for path, node in sorted(tree.items()):
        place = root / path.lstrip("/")
        if node.data is None:
            place.mkdir()
        else:
            place.write_bytes(node.data)
        os.chown(place, node.uid, node.gid)
        place.chmod(node.mode)


@contextmanager
def standing(tree: Tree, work: Path) -> Iterator[Path]:
    """Yield ``tree`` as real files, in a new folder below ``work`` that is removed afterwards."""
    folder = work / "case"
    folder.mkdir()
    build(tree, folder / "found")
    try:
        yield folder / "found"
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a story.

    Attributes:
        again: the command that finishes it after a power cut; ``back`` is the command that undoes it.
        number: the number of its run in the journal.
        former: the tree before it; ``wanted`` is the tree after it.
    """

    again: tuple[str, ...]
    back: tuple[str, ...]
    number: int
    former: Tree
    wanted: Tree


@dataclass(slots=True)
class Story:
    """Commands run one after the other, and all their effects on the file system."""

    folder: Path
    start: Tree
    commands: list[Command] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def recipe(self, runtime: str, *, default: bool = False) -> tuple[str, ...]:
        """Return the command that sets ``runtime`` up."""
        path = self.folder / f"{runtime}-{default}.toml"
        path.write_text(recipe(runtime, default=default))
        return ("setup", str(path), *_ONLY)

    def run(self, argv: Sequence[str], back: Sequence[str] = ("rollback", "--yes")) -> None:
        """Run ``argv``, and record it; ``back`` is the command that undoes it."""
        former = tree_of(self.root)
        number = len(self.commands) + 1
        self.events += record(
            [sys.executable, "-m", "gpunode", *argv, "--root", str(self.root)], self.root, self.folder / "strace"
        )
        self.commands.append(Command(tuple(argv), tuple(back), number, former, tree_of(self.root)))

    def undo(self) -> None:
        """Roll back the last setup, as a further command."""
        newest = Store(self.root).ids()[-1]
        self.run(("rollback", "--yes", newest), back=self.commands[-1].again)


def start(folder: Path, tree: Tree) -> Story:
    """Return a story that begins with ``tree``, in a new folder."""
    folder.mkdir(parents=True)
    build(tree, folder / "root")
    return Story(folder, tree)


def gpunode(argv: Sequence[str], said: Path) -> int:
    """Return gpunode's exit code; its output is in ``said``."""
    child = os.fork()
    if child == 0:
        _become_gpunode(list(argv), said)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become_gpunode(argv: list[str], said: Path) -> None:
    code = 125
    try:
        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "r" if n == 0 else "w") for n in range(3))
        os.umask(0o022)
        sys.argv = ["gpunode", *argv]
        start_no_isolation_for_missing_programs()
        from gpunode.cli import boundary

        code = boundary.run_cli(argv)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
