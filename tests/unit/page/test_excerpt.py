from __future__ import annotations

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import cite, snapshot
from gpunode.page.excerpt import AROUND, Gap, Row, excerpts
from tests.unit.page.nodes import evidence


def pieces(*numbers: int, lines: int = 40) -> tuple[Row | Gap, ...]:
    seen = snapshot(evidence(("dmesg", "\n".join(f"line {n}" for n in range(1, lines + 1)))))
    (found,) = excerpts([cite(seen.items[0], number) for number in numbers], seen)
    return found.rows


def test_a_line_stands_in_its_context_and_what_is_left_out_is_counted() -> None:
    rows = pieces(20)
    assert rows[0] == Gap(16)
    assert rows[-1] == Gap(17)
    assert [row.number for row in rows if isinstance(row, Row)] == list(range(20 - AROUND, 20 + AROUND + 1))
    assert [row.text for row in rows if isinstance(row, Row) and row.proves] == ["line 20"]


def test_a_gap_of_one_line_is_that_line() -> None:
    rows = pieces(10, 10 + 2 * AROUND + 2)
    assert sum(isinstance(row, Gap) for row in rows) == 2


def test_no_line_is_shown_twice_where_contexts_meet() -> None:
    numbers = [row.number or 0 for row in pieces(1, 2, 3, 40) if isinstance(row, Row)]
    assert numbers == sorted(set(numbers))


def test_a_piece_of_a_few_lines_is_shown_whole_and_nothing_is_folded() -> None:
    seen = snapshot(evidence(("dmesg", "a\nb\nc")))
    (found,) = excerpts([cite(seen.items[0], 2)], seen)
    assert not found.whole
    assert len(found.rows) == 3


def test_of_a_long_piece_a_bounded_part_around_the_proof_is_folded() -> None:
    seen = snapshot(evidence(("dmesg", "\n".join(f"line {n} {'x' * 50}" for n in range(1, 100_001)))))
    (found,) = excerpts([cite(seen.items[0], 50_000)], seen)
    assert len(found.whole) <= 402
    assert any(isinstance(row, Row) and row.number == 50_000 and row.proves for row in found.whole)
    left_out = sum(row.lines for row in found.whole if isinstance(row, Gap))
    assert left_out + sum(isinstance(row, Row) for row in found.whole) == 100_000


def test_a_line_that_stands_nowhere_is_said_as_it_is() -> None:
    seen = snapshot(evidence(("dmesg", "a\nb")))
    other = Citation("/proc/driver/nvidia/version", "580.65.06", 1, seen.items[0].key)
    gone = Citation("dmesg", "not that line", 2, seen.items[0].key)
    assert [(one.source, one.said, one.rows) for one in excerpts([other, gone], seen)] == [
        ("/proc/driver/nvidia/version", ("580.65.06",), ()),
        ("dmesg", ("not that line",), ()),
    ]


def test_a_line_without_end_is_cut_and_its_secrets_are_gone() -> None:
    seen = snapshot(evidence(("systemctl cat docker", f"Environment=HTTP_PROXY=http://bob:hunter2@proxy {'x' * 9999}")))
    (found,) = excerpts([cite(seen.items[0], 1)], seen)
    (row,) = found.rows
    assert isinstance(row, Row)
    assert "hunter2" not in row.text
    assert len(row.text) < 700


def test_a_message_that_goes_on_over_lines_proves_with_all_of_them() -> None:
    log = """\
[ 1.0] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 2.0] usb 1-1: new device
"""
    seen = snapshot(evidence(("dmesg", log)))
    (found,) = excerpts([cite(seen.items[0], 1)], seen)
    assert [row.proves for row in found.rows if isinstance(row, Row)] == [True, True, True, False]
