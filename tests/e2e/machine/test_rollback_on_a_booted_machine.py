"""A complete rollback and a removal on a booted machine: the daemons run as before, nothing of gpunode's stays."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.lab.bases import Bases
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.snapshot import snapshot
from tests.e2e.machine.scenario import CONTAINERD, PERSISTENCED, Machines, ask, is_up, kill_at_unit_change, setup_ok

pytestmark = pytest.mark.e2e


@pytest.fixture
def node(bases: dict[str, Bases], machines: Machines) -> Iterator[Machine]:
    with machines.make(bases["bookworm"].runtime) as node:
        machines.furnish(node)
        yield node
        left = marks(node)
    assert leftovers(left) == []


@pytest.mark.parametrize("recipe", ["containerd", pytest.param("docker", marks=pytest.mark.long)])
def test_units_files_and_packages_are_restored(node: Machine, recipe: str) -> None:
    before, units = snapshot(node), _enabled_units(node)
    setup_ok(node, recipe)
    assert is_up(node, PERSISTENCED)

    back = ask(node, "rollback", "--packages", "--yes")

    assert back.exit_code == 10, back.error
    assert before.differences(snapshot(node)) == ""
    assert _enabled_units(node) == units
    assert is_up(node, CONTAINERD)

    again = ask(node, "rollback", "--packages", "--yes", str(back.result["run"]))

    assert again.exit_code == 0, again.error
    assert is_up(node, PERSISTENCED)
    planned = ask(node, "plan", f"/root/{recipe}.toml", "--check")
    assert [(one["kind"], one["subject"], one["action"]) for one in planned.changes] == []
    assert planned.exit_code == 0

    removed = ask(node, "remove", "--yes")

    assert removed.exit_code == 10, removed.error
    assert before.differences(snapshot(node)) == ""
    assert _enabled_units(node) == units

    node.reboot()
    undone = ask(node, "rollback", "--packages", "--yes", str(removed.result["run"]))

    assert undone.exit_code == 0, undone.error
    assert is_up(node, PERSISTENCED), "it needs the module, which the reboot took away"


@pytest.mark.long
def test_remove_killed_at_its_unit_changes_is_finished_by_the_next(node: Machine) -> None:
    before, units = snapshot(node), _enabled_units(node)
    setup_ok(node, "containerd")
    assert _enabled_units(node) != units

    killed = [kill_at_unit_change(node, "remove", "--yes", number=number) for number in (1, 2, 3)]

    assert -signal.SIGKILL in [one.returncode for one in killed], [one.stdout for one in killed]
    removed = ask(node, "remove", "--yes")
    assert removed.exit_code in {0, 10}, removed.error
    assert before.differences(snapshot(node)) == ""
    assert _enabled_units(node) == units
    assert is_up(node, CONTAINERD)
    again = ask(node, "remove", "--yes")
    assert (again.exit_code, again.envelope["changed"]) == (0, False), again.error


@pytest.mark.long
def test_masked_unit_blocks_no_removal(node: Machine) -> None:
    before = snapshot(node)
    setup_ok(node, "containerd")
    node.run("systemctl", "mask", "--now", PERSISTENCED)

    removed = ask(node, "remove", "--yes")

    assert removed.exit_code == 10, removed.error
    node.run("systemctl", "unmask", PERSISTENCED)
    assert before.differences(snapshot(node)) == ""


def _enabled_units(node: Machine) -> set[str]:
    listed = node.run("systemctl", "list-unit-files", "--state=enabled", "--no-legend", "--no-pager").stdout
    return {line.split()[0] for line in listed.splitlines()}
