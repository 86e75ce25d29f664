from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpunode.page
from gpunode.page.markup import escape_invisible, escape_text, join_markup, tag

anything = st.text(st.characters(codec=None, exclude_categories=()))


@given(anything)
def test_text_never_becomes_markup(said: str) -> None:
    inside = str(tag("p", said, title=said))
    assert inside.count("<") == 2
    assert inside.count(">") == 2
    assert inside.count('"') == 2


def test_only_one_module_makes_markup_of_text() -> None:
    folder = Path(gpunode.page.__file__).parent
    makers = {
        path.name
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Markup")
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and "</" in node.value)
    }
    assert makers == {"markup.py"}


@given(anything)
def test_invisible_characters_are_escaped(said: str) -> None:
    shown = escape_invisible(said)
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    shown.encode()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("\x1b[4mGPU0\x1b[0m", "GPU0"),
        ("a\x00b", "a\\x00b"),
        ("\u202eexe", "\\u202eexe"),
        ("\x1b]8;;x\x07", "\\x1b]8;;x\\x07"),
        ("\udc80", "\\udc80"),
        ("naïve 图", "naïve 图"),
    ],
)
def test_colour_codes_are_removed(said: str, shown: str) -> None:
    assert escape_invisible(said) == shown


def test_markup_is_kept_and_text_beside_it_escaped() -> None:
    assert join_markup("<", tag("b", "&"), None, ["x", tag("br")]) == "&lt;<b>&amp;</b>x<br>"


def test_markup_is_not_escaped_twice() -> None:
    assert escape_text(escape_text("<")) == "&lt;"


def test_false_attribute_is_omitted() -> None:
    assert tag("a", class_="x", aria_label="y", open=True, hidden=False, title=None) == (
        '<a class="x" aria-label="y" open></a>'
    )
