"""A change taken out of an edited text: both survive, or nobody guesses."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpunode.merging import merged

BEFORE = b"version = 2\n\n# mine\n[plugins]\n  a = 1\n"
OURS = BEFORE + b'\n[plugins.nvidia]\n  path = "/usr/bin/nvidia"\n'


def taken_out(now: bytes, path: str = "/etc/containerd/config.toml") -> bytes | None:
    """``now`` without what made OURS of BEFORE."""
    return merged(OURS, BEFORE, now, path=path)


def test_an_edit_elsewhere_stays_and_our_lines_go() -> None:
    assert taken_out(OURS.replace(b"a = 1", b"a = 2")) == BEFORE.replace(b"a = 1", b"a = 2")


def test_what_was_appended_right_after_our_lines_stays() -> None:
    assert taken_out(OURS + b"[metrics]\n  port = 1\n") == BEFORE + b"[metrics]\n  port = 1\n"


def test_an_edit_of_our_own_lines_is_nobodys_to_take_out() -> None:
    assert taken_out(OURS.replace(b"/usr/bin/nvidia", b"/opt/nvidia")) is None


def test_lines_that_would_change_their_meaning_without_ours_stay_with_a_person() -> None:
    """Appended below our table they belong to it; without its header they would be somebody else's values."""
    assert taken_out(OURS + b"  debug = true\n") is None
    assert taken_out(OURS + b"  debug = true\n", path="/etc/some.conf") == BEFORE + b"  debug = true\n"


@pytest.mark.parametrize("now", [b"\xff\xfe", b"version = ", b"[[["])
def test_what_cannot_be_parsed_is_not_merged(now: bytes) -> None:
    assert taken_out(OURS.replace(b"version = 2\n", now + b"\n", 1)) is None


def test_an_edit_to_json_keeps_it_json() -> None:
    before = b'{\n  "log-level": "info"\n}\n'
    ours = b'{\n  "log-level": "info",\n  "runtimes": {"nvidia": {"path": "n"}}\n}\n'
    now = ours.replace(b'{\n  "log-level"', b'{\n  "debug": true,\n  "log-level"')
    result = merged(ours, before, now, path="/etc/docker/daemon.json")
    assert result is not None
    assert json.loads(result) == {"debug": True, "log-level": "info"}


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
