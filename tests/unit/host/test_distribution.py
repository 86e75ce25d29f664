"""The distribution of a mounted root, read by the package ``distro``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.facts import machine
from gpunode.facts.model import Distro
from gpunode.host.local import read_live_distribution

TEXT = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian 12"\nID_LIKE="a b"\n'
DEBIAN = Distro("debian", "12", "bookworm", "Debian 12", ("a", "b"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("etc", "usr/lib"):
        tmp_path.joinpath(folder).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("target", ["/usr/lib/os-release", "../usr/lib/os-release"])
def test_os_release_link_is_followed_inside_the_root(root: Path, target: str) -> None:
    root.joinpath("usr/lib/os-release").write_text(TEXT)
    root.joinpath("etc/os-release").symlink_to(target)
    assert read_live_distribution(str(root)) == DEBIAN == machine.parse_distro(TEXT)


def test_os_release_link_out_of_the_root_is_ignored(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "os-release"
    outside.write_text(TEXT)
    root.joinpath("etc/os-release").symlink_to(outside)
    assert read_live_distribution(str(root)) is None


def test_vendor_os_release_is_the_fallback(root: Path) -> None:
    root.joinpath("usr/lib/os-release").write_text(TEXT)
    assert read_live_distribution(str(root)) == DEBIAN


@pytest.mark.parametrize("text", ["", 'ID="debian\n', "ID=\xe9\0", "#" * (1 << 17)])
def test_os_release_that_distro_rejects_is_left_to_the_evidence(root: Path, text: str) -> None:
    root.joinpath("etc/os-release").write_text(text, "latin-1")
    assert read_live_distribution(str(root)) is None
