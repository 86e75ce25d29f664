from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpunode.errors import Busy, ChangeFailed, Refused
from gpunode.host.port import Progress
from gpunode.journal.store import Store

HOLDER = """
import sys
from gpunode.journal.store import Store
with Store(sys.argv[1]).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(root: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


@pytest.mark.usefixtures("allow_subprocess")
def test_lock_holder_is_named_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with (
            pytest.raises(Busy, match=rf"process {process.pid} \(\S*python\S* -c import sys") as stopped,
            Store(tmp_path).lock(),
        ):
            pass
        assert stopped.value.exit_code == 12
        assert "run/gpunode/lock" in stopped.value.why
        process.kill()
    with Store(tmp_path).lock():
        pass


@pytest.mark.usefixtures("allow_subprocess")
def test_lock_is_waited_for_and_its_holder_reported(tmp_path: Path) -> None:
    heard: list[Progress] = []
    with holder(tmp_path) as process:
        assert process.stdin is not None

        def release(progress: Progress) -> None:
            heard.append(progress)
            assert process.stdin is not None
            process.stdin.close()

        with Store(tmp_path).lock(60, release):
            pass
    assert {progress.phase for progress in heard} == {"wait"}
    assert f"process {process.pid} (" in heard[0].detail


@pytest.mark.parametrize("content", [b"", b"1\n", b"1 \n", b"999999999 1\nold", b"-1 1\n", b"\xff\xfe" * 3000])
def test_stale_lock_content_is_harmless(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run/gpunode/lock"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with Store(tmp_path).lock():
        path.write_bytes(content)
        with pytest.raises(Busy, match=r"changing this node\Z"), Store(tmp_path).lock():
            pass
    with Store(tmp_path).lock():
        pass


def test_process_reusing_the_pid_of_a_dead_holder_is_not_blamed(tmp_path: Path) -> None:
    """This process is alive and has this pid, but started at another time."""
    path = tmp_path / "run/gpunode/lock"
    with Store(tmp_path).lock():
        path.write_text(f"{os.getpid()} 1\ngpunode setup\n")
        with pytest.raises(Busy) as stopped, Store(tmp_path).lock():
            pass
    assert str(os.getpid()) not in stopped.value.what


def test_lock_file_is_empty_after_release(tmp_path: Path) -> None:
    with Store(tmp_path).lock():
        assert (tmp_path / "run/gpunode/lock").read_text().startswith(f"{os.getpid()} ")
    assert (tmp_path / "run/gpunode/lock").read_bytes() == b""


def test_symlinked_lock_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "run/gpunode/lock"
    path.parent.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    with pytest.raises(ChangeFailed, match="nothing was changed"), Store(tmp_path).lock():
        pass
    assert victim.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it makes a device")
def test_device_in_the_place_of_the_lock_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "run/gpunode/lock"
    place.parent.mkdir(parents=True)
    try:
        os.mknod(place, 0o020600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices cannot be made here")

    really_open = os.open

    def refuse(path: str, *more: Any, **by_name: Any) -> int:
        assert os.path.basename(path) != "lock", f"{path} was opened"
        return really_open(path, *more, **by_name)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ChangeFailed) as stopped, Store(tmp_path).lock():
        pass
    assert stopped.value.why == "it is not a regular file"
    assert Store(tmp_path).lock_holder() is None


@pytest.mark.usefixtures("allow_subprocess")
def test_lock_deleted_while_waiting_is_still_exclusive(tmp_path: Path) -> None:
    path = tmp_path / "run/gpunode/lock"
    with holder(tmp_path) as process:

        def take_away(_: Progress) -> None:
            path.unlink(missing_ok=True)
            process.kill()

        with Store(tmp_path).lock(60, take_away), pytest.raises(Busy), Store(tmp_path).lock():
            pass


@pytest.mark.parametrize("error", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_unwritable_run_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def refuse(path: str, *_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(ChangeFailed, match="nothing was changed") as stopped, Store(tmp_path).lock():
        pass
    assert os.strerror(error) in stopped.value.why
    assert "run/gpunode" in stopped.value.hint


def test_missing_run_folder_is_made_and_a_wrong_one_refused(tmp_path: Path) -> None:
    with Store(tmp_path).lock():
        assert stat.S_IMODE((tmp_path / "run/gpunode").stat().st_mode) == 0o700
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ChangeFailed, match="nothing was changed"), Store(tmp_path).lock():
        pass


def test_lock_is_not_taken_behind_a_link_that_came_after_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, elsewhere = tmp_path / "image", tmp_path / "elsewhere"
    (image / "run").mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.setattr(
        "gpunode.journal.store.refuse_untrusted_folder", lambda *_: (image / "run/gpunode").symlink_to(elsewhere)
    )
    with Store(image).lock():
        assert [*elsewhere.iterdir()] == []


def test_lock_of_an_image_does_not_follow_a_link_outside(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "image/run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="a link out of"):
        Store(tmp_path / "image").lock()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_lock_is_held_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with Store(tmp_path).lock(), pytest.raises(Busy), Store(tmp_path).lock():
        pass


@pytest.mark.usefixtures("allow_subprocess")
@pytest.mark.parametrize("owner", [0, 1234])
def test_next_commands_for_a_linked_folder_touch_nothing_behind_the_link(tmp_path: Path, owner: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: to give a link to another user")
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o1777)
    (others := shared / "others").touch(0o666)
    others.chmod(0o666)
    os.chown(others, 1234, 1234)
    (place := tmp_path / "run/gpunode").parent.mkdir()
    place.symlink_to(shared)
    os.lchown(place, owner, owner)
    with pytest.raises(Refused, match="is not used") as stopped, Store(tmp_path).lock():
        pass
    for line in stopped.value.hint.splitlines():
        if line.startswith("  "):
            subprocess.run(line, shell=True, check=True)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    assert (stat.S_IMODE(others.stat().st_mode), others.stat().st_uid) == (0o666, 1234)
    with Store(tmp_path).lock():
        assert not place.is_symlink()
