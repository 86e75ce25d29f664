"""rollback --packages and remove are setup's inverse: the node is as before, to the byte of every file that counts."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.chroot.scenario import (
    COMMENTED,
    CONFIG,
    DIRECTORIES,
    Lab,
    add_toolkit_repository,
    as_machine,
    ask,
    install_old_driver,
    setup,
    setup_ok,
)
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.pci import GTX_1080, T4

pytestmark = pytest.mark.e2e

FOLDERS: Final = ("/etc", "/usr/share/keyrings")
# What the tools that packages call write anew, each time they are called: an install and a purge by hand leave it, too.
MADE_BY_TOOLS: Final = re.compile(
    r"/etc/(ld\.so\.cache|\.pwd\.lock|passwd-?|group-?|shadow-?|gshadow-?|subuid-?|subgid-?|mailcap|rc\w\.d(/.*)?"
    r"|systemd/system(/.*\.wants(/.*)?)?)"
)
Node = Callable[[Bases, Lab], AbstractContextManager[Chroot]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an undo has to bring back."""

    files: Mapping[str, tuple[object, ...]]
    packages: Mapping[str, tuple[str, ...]]

    def differences(self, other: Snapshot) -> list[str]:
        mine, others = {**self.files, **self.packages}, {**other.files, **other.packages}
        return [
            f"{name}: {mine.get(name)} became {others.get(name)}"
            for name in sorted(mine.keys() | others.keys())
            if mine.get(name) != others.get(name)
        ]


def snapshot(node: Chroot) -> Snapshot:
    files = {name: row for folder in FOLDERS for name, row in _rows(node.path(folder), folder)}
    shown = node.run("dpkg-query", "-W", "-f", "${binary:Package} ${Version} ${db:Status-Abbrev}\n").stdout
    rows = (line.split() for line in shown.splitlines())
    auto = set(node.run("apt-mark", "showauto").stdout.split())
    packages = {f"package {row[0]}": (*row[1:], str(row[0] in auto)) for row in rows if row[2] != "un"}
    return Snapshot(files, packages)


def _rows(folder: Path, name: str) -> Iterator[tuple[str, tuple[object, ...]]]:
    for path in sorted(folder.rglob("*")):
        place = f"{name}/{path.relative_to(folder).as_posix()}"
        if not MADE_BY_TOOLS.fullmatch(place):
            yield place, _row(path)


def _row(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    owner = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    if stat.S_ISLNK(status.st_mode):
        return ("link", os.readlink(path))
    if stat.S_ISDIR(status.st_mode):
        return ("folder", *owner)
    attributes = tuple((key, os.getxattr(path, key)) for key in sorted(os.listxattr(path)))
    return ("file", *owner, sha256(path.read_bytes()).hexdigest(), attributes)


@contextmanager
def bare(bases: Bases, lab: Lab) -> Iterator[Chroot]:
    """Nothing of what setup needs is there: no headers, no runtime, no repository."""
    with lab.node(bases.plain, [T4]) as node:
        as_machine(node)
        node.run("apt-get", "-y", "install", "passwd")  # without it Debian 13's base cannot add a daemon's user
        lab.recipe(node, DIRECTORIES[bases.plain.codename])
        yield node


@contextmanager
def lived_in(bases: Bases, lab: Lab) -> Iterator[Chroot]:
    """Another driver, an older toolkit from NVIDIA's own list, and a configuration written by hand."""
    with lab.node(bases.runtime, [GTX_1080]) as node:
        as_machine(node)
        node.write(CONFIG, COMMENTED, 0o640)
        node.run("chown", "daemon:adm", CONFIG)
        install_old_driver(node)
        add_toolkit_repository(node, lab.repositories)
        lab.recipe(node, DIRECTORIES[bases.runtime.codename])
        yield node


@contextmanager
def dockered(bases: Bases, lab: Lab) -> Iterator[Chroot]:
    """docker is there, its daemon.json is not, and neither is its folder."""
    with lab.node(bases.runtime, [T4]) as node:
        as_machine(node)
        lab.recipe(node, DIRECTORIES[bases.runtime.codename], "docker")
        yield node


@pytest.fixture(params=[bare, lived_in, dockered])
def debian(request: pytest.FixtureRequest) -> Node:
    made: Node = request.param
    return made


@pytest.mark.parametrize("codename", ["bookworm", "trixie"])
def test_a_whole_rollback_brings_back_the_node_as_it_was(
    debian: Node, codename: str, bases: dict[str, Bases], chroots: Lab
) -> None:
    with debian(bases[codename], chroots) as node:
        before = snapshot(node)
        done = setup(node)
        # No dockerd runs in a chroot, which verify says; what was applied is applied.
        assert done.exit_code in {0, 7}, done.error
        after = snapshot(node)

        back = ask(node, "rollback", "--packages", "--yes")

        # The module that setup loaded stays in the kernel until a reboot.
        assert back.exit_code == 10, back.error
        assert "\n".join(before.differences(snapshot(node))) == ""

        again = ask(node, "rollback", "--packages", "--yes", str(back.result["run"]))

        assert again.exit_code in {0, 10}, again.error
        assert after.differences(snapshot(node)) == []


@pytest.mark.parametrize("codename", ["bookworm", "trixie"])
def test_what_remove_leaves_is_the_node_without_gpunode(codename: str, bases: dict[str, Bases], chroots: Lab) -> None:
    with bare(bases[codename], chroots) as node:
        before = snapshot(node)
        setup_ok(node)

        removed = ask(node, "remove", "--yes")

        assert removed.exit_code == 10, removed.error
        assert before.differences(snapshot(node)) == []
        again = ask(node, "remove", "--yes")
        assert again.exit_code == 0, again.error
        assert not again.envelope["changed"]
