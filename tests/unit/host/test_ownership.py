"""Users who can write what root reads: the file, its links, and every folder above both."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from gpunode.host.ownership import explain_writable_by_others

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give a file to another user")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a" / "b" / "file"
    path.parent.mkdir(parents=True)
    path.write_text("")
    return path


def test_path_writable_only_by_root_is_safe(file: Path) -> None:
    assert explain_writable_by_others(file) == ""
    assert explain_writable_by_others(file.parent / "not" / "there") == ""


@pytest.mark.parametrize("part", ["file", "b", "a"])
@pytest.mark.parametrize("mode", [0o777, None])
def test_file_and_each_parent_folder_are_checked(file: Path, part: str, mode: int | None) -> None:
    place = next(one for one in (file, *file.parents) if one.name == part)
    if mode is None:
        os.chown(place, 12345, 0)
    else:
        place.chmod(mode)
    assert str(place) in explain_writable_by_others(file)


def test_symlink_and_its_target_are_both_checked(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    assert explain_writable_by_others(link) == ""
    file.parent.chmod(0o777)
    assert str(file.parent) in explain_writable_by_others(link)
    file.parent.chmod(0o755)
    os.chown(link, 12345, 0, follow_symlinks=False)
    assert str(link) in explain_writable_by_others(link)


def test_trusted_user_may_own_the_file(file: Path) -> None:
    os.chown(file, 12345, 0)
    assert explain_writable_by_others(file, trusted=frozenset({0, 12345})) == ""


def test_group_write_matters_if_the_group_has_members(file: Path) -> None:
    file.chmod(0o664)
    assert explain_writable_by_others(file) == ""
    os.chown(file, 0, 54321)  # an unknown group may have any member
    assert "54321" in explain_writable_by_others(file)


# linux/posix_acl.h: the tags of an ACL's entries.
USER, GROUP_OBJ, GROUP, MASK = 0x02, 0x04, 0x08, 0x10


def set_acl(place: Path, *entries: tuple[int, int, int], mask: int = 6) -> None:
    """Give ``place`` an ACL of these entries (tag, rights, id) in addition to the mandatory ones."""
    nobody, group = 0xFFFFFFFF, () if any(tag == GROUP_OBJ for tag, _, _ in entries) else ((GROUP_OBJ, 4, 0),)
    every = sorted([(0x01, 6, nobody), *group, *entries, (MASK, mask, nobody), (0x20, 4, nobody)])
    try:
        packed = (struct.pack("<HHI", *entry) for entry in every)
        os.setxattr(place, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(packed))
    except OSError as error:
        pytest.skip(f"no POSIX ACL can be set on {place.parent}: {error.strerror}")


@pytest.mark.parametrize("part", ["file", "b"])
@pytest.mark.parametrize(("tag", "who"), [(USER, 12345), (GROUP, 54321)])
def test_acl_write_permission_counts(file: Path, part: str, tag: int, who: int) -> None:
    place = next(one for one in (file, *file.parents) if one.name == part)
    set_acl(place, (tag, 6, who))
    assert f"{who} can write to {place}" in explain_writable_by_others(file).replace("uid ", "")


@pytest.mark.parametrize(
    ("entries", "mask"), [([(USER, 4, 12345)], 6), ([(USER, 6, 12345)], 4), ([(USER, 6, 0)], 6), ([(GROUP, 6, 0)], 6)]
)
def test_acl_read_or_masked_permission_does_not_count(
    file: Path, entries: list[tuple[int, int, int]], mask: int
) -> None:
    set_acl(file, *entries, mask=mask)
    assert explain_writable_by_others(file) == ""


def test_acl_mask_is_not_the_group_permission(file: Path) -> None:
    os.chown(file, 0, 54321)
    set_acl(file, (GROUP_OBJ, 4, 0), (USER, 6, 0))
    assert explain_writable_by_others(file) == ""
    set_acl(file, (GROUP_OBJ, 6, 0), (USER, 4, 0))
    assert "54321" in explain_writable_by_others(file)


def test_acl_write_of_a_trusted_user_is_accepted(file: Path) -> None:
    set_acl(file, (USER, 6, 12345))
    assert explain_writable_by_others(file, trusted=frozenset({0, 12345})) == ""


def test_sticky_folder_of_root_is_safe(file: Path) -> None:
    file.parent.chmod(0o1777)
    assert explain_writable_by_others(file) == ""
