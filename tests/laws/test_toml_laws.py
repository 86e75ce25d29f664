"""Editing TOML as text: the result means what it should, and every byte that need not change is there still."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from gpunode.runtimes.text import same
from gpunode.runtimes.tomllayout import scan
from gpunode.runtimes.tomlread import parse
from gpunode.runtimes.tomltext import edit
from tests.laws.toml_texts import Text, altered, extended, keys, reduced, tables, toml_texts

OWN_COMMENT = re.compile(r"^[ \t]*# \[comment (\d+)\]", re.MULTILINE)


def and_edited(edits: Any) -> st.SearchStrategy[tuple[Text, dict[str, Any]]]:
    return toml_texts().flatmap(lambda text: st.tuples(st.just(text), edits(text.document)))


def is_within(short: str, long: str) -> bool:
    """Whether ``long`` is ``short`` with something inserted."""
    rest = iter(long)
    return all(char in rest for char in short)


def without_needless_headers(text: str) -> list[str]:
    """The lines that say something, without the headers of tables that others in them imply."""
    nodes = scan(text).nodes
    needless = {
        id(one)
        for one, two in pairwise(nodes)
        if not one.keys and not two.keys and two.place[: len(one.place)] == one.place
    }
    said = [node.above + ("" if id(node) in needless else node.head + node.value + node.tail) for node in nodes]
    return [line for line in "".join([*said, scan(text).tail]).splitlines() if line.strip()]


@given(toml_texts())
def test_a_text_reads_as_what_it_was_written_from(text: Text) -> None:
    assert same(parse(text.text), text.document)


@given(toml_texts())
def test_the_parts_of_a_text_joined_are_the_text(text: Text) -> None:
    layout = scan(text.text)
    assert layout.text == text.text
    assert all(not node.above.strip() or "#" in node.above for node in layout.nodes)


@given(and_edited(altered))
def test_the_result_reads_as_the_meant_document(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    assert same(parse(edit(text.text, text.document, after)), after)


@given(and_edited(altered))
def test_an_edit_made_twice_is_made_once(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    once = edit(text.text, text.document, after)
    assert edit(once, parse(once), after) == once


@given(and_edited(altered))
def test_comments_on_lines_of_their_own_stay_in_order(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    assert OWN_COMMENT.findall(edit(text.text, text.document, after)) == OWN_COMMENT.findall(text.text)


@given(and_edited(altered))
def test_statements_of_what_stays_as_it_is_stay_byte_for_byte(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    result = edit(text.text, text.document, after)
    untouched = {key for key, value in text.document.items() if key in after and same(value, after[key])}

    def lines(text: str) -> list[str]:
        nodes = (node for node in scan(text).nodes if node.place[0] in untouched)
        return [(node.head + node.value + node.tail).rstrip("\r\n") for node in nodes]

    assert lines(result) == lines(text.text)


@given(and_edited(extended))
def test_to_add_is_to_insert(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    assert is_within(text.text, edit(text.text, text.document, after))


@given(and_edited(partial(reduced, left=1)))
def test_to_take_out_is_to_delete(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    assert is_within(edit(text.text, text.document, after), text.text)


@given(and_edited(extended))
def test_what_was_added_can_be_taken_out_again(case: tuple[Text, dict[str, Any]]) -> None:
    text, after = case
    added = edit(text.text, text.document, after)
    back = edit(added, parse(added), text.document)
    if back != text.text:
        # A header that its table does not need, or one that was written for what was added: who knows?
        event("a header of a table without values")
        assert without_needless_headers(back) == without_needless_headers(text.text)


@given(toml_texts(), st.dictionaries(st.just("a table of its own") | keys, tables, max_size=3))
def test_tables_that_were_added_can_be_taken_out_to_the_byte(text: Text, new: dict[str, Any]) -> None:
    after = {**new, **text.document}
    added = edit(text.text, text.document, after)
    assert edit(added, parse(added), text.document) == text.text
