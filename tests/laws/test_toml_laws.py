"""Editing TOML as text: the result has the intended meaning, and every line that need not change is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import tomlkit
from hypothesis import assume, event, given, reject
from hypothesis import strategies as st

from gpunode.runtimes import tomltext
from gpunode.runtimes.documents import Document, Uneditable, is_same_value, parse_toml
from tests.laws.toml_texts import Text, altered, extended, keys, reduced, tables, toml_texts

OWN_COMMENT = re.compile(r"^[ \t]*# \[comment (\d+)\]", re.MULTILINE)


def edit(text: str, before: Document, after: Document) -> str:
    """Edit, or skip the example if the editor refuses, which changes no file."""
    try:
        return tomltext.edit_toml(text, before, after)
    except Uneditable:
        event("refused")
        reject()


def and_edited(edits: Any) -> st.SearchStrategy[tuple[Text, dict[str, Any]]]:
    return toml_texts().flatmap(lambda text: st.tuples(st.just(text), edits(text.document)))


def is_within(short: str, long: str) -> bool:
    """True if ``long`` is ``short`` with something inserted."""
    rest = iter(long)
    return all(char in rest for char in short)


def statements(text: str) -> Iterator[tuple[str, str]]:
    """Yield each statement and header, the smallest readable units, with its top-level key."""
    table, lines = "", ""
    for line in text.split("\n"):
        lines += line + "\n"
        try:
            found = parse_toml(lines)
        except ValueError:
            continue
        if found:
            key = next(iter(found))
            is_header = lines.lstrip().startswith("[")
            table = f"[{key}" if is_header else table
            yield table.removeprefix("[") if table else key, lines.rstrip("\r\n")
        lines = ""


def lines_that_say_something(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("[")]


@given(toml_texts())
def test_text_parses_to_its_document(text: Text) -> None:
    assert is_same_value(parse_toml(text.text), text.document)


@given(and_edited(altered))
def test_edited_text_parses_to_the_intended_document(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    assert is_same_value(parse_toml(edit(text.text, text.document, after)), after)


@given(and_edited(altered))
def test_edit_is_idempotent(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    once = edit(text.text, text.document, after)
    assert edit(once, parse_toml(once), after) == once


@given(and_edited(altered))
def test_comments_on_their_own_line_stay_in_order(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    assert OWN_COMMENT.findall(edit(text.text, text.document, after)) == OWN_COMMENT.findall(text.text)


@given(and_edited(altered))
def test_unchanged_statements_stay_byte_for_byte(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    result = edit(text.text, text.document, after)
    untouched = {key for key, value in text.document.items() if key in after and is_same_value(value, after[key])}
    kept, former = ([one for one in statements(each) if one[0] in untouched] for each in (result, text.text))
    assert kept == former


@given(and_edited(partial(extended, in_lists=False)))
def test_adding_a_key_only_inserts(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    assert is_within(text.text, edit(text.text, text.document, after))


@given(and_edited(partial(reduced, left=1, in_lists=False)))
def test_removing_a_key_only_deletes(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    result = edit(text.text, text.document, after)
    assert is_within("".join(result.split()), "".join(text.text.split()))


@given(and_edited(partial(extended, in_lists=False)))
def test_added_keys_can_be_removed_again(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    added = edit(text.text, text.document, after)
    # tomlkit loses the space between a date and a brace, so no edit of such a file is exact.
    assume(tomlkit.parse(added).as_string() == added)
    back = tomltext.edit_toml(added, parse_toml(added), text.document)
    assert is_same_value(parse_toml(back), text.document)
    # An empty header and space within braces may remain.
    assert ["".join(line.split()) for line in lines_that_say_something(back)] == [
        "".join(line.split()) for line in lines_that_say_something(text.text)
    ]


@given(toml_texts(), st.dictionaries(st.just("a table of its own") | keys, tables, max_size=3))
def test_added_tables_can_be_removed_again(text: Text, new: dict[str, Any]) -> None:
    after = {**new, **text.document}
    added = edit(text.text, text.document, after)
    back = tomltext.edit_toml(added, parse_toml(added), text.document)
    assert [line for line in back.split("\n") if line.strip()] == [
        line for line in text.text.split("\n") if line.strip()
    ]
