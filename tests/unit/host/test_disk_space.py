"""A run that needs more disk space than is free is refused before anything is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.change import CommandChange, FileChange, FileState, Trigger
from gpunode.errors import Refused
from gpunode.facts.project import UNINSTALL_RUN_DRIVER
from gpunode.host import disk_space
from gpunode.host.disk_space import _has_own_boot, refuse_removal_without_room, refuse_unusable_boot

BLACKLIST = FileChange("/etc/modprobe.d/x.conf", None, FileState(b""), frozenset({Trigger("initramfs")}))
UNINSTALL = CommandChange(UNINSTALL_RUN_DRIVER, "x")
OTHER = FileChange("/etc/x", None, FileState(b""))


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/initrd.img-6.1.0-1-amd64").write_bytes(bytes(3 << 20))
    return str(tmp_path)


def set_free_bytes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(disk_space, "_free_bytes", lambda _: count)


def test_full_boot_is_refused_with_both_sizes(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free_bytes(monkeypatch, 900 << 10)
    with pytest.raises(Refused) as stopped:
        refuse_unusable_boot([OTHER, BLACKLIST], root)
    assert "0.9 MiB are free" in stopped.value.what
    assert "3 MiB" in stopped.value.why
    assert "nothing was changed" in stopped.value.why


@pytest.mark.parametrize(("changes", "free"), [((BLACKLIST,), 3 << 20), ((OTHER,), 0), ((), 0)])
def test_sufficient_boot_space_is_accepted(
    root: str, changes: tuple[FileChange, ...], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_free_bytes(monkeypatch, free)
    refuse_unusable_boot(changes, root)


def test_initramfs_space_is_not_checked_without_one(tmp_path: Path) -> None:
    refuse_unusable_boot([BLACKLIST], str(tmp_path))
    (tmp_path / "boot").mkdir()
    refuse_unusable_boot([BLACKLIST], str(tmp_path))


@pytest.mark.parametrize(
    ("fstab", "is_own"),
    [
        ("UUID=1 / ext4 defaults 0 1\nUUID=2 /boot ext4 defaults 0 2\n", True),
        ("UUID=2\t/boot/\text4", True),
        ("# UUID=2 /boot ext4\nUUID=3 /boot/efi vfat umask=0077 0 1\n\nbroken\n", False),
    ],
)
def test_boot_partition_is_known_from_fstab(tmp_path: Path, fstab: str, is_own: bool) -> None:
    assert not _has_own_boot(tmp_path / "fstab")
    (tmp_path / "fstab").write_text(fstab)
    assert _has_own_boot(tmp_path / "fstab") == is_own


@pytest.mark.parametrize(("mib", "is_refused"), [(2047, True), (2048, False)])
def test_run_driver_stays_where_the_next_one_has_no_room(
    tmp_path: Path, mib: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both folders are on one file system here."""
    for name in ("usr", "var"):
        (tmp_path / name).mkdir()
    set_free_bytes(monkeypatch, mib << 20)
    refuse_removal_without_room([OTHER], str(tmp_path))
    if not is_refused:
        refuse_removal_without_room([UNINSTALL], str(tmp_path))
        return
    with pytest.raises(Refused) as stopped:
        refuse_removal_without_room([UNINSTALL], str(tmp_path))
    assert stopped.value.what == "/usr and /var have too little room for the next driver: 2047 MiB are free"
    assert "2048 MiB" in stopped.value.why
