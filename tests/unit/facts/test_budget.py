from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts.evidence import Capture
from gpunode.facts.examination import (
    MAX_EVIDENCE_BYTES,
    MAX_LINES_PER_SOURCE,
    fair_share,
    keep_relevant_and_newest,
    trim_evidence,
)

XID = b"NVRM: Xid (PCI:0000:9d:00): 79, GPU has fallen off the bus.\n"


def test_first_fault_messages_and_newest_lines_are_kept() -> None:
    log = Capture("journalctl -b", "ok", XID + b"audit: noise\n" * 400_000 + b"the end\n")
    found, left_out = trim_evidence({"journal": log})
    data = found["journal"].data
    assert data.startswith(XID)
    assert data.endswith(b"the end\n")
    assert data.count(b"\n") <= MAX_LINES_PER_SOURCE + 1
    assert "journalctl -b" in left_out[0]


def test_endless_line_is_cut() -> None:
    found, left_out = trim_evidence({"text": Capture("pasted text", "ok", b"a" * (MAX_EVIDENCE_BYTES + 1))})
    assert len(found["text"].data) <= MAX_EVIDENCE_BYTES
    assert left_out


def test_package_tables_are_not_cut() -> None:
    status = Capture("/var/lib/dpkg/status", "ok", b"Package: a\n\n" * MAX_LINES_PER_SOURCE)
    assert trim_evidence({"dpkg-status": status}) == ({"dpkg-status": status}, ())


@given(st.lists(st.integers(0, 100)), st.integers(0, 500))
def test_fair_shares_do_not_exceed_the_total(sizes: list[int], total: int) -> None:
    most = fair_share(sizes, total)
    assert sum(min(size, most) for size in sizes) <= total
    assert sum(sizes) > total or most >= max(sizes, default=0)


@given(st.lists(st.sampled_from([XID, b"x\n", b"\n", b"y" * 50 + b"\n"])), st.integers(1, 20), st.integers(100, 2000))
def test_kept_lines_are_the_end_of_the_log(rows: list[bytes], lines: int, size: int) -> None:
    data = b"".join(rows)
    kept = keep_relevant_and_newest(data, lines, size)
    assert len(kept) <= max(size, 0) or kept == data
    assert kept.endswith(data[-1:])
    if len(rows) <= lines and len(data) <= size:
        assert kept == data
