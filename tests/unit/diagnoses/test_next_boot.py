"""A kernel that waits for the next boot without a module of NVIDIA's: a warning on a node that works."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.build import headers_packages
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture
from gpunode.workflow.doctor import diagnosed
from tests.scenarios.healthy.captures import evidence, listed
from tests.scenarios.healthy.nodes import HEALTHY

CAUSE = "module-built-for-other-kernel"
NEW = "6.1.0-42-amd64"
DKMS = "nvidia/580.95.05, 6.8.0-45-generic, x86_64: installed\n"
SMI = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
"""
UBUNTU = ("cat /etc/os-release", 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n')


def seen(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(snapshot(pasted.evidence(pieces)))


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


BOOT = "/boot/vmlinuz-6.8.0-45-generic\n/boot/vmlinuz-6.8.0-50-generic\n"
FOUND = "/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko.zst\n"
UNAME, SEEN = ("uname -r", "6.8.0-45-generic\n"), ("nvidia-smi", SMI)
ALL = ("find /lib/modules -name 'nvidia*.ko*'", FOUND)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("ls /boot/vmlinuz-*", BOOT),
        ("ls /boot", BOOT.replace("/boot/", "") + "System.map-6.8.0-45-generic\nvmlinuz\n"),
        ("ls /boot", BOOT.replace("/boot/", "") + "vmlinuz-6.8.0-60-generic.old\n"),
    ],
)
@pytest.mark.parametrize("modules", [("dkms status", DKMS), ALL, ("sudo find / -name 'nvidia.ko*'", FOUND)])
def test_of_a_pasted_report_it_is_likely(source: str, text: str, modules: tuple[str, str]) -> None:
    pieces = [UNAME, modules, (source, text), SEEN, UBUNTU]
    (found,) = seen(*pieces).findings
    assert (found.cause, found.severity, found.confidence) == (CAUSE, "warning", "likely")
    both = modules[1] + modules[1].replace("-45-", "-50-")
    assert not seen(UNAME, (modules[0], both), (source, text), SEEN).findings
    runs = ("uname -r", "6.8.0-50-generic\n")
    assert not seen(runs, (modules[0], modules[1].replace("-45-", "-50-")), (source, text), SEEN).findings


@pytest.mark.parametrize(
    "search",
    [
        ("find /lib/modules/$(uname -r) -name 'nvidia*.ko*'", FOUND),
        ("find /lib/modules/6.8.0-45-generic -name 'nvidia*.ko*'", FOUND),
        ("find /lib/modules -path \"*$(uname -r)*\" -name 'nvidia*.ko*'", FOUND),
        ("find /lib/modules -name 'nvidia*.ko*' | head -n 1", FOUND),
        ("ls /lib/modules/6.8.0-45-generic/updates/dkms", "nvidia.ko.zst\n"),
        ("dkms status -k 6.8.0-45-generic", DKMS),
        ("dkms status -k $(uname -r)", DKMS),
        ("dkms status | grep $(uname -r)", DKMS),
        ("modinfo -n nvidia", FOUND),
    ],
)
def test_who_looked_for_the_running_kernel_alone_has_not_looked_for_the_next(search: tuple[str, str]) -> None:
    assert not seen(UNAME, search, ("ls /boot/vmlinuz-*", BOOT), SEEN, UBUNTU).findings


def test_a_folder_of_modules_is_no_kernel_that_boots() -> None:
    trees = ("ls /lib/modules", "6.8.0-45-generic\n6.8.0-50-generic\n")
    assert not seen(UNAME, ALL, trees, SEEN, UBUNTU).findings
    alone = ("ls /boot/vmlinuz*", "/boot/vmlinuz\n/boot/vmlinuz-6.8.0-45-generic\n")
    assert not seen(UNAME, ALL, trees, alone, SEEN, UBUNTU).findings
    dangling = ("ls -l /boot", "vmlinuz -> vmlinuz-6.8.0-50-generic\nvmlinuz-6.8.0-45-generic\n")
    assert not seen(UNAME, ALL, dangling, SEEN, UBUNTU).findings


@pytest.mark.parametrize(
    "default",
    [
        ("sudo grubby --default-kernel", "/boot/vmlinuz-{}\n"),
        ("grub-editenv list", "saved_entry=gnulinux-{}-advanced-1\n"),
        ("cat /boot/grub/grubenv", "# GRUB Environment Block\nnext_entry=\nsaved_entry=gnulinux-{}-advanced-1\n"),
        ("cat /boot/loader/loader.conf", "timeout 3\ndefault  0a1b-{}.conf\n"),
        ("proxmox-boot-tool kernel list", "Automatically selected kernels:\n6.8.0-50-generic\n\nPinned kernel:\n{}\n"),
        ("cat /etc/kernel/proxmox-boot-pin", "{}\n"),
        ("grep GRUB_DEFAULT /etc/default/grub", 'GRUB_DEFAULT="Advanced>Linux {}"\n'),
    ],
)
def test_what_is_named_as_the_default_boots(default: tuple[str, str]) -> None:
    pieces = (UNAME, ALL, ("ls /boot/vmlinuz-*", BOOT), SEEN, UBUNTU)
    source, text = default
    assert not seen(*pieces, (source, text.format("6.8.0-45-generic"))).findings
    assert [one.cause for one in seen(*pieces, (source, text.format("6.8.0-50-generic"))).findings] == [CAUSE]


@pytest.mark.parametrize(
    "chosen",
    [
        ("bootctl list", "id: a-6.8.0-50-generic.conf\n\nid: a-6.8.0-45-generic.conf (default)\n"),
        ("sudo grub-reboot 2", ""),
        ("sudo grub-set-default '1>2'", ""),
        ("cat /etc/sysconfig/kernel", "UPDATEDEFAULT=no\nDEFAULTKERNEL=kernel-core\n"),
    ],
)
def test_where_somebody_chose_the_newest_is_not_what_boots(chosen: tuple[str, str]) -> None:
    assert not seen(UNAME, ALL, ("ls /boot/vmlinuz-*", BOOT), SEEN, UBUNTU, chosen).findings


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


def test_it_is_no_reason_of_what_is_wrong_today() -> None:
    pieces = [("uname -r", "6.8.0-45-generic\n"), ("dkms status", DKMS), ("nvidia-smi", SMI), UBUNTU,
              ("ls /boot", "vmlinuz-6.8.0-45-generic  vmlinuz-6.8.0-50-generic\n"),
              ("docker run --gpus all x nvidia-smi",
               'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n'),
              ("dpkg -l | grep nvidia-container", "")]  # fmt: skip
    found = seen(*pieces)
    assert {one.explained_by for one in found.findings} <= {""} | {o.cause for o in found.findings if o.cause != CAUSE}
    assert found.findings[0].cause != CAUSE
