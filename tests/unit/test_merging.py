"""A change taken out of an edited text: both survive, or nobody guesses."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from gpunode.merging import merged

BEFORE = b"version = 2\n\n# mine\n[plugins]\n  a = 1\n"
OURS = BEFORE + b'\n[plugins.nvidia]\n  path = "/usr/bin/nvidia"\n'


def taken_out(now: bytes) -> bytes | None:
    """``now`` without what made OURS of BEFORE."""
    return merged(OURS, BEFORE, now)


def test_an_edit_elsewhere_stays_and_our_lines_go() -> None:
    assert taken_out(OURS.replace(b"a = 1", b"a = 2")) == BEFORE.replace(b"a = 1", b"a = 2")


def test_what_was_appended_right_after_our_lines_stays() -> None:
    assert taken_out(OURS + b"[metrics]\n  port = 1\n") == BEFORE + b"[metrics]\n  port = 1\n"


def test_an_edit_of_our_own_lines_is_nobodys_to_take_out() -> None:
    assert taken_out(OURS.replace(b"/usr/bin/nvidia", b"/opt/nvidia")) is None


def test_of_two_who_add_lines_at_one_place_nobody_is_put_first() -> None:
    assert merged(b"a = 1\n", b"a = 1\nb = 2\n", b"a = 1\nc = 3\n", is_checked=True) is None
    assert merged(b"a\n", b"a\nb\n", b"a\nc\n") is None


def test_lines_added_before_one_that_goes_stay_and_before_one_that_changes_only_where_the_meaning_is_known() -> None:
    assert merged(b"a\nb\nc\n", b"a\nc\n", b"a\nnew\nb\nc\n") == b"a\nnew\nc\n"
    assert merged(b"a = 1\n", b"a = 2\n", b"b = 1\na = 1\n", is_checked=True) == b"b = 1\na = 2\n"
    assert merged(b"a = 1\n", b"a = 2\n", b"b = 1\na = 1\n") is None


def test_edits_that_overlap_are_not_merged() -> None:
    assert merged(b"a\nb\nc\n", b"A\nB\nc\n", b"a\nBB\nCC\n") is None


def test_a_long_file_of_lines_that_recur_is_merged_like_a_short_one() -> None:
    base = [b"[[mirror]]\n", b"# none\n"] * 200
    ours = [*base[:200], b"[ours]\n", *base[201:]]
    theirs = [b"[theirs]\n", *base[1:-1], b"# theirs\n"]
    both = [b"[theirs]\n", *ours[1:-1], b"# theirs\n"]
    assert merged(b"".join(base), b"".join(ours), b"".join(theirs)) == b"".join(both)


def test_a_file_that_was_empty_is_so_again_but_for_what_was_added() -> None:
    ours = b'{\n  "runtimes": {}\n}\n'
    assert merged(ours, b"", ours + b"\n", is_checked=True) == b"\n"


lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\r\n", b"\n"]), max_size=8).map(b"".join)


@given(lines, lines)
def test_a_text_that_nobody_edited_comes_back_whole(before: bytes, ours: bytes) -> None:
    assert merged(ours, before, ours) == before


@given(lines, lines)
def test_where_we_did_nothing_the_edit_stays_whole(before: bytes, now: bytes) -> None:
    assert merged(before, before, now) == now


@given(lines, lines, lines)
def test_it_does_not_matter_whose_change_comes_first(base: bytes, one: bytes, other: bytes) -> None:
    assert merged(base, one, other) == merged(base, other, one)


@given(lines, lines, lines)
def test_edits_on_two_sides_of_an_untouched_line_both_happen(first: bytes, last: bytes, new: bytes) -> None:
    assume(not first.endswith(b"untouched\n"))
    base = first + b"untouched\n" + last
    result = merged(base, new + b"untouched\n" + last, first + b"untouched\n" + new)
    if result is not None:
        assert result == new + b"untouched\n" + new
