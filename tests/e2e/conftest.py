"""The test lab's shared parts: made once a session, removed at its end."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.e2e.lab import bases as lab_bases
from tests.e2e.lab.archive import NoArchive
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.code import PROJECT, Mounts, make_code
from tests.e2e.lab.commands import LabError, run
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.pci import Device
from tests.e2e.lab.repositories import Repositories, discard_keys, make_repositories
from tests.e2e.lab.runtimes import provide_runtimes
from tests.e2e.lab.sandbox import Sandbox
from tests.e2e.lab.tree import Base

TOOLS: Final = {
    "apt-ftparchive": "apt-utils",
    "dpkg-deb": "dpkg",
    "gcc": "gcc",
    "gpg": "gnupg",
    "ip": "iproute2",
    "lsns": "util-linux",
    "mmdebstrap": "mmdebstrap",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "systemd-nspawn": "systemd-container",
    "zstd": "zstd",
}
MakeChroot = Callable[..., Chroot]
MakeMachine = Callable[..., Machine]


@pytest.fixture(scope="session")
def lab() -> Iterator[Path]:
    """Yield a folder on disk for all of this session's bases, repositories and nodes."""
    _demand_machine()
    # Not /tmp, which may be in memory: the lab needs gigabytes.
    folder = Path(tempfile.mkdtemp(prefix="gpunode-lab-", dir="/var/tmp"))
    try:
        _demand_namespaces(folder)
        yield folder
    finally:
        run(["rm", "-rf", "--one-file-system", str(folder)], timeout=900)


@pytest.fixture(scope="session")
def bases(lab: Path) -> dict[str, Bases]:
    """Return the bases of Debian 12 (``bookworm``) and 13 (``trixie``)."""
    try:
        return {codename: lab_bases.provide(codename, lab / codename) for codename in lab_bases.VERSIONS}
    except NoArchive as error:
        _unavailable(f"no test nodes without the Debian archive: {error}")


@pytest.fixture(scope="session")
def runtime_bases(lab: Path) -> Callable[[str], Base]:
    """Return the container runtimes of a suite (``lab/runtimes.py``), unpacked once."""

    @cache
    def provide(suite: str) -> Base:
        try:
            return provide_runtimes(suite, lab / f"runtimes-{suite}")
        except NoArchive as error:
            _unavailable(f"no container runtimes of {suite} without the Debian archive: {error}")

    return provide


@pytest.fixture(scope="session")
def repositories(lab: Path, bases: dict[str, Bases]) -> Iterator[Repositories]:
    """Yield NVIDIA's repositories and the distributions' archives, built and signed for this session."""
    made = make_repositories(lab / "www", [both.runtime for both in bases.values()])
    yield made
    discard_keys(made.keys)


@pytest.fixture(scope="session")
def code(lab: Path) -> Mounts:
    """Return this checkout and its dependencies, to be mounted into nodes."""
    return make_code(lab / "site")


@pytest.fixture(scope="session")
def release(lab: Path) -> Path:
    """Return the folder with the result of ``make dist``; GPUNODE_DIST names one that exists already."""
    if made := os.environ.get("GPUNODE_DIST"):
        return Path(made)
    if shutil.which("rpmbuild") is None:
        pytest.skip("no rpmbuild on this machine; apt-get install rpm")
    target = lab / "dist"
    subprocess.run([sys.executable, PROJECT / "packaging/dist.py", target], check=True)
    return target


@pytest.fixture
def node_folder(lab: Path) -> Callable[[], Path]:
    """Make names for the folders of nodes."""
    return lambda: lab / f"node-{next(_NUMBERS)}"


@pytest.fixture
def make_chroot(repositories: Repositories, code: Mounts, node_folder: Callable[[], Path]) -> MakeChroot:
    """Make a node from a base: ``with make_chroot(base, devices=[GTX_1080]) as node``."""

    def make(base: Base, devices: Iterable[Device] = (), kernel: str = "") -> Chroot:
        return Chroot(base, node_folder(), devices=devices, archives=repositories, code=code, kernel=kernel)

    return make


@pytest.fixture
def make_machine(repositories: Repositories, code: Mounts, node_folder: Callable[[], Path]) -> MakeMachine:
    """Make nodes as `make_chroot` does, booted by systemd."""

    def make(base: Base, devices: Iterable[Device] = (), kernel: str = "") -> Machine:
        return Machine(base, node_folder(), devices=devices, archives=repositories, code=code, kernel=kernel)

    return make


_NUMBERS = itertools.count(1)


def _unavailable(why: str) -> NoReturn:
    """Skip the test, or fail it if the lab is required to work (CI)."""
    if os.environ.get("GPUNODE_E2E") == "require":
        pytest.fail(why)
    pytest.skip(why)


def _demand_machine() -> None:
    if os.geteuid() != 0:
        _unavailable("the test lab makes chroots and needs root; run the tests with sudo")
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if missing:
        _unavailable(f"the test lab's tools are missing; apt-get install {' '.join(missing)}")


def _demand_namespaces(folder: Path) -> None:
    try:
        with Sandbox(folder / "trial") as trial:
            for name in ("lower", "upper", "work", "merged"):
                (trial.scratch / name).mkdir()
            parts = ",".join(f"{name}dir={trial.scratch / name}" for name in ("lower", "upper", "work"))
            trial.mount("-t", "overlay", "-o", parts, "overlay", trial.scratch / "merged")
    except (LabError, OSError) as error:
        _unavailable(
            f"the test lab needs namespaces, cgroup2 and overlayfs, which this machine does not grant: {error}"
        )
