"""Nodes that were built without gpunode: a recipe is derived from them, and a capture replaces them elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chroot.scenario import (
    COMMENTED,
    CONFIG,
    DIRECTORIES,
    NONINTERACTIVE,
    Lab,
    add_toolkit_repository,
    as_machine,
    ask,
    install_old_driver,
)
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.code import PROJECT
from tests.e2e.lab.pci import GTX_1080, T4

pytestmark = pytest.mark.e2e

NVIDIA_TABLE = """
          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
            runtime_type = "io.containerd.runc.v2"
            [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
              BinaryName = "/usr/bin/nvidia-container-runtime"
              SystemdCgroup = true
"""


@pytest.fixture(params=["bookworm", pytest.param("trixie", marks=pytest.mark.long)])
def built(request: pytest.FixtureRequest, bases: dict[str, Bases], chroots: Lab) -> Iterator[Chroot]:
    """Return a T4 node built as in the usual article: keyring and pinning package, driver, toolkit, manual file."""
    base = bases[str(request.param)].runtime
    directory = DIRECTORIES[base.codename]
    with chroots.node(base, [T4]) as node:
        as_machine(node)
        keyring = f"{chroots.repositories.cuda}/{directory}/x86_64/cuda-keyring_1.1-1_all.deb"
        node.run("/usr/lib/apt/apt-helper", "download-file", keyring, "/tmp/cuda-keyring.deb")
        node.run("dpkg", "-i", "/tmp/cuda-keyring.deb")
        node.run("apt-get", "update")
        for packages in (["nvidia-driver-pinning-580"], ["nvidia-driver-cuda", "nvidia-kernel-open-dkms"]):
            node.run("apt-get", "-y", "install", *packages, env=NONINTERACTIVE)
        add_toolkit_repository(node, chroots.repositories)
        node.run("apt-get", "-y", "install", "nvidia-container-toolkit", env=NONINTERACTIVE)
        node.write(CONFIG, COMMENTED + NVIDIA_TABLE)
        node.run("modprobe", "nvidia")
        yield node


def test_recipe_of_a_hand_built_node_plans_nothing_on_it(built: Chroot) -> None:
    before = built.fingerprint("/etc", "/var/lib/dpkg")
    assert built.gpunode("recipe", "from-node", "-o", "/root/mine.toml").returncode == 0

    checked = ask(built, "plan", "/root/mine.toml", "--check")

    assert checked.exit_code == 0, [*checked.changes, *checked.envelope["errors"]]
    assert checked.changes == []
    recipe = built.read("/root/mine.toml")
    assert 'version = "580"' in recipe
    assert 'name = "containerd"' in recipe
    assert built.fingerprint("/etc", "/var/lib/dpkg") == before
    again = ask(built, "setup", "/root/mine.toml", "--yes")
    assert (again.exit_code, again.changes) == (0, []), again.envelope["errors"]
    assert ask(built, "recipe", "check", "/root/mine.toml").exit_code == 0


@pytest.mark.long
@pytest.mark.parametrize("codename", ["bookworm", "trixie"])
def test_capture_has_the_same_plan_as_its_node(
    codename: str, bases: dict[str, Bases], chroots: Lab, tmp_path: Path
) -> None:
    with chroots.node(bases[codename].runtime, [GTX_1080]) as node:
        as_machine(node)
        install_old_driver(node)
        node.write(CONFIG, COMMENTED)
        recipe = chroots.recipe(node, DIRECTORIES[codename])
        live = ask(node, "plan", recipe)
        assert node.gpunode("capture", "/root/node.tar.gz").returncode == 0
        shutil.copyfile(node.path("/root/node.tar.gz"), tmp_path / "node.tar.gz")
        shutil.copyfile(node.path(recipe), tmp_path / "node.toml")

    elsewhere = _plan(tmp_path, "node.tar.gz")

    assert len(live.changes) > 10
    assert elsewhere["changes"] == live.changes
    assert elsewhere["diff"] == live.envelope["diff"]
    assert elsewhere["result"]["steps"] == live.result["steps"]


def _plan(folder: Path, capture: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gpunode", "plan", "node.toml", "--node", capture, "--json"]
    environment = {**os.environ, "PYTHONPATH": os.fspath(PROJECT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer
