"""Undo of an earlier gpunode's changes: a root and its journals as that gpunode left them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conformance.hostile.image import CONFIG_TOML, DAEMON_JSON, Image, gpunode, needs_root

SAMPLES = ("format-3", "format-4")
FILES = (CONFIG_TOML, DAEMON_JSON)

pytestmark = needs_root


@pytest.fixture(params=SAMPLES)
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Image:
    """Return a root of 2026-11-28: format 3 from the last commit before undo went by footprints, 4 from its first.

    Run 1 set docker up; 2 configured containerd; 3 configured a second runtime of docker's, and 4 removed it again; 5
    rolled 2 back, and 6 rolled 5 back; 7 removed everything, and 8 rolled 7 back.
    """
    sample = Path(__file__).with_name(f"{request.param}.tar.gz")
    subprocess.run(["tar", "--no-same-owner", "-pxzf", sample, "-C", tmp_path], check=True)
    return Image(tmp_path)


def former(image: Image) -> list[bytes]:
    return [(image.folder / "before" / name).read_bytes() for name in FILES]


def current_files(image: Image) -> list[bytes]:
    return [image.path(name).read_bytes() for name in FILES]


def test_recorded_runs_are_rolled_back_byte_for_byte(image: Image) -> None:
    assert [image.rollback(run, "--yes").exit_code for run in ("4", "3", "2", "1")] == [0, 0, 0, 0]
    assert current_files(image) == former(image)
    assert [image.path(name).stat().st_mode & 0o777 for name in FILES] == [0o644, 0o644]


def test_rollback_of_a_rolled_back_removal_removes_again(image: Image) -> None:
    assert image.rollback("8", "--yes").exit_code == 0
    assert current_files(image) == former(image)


def test_remove_restores_the_recorded_root_byte_for_byte(image: Image) -> None:
    assert gpunode("remove", "--root", str(image.root), "--yes").exit_code == 0
    assert current_files(image) == former(image)
