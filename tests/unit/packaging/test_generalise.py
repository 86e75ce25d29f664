"""generalise.sh: what it removes from an image, and that no link in it affects the build machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("allow_subprocess")

SCRIPT = Path(__file__).parents[3] / "recipes/images/generalise.sh"
# Every folder that it empties, and one file of its own.
FOLDERS = {
    "etc/ssh": "ssh_host_rsa_key",
    "var/lib/dbus": "machine-id",
    "var/lib/systemd": "random-seed",
    "var/lib/dkms": "mok.key",
    "var/lib/gpunode/module-key": "mok.key",
    "var/lib/shim-signed/mok": "MOK.priv",
    "var/log/journal": "system.journal",
    "var/log/apt": "term.log",
    "var/lib/cloud": "instance",
    "var/lib/dhcp": "dhclient.leases",
    "var/lib/apt/lists": "lock",
    "var/cache/gpunode": "0.1.0",
    "var/lib/NetworkManager": "eth0.lease",
    "var/cache/apt/archives": "a.deb",
    "tmp": ".hidden",
    "var/tmp": "file",
    "root": ".bash_history",
    "var/log": "dpkg.log",
}


def generalise(image: Path) -> str:
    done = subprocess.run(["sh", SCRIPT, image], check=True, capture_output=True, text=True)
    return done.stderr


@pytest.fixture
def image(tmp_path: Path) -> Path:
    made = tmp_path / "image"
    (made / "etc").mkdir(parents=True)
    (made / "etc/machine-id").write_text("of the builder\n")
    return made


def test_remaining_secrets_are_named_and_not_deleted(image: Path) -> None:
    (image / "etc/apt/auth.conf.d").mkdir(parents=True)
    (image / "root/.docker").mkdir(parents=True)
    (image / "root/.docker/config.json").write_text("{}")
    assert generalise(image) == "generalise.sh: stays in the image: /root/.docker/config.json\n"
    (image / "etc/apt/auth.conf.d/mirror.conf").write_text("machine mirror login a password b\n")
    assert "/etc/apt/auth.conf.d" in generalise(image)
    assert (image / "etc/apt/auth.conf.d/mirror.conf").exists()


def test_build_leftovers_are_deleted_and_the_rest_kept(image: Path) -> None:
    for folder, name in FOLDERS.items():
        (image / folder).mkdir(parents=True, exist_ok=True)
        (image / folder / name).write_text("")
    kept = [image / name for name in ("etc/ssh/sshd_config", "var/lib/dkms/mok.pub", "var/log/gpunode.log")]
    for path in kept:
        path.write_text("")
    assert generalise(image) == ""
    assert not [folder for folder, name in FOLDERS.items() if (image / folder / name).exists()]
    assert all(path.exists() for path in kept)
    assert (image / "etc/machine-id").read_bytes() == b""


@pytest.mark.parametrize("folder", FOLDERS)
def test_symlink_out_of_the_image_is_not_followed(folder: str, image: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / FOLDERS[folder]).write_text("")
    (image / folder).parent.mkdir(parents=True, exist_ok=True)
    (image / folder).symlink_to(ours)
    said = generalise(image)
    assert os.listdir(ours) == [FOLDERS[folder]]
    assert f"left alone {folder}" in said


def test_linked_machine_id_does_not_change_the_builder(image: Path, tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("ours\n")
    (image / "etc/machine-id").unlink()
    (image / "etc/machine-id").symlink_to(tmp_path / "machine-id")
    generalise(image)
    assert (tmp_path / "machine-id").read_text() == "ours\n"
    assert (image / "etc/machine-id").read_bytes() == b""
