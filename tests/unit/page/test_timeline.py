from __future__ import annotations

from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.page.timeline import format_time, render_timeline
from tests.unit.page import nodes

FAULT = "NVRM: Xid (PCI:0000:01:00): 48, pid=1, DBE (double bit error)"


def of(log: str) -> str:
    return render_timeline(take_snapshot(nodes.evidence(("dmesg", log)))) or ""


def test_a_fault_has_its_time_its_gpu_its_code_and_what_that_means() -> None:
    assert "<td>5.000 s after boot</td><td><code>0000:01:00.0</code></td><td><b>Xid 48</b></td><td>" in of(
        f"[ 5.0] {FAULT}"
    )
    assert "<td>DBE (double bit error)</td>" in of(f"[ 5.0] {FAULT}")
    assert not of("[ 5.0] usb 1-1: new device")


def test_what_began_a_failure_is_bold_and_its_echoes_are_not() -> None:
    found = render_timeline(take_snapshot(nodes.large())) or ""
    assert "<b>Xid 79</b>" in found
    assert "<td>Xid 154</td>" in found


def test_a_time_that_no_log_or_no_clock_has_is_no_time() -> None:
    for log in (FAULT, f"6,1,{'9' * 400},-;{FAULT}"):
        assert "<td>no time</td>" in of(log)


def test_a_log_without_end_makes_a_table_with_one() -> None:
    text = of("\n".join(f"[ {n}.0] NVRM: Xid (PCI:0000:01:00): 31, pid={n}, x" for n in range(1, 2000)))
    assert "more</p>" in text
    assert len(text) < 100_000


def test_moments_are_told_as_their_clock_tells_them() -> None:
    assert format_time(12.5) == "12.500 s after boot"
    assert format_time(974_729_002.0) == "Nov 20 14:03:22"
    assert format_time(1_763_647_402.0) == "2025-11-20 14:03:22 UTC"
