"""Debian's nvidia-detect as an oracle: for each GPU that both know, gpunode chooses the branch that Debian recommends.

The script and its lists are the package's own; only the folder of the lists, the file with Debian's version and the
place of a variable's declaration are changed. If the two differ, the table below says why.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from gpunode.catalog import tables
from gpunode.catalog.distro_drivers import choose_from_distro, list_distro_drivers
from gpunode.catalog.driver import DriverChoice
from gpunode.catalog.gpus import find_model
from gpunode.facts.model import Distro
from gpunode.recipe import Driver
from tests.e2e.lab.archive import NoArchive, debian_archive, demand_archive, transport_options
from tests.e2e.lab.commands import run

pytestmark = [pytest.mark.e2e, pytest.mark.long]

_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_VERSIONS: Final = {"bookworm": "12", "trixie": "13"}
_BLOCK: Final = re.compile(r"^Checking driver support for PCI ID \[10de:(\w{4})\]$", re.MULTILINE | re.IGNORECASE)
_PACKAGE: Final = re.compile(r"^    (\S+)$", re.MULTILINE)
_LEGACY: Final = re.compile(r"only supported by the (?:Tesla )?([\d.]+)")
# In supported-gpus.json of drivers 470 to 580, and in none of Debian's lists of current drivers.
_NOT_ON_DEBIANS_LIST: Final = frozenset({"137d", "1bb3", "1df5", "1f09"})
_DIFFERENCES: Final[Mapping[str, Mapping[str, str]]] = {
    "bookworm": {
        **dict.fromkeys(_NOT_ON_DEBIANS_LIST, "nvidia.ids lacks it; NVIDIA's list of this branch has it"),
        "2342": "GH200 runs with the open modules alone, which Debian 12 has in another version than the rest",
    },
    "trixie": dict.fromkeys(_NOT_ON_DEBIANS_LIST, "nvidia.ids lacks it; NVIDIA's list of this branch has it"),
}


@pytest.fixture(scope="module", params=_VERSIONS)
def detect(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a suite, and the unpacked package of it."""
    codename, folder = str(request.param), tmp_path_factory.mktemp(request.param)
    try:
        mirror = debian_archive().rstrip("/")
        demand_archive(mirror, codename)
    except NoArchive as error:
        pytest.skip(f"no nvidia-detect without the Debian archive: {error}")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {mirror} {codename} non-free\n")
    settings = {
        **{f"Dir::Etc::{name}": "/dev/null" for name in ("SourceParts", "Preferences", "PreferencesParts")},
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    options = [*(f"{name}={value}" for name, value in settings.items()), *transport_options()]
    apt = ["env", f"--chdir={folder}", "apt-get", *(word for option in options for word in ("-o", option))]
    run([*apt, "update"], timeout=300)
    run([*apt, "download", "nvidia-detect"], timeout=300)
    run(["dpkg-deb", "-x", os.fspath(next(folder.glob("*.deb"))), os.fspath(folder / "root")])
    return codename, folder / "root"


def ask_debian(codename: str, root: Path) -> dict[str, str]:
    """Return nvidia-detect's output for each GPU of its lists, by PCI id."""
    lists = root / "usr/share/nvidia"
    ids = {line[4:].lower() for path in lists.glob("*.ids") for line in path.read_text().split()}
    (root / "debian_version").write_text(f"{_VERSIONS[codename]}.1\n")
    script = (root / "usr/bin/nvidia-detect").read_text()
    script = script.replace("/usr/share/nvidia", str(lists)).replace(
        "/etc/debian_version", str(root / "debian_version")
    )
    # If queried for several, it repeats the previous package for a GPU without one.
    script = script.replace("local VERSIONS", "local VERSIONS PACKAGE")
    # Its exit status is that of the last GPU.
    done = subprocess.run(
        ["bash", "-s", *sorted(ids)], input=script, capture_output=True, text=True, check=False, timeout=1200
    )
    blocks = _BLOCK.split(done.stdout)[1:]
    said = dict(zip(map(str.lower, blocks[::2]), blocks[1::2], strict=True))
    assert said.keys() == ids, done.stderr
    return said


def test_branch_is_the_one_that_debian_recommends(detect: tuple[str, Path]) -> None:
    codename, root = detect
    version = _VERSIONS[codename]
    distro = Distro("debian", version, codename, f"Debian GNU/Linux {version} ({codename})")
    (own,) = list_distro_drivers(distro)
    known = {row["device_id"] for row in tables.rows("gpus.csv")}
    said = {device: words for device, words in ask_debian(codename, root).items() if device in known}
    different = set()
    for device, words in said.items():
        package = _PACKAGE.search(words)
        choice = choose_from_distro((find_model(device),), Driver(source="distro"), distro)
        takes_own = isinstance(choice, DriverChoice) and choice.branch == own.branch
        if takes_own != (package is not None and package[1] == "nvidia-driver"):
            different.add(device)
        elif not takes_own and (legacy := _LEGACY.search(words)):
            last = find_model(device).last_branch
            assert last is not None
            assert last < own.branch, f"{device}: Debian's last is {legacy[1]}"
    assert len(said) > 1000
    assert different == _DIFFERENCES[codename].keys()
