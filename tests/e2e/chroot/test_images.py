"""--root DIR --gpu: an image is set up from outside, for another machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.chroot.scenario import COMMENTED, CONFIG, DIRECTORIES, Answer, Lab, as_machine, ask, mount_image
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot

pytestmark = pytest.mark.e2e

IMAGE = "/srv/image"
_GENERALISE = Path(__file__).parents[3] / "recipes/images/generalise.sh"
RUNNING = "9.9.9-of-the-builder"
OPTIONS = ("--root", IMAGE, "--gpu", "10de:1b80")


@dataclass(frozen=True, slots=True)
class Build:
    """An image being built in ``IMAGE`` of a builder that has another kernel."""

    builder: Chroot
    kernel: str
    recipe: str

    def read(self, path: str) -> str:
        return self.builder.read(f"{IMAGE}{path}")

    def exists(self, path: str) -> bool:
        return self.builder.path(f"{IMAGE}{path}").exists()

    def mounts(self) -> list[str]:
        return [line.split()[1] for line in self.builder.run("cat", "/proc/mounts").stdout.splitlines()]

    def setup(self) -> Answer:
        return ask(self.builder, "setup", self.recipe, "--yes", *OPTIONS)


@pytest.fixture(params=["bookworm", pytest.param("trixie", marks=pytest.mark.long)])
def build(request: pytest.FixtureRequest, bases: dict[str, Bases], chroots: Lab) -> Iterator[Build]:
    base = bases[str(request.param)].runtime
    with chroots.node(base, kernel=RUNNING) as builder:
        image, _ = mount_image(builder, IMAGE, base, chroots.repositories)
        (image / CONFIG.lstrip("/")).parent.mkdir(exist_ok=True)
        (image / CONFIG.lstrip("/")).write_text(COMMENTED)
        as_machine(builder)
        yield Build(builder, base.kernel, chroots.recipe(builder, DIRECTORIES[base.codename]))


def _listing(build: Build, *folders: str) -> list[str]:
    """Return the listing of the folders without gpunode's own lock, which the image's first boot empties."""
    paths = (path for folder in folders for path in build.builder.path(f"{IMAGE}{folder}").iterdir())
    return sorted(str(path) for path in paths if not str(path).endswith("/run/gpunode"))


@pytest.mark.parametrize("build", ["bookworm", pytest.param("trixie", marks=pytest.mark.long)], indirect=True)
def test_image_is_built_for_another_machine_and_left_clean(build: Build) -> None:
    mounts, folders = build.mounts(), ("", "/dev", "/proc", "/sys", "/run", "/tmp")
    before = _listing(build, *folders)

    done = build.setup()

    assert done.exit_code == 0, f"{done.error}\n{done.stderr}"
    assert build.mounts() == mounts, "nothing is left mounted"
    assert _listing(build, *folders) == before
    assert not build.exists("/usr/sbin/policy-rc.d")
    inside = ("chroot", IMAGE)
    # dkms of Debian 12 needs /proc for its exit status; it is unmounted afterwards.
    status = build.builder.finish(*inside, "dkms", "status").stdout
    assert f"nvidia/580.178.04, {build.kernel}, x86_64: installed" in status
    assert RUNNING not in status
    assert build.exists(f"/lib/modules/{build.kernel}/updates/dkms/nvidia.ko") or build.exists(
        f"/lib/modules/{build.kernel}/updates/dkms/nvidia.ko.xz"
    )
    assert "nvidia-container-runtime" in build.builder.run(*inside, "containerd", "config", "dump").stdout
    assert build.read(CONFIG).startswith(COMMENTED)


def test_journal_and_log_are_in_the_image_and_the_builder_unchanged(build: Build) -> None:
    watched = ("/etc", "/var/lib/dpkg", "/var/log")
    before = build.builder.fingerprint(*watched)

    assert build.setup().exit_code == 0

    assert build.builder.fingerprint(*watched) == before
    assert build.exists("/var/log/gpunode/setup.log")
    assert not build.builder.path("/var/lib/gpunode").exists()
    runs = ask(build.builder, "rollback", "--list", "--root", IMAGE).result["runs"]
    assert len(runs) == 1

    again = build.setup()
    assert (again.exit_code, again.envelope["changed"]) == (0, False)

    _generalise(build)
    again = build.setup()
    assert (again.exit_code, again.envelope["changed"]) == (0, False), "nothing that gpunode needs is gone"

    back = ask(build.builder, "rollback", "--yes", "--root", IMAGE)
    assert back.exit_code == 0, back.error
    assert build.read(CONFIG) == COMMENTED


def _generalise(build: Build) -> None:
    own = ("etc/ssh/ssh_host_ed25519_key", "var/lib/dkms/mok.key", "var/log/journal/1f/system.journal")
    for path in (build.builder.path(f"{IMAGE}/{name}") for name in own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of the builder")
    shutil.copy(_GENERALISE, build.builder.path("/root/generalise.sh"))

    build.builder.run("sh", "/root/generalise.sh", IMAGE)

    assert not [name for name in own if build.exists(f"/{name}")]
    assert build.read("/etc/machine-id") == ""
    refused = build.builder.finish("sh", "/root/generalise.sh", "/")
    assert (refused.returncode, "this machine, not an image" in refused.stderr) == (2, True)


def test_failed_image_build_leaves_nothing_mounted(build: Build, chroots: Lab) -> None:
    mounts = build.mounts()
    path = chroots.repositories.cuda_path(DIRECTORIES[build.builder.base.codename])
    build.builder.server.gone(f"{path}/nvidia-kernel", f"{path}/./nvidia-kernel")

    assert build.setup().exit_code == 6

    assert build.mounts() == mounts
    assert not build.exists("/usr/sbin/policy-rc.d")


def test_image_needs_the_gpu_option(build: Build) -> None:
    refused = ask(build.builder, "setup", build.recipe, "--yes", "--root", IMAGE)

    assert refused.exit_code in {3, 13}
    assert "--gpu" in refused.error


def test_folder_without_a_system_is_refused(build: Build) -> None:
    Path(build.builder.path("/srv/empty")).mkdir()

    refused = ask(build.builder, "setup", build.recipe, "--yes", "--root", "/srv/empty", "--gpu", "10de:1b80")

    assert refused.exit_code == 2
