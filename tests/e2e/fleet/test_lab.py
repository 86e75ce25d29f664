"""The fleet itself: real SSH between namespaces, links that can be cut, hosts that can be killed, nothing left."""

from __future__ import annotations

import pytest

from tests.e2e.fleet.hosts import kill_all, start_sshd
from tests.e2e.fleet.scenario import Fleets
from tests.e2e.lab.machine import Machine

pytestmark = pytest.mark.e2e

PLAY = """\
- hosts: gpu
  gather_facts: false
  tasks:
    - name: name
      ansible.builtin.command: hostname
      changed_when: false
"""


@pytest.mark.long
def test_ansible_reaches_exactly_the_hosts_that_are_up(fleets: Fleets) -> None:
    with fleets.make(["node1", "node2", "node3"], booted=["node4"]) as fleet:
        fleet.write("names.yml", PLAY)
        done = fleet.play("names.yml")
        assert done.exit_code == 0, done.output
        assert {task.host: task.result["stdout"] for task in done.tasks} == {name: name for name in fleet.hosts}

        fleet.cut("node1")
        kill_all(fleet.hosts["node2"])
        assert fleet.play("names.yml").hosts("unreachable") == {"node1", "node2"}

        fleet.join("node1")
        start_sshd(fleet.hosts["node2"])
        booted = fleet.hosts["node4"]
        assert isinstance(booted, Machine)
        booted.reboot()
        assert fleet.play("names.yml").hosts("ok") == set(fleet.hosts)
