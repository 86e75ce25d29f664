from __future__ import annotations

from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.page.report import format_time, render_timeline
from tests.unit.page import nodes

FAULT = "NVRM: Xid (PCI:0000:01:00): 48, pid=1, DBE (double bit error)"


def timeline_of(log: str) -> str:
    return render_timeline(take_snapshot(nodes.evidence(("dmesg", log)))) or ""


def test_fault_has_time_gpu_code_and_meaning() -> None:
    assert "<td>5.000 s after boot</td><td><code>0000:01:00.0</code></td><td><b>Xid 48</b></td><td>" in timeline_of(
        f"[ 5.0] {FAULT}"
    )
    assert "<td>DBE (double bit error)</td>" in timeline_of(f"[ 5.0] {FAULT}")
    assert not timeline_of("[ 5.0] usb 1-1: new device")


def test_root_fault_is_bold_and_its_consequences_are_not() -> None:
    found = render_timeline(take_snapshot(nodes.large())) or ""
    assert "<b>Xid 79</b>" in found
    assert "<td>Xid 154</td>" in found


def test_unknown_time_is_shown_as_no_time() -> None:
    for log in (FAULT, f"6,1,{'9' * 400},-;{FAULT}"):
        assert "<td>no time</td>" in timeline_of(log)


def test_endless_log_gives_a_table_of_limited_size() -> None:
    text = timeline_of("\n".join(f"[ {n}.0] NVRM: Xid (PCI:0000:01:00): 31, pid={n}, x" for n in range(1, 2000)))
    assert "more</p>" in text
    assert len(text) < 100_000


def test_times_are_formatted_by_their_clock() -> None:
    assert format_time(12.5) == "12.500 s after boot"
    assert format_time(974_729_002.0) == "Nov 20 14:03:22"
    assert format_time(1_763_647_402.0) == "2025-11-20 14:03:22 UTC"
