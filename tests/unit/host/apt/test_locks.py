from __future__ import annotations

from gpunode.host.locks import Holder, locked_by


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
