"""A kernel that waits for the next boot without a module of NVIDIA's: a warning on a node that works."""

from __future__ import annotations

import pytest

from gpunode.diagnoses.build import headers_packages
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture
from gpunode.workflow.doctor import diagnosed
from tests.scenarios.healthy.captures import evidence, listed
from tests.scenarios.healthy.nodes import HEALTHY

CAUSE = "module-built-for-other-kernel"
NEW = "6.1.0-42-amd64"


def live(name: str, *kernels: str, grub: str = "") -> dict[str, Capture]:
    """The evidence of a healthy node with these kernels in /boot besides its own."""
    node = {**HEALTHY[name]()}
    images = node["boot-images"]
    assert isinstance(images, tuple)
    node["boot-images"] = (*images, *listed(*(f"/boot/vmlinuz-{kernel}" for kernel in kernels)))
    found = dict(evidence(node))
    if grub:
        found["file:/etc/default/grub"] = Capture("/etc/default/grub", "ok", grub.encode())
    return found


@pytest.mark.parametrize("grub", ["", "GRUB_DEFAULT=0\n", '# GRUB_DEFAULT=saved\nGRUB_DEFAULT="0" # the first\n'])
def test_on_a_live_node_it_is_likely_and_gpunode_builds_it(grub: str) -> None:
    examined = diagnosed(live("debian-12-docker", NEW, grub=grub))
    (found,) = examined.diagnosis.findings
    assert (found.cause, found.severity, found.confidence) == (CAUSE, "warning", "likely")
    assert NEW in found.summary
    assert found.remedy[0].commands[0].endswith("setup --only headers --only module-build")
    assert examined.works


@pytest.mark.parametrize(
    ("node", "kernel"),
    [
        ("debian-12-docker", "6.1.0-42-rt-amd64"),
        ("debian-12-docker", "6.1.0-42-cloud-amd64"),
        ("debian-12-docker", "6.12.48+deb12-amd64"),
        ("ubuntu-24-containerd", "6.8.0-90-lowlatency"),
        ("gh200", "6.8.0-1099-nvidia"),
        ("rhel-9-crio", "5.14.0-570.el9.x86_64+debug"),
        ("rhel-9-crio", "5.14.0-999.el9.x86_64+debug"),
        ("rocky-9-podman", "5.14.0-999.el9.x86_64+rt"),
    ],
)
def test_a_kernel_of_another_flavour_is_not_the_next(node: str, kernel: str) -> None:
    assert not diagnosed(live(node, kernel)).diagnosis.findings


@pytest.mark.parametrize(
    "grub",
    [
        "GRUB_DEFAULT=saved\n",
        'GRUB_DEFAULT="Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-41-amd64"\n',
        "GRUB_DEFAULT='1>2'\n",
        "GRUB_TOP_LEVEL=/boot/vmlinuz-6.1.0-41-amd64\n",
    ],
)
def test_grub_may_have_another_default(grub: str) -> None:
    assert not diagnosed(live("debian-12-docker", NEW, grub=grub)).diagnosis.findings


def test_the_newer_kernel_of_another_flavour_may_be_what_boots() -> None:
    assert not diagnosed(live("debian-12-docker", NEW, "6.1.0-43-rt-amd64")).diagnosis.findings


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        ("5.14.0-570.el9.x86_64", ("kernel-devel-5.14.0-570.el9.x86_64",)),
        ("5.14.0-570.el9.x86_64+debug", ("kernel-debug-devel-5.14.0-570.el9.x86_64",)),
        ("5.14.0-570.el9.x86_64+rt", ("kernel-rt-devel-5.14.0-570.el9.x86_64",)),
        ("5.14.0-570.el9.aarch64+64k", ("kernel-64k-devel-5.14.0-570.el9.aarch64",)),
        ("5.15.0-307.178.5.el9uek.x86_64", ("kernel-uek-devel-5.15.0-307.178.5.el9uek.x86_64",)),
        ("6.11.1-1.el9.elrepo.x86_64", ()),
    ],
)
def test_the_headers_of_a_variant_have_their_own_package(kernel: str, names: tuple[str, ...]) -> None:
    rocky = snapshot(
        pasted.evidence([("cat /etc/os-release", 'ID="rocky"\nID_LIKE="rhel fedora"\nVERSION_ID="9.6"\n')])
    )
    assert headers_packages(rocky, kernel) == names
