"""TOML edited as text: new lines are placed next to related ones, and every foreign line stays."""

from __future__ import annotations

import copy
from datetime import date
from typing import Any

import pytest

from gpunode.runtimes import tomltext
from gpunode.runtimes.documents import Document, Uneditable, parse_toml
from gpunode.runtimes.tomltext import edit_toml

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


def edit_text(text: str, path: str, value: Any) -> str:
    before = parse_toml(text)
    return edit_toml(text, before, with_value(before, path, value))


@pytest.mark.parametrize(
    ("text", "path", "after"),
    [
        ("a = 1\nb = 2 # two\n# three\nc = 3\n", "b", "a = 1\n# three\nc = 3\n"),
        (
            "[x]\na = 1\n\n[y]\n# of b\nb = 2\nbb = 2\n[y.z]\nc = 3\n# tail\n\n[w]\nd = 4\n",
            "y",
            "[x]\na = 1\n# of b\n# tail\n\n[w]\nd = 4\n",
        ),
        ("\ny = 1\nz = 3\n", "y", "\nz = 3\n"),
        ("y.a = 1\ny.b = 2\nz = 3\n", "y/a", "y.b = 2\nz = 3\n"),
        ("y = { a = 1, b = 2 } # c\nz = 3\n", "y/b", "y = { a = 1  } # c\nz = 3\n"),
        ("[a] # mine\nk = 1\n[a.b]\nx = 1\n", "a/k", "[a] # mine\n[a.b]\nx = 1\n"),
        ("a.b = 1\nc = 1\n", "a/b", "c = 1\n\n[a]\n"),
        ("[a]\n  b.c.d = 1\n  b.e = 1\n", "a/b/c", "[a]\n  b.e = 1\n"),
    ],
    ids=[
        "a line",
        "a table",
        "the first line",
        "a dotted key",
        "within braces",
        "the last key",
        "the last dotted key",
        "an indented table of dotted keys",
    ],
)
def test_removed_value_takes_only_its_lines(text: str, path: str, after: str) -> None:
    assert edit_text(text, path, GONE) == after


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ("a = 1 # one\nb = 2\n", "a", 5, "a = 5 # one\nb = 2\n"),
        ("a = 1", "b", 2, "a = 1\nb = 2"),
        ("a = 1\r\n[t]\r\n", "b", True, "a = 1\r\nb = true\r\n[t]\r\n"),
        ("# of all\n\n# of a\n[a]\nx = 1\n", "k", 1, "# of all\n\nk = 1\n\n# of a\n[a]\nx = 1\n"),
        ("  [a]\n[b]\n", "a/b", 2, "  [a]\n    b = 2\n[b]\n"),
        ("['a']\nx = 1\n", "a/b c", "it is", "['a']\nx = 1\n'b c' = 'it is'\n"),
        ("['a']\nx = 1\n", "a/b", "it's", "['a']\nx = 1\nb = \"it's\"\n"),
        ("[t]\nx = 1\n[t.a]\nc = 1\n", "t/a", 3, "[t]\nx = 1\na = 3\n"),
        ("a = true\n", "a", 1, "a = 1\n"),
        ("a = 1.0\n", "a", "1.0", 'a = "1.0"\n'),
        ("[a]\n  b.x = 1 # c\n", "a/b/y", {"u": 1, "v": 2}, "[a]\n  b.x = 1 # c\n  b.y.u = 1\n  b.y.v = 2\n"),
        ("a = { b = { x = 1 } } # c\n", "a/b/y", 2, "a = { b = { x = 1, y = 2 } } # c\n"),
        ("x = [\n 1,\n # two\n 2,\n]\ny = 1\n", "x", [1, 2, 3], "x = [\n 1,\n # two\n 2,\n 3,\n]\ny = 1\n"),
        ("x = [\n 1, # one\n # of two\n 2,\n]\n", "x", [2], "x = [\n # of two\n 2,\n]\n"),
        ("x = ['a']\n", "x", ["a", "b"], "x = ['a', \"b\"]\n"),
    ],
)
def test_new_value_is_placed_beside_its_siblings(text: str, path: str, value: Any, after: str) -> None:
    assert edit_text(text, path, value) == after


@pytest.mark.parametrize(
    ("text", "path", "after"),
    [
        ("[a]\n  x = 1\n[b]\n    y = 1\n", "q", '[a]\n  x = 1\n[b]\n    y = 1\n[q]\n    k = 1\n    s = "x"\n'),
        ("\n[a]\nx = 1\n\n[b]\n", "q", '\n[a]\nx = 1\n\n[b]\n\n[q]\nk = 1\ns = "x"\n'),
        ("a = 1\r\n", "b", 'a = 1\r\n\r\n[b]\r\n  k = 1\r\n  s = "x"\r\n'),
        (
            "[a]\nx = 1\n[a.c]\ny = 1\n# of c\n\n# of d\n[d]\nz = 1\n",
            "a/b",
            '[a]\nx = 1\n[a.c]\ny = 1\n# of c\n[a.b]\nk = 1\ns = "x"\n\n# of d\n[d]\nz = 1\n',
        ),
        ("[d]\nz = 1\n\n[a]\nx = 1\n# end", "a/b", '[d]\nz = 1\n\n[a]\nx = 1\n# end\n\n[a.b]\nk = 1\ns = "x"'),
        ("[a]\n  [a.c]\n    y = 1\n", "a/b", '[a]\n  [a.c]\n    y = 1\n  [a.b]\n    k = 1\n    s = "x"\n'),
    ],
    ids=[
        "indented as the last",
        "a blank line above every other one",
        "no tables, and their line ends",
        "below the comment of its sibling, above that of the next",
        "at the end, below the last comment",
        "indented as its sibling",
    ],
)
def test_new_table_is_placed_beside_related_tables(text: str, path: str, after: str) -> None:
    assert edit_text(text, path, TABLE) == after


def test_inserted_parent_table_leaves_the_comment_of_its_child() -> None:
    parted = "[a]\nx = 1\n\n# about\n  # c\n[a.b.c]\ny = 1\n\n[d]\n"
    assert edit_text(parted, "a/b/k", 1) == parted.replace("# about", "[a.b]\nk = 1\n\n# about")
    close = "[a]\nx = 1\n# about\n[a.b.c]\ny = 1\n[d]\nz = 1\n[e]\n"
    assert edit_text(close, "a/b/k", 1) == close.replace("# about", "[a.b]\nk = 1\n# about")


def test_every_kind_of_value_and_key_is_written() -> None:
    value = {
        "d": False,
        "u": "\x7f'\"ü\n",
        "l": [1, [True], {"i i": "x"}, {}],
        "t": date(1979, 5, 27),
        "k k": {},
        "n": {"m": {"o": 1}},
    }
    assert edit_text("[a]\nx = 1\n", "a/e", value).splitlines()[3:] == [
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


def test_indented_headers_keep_their_indent() -> None:
    text = "[a]\n  x = 1\n  [a.b.c]\n    y = 1\n  [a.b.d]\n    y = 1\n"
    assert edit_text(text, "a/b/e", {"y": 1}) == text + "  [a.b.e]\n    y = 1\n"


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("[[a]]\nx = 1\n", "a", [{"x": 2}]),
        ("[[a]]\n# mine\nx = 1\n[b]\n", "a", GONE),
        ("a = { b.c = 1 }\n", "a/b/d", 1),
        ("a = { b = 1979-05-27 }\n", "k", 1),
    ],
    ids=["a list of tables", "comments within one", "dotted within braces", "a date in them"],
)
def test_edit_that_could_lose_a_foreign_line_is_refused(text: str, path: str, value: Any) -> None:
    with pytest.raises(Uneditable) as refused:
        edit_text(text, path, value)
    assert refused.value.paths == (tuple(path.split("/")),)


def test_line_that_tomlkit_would_change_is_named() -> None:
    with pytest.raises(Uneditable) as refused:
        edit_text("k = 1\n# c\nt = { d = 1979-05-27 }\n", "k", 2)
    assert refused.value.line == 3


@pytest.mark.parametrize("wrong", ["[a]\nb = 4\n", "[a]\nb = ]\n"], ids=["another meaning", "no TOML"])
def test_edit_that_parses_differently_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setattr(tomltext, "_lay_out", lambda *_, **__: wrong)
    with pytest.raises(Uneditable, match=r"^a\.b$"):
        edit_text("[a]\nb = 1\n", "a/b", 3)


def test_edit_that_loses_a_comment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomltext, "_lay_out", lambda *_, **__: "[a]\nb = 3\n")
    with pytest.raises(Uneditable):
        edit_text("[a]\n# mine\nb = 1\n", "a/b", 3)


@pytest.mark.parametrize("text", ["[[a]]\n[b]\n[[a]]\n", "[p.a.b.x]\n[p.a.b]\n[p.a]\n[p.a.b.c.d]\n"])
def test_file_that_tomlkit_cannot_write_back_is_edited(text: str) -> None:
    assert edit_text(text, "k", 1) == f"k = 1\n{text}"


def test_table_below_an_unrelated_one_is_edited_section_by_section() -> None:
    """tomlkit 0.15.2 cannot read it: Debian's file with gpunode's handlers, and runc's options added at its end."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    text = f"""version = 2

[plugins]
  [{cri}]
    [{cri}.cni]
      bin_dir = "/usr/lib/cni"
    [{cri}.containerd.runtimes.nvidia]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.nvidia.options]
        BinaryName = "nvidia-container-runtime" # ours
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"

[{cri}.containerd.runtimes.runc.options]
  SystemdCgroup = true # the kubelet's
"""
    own = text.splitlines(keepends=True)[9]
    after = text.replace(own, f"{own}        SystemdCgroup = true\n")
    assert edit_toml(text, parse_toml(text), parse_toml(after)) == after
    assert edit_toml(after, parse_toml(after), parse_toml(text)) == text
    without = "".join(text.splitlines(keepends=True)[:6] + text.splitlines(keepends=True)[10:])
    assert edit_toml(text, parse_toml(text), parse_toml(without)) == without
