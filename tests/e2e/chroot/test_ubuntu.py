"""Ubuntu's package names and kernels, before the real solver: its labels over a complete archive of small packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.chroot.scenario import Lab, as_machine, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
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


@pytest.fixture(params=UBUNTUS, ids=lambda ubuntu: ubuntu.codename)
def ubuntu(request: pytest.FixtureRequest) -> Ubuntu:
    found = request.param
    assert isinstance(found, Ubuntu)
    return found


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[str(request.param)]


@pytest.fixture
def node(ubuntu: Ubuntu, case: Case, bases: dict[str, Bases], chroots: Lab) -> Iterator[Chroot]:
    with chroots.node(ubuntu.base(bases["bookworm"].plain), [case.device]) as made:
        become(made, ubuntu)
        as_machine(made)
        chroots.recipe(made, ubuntu.directory)
        yield made


def test_the_names_are_those_of_the_branch_and_the_headers_follow_the_kernel(
    node: Chroot, ubuntu: Ubuntu, case: Case
) -> None:
    done = setup_ok(node)

    installed = node.installed()
    for name in (case.dkms, *case.others):
        assert installed[name] == f"{case.version}-1ubuntu1", name
    assert f"linux-headers-{ubuntu.kernel}" in installed
    assert "linux-headers-generic" in installed, "the meta package that keeps later kernels covered"
    assert f"nvidia/{case.version}, {ubuntu.kernel}, x86_64: installed" in node.run("dkms", "status").stdout
    assert [check for check in done.result["checks"] if check["status"] != "passed"] == []
    assert setup_ok(node).changes == []


def test_the_next_kernel_gets_its_module_too(ubuntu: Ubuntu, bases: dict[str, Bases], chroots: Lab) -> None:
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
