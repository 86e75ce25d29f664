"""gpunode killed during a real apt transaction: the next setup finishes it, and a rollback undoes it."""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from tests.e2e.chroot.killing import (
    DPKG_LOG,
    Orphans,
    State,
    Victims,
    copy_disk,
    discard,
    is_repair_announced,
    start,
    start_setup,
    state,
    steps,
)
from tests.e2e.chroot.scenario import COMMENTED, CONFIG, RECIPE, Lab, as_machine, ask, install_old_driver
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.pci import T4
from tests.e2e.lab.tree import Base

pytestmark = pytest.mark.e2e

# With the driver, a transaction compiles a module and runs maintainer scripts; without it, it is done in a second.
RECIPES = {"toolkit": '[driver]\nversion = "none"\n', "driver": ""}
_SOURCES = ("cuda-repository", "toolkit-repository", "driver-pin")
# The real one takes longer than everything else together, and no kill targets it.
_QUICK_INITRAMFS = "#!/bin/sh\nexit 0\n"
_COPIES = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A node with its package sources, and the result of an undisturbed setup.

    Attributes:
        steps: the number of changes of package states that dpkg logs during it.
    """

    lab: Lab
    base: Base
    former: State
    wanted: State
    steps: int

    def node(self) -> Chroot:
        """Return a new node."""
        return self.lab.node(self.base, [T4])

    @contextmanager
    def killed(self, step: int, victims: Victims) -> Iterator[tuple[Chroot, Orphans]]:
        """Yield a node whose setup was killed at ``step``, and the processes that live on."""
        with self.node() as node:
            orphans = start_setup(node).kill_at(step, victims)
            try:
                yield node, orphans
            finally:
                orphans.send(signal.SIGKILL)

    @contextmanager
    def copied(self, node: Chroot) -> Iterator[Chroot]:
        """Yield another node with a copy of the disk of ``node``."""
        layer = copy_disk(node, self.lab.folder / f"copied-{next(_COPIES)}")
        try:
            with self.lab.node(replace(self.base, layers=(layer, *self.base.layers)), [T4]) as other:
                yield other
        finally:
            discard(layer)


def prepare(lab: Lab, base: Base, more: str) -> Prepared:
    target = lab.folder / f"prepared-{next(_COPIES)}"
    with lab.node(base, [T4]) as node:
        as_machine(node)
        node.write("/usr/local/sbin/update-initramfs", _QUICK_INITRAMFS, 0o755)
        node.write(CONFIG, COMMENTED, 0o640)
        node.run("chown", "daemon:adm", CONFIG)
        lab.recipe(node, "debian12", more=more)
        only = [word for step in _SOURCES for word in ("--only", step)]
        done = node.gpunode("setup", RECIPE, "--yes", *only)
        assert done.returncode in {0, 7}, f"{done.stdout}\n{done.stderr}"
        node.path("/root/setup.log").unlink(missing_ok=True)
        node.halt()
        node.upper.rename(target)
    prepared = replace(base, layers=(target, *base.layers))
    with lab.node(prepared, [T4]) as node:
        former, before = state(node), steps(node)
        done = node.gpunode("setup", RECIPE, "--yes")
        assert done.returncode in {0, 7}, f"{done.stdout}\n{done.stderr}"
        wanted = state(node)
        assert wanted.audit == ""
        return Prepared(lab, prepared, former, wanted, steps(node) - before)


@pytest.fixture(scope="module")
def prepared(bases: dict[str, Bases], chroots: Lab) -> Callable[[str], Prepared]:
    made: dict[str, Prepared] = {}

    def get(name: str) -> Prepared:
        if name not in made:
            made[name] = prepare(chroots, bases["bookworm"].runtime, RECIPES[name])
        return made[name]

    return get


def end_setup(node: Chroot, orphans: Orphans, wanted: State) -> None:
    """Run one more setup: it waits for live processes, reports what it found, and reaches the wanted state."""
    again = start_setup(node)
    if orphans.alive():
        said = again.until("waiting up to ")
        assert "apt-get -q -y" in said, "its command is named"
        assert "/var/lib/dpkg/lock" in said
        orphans.send(signal.SIGCONT)
    ended = again.process.wait()
    assert ended in {0, 7}, again.said
    assert wanted.differences(state(node)) == "", again.said
    said = " ".join(again.said.split())
    assert "was cut short" in said
    assert "in the middle of" in said
    third = ask(node, "setup", RECIPE, "--yes")
    assert third.envelope["changed"] is False, third.changes
    assert litter(node) == []


def take_back(node: Chroot, orphans: Orphans, former: State) -> None:
    """Assert that a rollback restores the configuration and, if requested, the packages."""
    orphans.send(signal.SIGCONT)
    back = node.gpunode("rollback", "--yes")
    assert back.returncode == 0 or "there is nothing to roll back" in back.stderr, back.stderr
    assert "was cut short" in back.stdout + back.stderr
    assert state(node).config == former.config
    if "--packages" not in node.gpunode("rollback", "--help").stdout:
        return
    back = node.gpunode("rollback", "--packages", "--yes")
    assert back.returncode == 0, f"{back.stdout}\n{back.stderr}"
    assert former.differences(state(node)) == "", back.stdout
    assert litter(node) == []


def litter(node: Chroot) -> list[str]:
    """Return the remaining temporary files of a killed run."""
    places = ("/etc/*/.gpunode-*", "/etc/*/*/.gpunode-*", "/tmp/gpunode-*", "/var/lib/apt/gpunode-*")
    return [str(path) for place in places for path in node.path("/").glob(place.lstrip("/"))]


def is_survived(prepared: Prepared, step: int, victims: Victims) -> None:
    with prepared.killed(step, victims) as (node, orphans):
        if victims == "everything":
            with prepared.copied(node) as other:
                take_back(other, orphans, prepared.former)
        end_setup(node, orphans, prepared.wanted)
    if victims == "gpunode":
        with prepared.killed(step, victims) as (node, orphans):
            take_back(node, orphans, prepared.former)


@pytest.mark.parametrize(
    ("undo", "setup_between"),
    [
        pytest.param(("remove",), False, id="remove"),
        pytest.param(("rollback", "--packages"), True, id="rollback-then-setup", marks=pytest.mark.long),
        pytest.param(("remove",), True, id="remove-then-setup", marks=pytest.mark.long),
        pytest.param(("rollback", "--packages"), False, id="rollback", marks=pytest.mark.long),
    ],
)
def test_undo_killed_before_dpkg_starts_is_repeated_by_remove(
    prepared: Callable[[str], Prepared], undo: tuple[str, ...], setup_between: bool
) -> None:
    """Its announced package changes were not made, so the next remove makes them."""
    found = prepared("toolkit")
    with found.node() as node:
        assert node.gpunode("setup", RECIPE, "--yes").returncode in {0, 7}
        installed = state(node).packages
        start(node, *undo, "--yes").kill_before_dpkg()
        assert state(node).packages == installed
        if setup_between:
            assert node.gpunode("setup", RECIPE, "--yes").returncode in {0, 7}

        removed = ask(node, "remove", "--yes")

        assert removed.exit_code == 0, removed.error
        left = state(node)
        assert (left.packages, left.auto, left.audit) == (found.former.packages, found.former.auto, "")
        assert ask(node, "remove", "--yes").envelope["changed"] is False


@pytest.mark.parametrize("setup_between", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("program", ["apt-get", "dpkg"])
def test_remove_takes_what_a_killed_program_installed(
    prepared: Callable[[str], Prepared], program: str, setup_between: bool
) -> None:
    """The kernel kills it when memory runs out; dpkg goes on without apt, and its journal has the last changes."""
    found = prepared("driver")
    with found.node() as node:
        setup = start_setup(node)
        setup.kill_child_at(6, program)
        assert "was killed or crashed" in setup.said
        if setup_between:
            assert node.gpunode("setup", RECIPE, "--yes").returncode in {0, 7}

        removed = ask(node, "remove", "--yes")

        assert removed.exit_code in {0, 10}, removed.error
        left = state(node)
        assert (left.packages, left.auto, left.audit) == (found.former.packages, found.former.auto, "")


@pytest.mark.parametrize(
    ("following", "is_repair_killed"),
    [
        (("setup", RECIPE), False),
        pytest.param(("setup", RECIPE), True, marks=pytest.mark.long),
        pytest.param(("rollback", "--packages"), False, marks=pytest.mark.long),
    ],
)
def test_killed_reinstallation_leaves_packages_on_hold(
    prepared: Callable[[str], Prepared], following: tuple[str, ...], is_repair_killed: bool
) -> None:
    """dpkg drops a hold as soon as it unpacks the package, and the killed shell no longer sets it again."""
    found = prepared("toolkit")
    with found.node() as node:
        assert node.gpunode("setup", RECIPE, "--yes").returncode in {0, 7}
        node.run("apt-mark", "hold", "nvidia-container-toolkit", "nvidia-container-toolkit-base")
        held = state(node)
        node.path("/usr/bin/nvidia-ctk").unlink()
        start_setup(node).kill_once(lambda: "Status: hold" not in node.read("/var/lib/dpkg/status"), "everything")
        assert state(node).held == ""
        if is_repair_killed:
            start_setup(node).kill_once(lambda: is_repair_announced(node), "everything")

        done = node.gpunode(*following, "--yes")

        assert done.returncode in {0, 7}, done.stderr
        assert held.differences(state(node)) == ""


def test_setup_selects_packages_again_that_a_killed_remove_would_purge(
    prepared: Callable[[str], Prepared],
) -> None:
    """apt tells dpkg what it will purge before it starts it; `dpkg --purge --pending` would go on with that."""
    found = prepared("toolkit")
    with found.node() as node:
        assert node.gpunode("setup", RECIPE, "--yes").returncode in {0, 7}
        installed = state(node)
        purge_status = "Status: purge ok installed"
        start(node, "remove", "--yes").kill_once(
            lambda: purge_status in node.read("/var/lib/dpkg/status"), "everything"
        )
        assert purge_status in node.read("/var/lib/dpkg/status")

        done = node.gpunode("setup", RECIPE, "--yes")

        assert done.returncode in {0, 7}, done.stderr
        assert installed.differences(state(node)) == ""


@pytest.mark.long
def test_killed_rollback_to_the_distributions_driver_is_repeated(bases: dict[str, Bases], chroots: Lab) -> None:
    """gpunode's pin, which goes last, leaves a package that is half-installed by then without a candidate."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        node.write("/usr/local/sbin/update-initramfs", _QUICK_INITRAMFS, 0o755)
        install_old_driver(node)
        chroots.recipe(node, "debian12", more='[runtime]\nname = "none"\n')
        former = state(node)
        assert node.gpunode("setup", RECIPE, "--yes").returncode in {0, 7, 10}
        log = node.read(DPKG_LOG)
        rollback = start(node, "rollback", "--packages", "--yes")
        rollback.kill_once(
            lambda: "status half-installed libgles-nvidia1" in node.read(DPKG_LOG)[len(log) :], "everything"
        )

        again = node.gpunode("rollback", "--packages", "--yes")

        assert again.returncode in {0, 10}, again.stderr
        assert former.differences(state(node)) == ""


def test_undo_on_a_full_disk_is_repeated_by_remove(prepared: Callable[[str], Prepared]) -> None:
    """The journal has space for its intents, but dpkg has none; by then apt has lost the automatic marks."""
    found = prepared("driver")
    with found.node() as node:
        assert node.gpunode("setup", RECIPE, "--yes").returncode in {0, 7}
        installed = state(node)
        fill(node, "/var", free_kib=120)

        failed = ask(node, "rollback", "--packages", "--yes")

        assert failed.exit_code == 6
        assert "the disk is full" in failed.error
        assert "the change was made" not in failed.error
        assert state(node).packages == installed.packages
        node.run("mount", "-o", "remount,size=90%", "/var")
        assert node.gpunode("setup", RECIPE, "--yes").returncode in {0, 7}
        assert installed.differences(state(node)) == ""

        removed = ask(node, "remove", "--yes")

        assert removed.exit_code in {0, 10}, removed.error
        left = state(node)
        assert (left.packages, left.auto, left.audit) == (found.former.packages, found.former.auto, "")


def fill(node: Chroot, folder: str, free_kib: int) -> None:
    """Make ``folder`` a separate file system, with its content and space for ``free_kib`` KiB more."""
    script = """set -e
mkdir /mnt/room
mount -t tmpfs room /mnt/room
cp -a "$1/." /mnt/room
used=$(df -k --output=used /mnt/room | tail -1)
mount -o "remount,size=$((used + $2))k" /mnt/room
mount --move /mnt/room "$1"
"""
    node.run("sh", "-c", script, "fill", folder, str(free_kib))


_SHARES = [*(("toolkit", share) for share in (0.0, 0.3, 0.6, 0.9)), ("driver", 0.3), ("driver", 0.7)]
_SHORT = {
    ("toolkit", 0.0, "gpunode"),
    ("driver", 0.7, "everything"),
}


@pytest.mark.parametrize(
    ("recipe", "share", "victims"),
    [
        pytest.param(*share, victims, marks=() if (*share, victims) in _SHORT else pytest.mark.long)
        for share in _SHARES
        for victims in ("gpunode", "everything")
    ],
)
def test_killed_transaction_is_finished_or_rolled_back(
    prepared: Callable[[str], Prepared], recipe: str, share: float, victims: Victims
) -> None:
    found = prepared(recipe)
    is_survived(found, 1 + int(share * found.steps), victims)


@pytest.mark.long
@pytest.mark.parametrize("number", range(88))
def test_transaction_killed_at_a_random_step_recovers(prepared: Callable[[str], Prepared], number: int) -> None:
    """Together with the twelve above, a hundred kills."""
    found = prepared(("toolkit", "driver")[number % 2])
    chance = random.Random(number)
    is_survived(found, chance.randint(1, found.steps), chance.choice(("gpunode", "everything")))
