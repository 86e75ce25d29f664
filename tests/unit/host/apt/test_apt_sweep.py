"""Leftovers of a killed run in the folders that gpunode gives apt."""

from __future__ import annotations

import os
from pathlib import Path

from gpunode.host import apt


def test_temporary_apt_folders_are_removed_and_foreign_entries_kept(tmp_path: Path) -> None:
    place = tmp_path / "var/lib/apt"
    precious = tmp_path / "precious"
    for folder in (place / "gpunode-ab3_defg", place / "gpunode-somebodys-own", precious):
        folder.mkdir(parents=True)
    (precious / "file").touch()
    (place / "gpunode-ab3_defg/link").symlink_to(precious)
    (place / "gpunode-planted_").symlink_to(precious)
    (place / "gpunode-afile123").touch()

    apt.remove_temporary_folders(str(tmp_path))

    assert sorted(os.listdir(place)) == ["gpunode-afile123", "gpunode-planted_", "gpunode-somebodys-own"]
    assert os.listdir(precious) == ["file"]
