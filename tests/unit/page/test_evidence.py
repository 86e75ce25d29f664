from __future__ import annotations

import re

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, take_snapshot
from gpunode.page.evidence import CONTEXT_LINES, render_citations
from tests.unit.page.nodes import evidence

ROW = re.compile(
    r'<div class="line"><span class="number">(▸?)(\d*)</span><(?:mark|span)>(.*?)</(?:mark|span)></div>'
    r'|<div class="gap">⋯ ([\d ]+) lines?</div>'
)


def figure(seen: Snapshot, *citations: Citation) -> tuple[list[str], list[str]]:
    """The rows of the one piece, and those that are folded: a gap by how many lines it has, a line by its number."""
    (found,) = render_citations(citations, seen)
    parts = found.partition("<details>")
    rows, folded = ([match[4] or f"{match[1]}{match[2]}" for match in ROW.finditer(part)] for part in parts[::2])
    return rows, folded


def numbered(lines: int, more: str = "") -> Snapshot:
    return take_snapshot(evidence(("dmesg", "\n".join(f"line {n}{more}" for n in range(1, lines + 1)))))


def pieces(*numbers: int) -> list[str]:
    seen = numbered(40)
    return figure(seen, *(cite(seen.items[0], number) for number in numbers))[0]


def test_a_line_stands_in_its_context_and_what_is_left_out_is_counted() -> None:
    assert pieces(20) == ["16", "17", "18", "19", "▸20", "21", "22", "23", "17"]


def test_a_gap_of_one_line_is_that_line_and_none_is_shown_twice() -> None:
    assert pieces(10, 10 + 2 * CONTEXT_LINES + 2)[1:-1] == [
        f"▸{number}" if number in {10, 18} else str(number) for number in range(7, 22)
    ]
    assert pieces(5)[0] == "1"
    assert pieces(1, 2, 3, 40) == ["▸1", "▸2", "▸3", "4", "5", "6", "30", "37", "38", "39", "▸40"]


def test_a_piece_of_a_few_lines_is_shown_whole_and_nothing_is_folded() -> None:
    seen = numbered(3)
    assert figure(seen, cite(seen.items[0], 2)) == (["1", "▸2", "3"], [])


def test_of_a_long_piece_a_bounded_part_around_the_proof_is_folded() -> None:
    seen = numbered(100_000, more=" " + "x" * 50)
    rows = figure(seen, cite(seen.items[0], 50_000))[1]
    assert len(rows) <= 402
    assert "▸50000" in rows
    assert sum(int(row.replace(" ", "")) for row in (rows[0], rows[-1])) + len(rows) - 2 == 100_000


def test_a_line_that_stands_nowhere_is_said_as_it_is() -> None:
    seen = take_snapshot(evidence(("dmesg", "a\nb")))
    gone = Citation("dmesg", "not that line", 2, seen.items[0].key)
    (found,) = render_citations([gone], seen)
    assert [match[3] for match in ROW.finditer(found)] == ["not that line"]


def test_a_line_without_end_is_cut_and_its_secrets_are_gone() -> None:
    seen = take_snapshot(
        evidence(("systemctl cat docker", f"Environment=HTTP_PROXY=http://bob:hunter2@proxy {'x' * 9999}"))
    )
    (found,) = render_citations([cite(seen.items[0], 1)], seen)
    assert "hunter2" not in found
    assert len(found) < 1200


def test_a_message_that_goes_on_over_lines_proves_with_all_of_them() -> None:
    log = """\
[ 1.0] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 2.0] usb 1-1: new device
"""
    seen = take_snapshot(evidence(("dmesg", log)))
    assert figure(seen, cite(seen.items[0], 1))[0] == ["▸1", "▸2", "▸3", "4"]
