"""What an earlier gpunode did is undone by this one: a root and its journal as that gpunode left them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conformance.hostile.image import Image, gpunode, needs_root

SAMPLES = sorted(Path(__file__).parent.glob("format-*.tar.gz"))


def unpacked(sample: Path, folder: Path) -> Path:
    subprocess.run(["tar", "--no-same-owner", "-pxzf", sample, "-C", folder], check=True)
    return folder


@needs_root
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_its_runs_are_rolled_back_byte_for_byte(sample: Path, tmp_path: Path) -> None:
    """`format-2.tar.gz` was written by the last commit before format 3: docker set up first, then containerd."""
    image = Image(unpacked(sample, tmp_path))
    files = ("etc/containerd/config.toml", "etc/docker/daemon.json")
    assert [image.rollback(run, "--yes").exit_code for run in ("2", "1")] == [0, 0]
    former = tmp_path / "before"
    assert [image.path(name).read_bytes() for name in files] == [(former / name).read_bytes() for name in files]
    assert [image.path(name).stat().st_mode & 0o777 for name in files] == [0o644, 0o644]


@needs_root
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_all_that_it_added_is_removed(sample: Path, tmp_path: Path) -> None:
    image = Image(unpacked(sample, tmp_path))
    assert gpunode("remove", "--root", str(image.root), "--yes").exit_code == 0
    assert b"nvidia" not in image.path("etc/containerd/config.toml").read_bytes()
    assert b"nvidia" not in image.path("etc/docker/daemon.json").read_bytes()
