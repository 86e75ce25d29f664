"""Faults of booted nodes, caused for real: daemons that refuse, units that fail, reboots that repair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

import pytest

from tests.e2e import live
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.commands import run
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.tree import Base
from tests.e2e.machine.scenario import Machines
from tests.faults import FAULTS, Fault, Start

pytestmark = pytest.mark.e2e

Boot = Callable[[Start], AbstractContextManager[Machine]]


@pytest.fixture(scope="module")
def booted(bases: dict[str, Bases], machines: Machines) -> Iterator[Boot]:
    """Boot a machine from the disk of one that was already set up."""

    @cache
    def disk(start: Start) -> Base:
        with machines.make(bases["bookworm"].runtime) as node:
            live.dress(node, machines.repositories.recipe)
            recipe = "k8s-containerd" if start == "kubernetes" else start
            done = node.finish("gpunode", "setup", f"/root/{recipe}.toml", "--yes")
            assert done.returncode == 0, done
            if start == "kubernetes":
                live.add_kubelet(node)
            return live.preserved(node, machines.folder / f"booted-{start}")

    @contextmanager
    def boot(start: Start) -> Iterator[Machine]:
        with machines.make(disk(start)) as node:
            yield node
            left = marks(node)
        assert leftovers(left) == []

    yield boot
    run(["rm", "-rf", *(str(path) for path in machines.folder.glob("booted-*"))])


@pytest.mark.long
@pytest.mark.parametrize("start", ["docker", "kubernetes", "containerd"])
def test_machine_after_setup_has_no_fault(booted: Boot, start: Start) -> None:
    with booted(start) as node:
        found = live.diagnose(node)
        assert (found.exit_code, found.envelope["findings"], found.envelope["unknown"]) == (0, [], []), str(found)


@pytest.mark.long
def test_docker_does_not_need_the_cri_plugin_of_its_containerd(booted: Boot) -> None:
    with booted("docker") as node:
        node.write("/etc/containerd/config.toml", 'disabled_plugins = ["cri"]\n')
        node.run("systemctl", "restart", "containerd.service")
        found = live.diagnose(node)
        assert (found.exit_code, found.envelope["findings"]) == (0, []), str(found)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, id=one.id, marks=() if one.core else pytest.mark.long) for one in FAULTS if one.booted],
)
def test_fault_is_diagnosed_and_fixed(booted: Boot, fault: Fault) -> None:
    with booted(fault.node) as node:
        live.make(node, fault)
        found = live.diagnose(node)
        assert found.causes == [fault.cause], str(found)
        if fault.mended == "no":
            return
        carried = live.carry_out(node, fault, found.remedy, node.reboot)
        after = live.diagnose(node)
        assert carried.failed == [], live.said(carried, found)
        assert (after.exit_code, after.envelope["findings"]) == (0, []), live.said(carried, found, after)
