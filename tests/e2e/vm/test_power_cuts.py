"""The power of a virtual machine is cut 30 times while gpunode changes it; its disk is checked each time."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.change import FileChange, FileState
from gpunode.journal.record import Intent
from gpunode.journal.store import Store
from tests.conformance.power.laws import temporaries
from tests.conformance.power.node import build, gpunode, recipe, small_system
from tests.conformance.power.recording import tree_of
from tests.e2e.lab.archive import NoArchive
from tests.e2e.vm.guest import CONFIGURATION, configuration
from tests.e2e.vm.machine import TOOLS, Images, Machine, files_of, make_images

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CUTS = int(os.environ.get("GPUNODE_POWER_CUTS", "30"))
_LONGEST_S = 12.0
_RECIPES = {
    "containerd": recipe("containerd"),
    "containerd-default": recipe("containerd", default=True),
    "docker": recipe("docker"),
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("the files of a disk image keep their owners for root alone")
    if missing := sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None}):
        pytest.skip(f"tools of the virtual machine are missing; apt-get install {' '.join(missing)}")
    # Not /tmp, which may be in memory: writes to a disk image there cannot bypass the page cache.
    path = Path(tempfile.mkdtemp(prefix="gpunode-vm-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def images(folder: Path) -> Images:
    build(small_system(), folder / "small")
    try:
        return make_images(folder, _RECIPES, folder / "small")
    except NoArchive as error:
        pytest.skip(f"no virtual machine without the Debian archive: {error}")


def test_power_cut_keeps_promises_and_allows_to_continue(images: Images, folder: Path) -> None:
    for number in range(CUTS):
        moment = random.uniform(0, _LONGEST_S)
        said = _run_and_cut(images, folder / "console", moment)
        found = files_of(images.node, folder / "found")
        where = f"cut {number + 1}, {moment:.2f} s after the start, in {said[-1]}"
        print(where)
        _assert_promises_kept(found, said, where)
        _assert_whole(found, where)
        _assert_goes_on(found, folder, where)
        shutil.rmtree(found)


def _run_and_cut(images: Images, console: Path, moment: float) -> list[list[str]]:
    """Cut the power on the same disk as before, and return the guest's output until then."""
    machine = Machine(images, console)
    machine.wait_until_ready()
    time.sleep(moment)
    machine.cut()
    return machine.said()


def _assert_promises_kept(found: Path, said: list[list[str]], where: str) -> None:
    assert all(line[1] == "0" for line in said if line[0] == "end"), f"{where}: {said}"
    if said[-1][0] == "end":
        assert configuration(found) == said[-1][2], f"{where}: what the command did is gone"


def _assert_whole(found: Path, where: str) -> None:
    """Assert that every journal and backup can be read, and each file is as before or as a journaled change made it."""
    store, start = Store(found), small_system()
    changes = [e.change for run in store.ids() for e in store.read_with_contents(run) if isinstance(e, Intent)]
    for name in CONFIGURATION:
        node = start.get(f"/{name}")
        known: list[object] = [None if node is None else node.data]
        for change in changes:
            if isinstance(change, FileChange) and change.path == f"/{name}":
                known += [s.content if isinstance(s, FileState) else None for s in (change.before, change.after)]
        path = found / name
        assert (path.read_bytes() if path.exists() else None) in known, f"{where}: {name} is no version of any run"


def _assert_goes_on(found: Path, folder: Path, where: str) -> None:
    """Assert that setup, a rollback and its rollback work on the remains, and leave nothing incomplete."""
    for name in ("containerd", "docker"):
        path = folder / f"{name}.toml"
        path.write_text(_RECIPES[name])
        _succeed(found, folder, where, "setup", str(path), "--only", "runtime-config", "--yes")
    wanted = configuration(found)
    _succeed(found, folder, where, "rollback", "--yes")
    assert configuration(found) != wanted, where
    _succeed(found, folder, where, "rollback", "--yes", Store(found).ids()[-1])
    assert configuration(found) == wanted, f"{where}: the rollback of a rollback leads elsewhere"
    assert temporaries(tree_of(found)) == [], where


def _succeed(found: Path, folder: Path, where: str, *argv: str) -> None:
    said = folder / "said"
    said.unlink(missing_ok=True)
    code = gpunode((*argv, "--root", str(found)), said)
    assert code == 0, f"{where}: gpunode {argv} exits with {code}:\n{said.read_text()}"
