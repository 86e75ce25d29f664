"""A booted HGX machine: its fabric manager is enabled, starts after the driver is loaded, and is removed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chroot.states import make_fabric
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.pci import H100, NVSWITCH
from tests.e2e.machine.scenario import PERSISTENCED, Machines, ask, is_up, setup, setup_ok, start_of

pytestmark = pytest.mark.e2e

_MANAGER = "nvidia-fabricmanager.service"


@pytest.fixture(scope="module")
def archive(machines: Machines) -> Path:
    """Return the CUDA repository with fabric managers of both branches."""
    added = [one for version in ("580.178.04-1", "595.91.07-1", "595.91.08-1") for one in make_fabric(version)]
    return machines.repositories.variant("debian12", machines.folder / "fabric-live", added=added)


@pytest.fixture
def node(bases: dict[str, Bases], machines: Machines, archive: Path) -> Iterator[Machine]:
    with machines.make(bases["bookworm"].runtime, [H100, NVSWITCH]) as node:
        machines.furnish(node)
        node.server.mount(machines.repositories.cuda_path("debian12"), archive)
        yield node
        left = marks(node)
    assert leftovers(left) == []


@pytest.mark.long
def test_manager_is_started_after_the_driver_and_removed_with_it(node: Machine) -> None:
    done = setup_ok(node, "containerd")

    assert node.installed()["nvidia-fabricmanager"] == "595.91.07-1"
    assert node.run("systemctl", "is-enabled", _MANAGER).stdout.strip() == "enabled"
    assert is_up(node, _MANAGER)
    subjects = [change["subject"] for change in done.changes]
    assert subjects.index("nvidia") < subjects.index(_MANAGER)
    assert start_of(node, _MANAGER).pid
    (check,) = [one for one in done.result["checks"] if one["id"] == "fabric"]
    assert check["status"] == "passed"
    assert setup_ok(node, "containerd").envelope["changed"] is False

    node.run("systemctl", "stop", _MANAGER)
    failed = ask(node, "verify", "/root/containerd.toml")
    assert failed.exit_code == 7
    (check,) = [one for one in failed.result["checks"] if one["id"] == "fabric"]
    assert (check["status"], check["detail"]) == ("failed", f"1 NVSwitch, and {_MANAGER} does not run")
    assert setup_ok(node, "containerd").envelope["changed"] is True
    assert is_up(node, _MANAGER)

    assert ask(node, "remove", "--yes").exit_code == 10
    assert "nvidia-fabricmanager" not in node.installed()


@pytest.mark.long
def test_manager_runs_again_after_an_upgrade_that_was_undone(node: Machine) -> None:
    """The upgrade leaves its start to the reboot; the undo needs none, since the kernel has the former module."""
    setup_ok(node, "containerd", "--driver", "580")
    assert setup(node, "containerd", "--driver", "595").exit_code == 10
    assert not is_up(node, _MANAGER)

    back = ask(node, "rollback", "--packages", "--yes")

    assert back.exit_code == 0, back.error
    assert is_up(node, _MANAGER)
    assert is_up(node, PERSISTENCED)
    assert ask(node, "plan", "/root/containerd.toml", "--driver", "580", "--check").exit_code == 0
