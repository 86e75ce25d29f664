"""The lab itself: the parts that it calls real are real, and it leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.debs import Package
from tests.e2e.lab.distro import UBUNTUS, Ubuntu, add_nonfree, become
from tests.e2e.lab.image import import_image
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.node import Node
from tests.e2e.lab.pci import GTX_1080, H100
from tests.e2e.lab.repositories import Repositories
from tests.e2e.lab.toolkit import CALLS
from tests.e2e.lab.tree import ADDRESS, PROJECT, SITE

pytestmark = pytest.mark.e2e

MakeChroot = Callable[..., Chroot]
MakeMachine = Callable[..., Machine]
DIRECTORIES = {"bookworm": "debian12", "trixie": "debian13"}
APT = {"DEBIAN_FRONTEND": "noninteractive"}


def add_cuda(node: Chroot, repositories: Repositories, codename: str) -> None:
    """Add NVIDIA's repository as its keyring package adds it."""
    url = f"{repositories.cuda}/{DIRECTORIES[codename]}/x86_64/cuda-keyring_1.1-1_all.deb"
    node.run("/usr/lib/apt/apt-helper", "download-file", url, "/tmp/keyring.deb")
    node.run("dpkg", "-i", "/tmp/keyring.deb")


def add_toolkit(node: Node, repositories: Repositories) -> None:
    """Install the container toolkit from its repository."""
    keyring = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
    repositories.keys.toolkit.write_keyring(node.path(keyring))
    line = f"deb [signed-by={keyring}] {repositories.toolkit}/stable/deb/$(ARCH) /\n"
    node.write("/etc/apt/sources.list.d/nvidia-container-toolkit.list", line)
    node.run("apt-get", "update")
    node.run("apt-get", "-y", "install", "nvidia-container-toolkit", env=APT)


@pytest.fixture(params=["bookworm", pytest.param("trixie", marks=pytest.mark.long)])
def codename(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_driver_installs_from_the_signed_repository_and_builds(
    codename: str, bases: dict[str, Bases], repositories: Repositories, make_chroot: MakeChroot
) -> None:
    base = bases[codename].runtime
    with make_chroot(base, devices=[GTX_1080]) as node:
        add_cuda(node, repositories, codename)
        node.run("apt-get", "update")
        node.run("apt-get", "-y", "install", "nvidia-driver-pinning-580", env=APT)
        node.run("apt-get", "-y", "install", "nvidia-driver-cuda", "nvidia-kernel-dkms", env=APT)

        assert node.installed()["nvidia-kernel-dkms"] == "580.178.04-1"
        assert f"nvidia/580.178.04, {base.kernel}, x86_64: installed" in node.run("dkms", "status").stdout
        assert node.run("modinfo", "-F", "version", "nvidia").stdout == "580.178.04\n"
        assert node.finish("nvidia-smi").returncode == 9
        node.run("modprobe", "nvidia")
        assert node.run("nvidia-smi", "-L").stdout.count("GPU-") == 1
        assert "580.178.04" in node.read("/proc/driver/nvidia/version")


@pytest.mark.long
def test_new_driver_is_open_only_and_its_old_meta_package_is_empty(
    bases: dict[str, Bases], repositories: Repositories, make_chroot: MakeChroot
) -> None:
    with make_chroot(bases["bookworm"].plain) as node:
        add_cuda(node, repositories, "bookworm")
        node.run("apt-get", "update")
        newest = node.run("apt-cache", "show", "--no-all-versions", "cuda-drivers").stdout

        assert "Version: 620.70.06-1" in newest
        assert "Depends:" not in newest
        assert "620." not in node.run("apt-cache", "madison", "nvidia-kernel-dkms").stdout


@pytest.mark.long
def test_apt_refuses_another_key(
    codename: str, bases: dict[str, Bases], repositories: Repositories, make_chroot: MakeChroot
) -> None:
    with make_chroot(bases[codename].plain) as node:
        add_cuda(node, repositories, codename)
        repositories.keys.stranger.write_keyring(node.path("/usr/share/keyrings/cuda-archive-keyring.gpg"))

        refused = node.finish("apt-get", "update")

        assert "is not signed" in refused.stderr
        assert refused.returncode != 0


@pytest.mark.long
def test_repository_can_disappear_during_a_test(
    bases: dict[str, Bases], repositories: Repositories, make_chroot: MakeChroot
) -> None:
    with make_chroot(bases["bookworm"].plain) as node:
        add_cuda(node, repositories, "bookworm")
        node.run("apt-get", "update")
        node.server.gone(repositories.cuda_path("debian12"))

        assert "404" in node.finish("apt-get", "-y", "install", "nvidia-modprobe", env=APT).stderr
        node.server.restore()
        node.run("apt-get", "-y", "install", "nvidia-modprobe", env=APT)


@pytest.mark.long
def test_repository_variant_can_force_a_removal(
    bases: dict[str, Bases], repositories: Repositories, make_chroot: MakeChroot, lab: Path
) -> None:
    hostile = Package("nvidia-modprobe", "999-1", conflicts=("containerd",))
    folder = repositories.variant("debian12", lab / "hostile", added=[hostile])
    with make_chroot(bases["bookworm"].runtime) as node:
        add_cuda(node, repositories, "bookworm")
        node.server.mount(repositories.cuda_path("debian12"), folder)
        node.run("apt-get", "update")

        assert "Remv containerd" in node.run("apt-get", "-s", "install", "nvidia-modprobe").stdout


def test_lspci_and_uname_describe_the_node_and_not_the_machine(
    bases: dict[str, Bases], make_chroot: MakeChroot
) -> None:
    with make_chroot(bases["trixie"].plain, devices=[H100]) as node:
        assert "[10de:2330]" in node.run("lspci", "-nn").stdout
        assert node.run("uname", "-r").stdout.strip() == bases["trixie"].plain.kernel
        assert node.read("/sys/bus/pci/devices/0000:17:00.0/class") == "0x030200\n"


def test_kernel_settings_of_the_machine_cannot_be_changed(bases: dict[str, Bases], make_chroot: MakeChroot) -> None:
    with make_chroot(bases["bookworm"].plain) as node:
        assert node.finish("sh", "-c", "echo 1 > /proc/sys/vm/drop_caches").returncode != 0


@pytest.mark.long
def test_old_driver_of_debian_can_be_purged(bases: dict[str, Bases], make_chroot: MakeChroot) -> None:
    base = bases["bookworm"].runtime
    with make_chroot(base) as node:
        add_nonfree(node)
        node.run("apt-get", "-y", "install", "nvidia-driver", env=APT)
        assert f"nvidia-current/470.256.02, {base.kernel}, x86_64: installed" in node.run("dkms", "status").stdout

        node.run("apt-get", "-y", "purge", "nvidia-kernel-dkms", env=APT)

        assert node.run("dkms", "status").stdout == ""


@pytest.mark.long
@pytest.mark.parametrize("ubuntu", UBUNTUS, ids=lambda ubuntu: ubuntu.codename)
def test_ubuntu_branches_conflict_and_build(
    ubuntu: Ubuntu, bases: dict[str, Bases], repositories: Repositories, make_chroot: MakeChroot
) -> None:
    with make_chroot(ubuntu.base(bases["bookworm"].plain), devices=[H100]) as node:
        become(node, ubuntu)
        url = f"{repositories.cuda}/{ubuntu.directory}/x86_64/cuda-keyring_1.1-1_all.deb"
        node.run("/usr/lib/apt/apt-helper", "download-file", url, "/tmp/keyring.deb")
        node.run("dpkg", "-i", "/tmp/keyring.deb")
        node.run("apt-get", "update")
        node.run("apt-get", "-y", "install", "linux-headers-generic", "nvidia-driver-pinning-580", env=APT)
        node.run("apt-get", "-y", "install", "libnvidia-compute-580", "nvidia-dkms-580-open", env=APT)
        assert f"nvidia/580.178.04, {ubuntu.kernel}, x86_64: installed" in node.run("dkms", "status").stdout

        node.run("apt-get", "-y", "install", "nvidia-driver-pinning-620", env=APT)
        old = ("libnvidia-compute-580-", "nvidia-dkms-580-open-", "nvidia-kernel-common-580-")
        node.run("apt-get", "-y", "install", "libnvidia-compute", "nvidia-dkms-open", *old, env=APT)

        assert f"nvidia/620.70.06, {ubuntu.kernel}, x86_64: installed" in node.run("dkms", "status").stdout
        assert "580" not in node.run("dkms", "status").stdout


@pytest.mark.long
def test_key_file_can_be_replaced(bases: dict[str, Bases], repositories: Repositories, make_chroot: MakeChroot) -> None:
    keys = repositories.keys
    with make_chroot(bases["bookworm"].plain) as node:
        path = repositories.key_path("debian12")
        node.server.replace(path, (keys.cuda.armored + keys.stranger.armored).encode())
        node.run("/usr/lib/apt/apt-helper", "download-file", f"{ADDRESS}{path}", "/tmp/key")

        assert node.read("/tmp/key").count("BEGIN PGP PUBLIC KEY BLOCK") == 2


@pytest.mark.long
def test_old_dockerd_runs_without_an_init(bases: dict[str, Bases], make_chroot: MakeChroot) -> None:
    with make_chroot(bases["bookworm"].runtime) as node:
        node.start("dockerd", log="/var/log/dockerd.log")
        wait = "for i in $(seq 100); do docker info >/dev/null 2>&1 && exit; sleep 0.1; done; exit 1"
        node.run("sh", "-c", wait)
        import_image(node)

        assert node.run("docker", "run", "--rm", "lab", "/hello").stdout == "hello from a container\n"


def test_gpunode_and_its_dependencies_can_be_imported(
    codename: str, bases: dict[str, Bases], make_chroot: MakeChroot
) -> None:
    with make_chroot(bases[codename].plain) as node:
        imports = "import distro, pynvml, rich, sh, typer, gpunode"
        node.run("env", f"PYTHONPATH={PROJECT}:{SITE}", "python3", "-B", "-c", imports)


def test_nothing_is_left_of_a_node(bases: dict[str, Bases], make_chroot: MakeChroot) -> None:
    with make_chroot(bases["bookworm"].runtime, devices=[GTX_1080]) as node:
        node.start("sleep", "1000", log="/var/log/sleep.log")
        node.run("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")
        node.run("mount", "-t", "tmpfs", "none", "/mnt")
        left = marks(node)
        assert leftovers(left)

    assert leftovers(left) == []


def test_failing_node_leaves_nothing(bases: dict[str, Bases], make_chroot: MakeChroot) -> None:
    node = make_chroot(bases["bookworm"].runtime)
    node.__enter__()
    left = marks(node)
    with pytest.raises(FileNotFoundError), closing(node):
        node.start("sleep", "1000", log="/no/such/folder")

    assert leftovers(left) == []


def test_systemd_boots_reboots_and_leaves_nothing(
    codename: str, bases: dict[str, Bases], make_machine: MakeMachine
) -> None:
    with make_machine(bases[codename].runtime, devices=[H100]) as node:
        first = node.boot_id()
        assert node.run("systemctl", "is-active", "containerd", "docker").stdout == "active\nactive\n"
        assert "[10de:2330]" in node.run("lspci", "-nn").stdout
        node.write("/run/gone", "")
        node.write("/root/kept", "")

        node.reboot()

        assert node.boot_id() != first
        assert node.path("/root/kept").exists()
        assert not node.path("/run/gone").exists()
        left = marks(node)

    assert leftovers(left) == []


def test_container_runs_through_the_stand_in_runtime(
    codename: str, bases: dict[str, Bases], repositories: Repositories, make_machine: MakeMachine
) -> None:
    with make_machine(bases[codename].runtime) as node:
        add_toolkit(node, repositories)
        node.write("/etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
        node.run("systemctl", "restart", "docker")
        import_image(node)

        assert (
            node.run("docker", "run", "--rm", "--runtime=nvidia", "lab", "/hello").stdout == "hello from a container\n"
        )
        assert " create " in node.read(CALLS)
