"""The installed driver is kept, with the real solver; states.py tests the choice for a fresh node."""

from __future__ import annotations

import pytest

from tests.e2e.chroot.scenario import Lab, as_machine, setup, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.pci import T4

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_installed_driver_is_upgraded_only_on_request(bases: dict[str, Bases], chroots: Lab) -> None:
    """Branch 580 is kept on a T4, which 595 would also support; a recipe that names 595 changes it."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        recipe = chroots.recipe(node, "debian12", "bare-metal")
        setup_ok(node, "--driver", "580")
        kept = setup_ok(node)
        assert kept.changes == []

        moved = setup(node, "--driver", "595", recipe=recipe)

        assert moved.exit_code == 10, "the loaded module is still the old one"
        assert node.installed()["nvidia-kernel-open-dkms"] == "595.91.07-1"
