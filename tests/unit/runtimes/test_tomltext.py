"""TOML edited as text: what is new stands where its neighbours do, and every other byte stays."""

from __future__ import annotations

import copy
from datetime import date
from typing import Any

import pytest

from gpunode.runtimes import tomltext
from gpunode.runtimes.tomlread import Document, parse
from gpunode.runtimes.tomltext import Uneditable, edit, line_of

GONE = object()
TABLE = {"k": 1, "s": "x"}


def with_value(document: Document, path: str, value: Any) -> Document:
    after = copy.deepcopy(document)
    *way, last = path.split("/")
    table = after
    for key in way:
        table = table.setdefault(key, {})
    if value is GONE:
        del table[last]
    else:
        table[last] = value
    return after


def edited(text: str, path: str, value: Any) -> str:
    before = parse(text)
    return edit(text, before, with_value(before, path, value))


@pytest.mark.parametrize(
    ("text", "path", "after"),
    [
        ("a = 1\nb = 2 # two\n# three\nc = 3\n", "b", "a = 1\n# three\nc = 3\n"),
        (
            "[x]\na = 1\n\n[y]\nb = 2\nbb = 2\n[y.z]\nc = 3\n# tail\n\n[w]\nd = 4\n",
            "y",
            "[x]\na = 1\n# tail\n\n[w]\nd = 4\n",
        ),
        ("\ny = 1\nz = 3\n", "y", "\nz = 3\n"),
        ("y.a = 1\ny.b = 2\nz = 3\n", "y/a", "y.b = 2\nz = 3\n"),
        ("y = { a = 1, b = 2 } # c\nz = 3\n", "y/a", "y = { b = 2 } # c\nz = 3\n"),
    ],
    ids=["a line", "a table with those below it", "the first line", "a dotted key", "a key of an inline table"],
)
def test_what_goes_takes_its_lines_along_and_no_other(text: str, path: str, after: str) -> None:
    assert edited(text, path, GONE) == after


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ("a = 1 # one\nb = 2\n", "a", 5, "a = 5 # one\nb = 2\n"),
        ("a = 1", "b", 2, "a = 1\nb = 2"),
        ("a = 1\n\n[t]\n", "b", True, "a = 1\nb = true\n\n[t]\n"),
        ("[a]", "a/b", 2, "[a]\n  b = 2"),
        ("  [a]\n[b]\n", "a/b", 2, "  [a]\n    b = 2\n[b]\n"),
        ("[a]\nx = 1\n", "a/b c", "it's", '[a]\nx = 1\n"b c" = "it\'s"\n'),
        ("['a']\nx = 1\n", "a/b c", "it is", "['a']\nx = 1\n'b c' = 'it is'\n"),
        ("['a']\nx = 1\n", "a/b", "it's", "['a']\nx = 1\nb = \"it's\"\n"),
        ('[\'a\']\n["b"."c"]\nx = 1\n', "b/c/d", "x", '[\'a\']\n["b"."c"]\nx = 1\nd = "x"\n'),
        ("[t]\nx = 1\n[t.a]\nc = 1\n", "t/a", 3, "[t]\nx = 1\na = 3\n"),
        ("a = 1\nb = 2\n", "a", {"c": 1}, "b = 2\n\n[a]\n  c = 1\n"),
        ("[a]\nx = 1\n[X.y]\nz = 1\n", "X/y/q", 2, "[a]\nx = 1\n[X.y]\nz = 1\nq = 2\n"),
        ('["a\\u0062".c]\nx = 1\n[d]\n', "ab/c/q", 2, '["a\\u0062".c]\nx = 1\nq = 2\n[d]\n'),
        ("[a]\n  b.x = 1 # c\n", "a/b/y", {"u": 1, "v": {"w": 2}}, "[a]\n  b.x = 1 # c\n  b.y.u = 1\n  b.y.v.w = 2\n"),
        ("a = { b = { x = 1 } } # c\n", "a/b/y", 2, "a = { b = { x = 1, y = 2 } } # c\n"),
        ("x = [\n 1,\n # two\n 2,\n]\ny = 1\n", "x", [1], "x = [\n 1,\n # two\n]\ny = 1\n"),
    ],
)
def test_a_value_stands_beside_its_siblings(text: str, path: str, value: Any, after: str) -> None:
    assert edited(text, path, value) == after


@pytest.mark.parametrize(
    ("text", "path", "after"),
    [
        ("[a]\n  x = 1\n[b]\n    y = 1\n", "q", '[a]\n  x = 1\n[b]\n    y = 1\n[q]\n    k = 1\n    s = "x"\n'),
        ("\n[a]\nx = 1\n[b]\n", "q", '\n[a]\nx = 1\n[b]\n\n[q]\nk = 1\ns = "x"\n'),
        ("[d]\nz = 1\n", "q/r", '[d]\nz = 1\n\n[q.r]\nk = 1\ns = "x"\n'),
        ("a = 1\r\n", "b", 'a = 1\r\n\r\n[b]\r\n  k = 1\r\n  s = "x"\r\n'),
        (
            "[a]\nx = 1\n[a.c]\ny = 1\n\n[d]\nz = 1\n",
            "a/b",
            '[a]\nx = 1\n[a.c]\ny = 1\n[a.b]\nk = 1\ns = "x"\n\n[d]\nz = 1\n',
        ),
        (
            "[a]\nx = 1\n[a.c]\ny = 1\n# of c\n\n# of d\n[d]\nz = 1\n",
            "a/b",
            '[a]\nx = 1\n[a.c]\ny = 1\n# of c\n[a.b]\nk = 1\ns = "x"\n\n# of d\n[d]\nz = 1\n',
        ),
        ("[d]\nz = 1\n\n[a]\nx = 1\n# end", "a/b", '[d]\nz = 1\n\n[a]\nx = 1\n# end\n\n[a.b]\nk = 1\ns = "x"'),
        ("['a']\nx = 1\n['a'.'b c']\n", "a/d e", "['a']\nx = 1\n['a'.'b c']\n[a.'d e']\nk = 1\ns = 'x'\n"),
        ('["a"]\nx = 1\n', "a/d e", '["a"]\nx = 1\n\n[a."d e"]\nk = 1\ns = "x"\n'),
    ],
    ids=[
        "indented as the last",
        "a blank line above every other one",
        "no relatives",
        "no tables, and their line ends",
        "beside its sibling",
        "below the comment of its sibling, above that of the next",
        "at the end, below the last comment",
        "single quotes",
        "double quotes",
    ],
)
def test_a_table_stands_beside_its_nearest_relatives(text: str, path: str, after: str) -> None:
    assert edited(text, path, TABLE) == after


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (
            "[d]\n  z = 1\n\n  [d.e]\n    y = 1\n",
            '[d]\n  z = 1\n\n  [d.e]\n    y = 1\n\n  [d.f]\n    k = 1\n\n    [d.f.o]\n      s = "x"\n',
        ),
        (
            "[d]\n\tz = 1\n\n[d.e]\n\ty = 1\n",
            '[d]\n\tz = 1\n\n[d.e]\n\ty = 1\n\n[d.f]\n\tk = 1\n\n[d.f.o]\n\ts = "x"\n',
        ),
        (
            "[d]\nz = 1\n[d.e]\ny = 1\n[g]\n",
            '[d]\nz = 1\n[d.e]\ny = 1\n[d.f]\nk = 1\n[d.f.o]\ns = "x"\n[g]\n',
        ),
    ],
    ids=["keys and tables indented", "keys indented, with tabs", "nothing indented, no blank lines"],
)
def test_tables_in_tables_are_indented_and_parted_as_the_others_are(text: str, after: str) -> None:
    assert edited(text, "d/f", {"k": 1, "o": {"s": "x"}}) == after


def test_a_table_without_siblings_is_indented_by_its_depth_below_the_nearest_one_above_it() -> None:
    text = "[a]\n  [a.b]\n    x = 1\n"
    assert edited(text, "a/b/c", TABLE) == text + '    [a.b.c]\n      k = 1\n      s = "x"\n'
    deep = "[a]\n  [a.b.c.d]\n    x = 1\n"
    assert edited(deep, "a/b/e", TABLE) == deep + '    [a.b.e]\n      k = 1\n      s = "x"\n'
    assert edited("x = 1\n", "a", {"k": 1, "b": TABLE}) == (
        'x = 1\n\n[a]\n  k = 1\n\n  [a.b]\n    k = 1\n    s = "x"\n'
    )


def test_a_table_above_one_that_is_in_it_leaves_that_ones_comment_with_it() -> None:
    parted = "[a]\nx = 1\n\n# about\n  # c\n[a.b.c]\ny = 1\n\n[d]\n"
    assert edited(parted, "a/b/k", 1) == parted.replace("# about", "[a.b]\nk = 1\n\n# about")
    apart = "[a]\nx = 1\n\n# of a\n\n[a.b.c]\ny = 1\n"
    assert edited(apart, "a/b/k", 1) == apart.replace("[a.b.c]", "[a.b]\nk = 1\n\n[a.b.c]")
    close = "[a]\nx = 1\n# about\n[a.b.c]\ny = 1\n[d]\nz = 1\n[e]\n"
    assert edited(close, "a/b/k", 1) == close.replace("# about", "[a.b]\nk = 1\n# about")


def test_every_kind_of_value_and_key_is_written() -> None:
    value = {
        "d": False,
        "u": "\x7f'\"ü\n",
        "l": [1, [True], {"i i": "x"}, {}],
        "t": date(1979, 5, 27),
        "k k": {},
        "n": {"m": {"o": 1}},
    }
    assert edited("[a]\nx = 1\n", "a/e", value).splitlines()[3:] == [
        "[a.e]",
        "d = false",
        'u = "\\u007f\'\\"ü\\n"',
        'l = [1, [true], { "i i" = "x" }, {}]',
        "t = 1979-05-27",
        "",
        '[a.e."k k"]',
        "",
        "[a.e.n.m]",
        "o = 1",
    ]


def test_a_key_of_the_root_stands_above_all_tables() -> None:
    assert edited("# of a\n[a]\nx = 1\n", "k", 1) == "k = 1\n\n# of a\n[a]\nx = 1\n"
    assert edited("# of all\n\n# of a\n[a]\nx = 1\n", "k", 1) == "# of all\n\nk = 1\n\n# of a\n[a]\nx = 1\n"
    assert edited("# of all\n", "k", 1) == "# of all\nk = 1\n"


def test_a_table_that_becomes_a_value_makes_room_for_it() -> None:
    assert edited("[a.b]\nc = 1\n[d]\n", "a/b", 3) == "[a]\n  b = 3\n[d]\n"
    assert edited("a.b.c = 1\na.d = 2\n", "a/b", 3) == "a.d = 2\na.b = 3\n"


def test_a_table_that_is_to_stay_without_its_keys_is_written_empty() -> None:
    assert edited("a.b = 1\nc = 1\n", "a/b", GONE) == "c = 1\n\n[a]\n"
    assert edited("[[a]]\nx = 1\n", "a", []) == "a = []\n"


@pytest.mark.parametrize(
    ("text", "elements", "after"),
    [
        ("[[a]]\nx = 1\n\n[b]\n", [{"x": 1}, {"x": 2}], "[[a]]\nx = 1\n\n[[a]]\nx = 2\n\n[b]\n"),
        ("[[a]]\nx = 1\n[a.t]\ny = 1\n", [{}, {"x": 1, "t": {"y": 1}}], "[[a]]\n[[a]]\nx = 1\n[a.t]\ny = 1\n"),
        ("[[a]]\nx = 1\n[a.t]\ny = 1\n[[a]]\nx = 2\n", [{"x": 2}], "[[a]]\nx = 2\n"),
        (
            "[[a]]\n[a.t]\ny = 1\n[[a]]\n[a.t]\ny = 2\n",
            [{"t": {"y": 1, "z": 3}}, {"t": {"y": 5}}],
            "[[a]]\n[a.t]\ny = 1\nz = 3\n[[a]]\n[a.t]\ny = 5\n",
        ),
        ("[[a]]\nx = 1\n", [{"x": 1}, 2], "a = [{ x = 1 }, 2]\n"),
    ],
    ids=["one more", "one before", "one less", "within each", "no array of tables any more"],
)
def test_elements_of_arrays_of_tables_come_go_and_change_each_for_itself(
    text: str, elements: list[Any], after: str
) -> None:
    assert edited(text, "a", elements) == after


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[a.b]\nx = 1\n", "a/k"),
        ("# of b\n[a.b]\nx = 1\n", "a/k"),
        ("v = 1\n\n[c]\n\n# of b\n[a.b]\nx = 1", "a/k"),
        ("[p]\n[p.q]\n[p.q.r]\nx = 1\n", "p/q/k"),
        ("[p]\nx = 1\n# k = 1\n\n[p.q]\n", "k"),
        ("\n\n[p]\n", "k"),
        ("# only this", "k"),
        ("a.b = 1\r\na.c = 2 # c\r\n[a.d]\r\n", "a/k"),
    ],
)
@pytest.mark.parametrize("value", [1, {"x": 1}, [{"x": 1}]], ids=["value", "table", "list"])
def test_what_was_added_goes_without_a_trace(text: str, path: str, value: Any) -> None:
    added = edited(text, path, value)
    assert edit(added, parse(added), parse(text)) == text


def test_a_header_with_a_comment_stays_when_its_last_key_goes() -> None:
    assert edited("[a] # mine\nk = 1\n[a.b]\nx = 1\n", "a/k", GONE) == "[a] # mine\n[a.b]\nx = 1\n"
    assert edited("[[a]]\nk = 1\n[a.b]\nx = 1\n", "a", [{"b": {"x": 1}}]) == "[[a]]\n[a.b]\nx = 1\n"


def test_true_is_not_one_and_a_number_no_text() -> None:
    assert edited("a = 1\n", "a", True) == "a = true\n"
    assert edited("a = 1.0\n", "a", "1.0") == 'a = "1.0"\n'


def test_what_does_not_read_as_meant_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomltext, "changed", lambda *_: "4")
    with pytest.raises(Uneditable, match=r"^a\.b$"):
        edited("[a]\nb = 1\n", "a/b", 3)
    monkeypatch.setattr(tomltext, "changed", lambda *_: "]")
    with pytest.raises(Uneditable, match=r"^a\.b$"):
        edited("[a]\nb = 1\n", "a/b", 3)


@pytest.mark.parametrize(
    ("path", "line"),
    [("k", 2), ("a", 4), ("a/x", 6), ("a/t/y", 8), ("b/c", 9), ("bc/d/z", 12), ("z", 0), ("a/z", 0)],
)
def test_the_line_on_which_a_key_is_set_or_a_table_begins(path: str, line: int) -> None:
    text = '\nk = 1\n\n[a] # x\n# x = 0\nx = """\n"""\nt = { y = 1 }\n[[b.c]]\n[[b.c]]\n["b\\u0063".d]\nz = 1\n'
    assert line_of(text, tuple(path.split("/"))) == line
