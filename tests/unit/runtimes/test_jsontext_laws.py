"""JSON edited as text, with generated documents of every shape: only the member changes, and Python agrees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.runtimes.documents import Path, is_same_value
from gpunode.runtimes.jsontext import MalformedJson, Number, drop_member, edit_json, locate_member, parse, put_member

# Every character that JSON, Python or Go treats specially, besides all others.
ODD = "\"\\/\b\f\n\r\t{}[]:,'#<>&\u2028\u2029\ufeff\x7f\xa0ü日🚀 "
strings = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(ODD), max_size=6)
keys = st.sampled_from(["a", "b", "runtimes", "nvidia", ""]) | strings
numbers = st.sampled_from(
    ["0", "-0", "0.10", "1e400", "1E-5", "9007199254740993", "9" * 400, "-1.5e+10", "123.456000"]
) | st.integers().map(str)


@st.composite
def blanks(draw: st.DrawFn, newline: str) -> str:
    return draw(st.sampled_from(["", "", " ", newline, f"{newline}  ", f" {newline}\t", "\t", newline * 2]))


@st.composite
def written_values(draw: st.DrawFn, newline: str, depth: int = 3) -> str:
    """Return a value of any kind as a person, or a program in any language, might have written it."""
    kind = draw(st.sampled_from(["string", "number", "word", "object", "array"] if depth else ["string", "word"]))
    if kind == "string":
        return draw(string_text())
    if kind == "number":
        return draw(numbers)
    if kind == "word":
        return draw(st.sampled_from(["true", "false", "null"]))
    return draw(objects(newline, depth - 1)) if kind == "object" else draw(arrays(newline, depth - 1))


@st.composite
def string_text(draw: st.DrawFn, content: st.SearchStrategy[str] = strings) -> str:
    text = json.dumps(draw(content), ensure_ascii=draw(st.booleans()))
    return text.replace("/", "\\/") if draw(st.booleans()) else text


@st.composite
def objects(draw: st.DrawFn, newline: str, depth: int = 2) -> str:
    def blank() -> str:
        return draw(blanks(newline))

    names = draw(st.lists(keys, unique=True, max_size=4))
    members = [
        blank()
        + draw(string_text(st.just(name)))
        + blank()
        + ":"
        + blank()
        + draw(written_values(newline, depth))
        + blank()
        for name in names
    ]
    return "{" + (",".join(members) if members else blank()) + "}"


@st.composite
def arrays(draw: st.DrawFn, newline: str, depth: int) -> str:
    items = draw(st.lists(written_values(newline, depth), max_size=3))
    return "[" + ",".join(draw(blanks(newline)) + item + draw(blanks(newline)) for item in items) + "]"


@st.composite
def documents(draw: st.DrawFn) -> str:
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    return draw(blanks(newline)) + draw(objects(newline)) + draw(blanks(newline))


@st.composite
def places(draw: st.DrawFn) -> tuple[str, Path]:
    """Return a document, and the path of an object in it followed by a key, which may or may not exist."""
    text = draw(documents())
    here = parse(text)
    path: Path = ()
    while inner := {key: value for key, value in here.items() if isinstance(value, dict)}:
        if draw(st.booleans()):
            break
        key = draw(st.sampled_from(list(inner)))
        here, path = inner[key], (*path, key)
    there = st.sampled_from(list(here)) if here else keys
    return text, (*path, draw(there | keys))


values = st.recursive(
    st.none() | st.booleans() | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)


def read(text: str) -> Any:
    """Return the value as read by Python, independently of the code under test."""

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in members}) != len(members):
            raise ValueError("twice")
        return dict(members)

    def constant(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, object_pairs_hook=pairs, parse_int=Number, parse_float=Number, parse_constant=constant)


def written(text: str, path: Path) -> str:
    """Return the text of the value at ``path``."""
    member = locate_member(text, path)
    return text[member.value : member.end]


def holder(document: Any, path: Path) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def differing_parts(before: str, after: str) -> tuple[str, str]:
    """Return the parts of ``before`` and ``after`` between their common beginning and their common end."""
    shorter = min(len(before), len(after))
    head = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    tail = next((at for at in range(shorter - head) if before[-1 - at] != after[-1 - at]), shorter - head)
    return before[head : len(before) - tail], after[head : len(after) - tail]


@given(documents(), st.data())
def test_malformed_json_is_rejected_as_by_python(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 3))
    text = text[:at] + data.draw(st.text(st.sampled_from(ODD + "0123e-.ntf"), max_size=3)) + text[at + cut :]
    try:
        expected = read(text)
    except ValueError:
        with pytest.raises(MalformedJson) as raised:
            parse(text)
        lines = text.split("\n")
        assert 1 <= raised.value.line <= len(lines)
        assert 1 <= raised.value.column <= len(lines[raised.value.line - 1]) + 1
    else:
        assert is_same_value(parse(text), expected)


@given(places(), values)
def test_put_changes_one_member_and_no_other_byte(place: tuple[str, Path], value: Any) -> None:
    text, path = place
    intended = read(text)
    is_new = path[-1] not in holder(intended, path)
    here = holder(parse(text), path)
    holder(intended, path)[path[-1]] = value

    after = put_member(text, path, value)

    assert is_same_value(read(after), intended)
    assert list(holder(read(after), path)) == list(holder(intended, path))
    if not is_new:
        assert put_member(after, path, Number(written(text, path))) == text  # written as it is
    elif here:
        assert differing_parts(text, after)[0] == ""
        assert drop_member(after, path) == text
    else:  # only white space in an empty object is not restored
        start, end = text.index("{"), text.rindex("}") + 1
        if path[1:]:
            start, end = (parent := locate_member(text, path[:-1])).value, parent.end
        assert drop_member(after, path) == text[:start] + "{}" + text[end:]


@given(places())
def test_drop_removes_one_member_and_no_other_byte(place: tuple[str, Path]) -> None:
    text, path = place
    intended = read(text)
    if path[-1] not in holder(intended, path):
        return
    del holder(intended, path)[path[-1]]

    after = drop_member(text, path)

    assert is_same_value(read(after), intended)
    assert list(holder(read(after), path)) == list(holder(intended, path))
    assert differing_parts(text, after)[1] == ""


@given(documents(), st.lists(keys, min_size=2, max_size=4), values)
def test_put_creates_missing_parents(text: str, names: list[str], value: Any) -> None:
    path = tuple(names)
    intended = here = read(text)
    for key in path[:-1]:
        if not isinstance(here.get(key), dict):
            here[key] = {}
        here = here[key]
    here[path[-1]] = value
    assert is_same_value(read(put_member(text, path, value)), intended)


def test_same_distinguishes_types() -> None:
    assert not is_same_value(parse("[1]"), parse('["1"]'))
    assert not is_same_value(parse("[1]"), [True])
    assert not is_same_value(parse("[1]"), parse("[1.0]"))
    assert not is_same_value(parse("[1]"), parse("[1, 1]"))
    assert not is_same_value(parse('{"a": 1}'), parse('{"b": 1}'))
    assert not is_same_value(parse("[]"), parse("{}"))


DEEP = 199


@pytest.mark.parametrize("unit", ['{"a": ', "["])
def test_deep_nesting_does_not_overflow_the_stack(unit: str) -> None:
    inner = unit * DEEP + "1" + {"{": "}", "[": "]"}[unit[0]] * DEEP
    text = f'{{"x": {inner}, "runtimes": {{}}}}'
    after = put_member(text, ("runtimes", "nvidia"), {"path": "/p"})
    assert is_same_value(parse(drop_member(after, ("runtimes", "nvidia"))), parse(text))
    assert f'"x": {inner}' in after
    assert not is_same_value(parse(after), parse(text))


@given(documents(), documents())
def test_any_document_can_be_edited_into_any_other(text: str, other: str) -> None:
    assert is_same_value(read(edit_json(text, parse(text), parse(other))), read(other))
    assert edit_json(text, parse(text), read(text)) == text
