"""Ubuntu's kernels, with the real solver: its labels and a complete archive of small packages."""

from __future__ import annotations

import pytest

from tests.e2e.chroot.scenario import Lab, as_machine, setup_ok
from tests.e2e.lab.architecture import NODES
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.distro import UBUNTUS, Ubuntu, become
from tests.e2e.lab.pci import T4

pytestmark = pytest.mark.e2e


@pytest.mark.long
@pytest.mark.parametrize(
    "ubuntu",
    UBUNTUS,
    ids=lambda ubuntu: ubuntu.codename,
)
def test_next_kernel_gets_its_module_too(ubuntu: Ubuntu, bases: dict[str, Bases], chroots: Lab) -> None:
    """A hardware-enablement kernel is installed and will boot next: the module is built for both."""
    with chroots.node(ubuntu.base(bases["bookworm"].plain), [T4]) as node:
        become(node, ubuntu)
        image = f"linux-image-generic-hwe-{ubuntu.version}"
        node.run("apt-get", "-y", "install", image, env={"DEBIAN_FRONTEND": "noninteractive"})
        as_machine(node)
        chroots.recipe(node, ubuntu.directory, "bare-metal")

        setup_ok(node)

        status = node.run("dkms", "status").stdout
        for kernel in (ubuntu.kernel, ubuntu.hwe):
            assert f"nvidia/595.91.07, {kernel}, {NODES.machine}: installed" in status
        assert f"linux-headers-generic-hwe-{ubuntu.version}" in node.installed()
