from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpunode.host.output import remove_output, write_output


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_output_is_world_readable_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    former = os.umask(umask)
    try:
        write_output(tmp_path / "x.prom", b"a 1\n")
        write_output(tmp_path / "x.prom", b"a 2\n")
    finally:
        os.umask(former)
    assert (tmp_path / "x.prom").read_bytes() == b"a 2\n"
    assert stat.S_IMODE((tmp_path / "x.prom").stat().st_mode) == 0o644
    assert [one.name for one in tmp_path.iterdir()] == ["x.prom"]


def test_symlink_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "x.prom").symlink_to(tmp_path / "secret")
    write_output(tmp_path / "x.prom", b"a 1\n")
    assert (tmp_path / "secret").read_text() == "s"
    assert not (tmp_path / "x.prom").is_symlink()


def test_failed_write_keeps_the_old_file_and_no_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_output(tmp_path / "x.prom", b"old\n")
    drafts: list[str] = []

    def full(_: int) -> None:
        drafts.extend(one.name for one in tmp_path.iterdir() if one.name != "x.prom")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_output(tmp_path / "x.prom", b"new\n")
    assert (tmp_path / "x.prom").read_bytes() == b"old\n"
    # node_exporter reads every *.prom of the folder, hidden ones too.
    assert [name.endswith(".prom") for name in drafts] == [False]
    assert [one.name for one in tmp_path.iterdir()] == ["x.prom"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give a link to another user")
def test_file_behind_another_users_link_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "00-mine.yaml").write_text("mine\n")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    os.lchown(tmp_path / "link", 1234, 1234)
    with pytest.raises(OSError, match="symbolic link of uid 1234"):
        remove_output(tmp_path / "link" / "00-mine.yaml")
    assert (tmp_path / "outside" / "00-mine.yaml").read_text() == "mine\n"
