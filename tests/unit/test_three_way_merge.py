"""A change removed from an edited text: the edit survives, or nothing is guessed."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from gpunode.three_way_merge import merge_three_ways

BEFORE = b"version = 2\n\n# mine\n[plugins]\n  a = 1\n"
OURS = BEFORE + b'\n[plugins.nvidia]\n  path = "/usr/bin/nvidia"\n'


def without_our_change(now: bytes) -> bytes | None:
    """Return ``now`` without the change from BEFORE to OURS."""
    return merge_three_ways(OURS, BEFORE, now)


def test_edit_elsewhere_is_kept_and_our_lines_removed() -> None:
    assert without_our_change(OURS.replace(b"a = 1", b"a = 2")) == BEFORE.replace(b"a = 1", b"a = 2")


def test_lines_appended_after_ours_are_kept() -> None:
    assert without_our_change(OURS + b"[metrics]\n  port = 1\n") == BEFORE + b"[metrics]\n  port = 1\n"


def test_edited_own_lines_are_a_conflict() -> None:
    assert without_our_change(OURS.replace(b"/usr/bin/nvidia", b"/opt/nvidia")) is None


def test_two_insertions_at_one_place_are_a_conflict() -> None:
    assert merge_three_ways(b"a = 1\n", b"a = 1\nb = 2\n", b"a = 1\nc = 3\n", is_checked=True) is None
    assert merge_three_ways(b"a\n", b"a\nb\n", b"a\nc\n") is None


def test_insertion_before_a_changed_line_needs_a_check() -> None:
    assert merge_three_ways(b"a\nb\nc\n", b"a\nc\n", b"a\nnew\nb\nc\n") == b"a\nnew\nc\n"
    assert merge_three_ways(b"a = 1\n", b"a = 2\n", b"b = 1\na = 1\n", is_checked=True) == b"b = 1\na = 2\n"
    assert merge_three_ways(b"a = 1\n", b"a = 2\n", b"b = 1\na = 1\n") is None


def test_overlapping_edits_are_a_conflict() -> None:
    assert merge_three_ways(b"a\nb\nc\n", b"A\nB\nc\n", b"a\nBB\nCC\n") is None


def test_long_repetitive_file_is_merged() -> None:
    base = [b"[[mirror]]\n", b"# none\n"] * 200
    ours = [*base[:200], b"[ours]\n", *base[201:]]
    theirs = [b"[theirs]\n", *base[1:-1], b"# theirs\n"]
    both = [b"[theirs]\n", *ours[1:-1], b"# theirs\n"]
    assert merge_three_ways(b"".join(base), b"".join(ours), b"".join(theirs)) == b"".join(both)


def test_originally_empty_file_is_empty_again() -> None:
    ours = b'{\n  "runtimes": {}\n}\n'
    assert merge_three_ways(ours, b"", ours + b"\n", is_checked=True) == b"\n"


lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\r\n", b"\n"]), max_size=8).map(b"".join)


@given(lines, lines)
def test_unedited_text_is_restored(before: bytes, ours: bytes) -> None:
    assert merge_three_ways(ours, before, ours) == before


@given(lines, lines)
def test_merge_without_our_change_keeps_the_edit(before: bytes, now: bytes) -> None:
    assert merge_three_ways(before, before, now) == now


@given(lines, lines, lines)
def test_merge_is_symmetric(base: bytes, one: bytes, other: bytes) -> None:
    assert merge_three_ways(base, one, other) == merge_three_ways(base, other, one)


@given(lines, lines, lines)
def test_edits_around_an_untouched_line_both_apply(first: bytes, last: bytes, new: bytes) -> None:
    assume(not first.endswith(b"untouched\n"))
    base = first + b"untouched\n" + last
    result = merge_three_ways(base, new + b"untouched\n" + last, first + b"untouched\n" + new)
    if result is not None:
        assert result == new + b"untouched\n" + new
