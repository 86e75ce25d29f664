from __future__ import annotations

import re

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, take_snapshot
from gpunode.page.evidence import CONTEXT_LINE_COUNT, render_citations
from tests.unit.page.nodes import evidence

ROW = re.compile(
    r'<div class="line"><span class="number">(▸?)(\d*)</span><(?:mark|span)>(.*?)</(?:mark|span)></div>'
    r'|<div class="gap">⋯ ([\d ]+) lines?</div>'
)


def figure(seen: Snapshot, *citations: Citation) -> tuple[list[str], list[str]]:
    """Return the rows of the only piece, and the folded ones: gaps as line counts, lines as numbers."""
    (found,) = render_citations(citations, seen)
    parts = found.partition("<details>")
    rows, folded = ([match[4] or f"{match[1]}{match[2]}" for match in ROW.finditer(part)] for part in parts[::2])
    return rows, folded


def numbered_log(lines: int, more: str = "") -> Snapshot:
    return take_snapshot(evidence(("dmesg", "\n".join(f"line {n}{more}" for n in range(1, lines + 1)))))


def pieces(*numbers: int) -> list[str]:
    seen = numbered_log(40)
    return figure(seen, *(cite(seen.items[0], number) for number in numbers))[0]


def test_cited_line_has_context_and_omitted_lines_are_counted() -> None:
    assert pieces(20) == ["16", "17", "18", "19", "▸20", "21", "22", "23", "17"]


def test_one_line_gap_is_shown_and_no_line_twice() -> None:
    assert pieces(10, 10 + 2 * CONTEXT_LINE_COUNT + 2)[1:-1] == [
        f"▸{number}" if number in {10, 18} else str(number) for number in range(7, 22)
    ]
    assert pieces(5)[0] == "1"
    assert pieces(1, 2, 3, 40) == ["▸1", "▸2", "▸3", "4", "5", "6", "30", "37", "38", "39", "▸40"]


def test_short_piece_is_shown_completely() -> None:
    seen = numbered_log(3)
    assert figure(seen, cite(seen.items[0], 2)) == (["1", "▸2", "3"], [])


def test_folded_part_of_a_long_piece_is_limited() -> None:
    seen = numbered_log(100_000, more=" " + "x" * 50)
    rows = figure(seen, cite(seen.items[0], 50_000))[1]
    assert len(rows) <= 402
    assert "▸50000" in rows
    assert sum(int(row.replace(" ", "")) for row in (rows[0], rows[-1])) + len(rows) - 2 == 100_000


def test_cited_line_missing_in_the_evidence_is_shown_verbatim() -> None:
    seen = take_snapshot(evidence(("dmesg", "a\nb")))
    gone = Citation("dmesg", "not that line", 2, seen.items[0].key)
    (found,) = render_citations([gone], seen)
    assert [match[3] for match in ROW.finditer(found)] == ["not that line"]


def test_long_line_is_cut_and_redacted() -> None:
    seen = take_snapshot(
        evidence(("systemctl cat docker", f"Environment=HTTP_PROXY=http://bob:hunter2@proxy {'x' * 9999}"))
    )
    (found,) = render_citations([cite(seen.items[0], 1)], seen)
    assert "hunter2" not in found
    assert len(found) < 1200


def test_continued_message_is_cited_with_all_its_lines() -> None:
    log = """\
[ 1.0] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 2.0] usb 1-1: new device
"""
    seen = take_snapshot(evidence(("dmesg", log)))
    assert figure(seen, cite(seen.items[0], 1))[0] == ["▸1", "▸2", "▸3", "4"]
