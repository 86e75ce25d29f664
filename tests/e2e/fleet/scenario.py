"""Helpers of the scenarios on fleets: hosts that gpunode can set up, and the collection on their controller."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.chroot.scenario import as_machine
from tests.e2e.fleet.hosts import PLAYS, Fleet
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.code import PROJECT, Mounts
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.node import Node
from tests.e2e.lab.pci import GTX_1080
from tests.e2e.lab.repositories import Repositories
from tests.e2e.lab.tree import Base
from tests.e2e.machine.scenario import Machines

COLLECTION: Final = "/root/collections/ansible_collections/gpunode/node"
SITE: Final = f"{COLLECTION}/playbooks/site.yml"
UPGRADE: Final = f"{COLLECTION}/playbooks/upgrade.yml"
DOCTOR: Final = f"{COLLECTION}/playbooks/doctor.yml"
_NUMBERS: Final = itertools.count(1)


# All hosts at once, even if some fail.
AT_ONCE: Final = ("-e", '{"gpunode_serial": "100%", "gpunode_max_fail_percentage": 100}')
_LATEST_S: Final = 300
# Otherwise it would be the log of the machine that runs the lab.
_DMESG: Final = "#!/bin/sh\ncat /run/lab-dmesg 2>/dev/null || :\n"


@dataclass(frozen=True, slots=True)
class Fleets:
    """Makes fleets of Debian 12 hosts with a GTX 1080 each."""

    folder: Path
    host: Callable[[str], Base]
    controller: Callable[[str], Base]
    repositories: Repositories
    code: Mounts

    @contextmanager
    def make(self, hosts: Iterable[str], booted: Iterable[str] = (), controller: str = "bookworm") -> Iterator[Fleet]:
        """Yield a fleet of chroots ``hosts`` and systemd machines ``booted``, removed afterwards.

        Args:
            controller: the suite that determines the controller's Python and Ansible (``layers.VERSIONS``).
        """
        nodes: dict[str, Node] = {name: self._node(Chroot, "bookworm") for name in hosts}
        nodes |= {name: self._node(Machine, "bookworm") for name in booted}
        with Fleet(Chroot(self.controller(controller), self._scratch(), code=self.code), nodes) as fleet:
            left = [marks(node) for node in fleet.nodes]
            self._furnish(fleet)
            yield fleet
        assert [found for of in left for found in leftovers(of)] == []

    def _furnish(self, fleet: Fleet) -> None:
        """Install gpunode everywhere, the collection and a recipe on the controller; the hosts count as bare metal."""
        machines = Machines(self.folder, self.repositories, self.code)
        for node in fleet.nodes:
            machines.furnish(node)
        for node in fleet.hosts.values():
            node.write("/usr/local/bin/dmesg", _DMESG, 0o755)
            if isinstance(node, Chroot):
                as_machine(node)
        # Without files that ansible-test left in the checkout.
        kept = shutil.ignore_patterns("output", "__pycache__")
        shutil.copytree(PROJECT / "recipes/ansible", fleet.controller.path(COLLECTION), ignore=kept)
        recipe = f'schema = 1\nextends = "containerd"\n{self.repositories.recipe("debian12")}'
        fleet.write("recipe.toml", recipe)
        fleet.write("group_vars/gpu.yml", f"gpunode_recipe_file: {PLAYS}/recipe.toml\ngpunode_reboot: true\n")

    def _node(self, kind: type[Node], codename: str) -> Node:
        return kind(
            self.host(codename), self._scratch(), devices=[GTX_1080], archives=self.repositories, code=self.code
        )

    def _scratch(self) -> Path:
        # Unique on the machine, since a node's leftovers are found by this name.
        return self.folder / f"{self.folder.name}-fleet-{next(_NUMBERS)}"


def during(playing: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` is true while the play runs."""
    deadline = time.monotonic() + _LATEST_S
    while not condition():
        assert playing.poll() is None, "the play has ended before"
        assert time.monotonic() < deadline
        time.sleep(0.05)
