"""Arrays and inline tables, changed within themselves: comments, spacing and what is equal stay."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.runtimes.tomlread import Verbatim, parse
from gpunode.runtimes.tomlvalue import Script, changed


def change(text: str, new: Any, script: Script | None = None) -> str:
    return changed(text, parse(f"v = {text}\n")["v"], new, script or Script())


@pytest.mark.parametrize(
    ("text", "new", "after"),
    [
        ("[]", [1], "[1]"),
        ("[ ]", [1, 2], "[ 1, 2 ]"),
        ("[1]", [1, 2], "[1, 2]"),
        ("[1,2]", [1, 2, 3], "[1,2,3]"),
        ("[1,2,]", [1, 2, 3], "[1,2,3,]"),
        ("[1 , 2 ]", [1, 3, 2], "[1 , 3, 2 ]"),
        ("[1, 2]", [0, 1, 2], "[0, 1, 2]"),
        ("[[1], [2]]", [[1, 3], [2]], "[[1, 3], [2]]"),
        ("[\n  1,\n  2\n]", [1, 2, 3], "[\n  1,\n  2,\n  3\n]"),
        ("[\n  1, # one\n  2 # two\n]", [1, 2, 3], "[\n  1, # one\n  2, # two\n  3\n]"),
        ("[\n  1, # one\n  2, # two\n]", [1, 2, 3, 4], "[\n  1, # one\n  2, # two\n  3,\n  4,\n]"),
        ("[\n  1,\n  2]", [1, 2, 3], "[\n  1,\n  2,\n  3]"),
        ("[\n  1,\n  2, 3,\n]", [1, 2, 4, 3], "[\n  1,\n  2, 4, 3,\n]"),
        ("[\n  # first\n  1,\n]", [0, 1], "[\n  # first\n  0,\n  1,\n]"),
        ("[\n  # none\n]", [1, 2], "[\n  # none\n  1,\n  2\n]"),
        ("[1, # one\n 2]", [1, 3, 2], "[1, 3, # one\n 2]"),
    ],
)
def test_an_item_stands_as_its_neighbours_do_and_goes_without_a_trace(text: str, new: Any, after: str) -> None:
    assert change(text, new) == after
    assert change(after, parse(f"v = {text}\n")["v"]) == text


@pytest.mark.parametrize(
    ("text", "new", "after"),
    [
        ("[1, 2, 3]", [1, 3], "[1, 3]"),
        ("[1, 2, 3]", [2, 3], "[2, 3]"),
        ("[1, # one\n 2 # two\n]", [1], "[1 # one\n]"),
        ("[1, # one\n 2]", [1], "[1 # one\n ]"),
        (
            "[\n  1, # one\n  # of two\n  2, # two\n  3, # three\n]",
            [1, 3],
            "[\n  1, # one\n  # of two\n  3, # three\n]",
        ),
        ("[\n  1, # # # # # # # # # # # # # # # # # # # # # # # # # # # # # #\n  2\n]", [], "[\n]"),
        ("['a',\n'b','a',\n]", ["a", "a"], "['a',\n'a',\n]"),
        ("[1, 2, 3]", [3, 4], "[3, 4]"),
        ("[1, 2]", "x", '"x"'),
    ],
)
def test_an_item_that_goes_takes_its_comma_and_the_comment_on_its_line_along(text: str, new: Any, after: str) -> None:
    assert change(text, new) == after


@pytest.mark.parametrize(
    ("text", "new", "after"),
    [
        ("{}", {"a": 1}, "{a = 1}"),
        ("{ }", {"a": 1}, "{ a = 1 }"),
        ("{ a = 1 }", {"a": 1, "b c": {"d": 2}}, '{ a = 1, "b c" = { d = 2 } }'),
        ("{a=1,b=2}", {"a": 1, "b": 2, "c": 3}, "{a=1,b=2,c = 3}"),
        ("{ a.b = 1, c = 2 }", {"a": {"b": 1, "d": 3}, "c": 2}, "{ a.b = 1, a.d = 3, c = 2 }"),
        ("{ a = [ { b = 1 } ] }", {"a": [{"b": 1, "c": 2}]}, "{ a = [ { b = 1, c = 2 } ] }"),
    ],
)
def test_a_member_stands_beside_its_own_and_goes_without_a_trace(text: str, new: Any, after: str) -> None:
    assert change(text, new) == after
    assert change(after, parse(f"v = {text}\n")["v"]) == text


@pytest.mark.parametrize(
    ("text", "new", "after"),
    [
        ("{ a = 1, b = 2 }", {"b": 2}, "{ b = 2 }"),
        ("{ a.b = 1, c = 2 }", {"a": 3, "c": 2}, "{ c = 2, a = 3 }"),
        ("{ a.b = 1, c = 2 }", {"a": {}, "c": 2}, "{ c = 2, a = {} }"),
        ("{ a.b = 1, a.c = 2, d = 3 }", {"d": 3}, "{ d = 3 }"),
        ("{ a = 'x', b = 0x10 }", {"a": "y", "b": 16}, "{ a = 'y', b = 0x10 }"),
        ("{ a = 1 }", {"a": True}, "{ a = true }"),
        ("1.0", "1.0", '"1.0"'),
        ('"1.0"', Verbatim("1.0"), "1.0"),
        ("'x'", "it's", '"it\'s"'),
    ],
)
def test_what_is_equal_in_value_and_kind_keeps_its_spelling(text: str, new: Any, after: str) -> None:
    assert change(text, new) == after


def test_long_lists_are_not_matched_item_by_item() -> None:
    old, new = list(range(2000)), list(range(2000, 0, -1))
    assert parse(f"v = {change(Script().value(old), new)}")["v"] == new


def test_new_lines_of_an_array_end_as_the_document_does() -> None:
    assert change("[\r\n  1,\r\n]", [1, 2], Script(newline="\r\n")) == "[\r\n  1,\r\n  2,\r\n]"
