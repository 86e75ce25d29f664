"""A CUDA toolkit is installed with the driver, is first in PATH, is repaired, and is removed without the user's."""

from __future__ import annotations

import pytest

from tests.e2e.chroot.scenario import Lab, as_machine, ask, called, setup_ok
from tests.e2e.chroot.states import make_toolkit
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.pci import GTX_1080
from tests.e2e.lab.snapshot import snapshot

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_toolkit_is_installed_repaired_and_removed(bases: dict[str, Bases], chroots: Lab) -> None:
    releases = [*make_toolkit("12.6", "12.6.3-1"), *make_toolkit("12.9", "12.9.1-1"), *make_toolkit("13.2", "13.2.0-1")]
    folder = chroots.repositories.variant("debian12", chroots.folder / "cuda-toolkit", added=releases)
    with chroots.node(bases["bookworm"].plain, [GTX_1080]) as node:
        as_machine(node)
        node.server.mount(chroots.repositories.cuda_path("debian12"), folder)
        chroots.recipe(node, "debian12", "bare-metal", '[cuda]\nversion = "auto"\n')
        before = snapshot(node)
        called(node)

        setup_ok(node)

        assert called(node).count("apt-get", "install") == 1
        installed = node.installed()
        assert {"cuda-toolkit-12-9", "libcublas-12-9", "nvidia-kernel-dkms"} <= installed.keys()
        assert not {"cuda-12-9", "cuda-drivers", "cuda-toolkit-13-2"} & installed.keys()
        shown = node.run("bash", "-lc", "nvcc; echo $PATH").stdout
        assert "release 12.9" in shown
        assert setup_ok(node).envelope["changed"] is False

        node.run("apt-get", "install", "-y", "cuda-nvcc-12-6")
        node.run("dpkg", "--purge", "--force-depends", "libcublas-12-9")
        assert setup_ok(node).envelope["changed"] is True
        assert "libcublas-12-9" in node.installed()
        assert "release 12.9" in node.run("bash", "-lc", "nvcc").stdout

        assert ask(node, "remove", "--yes").exit_code == 10
        left = node.installed()
        assert "cuda-nvcc-12-6" in left
        assert not {"cuda-toolkit-12-9", "cuda-nvcc-12-9", "libcublas-12-9"} & left.keys()
        node.run("apt-get", "purge", "-y", "cuda-nvcc-12-6")
        assert before.differences(snapshot(node)) == ""
