"""The role's own installation: gpunode.pyz is copied over SSH to hosts without gpunode."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.e2e.fleet.hosts import PLAYS
from tests.e2e.fleet.scenario import AT_ONCE, SITE, Fleets
from tests.e2e.lab.machine import Machine
from tests.e2e.machine.scenario import PROGRAM, run_old_driver

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SETUP: Final = "gpunode.node.gpunode"
WITH_FILE: Final = ("-e", f"gpunode_file={PLAYS}/gpunode.pyz", *AT_ONCE)


def test_zipapp_is_copied_and_sets_up_the_hosts(fleets: Fleets, release: Path) -> None:
    with fleets.make(["node1"], booted=["node2"]) as fleet:
        for node in fleet.hosts.values():
            node.path(PROGRAM).unlink()
        fleet.controller.path(f"{PLAYS}/gpunode.pyz").write_bytes((release / "gpunode.pyz").read_bytes())
        rebooted = fleet.hosts["node2"]
        assert isinstance(rebooted, Machine)
        run_old_driver(rebooted)
        before = rebooted.boot_id()

        check = fleet.play(SITE, "--check", *WITH_FILE)

        assert check.exit_code == 0, check.output
        assert check.hosts("changed") == set(fleet.hosts)
        for node in fleet.hosts.values():
            assert [path.name for path in node.path(PROGRAM).parent.glob("gpunode*")] == []

        first = fleet.play(SITE, *WITH_FILE)

        assert first.exit_code == 0, first.output
        assert rebooted.boot_id() != before
        for name, node in fleet.hosts.items():
            assert node.run("gpunode", "--version").stdout.endswith(f"installed as a zipapp: {PROGRAM}\n")
            assert node.installed()["nvidia-kernel-dkms"] == "580.178.04-1"
            assert "ok" in [task.status for task in first.of(name, "ansible.builtin.copy")]

        second = fleet.play(SITE, *WITH_FILE)

        assert (second.exit_code, second.hosts("changed")) == (0, set()), second.output
