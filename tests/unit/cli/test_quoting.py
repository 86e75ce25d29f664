from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpunode.cli.doctor import relevant_words, shorten_around
from gpunode.cli.screen.text import cell_width, escape_controls


def test_short_line_is_not_shortened() -> None:
    assert shorten_around("  a   b ", frozenset(), 20) == "a b"


def test_long_line_is_shortened_around_the_telling_words() -> None:
    line = f"level=info msg={'x' * 90} {'noise ' * 80}libnvidia-ml.so.1: cannot open {'noise ' * 80}"
    shown = shorten_around(line, relevant_words("libnvidia-ml.so.1 is not in the container"), 160)
    assert "noise libnvidia-ml.so.1: cannot open noise" in shown


@given(st.text(), st.text(), st.integers(20, 200))
def test_shortened_line_keeps_whole_words_and_fits(line: str, about: str, room: int) -> None:
    plain = " ".join(escape_controls(line).split())
    shown = shorten_around(escape_controls(line), relevant_words(about), room)
    assert cell_width(shown) <= room
    assert shown == plain or shown.removeprefix("… ").removesuffix(" …") in plain
