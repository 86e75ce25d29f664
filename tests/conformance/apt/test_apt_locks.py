"""Locks that another process really holds, as this kernel reports them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.errors import Busy
from gpunode.host.locks import find_first_holder, find_holder, find_lock_pid, wait_until_free
from gpunode.host.port import Progress

HOLD = "import fcntl,sys; f=open(sys.argv[1],'a'); fcntl.lockf(f,fcntl.LOCK_EX); print(1,flush=True); sys.stdin.read()"


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    path = tmp_path / "lock"
    argv = [sys.executable, "-c", f"{HOLD}\n\n", str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield path, child
        child.kill()


def test_free_or_missing_lock_has_no_holder(tmp_path: Path) -> None:
    (tmp_path / "free").touch()
    assert find_holder(str(tmp_path / "free")) is None
    assert find_holder(str(tmp_path / "missing")) is None


def test_lock_holder_is_named_with_its_command(held: tuple[Path, subprocess.Popen[bytes]]) -> None:
    path, child = held
    found = find_holder(str(path))
    assert found is not None
    assert found.pid == child.pid
    assert found.command.startswith(sys.executable)
    assert "\n" not in found.command
    assert find_first_holder([str(path.parent / "missing"), str(path)]) == found


def test_find_holder_does_not_disturb_the_lock(held: tuple[Path, subprocess.Popen[bytes]]) -> None:
    path, _ = held
    assert find_holder(str(path)) == find_holder(str(path))


def test_proc_locks_shows_the_same_holder(held: tuple[Path, subprocess.Popen[bytes]]) -> None:
    path, child = held
    status = path.stat()
    table = Path("/proc/locks").read_text()
    assert find_lock_pid(table, os.major(status.st_dev), os.minor(status.st_dev), status.st_ino) in (child.pid, None)


@pytest.mark.usefixtures("skipped_time")
def test_waiting_ends_when_the_lock_is_free(held: tuple[Path, subprocess.Popen[bytes]]) -> None:
    path, child = held
    heard: list[Progress] = []

    def end(progress: Progress) -> None:
        heard.append(progress)
        child.communicate()

    wait_until_free([str(path)], time.monotonic() + 100.0, end)
    assert [progress.phase for progress in heard] == ["wait"]
    assert str(child.pid) in heard[0].detail


@pytest.mark.usefixtures("skipped_time")
def test_lock_held_beyond_the_timeout_is_busy_and_named(held: tuple[Path, subprocess.Popen[bytes]]) -> None:
    path, child = held
    heard: list[Progress] = []
    with pytest.raises(Busy) as caught:
        wait_until_free([str(path)], time.monotonic() + 3.0, heard.append)
    assert f"process {child.pid} ({sys.executable}" in caught.value.what
    assert f"ps -fp {child.pid}" in caught.value.hint
    assert [progress.percent for progress in heard] == sorted(progress.percent for progress in heard)
    assert all(0 <= progress.percent <= 100 for progress in heard)
