"""Ubuntu's package names and kernels, before the real solver: its labels over a complete archive of small packages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.e2e.chroot.scenario import Lab, as_machine, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.distro import UBUNTUS, Ubuntu, become
from tests.e2e.lab.pci import GTX_1080, T4, Device

pytestmark = pytest.mark.e2e


@dataclass(frozen=True, slots=True)
class Case:
    device: Device
    version: str
    dkms: str
    others: tuple[str, ...]


CASES = {
    # Up to 580 the branch is in the names, after that it is not.
    "gtx1080": Case(GTX_1080, "580.178.04", "nvidia-dkms-580", ("libnvidia-compute-580",)),
    "t4": Case(T4, "595.91.07", "nvidia-dkms-open", ("libnvidia-compute",)),
}


# The short runs make this one here, and the other release and card with its next kernel.
_SHORT = ("jammy", "gtx1080")


@pytest.mark.parametrize(
    ("ubuntu", "case"),
    [
        pytest.param(
            ubuntu,
            case,
            id=f"{ubuntu.codename}-{name}",
            marks=() if (ubuntu.codename, name) == _SHORT else pytest.mark.long,
        )
        for ubuntu in UBUNTUS
        for name, case in CASES.items()
    ],
)
def test_ubuntu_package_names_follow_the_branch_and_kernel(
    ubuntu: Ubuntu, case: Case, bases: dict[str, Bases], chroots: Lab
) -> None:
    with chroots.node(ubuntu.base(bases["bookworm"].plain), [case.device]) as node:
        become(node, ubuntu)
        as_machine(node)
        chroots.recipe(node, ubuntu.directory)

        done = setup_ok(node)

        installed = node.installed()
        for name in (case.dkms, *case.others):
            assert installed[name] == f"{case.version}-1ubuntu1", name
        assert f"linux-headers-{ubuntu.kernel}" in installed
        assert "linux-headers-generic" in installed, "the meta package that keeps later kernels covered"
        assert f"nvidia/{case.version}, {ubuntu.kernel}, x86_64: installed" in node.run("dkms", "status").stdout
        assert [check for check in done.result["checks"] if check["status"] != "passed"] == []
        assert setup_ok(node).changes == []


@pytest.mark.long
@pytest.mark.parametrize(
    "ubuntu",
    UBUNTUS,
    ids=lambda ubuntu: ubuntu.codename,
)
def test_next_kernel_gets_its_module_too(ubuntu: Ubuntu, bases: dict[str, Bases], chroots: Lab) -> None:
    """A hardware-enablement kernel is installed and boots next: the module is built for both."""
    with chroots.node(ubuntu.base(bases["bookworm"].plain), [T4]) as node:
        become(node, ubuntu)
        image = f"linux-image-generic-hwe-{ubuntu.version}"
        node.run("apt-get", "-y", "install", image, env={"DEBIAN_FRONTEND": "noninteractive"})
        as_machine(node)
        chroots.recipe(node, ubuntu.directory, "bare-metal")

        setup_ok(node)

        status = node.run("dkms", "status").stdout
        for kernel in (ubuntu.kernel, ubuntu.hwe):
            assert f"nvidia/595.91.07, {kernel}, x86_64: installed" in status
        assert f"linux-headers-generic-hwe-{ubuntu.version}" in node.installed()
