"""A booted HGX machine in use: GPU users are named, and services stop and start in order, even after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.chroot.scenario import NONINTERACTIVE
from tests.e2e.chroot.states import make_fabric
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.pci import H100, NVSWITCH
from tests.e2e.machine.scenario import PERSISTENCED, Machines, is_up, setup, setup_ok, show

pytestmark = pytest.mark.e2e

_MANAGER: Final = "nvidia-fabricmanager.service"
_DCGM: Final = "nvidia-dcgm.service"
_SERVICES: Final = (PERSISTENCED, _MANAGER, _DCGM)  # in the order in which they start
_STRAY: Final = "libnvidia-nscq"
# Without a driver the node cannot be opened; opening its path alone lists it among a process's open files.
_HOLD: Final = """\
#!/usr/bin/python3
import os, time
os.makedirs("/run/lab", exist_ok=True)
if not os.path.exists("/run/lab/nvidia0"):
    os.mknod("/run/lab/nvidia0", 0o600 | 0o020000, os.makedev(195, 0))
os.open("/run/lab/nvidia0", os.O_PATH)
time.sleep(3600)
"""
_DCGM_UNIT: Final = "[Service]\nExecStart=/usr/lib/lab/hold\n[Install]\nWantedBy=multi-user.target\n"
# apt never runs: gpunode, which calls it, dies before.
_KILLING: Final = """\
#!/bin/sh
case "$*" in *--simulate*|*-s\\ *|*update*|*print-uris*) ;; *install*) kill -KILL $PPID; exit 1;; esac
exec /usr/bin/apt-get "$@"
"""


@pytest.fixture
def node(bases: dict[str, Bases], machines: Machines) -> Iterator[Machine]:
    with machines.make(bases["bookworm"].runtime, [H100, NVSWITCH]) as node:
        machines.furnish(node)
        added = [one for version in ("580.178.04-1", "595.91.07-1", "595.91.08-1") for one in make_fabric(version)]
        folder = machines.repositories.variant("debian12", machines.folder / "clients", added=added)
        node.server.mount(machines.repositories.cuda_path("debian12"), folder)
        yield node
        left = marks(node)
    assert leftovers(left) == []


def stops(node: Machine) -> list[str]:
    """Return the services in the order in which they last stopped."""
    return sorted(_SERVICES, key=lambda unit: int(show(node, unit, "InactiveEnterTimestampMonotonic")[0]))


def starts(node: Machine) -> list[str]:
    """Return the services in the order in which they last started."""
    return sorted(_SERVICES, key=lambda unit: int(show(node, unit, "ActiveEnterTimestampMonotonic")[0]))


def stray(node: Machine) -> None:
    """Install a fabric library of another version than the driver's, so that setup has a package to change."""
    node.run("apt-get", "-y", "install", f"{_STRAY}=595.91.08-1", env=NONINTERACTIVE)


@pytest.mark.long
def test_gpu_in_use_is_left_alone_and_services_pause_in_order(node: Machine) -> None:
    setup_ok(node, "containerd")
    node.write("/usr/lib/lab/hold", _HOLD, 0o755)
    node.write(f"/etc/systemd/system/{_DCGM}", _DCGM_UNIT)
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "enable", "--now", _DCGM)
    before = {unit: show(node, unit, "MainPID") for unit in _SERVICES}
    assert all(is_up(node, unit) for unit in _SERVICES)
    assert setup_ok(node, "containerd").envelope["changed"] is False

    stray(node)
    node.run("systemd-run", "--unit=training", "/usr/lib/lab/hold")
    refused = setup(node, "containerd")
    assert refused.exit_code == 11
    assert "of training.service" in refused.error
    assert "systemctl stop training.service" in refused.error
    assert _DCGM not in refused.error
    assert {unit: show(node, unit, "MainPID") for unit in _SERVICES} == before
    assert node.installed()[_STRAY] == "595.91.08-1"

    node.run("systemctl", "stop", "training.service")
    setup_ok(node, "containerd")
    assert node.installed()[_STRAY] == "595.91.07-1"
    assert stops(node) == [*reversed(_SERVICES)]
    assert starts(node) == [*_SERVICES]
    assert all(is_up(node, unit) for unit in _SERVICES)

    # Killed between the stop and the packages: the next run finishes both.
    stray(node)
    killer = node.write("/usr/local/sbin/apt-get", _KILLING, 0o755)
    assert node.finish("gpunode", "setup", "/root/containerd.toml", "--yes").returncode != 0
    killer.unlink()
    assert not any(is_up(node, unit) for unit in _SERVICES)
    assert node.installed()[_STRAY] == "595.91.08-1"
    setup_ok(node, "containerd")
    assert node.installed()[_STRAY] == "595.91.07-1"
    assert starts(node) == [*_SERVICES]
    assert all(is_up(node, unit) for unit in _SERVICES)

    # Another driver: the old module stays until the reboot, after which everything runs.
    changed = setup(node, "containerd", "--driver", "580")
    assert changed.exit_code == 10, changed.error
    assert not is_up(node, _DCGM)
    node.reboot()
    node.run("systemctl", "start", _DCGM)
    assert node.installed()["nvidia-fabricmanager"] == "580.178.04-1"
    assert all(is_up(node, unit) for unit in _SERVICES)
