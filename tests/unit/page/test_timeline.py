from __future__ import annotations

import re

import pytest

from gpunode.diagnoses.snapshot import snapshot
from gpunode.page.timeline import Event, drawings, events, moment
from tests.unit.page import nodes


def of(log: str) -> tuple[Event, ...]:
    return events(snapshot(nodes.evidence(("dmesg", log))))


def test_the_fault_that_began_and_its_echoes_are_told_apart() -> None:
    found = {(event.gpu, event.code, event.role) for event in events(snapshot(nodes.large()))}
    assert ("0000:9d:00.0", "Xid 79", "first") in found
    assert ("0000:9d:00.0", "Xid 154", "echo") in found


def test_a_code_is_told_with_its_meaning() -> None:
    (event,) = of("[ 5.0] NVRM: Xid (PCI:0000:01:00): 48, pid=1, DBE (double bit error)")
    assert event.meaning
    assert event.text == "DBE (double bit error)"


def test_two_clocks_make_two_drawings() -> None:
    fault = "NVRM: Xid (PCI:0000:01:00): 31, pid=1, x"
    assert len(drawings(of(f"[ 5.0] {fault}\nNov 20 14:03:22 n kernel: {fault}"))) == 2


def test_faults_without_a_time_are_listed_and_not_drawn() -> None:
    found = of("NVRM: Xid (PCI:0000:01:00): 31, pid=1, x")
    assert [event.at for event in found] == [None]
    assert drawings(found) == ()


def test_the_same_fault_close_by_is_one_badge_with_a_count() -> None:
    log = "\n".join(f"[ 5.{n}] NVRM: Xid (PCI:0000:01:00): 43, pid={n}, Ch {n}" for n in range(10, 30))
    later = "[ 99.0] NVRM: Xid (PCI:0000:01:00): 43, pid=9, Ch 9"
    (drawn,) = drawings(of(f"{log}\n{later}"))
    assert "Xid 43 ×" in drawn


def test_a_time_that_no_clock_has_is_no_time() -> None:
    (event,) = of(f"6,1,{'9' * 400},-;NVRM: Xid (PCI:0000:01:00): 31, pid=1, x")
    assert event.at is None


def test_a_log_without_end_makes_a_drawing_with_one() -> None:
    many = [Event(f"0000:{n % 250:02x}:00.0", float(n), "Xid 31", "x") for n in range(100_000)]
    (drawn,) = drawings(many)
    assert len(drawn) < 300_000


def test_moments_are_told_as_their_clock_tells_them() -> None:
    assert moment(12.5) == "12.500 s after boot"
    assert moment(974_729_002.0) == "Nov 20 14:03:22"
    assert moment(1_763_647_402.0) == "2025-11-20 14:03:22 UTC"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("[ 1802.220417]", "[ 1802.220602]"),
        ("[ 5.0]", "[ 6.5]"),
        ("[ 5.0]", "[ 99999.0]"),
        ("Nov 20 14:03:22 n kernel:", "Nov 20 14:03:23 n kernel:"),
    ],
)
def test_no_two_ticks_read_alike(first: str, second: str) -> None:
    log = f"{first} NVRM: Xid (PCI:0000:01:00): 31, pid=1, x\n{second} NVRM: Xid (PCI:0000:01:00): 79, pid=1, x"
    (drawn,) = drawings(of(log))
    ticks = re.findall(r'class="tick"[^>]*>([^<]*)<', str(drawn))
    assert len(ticks) > 1
    assert len(set(ticks)) == len(ticks)
