from __future__ import annotations

from pathlib import Path

from gpunode.host.locks import Holder, locked_by, runner_of, wait_until_ended
from gpunode.host.port import Progress


def test_a_line_of_the_table_is_told_from_a_waiting_one() -> None:
    table = (
        "1: POSIX  ADVISORY  WRITE 907 fd:00:131 0 EOF\n"
        "1: -> POSIX  ADVISORY  WRITE 911 fd:00:132 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 12 fd:00:133 0 EOF\n"
    )
    assert locked_by(table, 0xFD, 0, 131) == 907
    assert locked_by(table, 0xFD, 0, 132) is None
    assert locked_by(table, 0x08, 1, 131) is None


def test_a_holder_outside_this_container_is_said_so() -> None:
    assert str(Holder("/var/lib/dpkg/lock", 0, "")) == "a process outside this container"


def test_a_script_is_found_by_itself_and_behind_its_interpreter_and_waited_for(tmp_path: Path) -> None:
    def process(pid: int, *words: str) -> Path:
        (tmp_path / str(pid)).mkdir()
        path = tmp_path / str(pid) / "cmdline"
        path.write_bytes("\0".join((*words, "")).encode())
        return path

    process(7, "vi", "-R", "/usr/sbin/update-initramfs")
    (tmp_path / "8").mkdir()  # it has ended meanwhile
    assert runner_of("update-initramfs", proc=tmp_path) is None
    script = process(9, "/bin/sh", "/usr/sbin/update-initramfs", "-u")
    assert str(runner_of("update-initramfs", proc=tmp_path)) == "process 9 (/bin/sh /usr/sbin/update-initramfs -u)"

    waits: list[Progress] = []
    wait_until_ended("update-initramfs", 60, waits.append, proc=tmp_path, sleep=lambda _seconds: script.unlink())
    assert len(waits) == 1
    wait_until_ended("vi", 3, waits.append, proc=tmp_path, sleep=lambda _seconds: None)
    assert len(waits) == 4, "no longer than it is told to"
