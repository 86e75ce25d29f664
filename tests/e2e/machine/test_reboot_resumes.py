"""A reboot that setup needs: announced, made once if requested, followed by the rest of the setup, never repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.lab.bases import Bases
from tests.e2e.lab.distro import OLD
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.machine.scenario import (
    CONTAINERD,
    CONTAINERD_CONFIG,
    PROGRAM,
    Machines,
    ask,
    is_up,
    run_old_driver,
    setup,
)

pytestmark = pytest.mark.e2e

UNIT: Final = "gpunode-resume.service"
_PLACES: Final = (f"/etc/systemd/system/{UNIT}", f"/etc/systemd/system/multi-user.target.wants/{UNIT}")
_AT_BOOT: Final = """\
[Unit]
DefaultDependencies=no
After=lab-coldplug.service
Before=sysinit.target

[Service]
Type=oneshot
ExecStart=/usr/lib/lab/load-old

[Install]
WantedBy=sysinit.target
"""


@pytest.fixture
def node(bases: dict[str, Bases], machines: Machines) -> Iterator[Machine]:
    """Yield a machine with the distribution's old driver, installed and loaded."""
    with machines.make(bases["bookworm"].runtime) as node:
        machines.furnish(node)
        run_old_driver(node)
        yield node
        left = marks(node)
    assert leftovers(left) == []


def finished_output(node: Machine) -> str:
    """Return the unit's output in this boot, once it is done; the unit itself is gone."""
    node.wait_running()
    node.run("journalctl", "--sync")
    assert [place for place in _PLACES if node.path(place).is_symlink() or node.path(place).exists()] == []
    return node.run("journalctl", "--boot", "-q", "-o", "cat", f"--unit={UNIT}").stdout


def boots(node: Machine) -> int:
    """Return how often the machine has booted."""
    return len(node.run("journalctl", "--list-boots", "--no-pager", "-q").stdout.splitlines())


def loaded_driver(node: Machine) -> str:
    """Return the version of the loaded driver."""
    return node.read("/proc/driver/nvidia/version").split("Module")[1].split()[0]


def test_setup_announces_a_reboot_and_continues_after_it_on_request(node: Machine) -> None:
    first = node.boot_id()
    done = setup(node, "containerd")
    assert done.exit_code == 10
    assert f"the kernel still runs driver {OLD}" in done.error
    assert "the node needs 580.178.04" in done.error
    assert node.boot_id() == first
    assert all(not node.path(place).exists() for place in _PLACES)

    # A relative path, as users type it.
    typed = "cd /root && exec gpunode setup containerd.toml --yes --reboot --json"
    assert node.finish("sh", "-c", typed).returncode == 10
    node.wait_reboot(first)

    said = finished_output(node)
    assert "nothing to do: this node matches recipe containerd" in said
    assert "Finished gpunode-resume.service" in said
    assert loaded_driver(node) == "580.178.04"
    assert boots(node) == 2
    second = node.boot_id()
    assert setup(node, "containerd").exit_code == 0
    assert node.boot_id() == second
    assert node.run("systemctl", "is-system-running").stdout == "running\n"
    assert len(node.run("gpunode", "rollback", "--list").stdout.strip().splitlines()) >= 2

    # As after an upgrade within the branch: the libraries are newer than the module.
    version = "/proc/driver/nvidia/version"
    node.write(version, node.read(version).replace("580.178.04", "580.65.06"))
    assert ask(node, "plan", "--check", "/root/containerd.toml").exit_code == 10
    stale = setup(node, "containerd")
    assert stale.exit_code == 10
    assert "the kernel still runs driver 580.65.06" in stale.error
    assert setup(node, "containerd", "--reboot").exit_code == 10
    node.wait_reboot(second)
    assert "nothing to do: this node matches recipe containerd" in finished_output(node)
    assert loaded_driver(node) == "580.178.04"


@pytest.mark.long
def test_reason_that_survives_the_reboot_causes_no_second_one(node: Machine) -> None:
    node.write("/etc/systemd/system/load-old.service", _AT_BOOT)
    node.run("systemctl", "enable", "load-old.service")
    first = node.boot_id()

    assert setup(node, "containerd", "--reboot").exit_code == 10
    node.wait_reboot(first)

    said = finished_output(node)
    second = node.boot_id()
    assert f"the kernel still runs driver {OLD}" in said
    assert "status=10" in said
    assert loaded_driver(node) == OLD
    assert boots(node) == 2
    # The next boot continues nothing either.
    node.reboot()
    assert node.boot_id() != second
    assert finished_output(node) == ""
    assert boots(node) == 3
    assert is_up(node, CONTAINERD)
    assert "nvidia" in node.read(CONTAINERD_CONFIG)


@pytest.mark.long
@pytest.mark.parametrize("program", ["/usr/bin/gpunode", PROGRAM])
def test_reboot_continues_with_the_started_release(node: Machine, release: Path, program: str) -> None:
    node.path(PROGRAM).unlink()
    if program == PROGRAM:
        node.path(PROGRAM).write_bytes((release / "gpunode.pyz").read_bytes())
        node.path(PROGRAM).chmod(0o755)
    else:
        node.path("/root/gpunode.deb").write_bytes(next(release.glob("*.deb")).read_bytes())
        node.run("dpkg", "--install", "/root/gpunode.deb")
    first = node.boot_id()

    typed = f"cd {Path(program).parent} && exec ./gpunode setup /root/containerd.toml --yes --reboot --json"
    assert node.finish("sh", "-c", typed).returncode == 10
    node.wait_reboot(first)

    assert "nothing to do: this node matches recipe containerd" in finished_output(node)
    assert loaded_driver(node) == "580.178.04"
    said = node.run("journalctl", "--boot", "-q", "-o", "json", f"_SYSTEMD_UNIT={UNIT}").stdout
    commands = {json.loads(line).get("_CMDLINE", "") for line in said.splitlines()}
    assert any(line.startswith(f"/usr/bin/python3 -I {program} setup --resume ") for line in commands), commands
