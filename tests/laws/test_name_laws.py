"""A name that a user typed adds no lines to gpunode's messages about it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpunode.cli.screen.failures import error_lines
from gpunode.errors import RecipeError, UsageError

NAMES = st.text("ab/=,'\"\\$\n\r\x0b\x1b\x85\u2028\u202e", min_size=1, max_size=20)


@given(NAMES, st.sampled_from(["{}", "--file={}", "/srv/{}/x"]))
def test_typed_name_stays_on_its_line(name: str, typed: str) -> None:
    word = typed.format(name)
    for error in (
        UsageError(f"{word} cannot be read", why=f"{word}: no such file", hint=f"look at {word}"),
        RecipeError("no such key", file=word, line=3, key="x", allowed=("a",)),
    ):
        plain = (
            type(error)("x", file="x", allowed=("a",))
            if isinstance(error, RecipeError)
            else UsageError("x", why="x", hint="x")
        )
        error.add_quoted_words([word])
        assert len([*error_lines(error)]) == len([*error_lines(plain)])
        assert all(line.text.isprintable() for line in error_lines(error))


def test_typed_name_is_quoted_for_a_shell() -> None:
    error = UsageError("dir/evil\x1b[2J\nname.json cannot be read")
    error.add_quoted_words(["doctor", "dir/evil\x1b[2J\nname.json"])
    assert error.what == r"dir/$'evil\x1b[2J\nname.json' cannot be read"
