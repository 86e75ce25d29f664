from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.cli.screen.quoting import shortened, telling
from gpunode.cli.screen.text import cells, clean

XID = "[ 7233.100291] NVRM: Xid (PCI:0000:9d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def test_a_line_that_fits_stays_as_it_is() -> None:
    assert shortened("  a   b ", frozenset(), 20) == "a b"


@pytest.mark.parametrize(
    "stamp",
    [
        "[ 7233.100291] ",
        "[Fri Mar  3 04:27:08 2023] ",
        "2026-11-20T14:03:22.123456+01:00 gpu-17 kernel: ",
        "Nov 20 14:03:22 gpu-17 kernel: ",
        "Nov 20 14:03:22 gpu-17 dockerd[811]: ",
    ],
)
def test_the_time_goes_before_any_word_of_the_message(stamp: str) -> None:
    said = "API mismatch: the client has the version 535.104.05"
    assert shortened(stamp + said, frozenset(), len(said)) == said


def test_of_a_long_line_the_part_that_proves_something_stays() -> None:
    words = telling("GPU 4 fell off the bus")
    assert shortened(XID, words, 70) == "NVRM: Xid (PCI:0000:9d:00): 79, … GPU has fallen off the bus."


def test_a_word_far_behind_is_found() -> None:
    line = f"level=error msg={'x' * 90} {'noise ' * 80}libnvidia-ml.so.1: cannot open {'noise ' * 80}"
    shown = shortened(line, telling("libnvidia-ml.so.1 is not in the container"), 60)
    assert "libnvidia-ml.so.1" in shown
    assert cells(shown) <= 60


@given(st.text(), st.text(), st.integers(20, 200))
def test_no_line_is_wider_than_its_room(line: str, about: str, room: int) -> None:
    assert cells(shortened(clean(line), telling(about), room)) <= room
