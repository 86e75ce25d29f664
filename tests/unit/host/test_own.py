"""Who can change what root reads: the file, its links, and every folder above both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpunode.host.own import why_others_write

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give a file to another user")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a" / "b" / "file"
    path.parent.mkdir(parents=True)
    path.write_text("")
    return path


def test_what_root_alone_can_change_is_safe(file: Path) -> None:
    assert why_others_write(file) == ""
    assert why_others_write(file.parent / "not" / "there") == ""


@pytest.mark.parametrize("part", ["file", "b", "a"])
@pytest.mark.parametrize("mode", [0o777, None])
def test_the_file_and_each_folder_above_it_count(file: Path, part: str, mode: int | None) -> None:
    place = next(one for one in (file, *file.parents) if one.name == part)
    if mode is None:
        os.chown(place, 12345, 0)
    else:
        place.chmod(mode)
    assert str(place) in why_others_write(file)


def test_a_link_counts_with_what_it_leads_to(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    assert why_others_write(link) == ""
    file.parent.chmod(0o777)
    assert str(file.parent) in why_others_write(link)
    file.parent.chmod(0o755)
    os.chown(link, 12345, 0, follow_symlinks=False)
    assert str(link) in why_others_write(link)


def test_a_trusted_user_may_own_it(file: Path) -> None:
    os.chown(file, 12345, 0)
    assert why_others_write(file, trusted=frozenset({0, 12345})) == ""


def test_a_group_counts_when_somebody_is_in_it(file: Path) -> None:
    file.chmod(0o664)
    assert why_others_write(file) == ""
    os.chown(file, 0, 54321)  # a group that nobody knows may have anybody in it
    assert "54321" in why_others_write(file)


def test_in_a_sticky_folder_nobody_replaces_roots_file(file: Path) -> None:
    file.parent.chmod(0o1777)
    assert why_others_write(file) == ""
