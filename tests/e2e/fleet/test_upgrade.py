"""The collection's upgrade play: downloads first, then batches; a batch over its error budget is rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.e2e import live
from tests.e2e.chroot.scenario import NONINTERACTIVE, add_toolkit_repository, as_machine
from tests.e2e.fleet.hosts import Fleet
from tests.e2e.fleet.scenario import UPGRADE, Fleets
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.pci import GTX_1080
from tests.e2e.machine.scenario import Machines

pytestmark = [pytest.mark.e2e, pytest.mark.long]

OLD, NEW = "1.19.1-1", "1.20.1-1"
TOOLKIT = "nvidia-container-toolkit"
PARTS = (TOOLKIT, "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")
XID = "[ 7012.331904] NVRM: Xid (PCI:0000:01:00): 79, pid=2211, name=python3, GPU has fallen off the bus.\n"
BATCHES = ("-e", '{"gpunode_serial": [1, 2, 2]}')


@pytest.fixture
def fleet(fleets: Fleets) -> Iterator[Fleet]:
    """Yield five hosts that were set up before a newer toolkit was released."""
    base = fleets.host("bookworm")
    folder = fleets.folder / "fleet-set-up"
    with Chroot(
        base, fleets.folder / "fleet-first", devices=[GTX_1080], archives=fleets.repositories, code=fleets.code
    ) as node:
        Machines(fleets.folder, fleets.repositories, fleets.code).furnish(node)
        as_machine(node)
        add_toolkit_repository(node, fleets.repositories)
        node.run("apt-get", "-y", "install", *(f"{name}={OLD}" for name in PARTS), env=NONINTERACTIVE)
        node.run("gpunode", "setup", "/root/containerd.toml", "--yes")
        base = live.preserved(node, folder)
    with replace(fleets, host=lambda _: base).make([f"node{number}" for number in range(1, 6)]) as fleet:
        for host in fleet.hosts.values():
            live.boot(host)
        yield fleet


def versions(fleet: Fleet) -> list[str]:
    return [node.installed()[TOOLKIT] for node in fleet.hosts.values()]


def test_batch_over_its_budget_is_rolled_back_and_the_next_run_goes_on(fleet: Fleet) -> None:
    assert versions(fleet) == [OLD] * 5
    fleet.hosts["node3"].write("/run/lab-dmesg", XID)

    stopped = fleet.play(UPGRADE, *BATCHES)

    assert stopped.exit_code != 0
    assert "node3" in stopped.hosts("failures")
    assert versions(fleet) == [NEW, OLD, OLD, OLD, OLD], stopped.output
    for name in ("node4", "node5"):
        cached = fleet.hosts[name].path("/var/cache/apt/archives").glob(f"{TOOLKIT}_{NEW}_*.deb")
        assert len(list(cached)) == 1, stopped.output

    fleet.hosts["node3"].path("/run/lab-dmesg").unlink()
    fleet.hosts["node5"].server.requests.clear()
    finished = fleet.play(UPGRADE, *BATCHES)

    assert finished.exit_code == 0, finished.output
    assert versions(fleet) == [NEW] * 5
    assert [path for path in fleet.hosts["node5"].server.requests if path.endswith(".deb")] == []
    assert fleet.play(UPGRADE, *BATCHES).hosts("changed") == set()
