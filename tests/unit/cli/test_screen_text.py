from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpunode.cli.screen.text import (
    Line,
    Span,
    cell_width,
    escape_controls,
    indent_lines,
    line,
    mark_commands,
    span,
    to_ascii,
    wrap_line,
)

anything = st.text(st.characters(codec=None), max_size=60)
lines = st.builds(
    Line,
    st.lists(st.builds(span, anything, st.sampled_from(("", "bad", "dim"))), max_size=4).map(tuple),
    st.integers(0, 30),
    st.booleans(),
)


@given(anything)
def test_escaped_text_is_printable(text: str) -> None:
    cleaned = escape_controls(text)
    assert cleaned.isprintable()
    cleaned.encode()


def test_control_characters_are_shown_as_escapes() -> None:
    assert escape_controls("\x1b[31mred\x1b[0m") == "\\x1b[31mred\\x1b[0m"
    assert escape_controls("safe\u202etxt.exe") == "safe\\u202etxt.exe"
    assert escape_controls("con\u3164tainerd\ufe0f") == "con\\u3164tainerd\\ufe0f"
    assert escape_controls("caf\udce9") == "caf\\xe9"
    assert escape_controls("a\tb\r\n") == "a    b\\r\\n"


def test_secrets_are_redacted_in_lines() -> None:
    shown = line("fetched ", "https://me:hunter2hunter2@mirror.example/x", span("hf_abcdefabcdefabcdef", "dim")).text
    assert "hunter2" not in shown
    assert "abcdef" not in shown


@given(lines, st.integers(4, 120))
def test_wrapped_line_fits_and_loses_only_blanks(one: Line, width: int) -> None:
    rows = list(wrap_line(one, width))
    # A character of two columns does not fit if only one is left besides the indentation.
    assert all(cell_width(row.text) <= max(width, 2) for row in rows)
    assert "".join("".join(row.text.split()) for row in rows) == "".join(one.text.split())


@given(lines)
def test_line_without_a_width_is_not_wrapped(one: Line) -> None:
    (row,) = wrap_line(one, 0)
    assert row.text == one.text


def test_wrapped_words_stay_whole_with_a_hanging_indent() -> None:
    one = line("✓ driver  ", "a reason of several words", hang=10)
    assert [row.text for row in wrap_line(one, 24)] == ["✓ driver  a reason of", " " * 10 + "several words"]


def test_words_after_a_label_stay_whole_on_the_row_below() -> None:
    uuid = f"GPU-{'0' * 36},"
    one = line("  ✓ GPU 0" + " " * 30, f"NVIDIA Lab GPU, {uuid} persistence on", hang=39)
    first, *rows = wrap_line(one, 70)
    assert first.text.endswith("NVIDIA Lab GPU,")
    assert [row.text for row in rows] == [f"      {uuid} persistence on"]
    path = line("  ✓ toolkit repository  ", f"/usr/{'x' * 50} created", hang=24)
    first, *rows = wrap_line(path, 70)
    assert [first.text, *(row.text for row in rows)] == ["  ✓ toolkit repository", f"      /usr/{'x' * 50} created"]


def test_diff_line_is_folded_anywhere_and_keeps_its_blanks() -> None:
    one = Line((Span("+  key   =  value", "add"),), 2, breaks_anywhere=True)
    assert [row.text for row in wrap_line(one, 8)] == ["+  key  ", "   =  va", "  lue"]


def test_wide_characters_count_twice() -> None:
    assert cell_width("漢字") == 4
    assert [row.text for row in wrap_line(line("漢字漢字"), 5)] == ["漢字", "漢字"]


def test_commands_in_backticks_are_styled() -> None:
    assert mark_commands("run `gpunode plan` first") == (
        Span("run "),
        Span("`gpunode plan`", "command"),
        Span(" first"),
    )


@given(anything)
def test_to_ascii_returns_ascii(text: str) -> None:
    assert to_ascii(escape_controls(text)).isascii()


def test_own_signs_have_ascii_forms() -> None:
    assert to_ascii("✓ ● ○ ! ✗ – · 8 × A → B …") == "+ * o ! x - | 8 x A -> B ..."


def test_copyable_command_is_not_wrapped() -> None:
    long = line(span("sudo " + "x " * 50 + "x", "command"))
    assert list(wrap_line(long, 40)) == [long]
    assert [row.text for row in wrap_line(indent_lines([long], 3)[0], 40)] == [f"   {long.text}"]
    told = line("  undo  ", *long.spans, "  (on that node)", hang=8)
    assert [row.text for row in wrap_line(told, 40)] == [f"  undo  {long.text}", "        (on that node)"]
    told = Line(mark_commands("some words, then run `sudo ldconfig` and look"))
    assert [row.text for row in wrap_line(told, 30)] == ["some words, then run", "`sudo ldconfig` and look"]


def test_narrow_screen_breaks_a_long_label_between_its_words() -> None:
    label = "✓ programs and libraries are those of their packages"
    rows = [row.text for row in wrap_line(line(label, "  by checksum", hang=42), 40)]
    assert rows == ["✓ programs and libraries are those of", "    their packages  by checksum"]
