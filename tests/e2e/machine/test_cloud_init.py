"""A cloud machine's first boot: Debian's cloud-init runs the user data of recipes/cloud-init, with the release.

Also the script that Packer runs on such a machine to make an image of it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.e2e import live
from tests.e2e.chroot.scenario import DIRECTORIES, mount_image
from tests.e2e.conftest import _unavailable
from tests.e2e.lab.archive import NoArchive
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.code import PROJECT
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.repositories import Repositories
from tests.e2e.lab.tree import ADDRESS, Base
from tests.e2e.machine.cloud import Cloud, provide_cloud, status
from tests.e2e.machine.scenario import Machines, ask, run_old_driver

pytestmark = [pytest.mark.e2e, pytest.mark.long]

RECIPES: Final = PROJECT / "recipes/cloud-init"
IMAGES: Final = PROJECT / "recipes/images"
RECIPE: Final = "/etc/gpunode/node.toml"
# The driver that an image's distribution brought is loaded at boot, until another one is installed.
_OLD_AT_BOOT: Final = """\
[Unit]
DefaultDependencies=no
After=lab-coldplug.service
Before=sysinit.target
ConditionPathExists=!/var/lib/dkms/nvidia

[Service]
Type=oneshot
ExecStart=/usr/lib/lab/load-old

[Install]
WantedBy=sysinit.target
"""


@pytest.fixture(scope="module")
def cloud(lab: Path, repositories: Repositories) -> Cloud:
    return Cloud(lab, repositories)


@pytest.fixture(scope="module")
def cloud_bases(lab: Path, bases: dict[str, Bases]) -> Callable[[str], Base]:
    """Return bare machines of a suite, made once."""

    @cache
    def provide(codename: str) -> Base:
        try:
            return provide_cloud(bases[codename].plain, lab / f"cloud-{codename}")
        except NoArchive as error:
            _unavailable(f"no cloud machine without the Debian archive: {error}")

    return provide


@pytest.fixture(scope="module")
def user_data(release: Path, repositories: Repositories) -> Callable[[str], str]:
    """Return the user data for a bare machine of a suite, with the address and the checksum that a person sets."""
    (repositories.root / "release").mkdir()
    shutil.copy(release / "gpunode.pyz", repositories.root / "release/gpunode.pyz")
    checksum = hashlib.sha256((release / "gpunode.pyz").read_bytes()).hexdigest()
    text = (RECIPES / "user-data.yaml").read_text()
    text = text.replace("https://mirror.example", f"{ADDRESS}/release").replace("CHECKSUM", checksum)
    extends = '      extends = "containerd"\n'
    assert extends in text

    def of(codename: str) -> str:
        lines = repositories.recipe(DIRECTORIES[codename]).splitlines()
        return text.replace(extends, extends + "".join(f"      {line}\n" for line in lines))

    return of


def works(node: Machine) -> None:
    """Assert that cloud-init reports no error, no unit has failed, and the node is as the recipe wants."""
    found = status(node)
    log = node.read("/var/log/cloud-init-output.log")
    assert (found["status"], found["errors"]) == ("done", []), f"{found}\n{log}"
    assert "[WARNING]" not in node.read("/var/log/cloud-init.log")
    assert node.finish("systemctl", "is-system-running").stdout == "running\n", node.run("systemctl", "--failed").stdout
    assert ask(node, "verify", RECIPE).exit_code == 0, log
    assert ask(node, "plan", RECIPE, "--check").exit_code == 0, log
    assert "as a zipapp: /usr/local/bin/gpunode" in node.run("gpunode", "--version").stdout


@pytest.mark.parametrize("codename", ["bookworm", "trixie"])
def test_user_data_makes_a_bare_machine_a_gpu_node(
    codename: str, cloud: Cloud, cloud_bases: Callable[[str], Base], user_data: Callable[[str], str]
) -> None:
    with cloud.start(cloud_bases(codename), user_data(codename)) as node:
        works(node)
        assert not list(node.path("/run").glob("gpunode.pyz"))


def test_download_with_a_wrong_checksum_is_not_run(
    cloud: Cloud, cloud_bases: Callable[[str], Base], user_data: Callable[[str], str], release: Path
) -> None:
    checksum = hashlib.sha256((release / "gpunode.pyz").read_bytes()).hexdigest()
    text = user_data("bookworm")
    assert checksum in text
    with cloud.start(cloud_bases("bookworm"), text.replace(checksum, "0" * 64)) as node:
        assert status(node)["status"] == "error"
        assert "gpunode.pyz: FAILED" in node.read("/var/log/cloud-init-output.log")
        assert not node.path("/usr/local/bin/gpunode").exists()


def test_setup_continues_after_the_reboot_for_a_new_driver(
    lab: Path, cloud: Cloud, cloud_bases: Callable[[str], Base], user_data: Callable[[str], str], machines: Machines
) -> None:
    with machines.make(cloud_bases("bookworm")) as old:
        run_old_driver(old)
        old.write("/etc/systemd/system/load-old.service", _OLD_AT_BOOT)
        old.run("systemctl", "enable", "load-old.service")
        image = live.preserved(old, lab / "cloud-old-driver")
    with cloud.start(image, user_data("bookworm")) as node:
        assert "next: setup continues after the reboot" in node.read("/var/log/cloud-init-output.log")
        assert "580.178.04" in node.read("/proc/driver/nvidia/version")
        works(node)
        assert not node.path("/etc/systemd/system/gpunode-resume.service").exists()


def image_recipe(repositories: Repositories) -> str:
    """Return the recipe of an image; the newest branch does not drive this GPU."""
    return (IMAGES / "node.toml").read_text().replace('"production"', '"580"') + repositories.recipe("debian12")


@pytest.fixture(scope="module")
def image(lab: Path, cloud_bases: Callable[[str], Base], release: Path, repositories: Repositories) -> Base:
    """Return an image, made as mkosi.finalize makes it."""
    base = cloud_bases("bookworm")
    with Chroot(base, lab / "cloud-builder", archives=repositories, kernel="9.9.9-of-the-builder") as builder:
        root, upper = mount_image(builder, "/srv/image", base, repositories)
        (root / "usr/local/bin/gpunode").write_bytes((release / "gpunode.pyz").read_bytes())
        (root / "usr/local/bin/gpunode").chmod(0o755)
        (root / "etc/gpunode").mkdir()
        (root / "etc/gpunode/node.toml").write_text(image_recipe(repositories))
        program = ("python3", "-I", "/srv/image/usr/local/bin/gpunode")
        options = ("--root", "/srv/image", "--gpu", "10de:1b80", "--yes")
        builder.run(*program, "setup", "/srv/image/etc/gpunode/node.toml", *options)
        shutil.copy(IMAGES / "generalise.sh", builder.path("/root/generalise.sh"))
        builder.run("sh", "/root/generalise.sh", "/srv/image")
        builder.halt()
        upper.rename(lab / "cloud-image")
    return replace(base, layers=(lab / "cloud-image", *base.layers))


def test_machine_started_from_an_image_works(cloud: Cloud, image: Base) -> None:
    with cloud.start(image, (RECIPES / "from-image.yaml").read_text()) as node:
        works(node)
        # There was nothing left to do: the only run is that of the build.
        assert len(ask(node, "log").result["runs"]) == 1


def test_packer_provisioner_makes_an_image_of_the_running_machine(
    cloud: Cloud, cloud_bases: Callable[[str], Base], release: Path, repositories: Repositories
) -> None:
    with cloud.start(cloud_bases("bookworm"), "#cloud-config\n") as node:
        for file in (release / "gpunode.pyz", release / "SHA256SUMS", IMAGES / "generalise.sh"):
            shutil.copy(file, node.path(f"/tmp/{file.name}"))
        node.write("/tmp/node.toml", image_recipe(repositories))
        shutil.copy(IMAGES / "packer/provision.sh", node.path("/root/provision.sh"))

        node.run("sh", "-eu", "/root/provision.sh", env={"GPUS": "10de:1b80"})

        assert node.read("/etc/machine-id") == ""
        assert not list(node.path("/etc/ssh").glob("ssh_host_*"))
        assert "/mnt/image" not in node.run("cat", "/proc/mounts").stdout
        assert node.finish("test", "-e", "/proc/driver/nvidia/version").returncode == 1
        assert len(ask(node, "log").result["runs"]) == 1
