"""Driver packages of two versions, with the real solver: all get the version of the kernel modules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.chroot.scenario import DIRECTORIES, NONINTERACTIVE, RECIPE, Lab, as_machine, ask, setup, setup_ok
from tests.e2e.lab import driver
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.debs import Package, build_all
from tests.e2e.lab.pci import T4

pytestmark = pytest.mark.e2e

DIRECTORY = DIRECTORIES["bookworm"]
INSTALLED, NEWER = "595.91.07-1", "595.99.03-1"
MODULES = "nvidia-kernel-open-dkms"
OTHERS = "/root/others"


@pytest.fixture(scope="module")
def node(bases: dict[str, Bases], chroots: Lab) -> Iterator[Chroot]:
    """Yield a node that gpunode has set up, after which the repository got a newer driver of its branch."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as made:
        as_machine(made)
        chroots.recipe(made, DIRECTORY, "bare-metal")
        setup_ok(made)
        assert made.installed()[MODULES] == INSTALLED
        release = driver.make_driver(NEWER.partition("-")[0], chroots.folder / "apart-native")
        packages = driver.debian_packages(release)
        newer = chroots.repositories.variant(DIRECTORY, chroots.folder / "apart", added=packages)
        made.server.mount(chroots.repositories.cuda_path(DIRECTORY), newer)
        made.run("apt-get", "update", env=NONINTERACTIVE)
        folder = made.path(OTHERS)
        folder.mkdir()
        build_all([Package("libcuda1", version) for version in ("595.71.05-1", "615.71.09-1")], folder)
        yield made


def heals(node: Chroot, before: dict[str, str]) -> None:
    """Assert that plan names the driver, setup restores ``before``, and a second one finds nothing."""
    found = ask(node, "plan", RECIPE, "--check")
    assert found.exit_code == 4, found.envelope
    assert {step["id"] for step in found.result["steps"] if step["changes"]} == {"driver"}

    setup_ok(node)

    assert node.installed() == before
    assert setup_ok(node).changes == []
    node.run("apt-get", "check")


@pytest.mark.long
@pytest.mark.parametrize("version", ["595.71.05-1", "615.71.09-1"])
def test_library_of_another_version_is_aligned_with_the_driver(node: Chroot, version: str) -> None:
    before = node.installed()
    node.run("sh", "-c", f"dpkg -i --force-depends --force-downgrade {OTHERS}/libcuda1_{version}_*.deb")
    assert node.installed()["libcuda1"] == version

    heals(node, before)


@pytest.mark.long
def test_upgraded_libraries_go_back_to_the_module_version(node: Chroot) -> None:
    before = node.installed()
    node.run("apt-mark", "hold", MODULES)
    node.run("apt-get", "-y", "install", "nvidia-driver-cuda", env=NONINTERACTIVE)
    node.run("apt-mark", "unhold", MODULES)
    assert node.installed()["libcuda1"] == NEWER
    assert node.installed()[MODULES] == INSTALLED

    heals(node, before)


@pytest.mark.long
def test_missing_driver_packages_get_the_installed_version(node: Chroot) -> None:
    before = node.installed()
    node.run("dpkg", "--purge", "--force-depends", "nvidia-driver-cuda", "nvidia-persistenced", env=NONINTERACTIVE)

    heals(node, before)


@pytest.mark.long
def test_library_held_at_another_version_is_refused(node: Chroot) -> None:
    node.run("sh", "-c", f"dpkg -i --force-depends --force-downgrade {OTHERS}/libcuda1_595.71.05-1_*.deb")
    node.run("apt-mark", "hold", "libcuda1")
    before = node.installed()

    refused = setup(node)

    assert refused.exit_code == 3
    assert "apt-mark unhold libcuda1" in refused.error
    assert node.installed() == before
    node.run("apt-mark", "unhold", "libcuda1")
    setup_ok(node)


@pytest.mark.long
def test_upgrade_moves_all_packages_to_the_newest_of_the_branch(node: Chroot) -> None:
    node.run("sh", "-c", f"dpkg -i --force-depends --force-downgrade {OTHERS}/libcuda1_595.71.05-1_*.deb")

    upgraded = setup(node, "--upgrade")

    assert upgraded.exit_code == 10
    assert "the kernel still runs driver 595.91.07; the node needs 595.99.03" in upgraded.error
    assert node.installed()["libcuda1"] == node.installed()[MODULES] == NEWER
