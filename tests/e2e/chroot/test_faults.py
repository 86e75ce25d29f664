"""Every fault of the table, caused for real: doctor names its cause, and its remedy, run as printed, repairs the node.

Nodes start from the disks of a few that were set up once, as after a boot, so that faults do not affect each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

import pytest

from tests.e2e import live
from tests.e2e.chroot.scenario import COMMENTED, CONFIG, Lab
from tests.e2e.lab import pci
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.commands import run
from tests.e2e.lab.tree import Base
from tests.faults import FAULTS, Fault, Start

pytestmark = pytest.mark.e2e

Enter = Callable[..., AbstractContextManager[Chroot]]
_RECIPES: dict[Start, tuple[str, str]] = {
    "containerd": ("containerd", "GTX_1080"),
    "turing": ("containerd-580", "T4"),
}


@pytest.fixture(scope="module")
def enter(bases: dict[str, Bases], chroots: Lab) -> Iterator[Enter]:
    """Enter a node that has booted from the disk of one of the starting nodes."""
    keyring = chroots.folder / "stranger.gpg"
    chroots.repositories.keys.stranger.write_keyring(keyring)
    stranger = keyring.read_bytes()

    @cache
    def disk(start: Start) -> Base:
        recipe, card = _RECIPES.get(start, ("", "GTX_1080"))
        base = bases["bookworm"].runtime if recipe else bases["bookworm"].plain
        with chroots.node(base, [getattr(pci, card)]) as node:
            live.dress(node, chroots.repositories.recipe)
            if recipe:
                node.write(CONFIG, COMMENTED)
                done = node.finish("gpunode", "setup", f"/root/{recipe}.toml", "--yes")
                assert done.returncode == 0, done
            live.furnish(node, stranger, stocked=bool(recipe))
            return live.preserved(node, chroots.folder / f"disk-{start}")

    @contextmanager
    def node(start: Start, gpus: tuple[str, ...] = ("GTX_1080",), kernel: str = "") -> Iterator[Chroot]:
        with chroots.node(disk(start), [getattr(pci, name) for name in gpus], kernel) as made:
            live.boot(made)
            yield made

    yield node
    run(["rm", "-rf", *(str(path) for path in chroots.folder.glob("disk-*"))])


def test_node_after_setup_has_no_fault(enter: Enter) -> None:
    with enter("containerd") as node:
        found = live.diagnose(node)
        assert (found.exit_code, found.envelope["findings"], found.envelope["unknown"]) == (0, [], []), str(found)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, id=one.id, marks=() if one.core else pytest.mark.long) for one in FAULTS if not one.booted],
)
def test_fault_is_diagnosed_and_fixed(enter: Enter, fault: Fault) -> None:
    with enter(fault.node, fault.gpus, fault.kernel) as node:
        live.make(node, fault)
        found = live.diagnose(node)
        assert found.causes == [fault.cause], str(found)
        if fault.mended == "no":
            return
        carried = live.carry_out(node, fault, found.remedy, lambda: live.boot(node))
        after = live.diagnose(node)
        assert carried.failed == [], live.said(carried, found)
        assert (after.exit_code, after.envelope["findings"]) == (0, []), live.said(carried, found, after)


@pytest.mark.parametrize(
    ("who", "path"),
    [
        pytest.param("an ordinary user", "", id="user"),
        pytest.param("root", "/nowhere", id="empty-path", marks=pytest.mark.long),
    ],
)
def test_doctor_lists_what_it_could_not_read_and_changes_nothing(enter: Enter, who: str, path: str) -> None:
    folders = ("/etc", "/boot", "/usr", "/var/lib/dpkg", "/var/lib/apt", "/var/lib/dkms", "/root")
    with enter("containerd") as node:
        before = node.fingerprint(*folders)
        found = live.diagnose(node, user=who != "root", path=path)
        assert node.fingerprint(*folders) == before
        assert found.envelope["findings"] == [], str(found)
        assert found.exit_code == 0, str(found)
        if not path:
            assert found.envelope["result"]["denied"], found.envelope


@pytest.mark.long
def test_hanging_tool_is_waited_for_only_up_to_its_limit(enter: Enter) -> None:
    with enter("containerd") as node:
        node.write("/usr/local/bin/nvidia-smi", "#!/bin/sh\nexec sleep 1000\n", 0o755)
        found = live.diagnose(node)
        assert found.exit_code in {0, 13}, str(found)
        assert "sleep 1000" not in node.run("ps", "-eo", "args").stdout
