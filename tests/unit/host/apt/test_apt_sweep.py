"""Leftovers of a killed run where gpunode lets apt work."""

from __future__ import annotations

import os
from pathlib import Path

from gpunode.host import apt


def test_temporary_apt_folders_are_removed_and_foreign_entries_kept(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "var/lib/apt").mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    for left in ("tmp/gpunode-ab3_defg", "var/lib/apt/gpunode-zyxwvuts"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "link").symlink_to(precious)
    (tmp_path / "tmp/gpunode-planted_").symlink_to(precious)
    (tmp_path / "tmp/gpunode-somebodys-own").mkdir()
    (tmp_path / "tmp/gpunode-afile123").touch()

    apt.remove_temporary_folders(tmp_path)

    assert sorted(os.listdir(tmp_path / "tmp")) == ["gpunode-afile123", "gpunode-planted_", "gpunode-somebodys-own"]
    assert os.listdir(tmp_path / "var/lib/apt") == []
    assert os.listdir(precious) == ["file"]
