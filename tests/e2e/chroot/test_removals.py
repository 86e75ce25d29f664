"""The packages of a distribution's driver, before the real solver: those that plan says are purged are purged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.e2e.chroot.scenario import (
    DIRECTORIES,
    RECIPE,
    Lab,
    as_machine,
    ask,
    by_kind,
    install_old_driver,
    setup_ok,
)
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.debs import Package, build_all
from tests.e2e.lab.pci import T4

pytestmark = pytest.mark.e2e

SOURCES = [word for step in ("cuda-repository", "toolkit-repository", "driver-pin") for word in ("--only", step)]
DISPLAY = {"nvidia-driver", "nvidia-driver-libs", "xserver-xorg-video-nvidia"}


@pytest.mark.parametrize("needed", [pytest.param("", marks=pytest.mark.long), "xserver-xorg-video-nvidia"])
def test_planned_purges_are_exactly_what_is_purged(needed: str, bases: dict[str, Bases], chroots: Lab) -> None:
    """A display package goes as well, unless a package that stays needs it; the plan says which one."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        install_old_driver(node)
        if needed:
            build_all([Package("lab-player", "1.0", depends=(needed,))], node.path("/root/player"))
            node.run("sh", "-c", "dpkg -i /root/player/*.deb")
        chroots.recipe(node, DIRECTORIES["bookworm"])
        at_most = purged_packages(ask(node, "plan", RECIPE).changes)
        setup_ok(node, *SOURCES)  # now the index is read
        exact = ask(node, "plan", RECIPE)
        screen = node.gpunode("plan", RECIPE).stdout

        done = setup_ok(node)

        assert purged_packages(done.changes) == purged_packages(exact.changes)
        assert purged_packages(exact.changes) < at_most
        assert purged_packages(exact.changes).isdisjoint(node.installed())
        assert DISPLAY & node.installed().keys() == ({needed} if needed else set())
        assert ("lab-player needs" in screen) == bool(needed)
        assert ask(node, "plan", RECIPE, "--check").exit_code == 0


def purged_packages(changes: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the packages of which nothing is left afterwards."""
    return {name for name, change in by_kind(changes, "package").items() if change["after"] is None}
