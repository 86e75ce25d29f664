"""Undo of features that gpunode no longer has: roots written by the last commit with each feature."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conformance.hostile.image import Image, gpunode, needs_root

HERE = Path(__file__).parent
TEMPLATE = "var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl"

pytestmark = needs_root


def unpack(sample: str, folder: Path) -> Image:
    subprocess.run(["tar", "--no-same-owner", "-pxzf", HERE / f"{sample}.tar.gz", "-C", folder], check=True)
    return Image(folder)


def files(root: Path) -> dict[str, bytes]:
    """Return the node's files without gpunode's own."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if "gpunode/" not in name}


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """Return a root on which runs 1 and 2 wrote k3s's template and default-runtime, and run 3 an OCI hook."""
    return unpack("k3s-template-and-oci-hook", tmp_path)


def test_rollback_removes_template_and_hook(image: Image) -> None:
    assert [image.rollback(run, "--yes").exit_code for run in ("3", "2", "1")] == [0, 0, 0]
    assert files(image.root) == files(image.folder / "before")


def test_remove_removes_template_and_hook(image: Image) -> None:
    assert gpunode("remove", "--root", str(image.root), "--yes").exit_code == 0
    assert files(image.root) == files(image.folder / "before")


def test_remove_keeps_edits_of_the_template(image: Image) -> None:
    image.path(TEMPLATE).write_bytes(image.path(TEMPLATE).read_bytes() + b"# mine\n")
    assert gpunode("remove", "--root", str(image.root), "--yes").exit_code == 0
    assert image.path(TEMPLATE).read_bytes() == b"# mine\n"


def test_unconfigure_removes_the_template(image: Image) -> None:
    words = ("--runtime=containerd", "--nvidia-runtime-name=gpu", "--root", str(image.root))
    assert gpunode("ctk", "runtime", "unconfigure", *words).exit_code == 0
    assert not image.path(TEMPLATE).exists()
