from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpunode.host.apt import UNATTENDED_APT_ENVIRONMENT
from gpunode.host.locks import (
    LockHolder,
    find_holder,
    find_lock_pid,
    make_holder,
    script_pids,
    wait_until_script_ended,
)
from gpunode.host.port import Progress


def test_lock_table_row_of_a_waiter_is_ignored() -> None:
    table = (
        "1: POSIX  ADVISORY  WRITE 907 fd:00:131 0 EOF\n"
        "1: -> POSIX  ADVISORY  WRITE 911 fd:00:132 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 12 fd:00:133 0 EOF\n"
    )
    assert find_lock_pid(table, 0xFD, 0, 131) == 907
    assert find_lock_pid(table, 0xFD, 0, 132) is None
    assert find_lock_pid(table, 0x08, 1, 131) is None


def test_invisible_lock_holder_is_described() -> None:
    assert str(LockHolder("/var/lib/dpkg/lock", 0, "")) == "a process that is not visible from here"


def test_apt_left_by_an_earlier_gpunode_is_recognized(tmp_path: Path) -> None:
    for pid, environment in ((5, b"HOME=/root\0GPUNODE_STARTED=1\0"), (6, b"HOME=/root\0X=GPUNODE_STARTED=1\0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(b"apt-get\0install\0")
        (tmp_path / str(pid) / "environ").write_bytes(environment)
    assert (
        str(make_holder("lock", 5, proc=tmp_path)) == "process 5 (apt-get install, left behind by an earlier gpunode)"
    )
    assert str(make_holder("lock", 6, proc=tmp_path)) == "process 6 (apt-get install)"
    assert "GPUNODE_STARTED" in UNATTENDED_APT_ENVIRONMENT, "what gpunode starts carries the mark"


@pytest.mark.usefixtures("allow_subprocess")
def test_fifo_as_a_lock_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    assert find_holder(str(tmp_path / "lock")) is None


def test_script_behind_an_interpreter_is_found_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def process(pid: int, *words: str) -> Path:
        (tmp_path / str(pid)).mkdir()
        path = tmp_path / str(pid) / "cmdline"
        path.write_bytes("\0".join((*words, "")).encode())
        return path

    process(7, "vi", "-R", "/usr/sbin/update-initramfs")
    (tmp_path / "8").mkdir()  # it has ended meanwhile
    assert list(script_pids("update-initramfs", proc=tmp_path)) == []
    script = process(9, "/bin/sh", "/usr/sbin/update-initramfs", "-u")

    waits: list[Progress] = []
    monkeypatch.setattr("time.sleep", lambda _seconds: script.unlink())
    wait_until_script_ended("update-initramfs", 60, waits.append, proc=tmp_path)
    assert [wait.detail for wait in waits] == [
        "up to 60 s: process 9 (/bin/sh /usr/sbin/update-initramfs -u) is already running"
    ]
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    wait_until_script_ended("vi", 3, waits.append, proc=tmp_path)
    assert sum(waited) == pytest.approx(3), "no longer than it is told to"
    assert max(waited) <= 0.2, "a signal is heeded between two looks"
    assert "up to 3 s: process 7" in waits[-1].detail
