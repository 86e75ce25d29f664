"""Starting states, with the real apt: setup ends as planned, once, and a rollback undoes it.

With GPUNODE_STATES set, each state that passes writes its row into docs/reference/starting-states.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.chroot.observation import find_owners, observe
from tests.e2e.chroot.scenario import NONINTERACTIVE, RECIPE, Answer, Lab, as_machine, ask, by_kind, setup
from tests.e2e.chroot.states import DIRECTORIES, STATES, Offer, State, System, list_offers
from tests.e2e.chroot.states_page import PAGE, make_row, missing_states, write_row
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.distro import UBUNTUS, become
from tests.e2e.lab.snapshot import Snapshot
from tests.e2e.lab.tree import Base

# The real one takes longer than everything else together, and is tested in test_first_setup.py.
_QUICK_INITRAMFS: Final = "#!/bin/sh\nexit 0\n"
# The system behind the labels of Ubuntu.
_DEBIAN: Final = "bookworm"
# Done, changes pending, a reboot, a drain.
_ENDS: Final = frozenset({0, 4, 10, 11})
_MAX_ROUNDS: Final = 3
# Commands that ask at the terminal, and the answers.
_ANSWERED: Final = {"nvidia-installer --uninstall": "--silent", "apt-get purge": "--yes"}
# The lab's /boot is a folder.
_BEYOND_THE_LAB: Final = ("mount",)
_OF_TOOL: Final = "/etc/alternatives/"


@dataclass(frozen=True)
class Nodes:
    """Nodes that have only a name and a recipe, made from one prepared disk per system."""

    lab: Lab
    bases: Mapping[str, Bases]
    disks: dict[System, Base]
    offers: dict[tuple[Offer, str], Path]

    def node(self, state: State) -> Chroot:
        """Return the state's node, before its preparation."""
        if state.system not in self.disks:
            self.disks[state.system] = self._prepare(state.system)
        return self.lab.node(self.disks[state.system], state.devices)

    def offer(self, offer: Offer, directory: str) -> Path:
        """Return a variant of NVIDIA's repository."""
        if (offer, directory) not in self.offers:
            folder = self.lab.folder / f"offer-{offer}-{directory}"
            added = list_offers(offer, directory, self.lab.folder / f"native-{offer}-{directory}")
            self.offers[offer, directory] = self.lab.repositories.variant(directory, folder, added=added)
        return self.offers[offer, directory]

    def _prepare(self, system: System) -> Base:
        ubuntu = next((one for one in UBUNTUS if one.codename == system), None)
        base = ubuntu.base(self.bases[_DEBIAN].plain) if ubuntu else self.bases[system].runtime
        disk = self.lab.folder / f"disk-{system}"
        with self.lab.node(base) as node:
            if ubuntu:
                become(node, ubuntu)
                # Ubuntu's headers packages depend on these, which take longer than everything else together.
                behind = f"linux-headers-{self.bases[_DEBIAN].plain.kernel}"
                node.run("apt-get", "-y", "install", behind, env=NONINTERACTIVE)
            as_machine(node)
            node.write("/usr/local/sbin/update-initramfs", _QUICK_INITRAMFS, 0o755)
            node.run("apt-get", "update")
            node.halt()
            node.upper.rename(disk)
        return replace(base, layers=(disk, *base.layers))


@pytest.fixture(scope="module")
def nodes(bases: dict[str, Bases], chroots: Lab) -> Nodes:
    return Nodes(chroots, bases, {}, {})


@pytest.mark.e2e
@pytest.mark.parametrize(
    "state", [pytest.param(one, id=one.id, marks=() if one.core else pytest.mark.long) for one in STATES]
)
def test_setup_ends_as_planned_and_is_taken_back(state: State, nodes: Nodes) -> None:
    with nodes.node(state) as node:
        directory = DIRECTORIES[state.system]
        nodes.lab.recipe(node, directory, state.recipe, state.more)
        if state.offered:
            node.server.mount(nodes.lab.repositories.cuda_path(directory), nodes.offer(state.offered, directory))
        for prepare in state.prepare:
            prepare(node, nodes.lab)
        before, owners = observe(node), find_owners(node)
        planned = ask(node, "plan", RECIPE, *_plannable(state.options))

        done = setup(node, *state.options)

        after = observe(node)
        if state.end in {"refused", "stopped"}:
            assert_stopped(state, done, before, after)
            assert_hints_lead_out(node, state, done)
        else:
            expected = {"waits": {10}, "applied": {7}}.get(state.end, {0, 10})
            assert done.exit_code in expected, f"{done.envelope['errors']}\n{done.stderr}"
            assert state.says in str(planned.envelope), planned.envelope["notes"]
            assert_as_planned(state, planned, done, before, after, owners)
            installed = node.installed()
            assert {name: installed.get(name, "") for name in state.installed} == state.installed
            assert node.run("/usr/bin/dpkg", "--audit").stdout == ""
            if state.end != "waits":
                again = setup(node, *state.options)
                assert again.envelope["changed"] is False, again.changes
            if done.envelope["changed"]:
                assert_taken_back(node, state, before)
        if os.environ.get("GPUNODE_STATES"):
            today = datetime.now(timezone.utc).date()
            write_row(PAGE, make_row(state, done.exit_code, len(find_purged(before, after)), today.isoformat()))


def test_page_has_a_row_for_each_state() -> None:
    assert missing_states(PAGE.read_text()) == []


def _plannable(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options of setup that plan also has."""
    return options[: options.index("--mok-password-file")] if "--mok-password-file" in options else options


def find_installed(found: Snapshot) -> dict[str, str]:
    """Return the version by name of each package that is installed completely or partly."""
    packages = ((name, row) for name, row in found.rows.items() if name.startswith("package "))
    return {
        name.removeprefix("package ").removesuffix(":amd64"): str(row[0])
        for name, row in packages
        if str(row[1])[1] not in "nc"
    }


def find_purged(before: Snapshot, after: Snapshot) -> set[str]:
    """Return the packages that were installed before and no longer are."""
    return find_installed(before).keys() - find_installed(after).keys()


def assert_stopped(state: State, done: Answer, before: Snapshot, after: Snapshot) -> None:
    """Assert that nothing, or no package, was changed, and that the reason is the state's."""
    assert done.exit_code not in {0, 10}, done.envelope
    assert state.says in done.error, done.error
    changed = before.differences(after).splitlines()
    assert [line for line in changed if state.end == "refused" or line.startswith("package ")] == []


def assert_hints_lead_out(node: Chroot, state: State, done: Answer) -> None:
    """Assert that following setup's hints ends, or reaches a manual step, and repeats no command."""
    typed: list[str] = []
    for _ in range(_MAX_ROUNDS):
        proposed = [one for error in done.envelope["errors"] for one in error["commands"]]
        words = [one.removeprefix("sudo ").replace(" sudo ", " ") for one in proposed]
        if done.exit_code in _ENDS or not proposed or any(one.startswith(_BEYOND_THE_LAB) for one in words):
            return
        assert not set(proposed) & set(typed), (typed, done.error)
        for command in words:
            answer = next((answer for asks, answer in _ANSWERED.items() if command.startswith(asks)), "")
            # A command that only shows something may fail, as may one whose work is already done.
            node.finish("sh", "-c", f"{command} {answer}", env=NONINTERACTIVE)
        typed += proposed
        done = setup(node, *state.options)
    assert done.exit_code in _ENDS or all(error["manual"] for error in done.envelope["errors"]), (typed, done.error)


def assert_as_planned(
    state: State, planned: Answer, done: Answer, before: Snapshot, after: Snapshot, owners: Mapping[str, str]
) -> None:
    """Assert that exactly the packages and files that plan names were removed.

    A plan without the index names every package of the former driver; some then only get another version.
    """
    there, left = find_installed(before), find_installed(after)
    purged = there.keys() - left.keys()
    named, told = (
        {name for name, change in by_kind(answer.changes, "package").items() if change["action"] == "purge"}
        for answer in (planned, done)
    )
    assert purged == told & there.keys()
    assert purged <= named
    assert {name for name in named & left.keys() if left[name] == there.get(name)} == set()
    files = by_kind(planned.changes, "file").keys()
    assert files == by_kind(done.changes, "file").keys()
    gone = {name for name in before.rows.keys() - after.rows.keys() if name.startswith("/")}
    # A package may now own it; the rollback shows whether it is restored.
    gone -= {name for name in gone if before.rows[name][0] == "folder"}
    # update-alternatives creates and removes these for packages.
    gone -= {name for name in gone if before.rows[name][0] == "link" and _OF_TOOL in f"{name} {before.rows[name][1]}"}
    uninstalled = re.compile(state.lost or "nothing")
    replaced = {name for name, version in there.items() if left.get(name) != version}
    assert {name for name in gone if owners.get(name) not in replaced and not uninstalled.fullmatch(name)} <= files
    changed = (name for name in before.rows.keys() & after.rows.keys() if before.rows[name] != after.rows[name])
    assert {name for name in changed if name.startswith("/") and name not in owners} <= files


def assert_taken_back(node: Chroot, state: State, before: Snapshot) -> None:
    """Assert that a rollback restores packages and files, except those that the state names."""
    back = ask(node, "rollback", "--packages", "--yes")
    assert back.exit_code in {0, 10} or state.lost, back.error
    left = before.differences(observe(node)).splitlines()
    assert [line for line in left if not state.lost or not re.match(f"({state.lost}): ", line)] == []
    assert bool(left) == bool(state.lost), left
