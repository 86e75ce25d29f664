"""JSON edited as text: a new member is formatted like its neighbours, and every other byte stays."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.runtimes.jsontext import MalformedJson, parse, put_member


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ('{"a": 1}', "b", 2, '{"a": 1, "b": 2}'),
        ('{"a":1}', "b", 2, '{"a":1,"b":2}'),
        ('{"a": [1,"x"]}', "b", 2, '{"a": [1,"x"], "b": 2}'),
        ('{"a": 1  ,  "b": 2}', "c", 3, '{"a": 1  ,  "b": 2  ,  "c": 3}'),
        ('{\n    "a": 1\n  , "b": 2\n}', "c", 3, '{\n    "a": 1\n  , "b": 2\n  , "c": 3\n}'),
        ('{"a":\n 1}', "b", 2, '{"a":\n 1, "b": 2}'),
        ('{"a": 1}', "a", {"x": 2}, '{"a": {"x": 2}}'),
        ('{"a": 1}', "a", {"x": "/ü"}, '{"a": {"x": "/ü"}}'),
        ('{\n "a": 1\n}', "a", {"x": "/ü"}, '{\n "a": {\n  "x": "/ü"\n }\n}'),
        ('{\n\t"a" : 1\n}', "b", {"x": 2}, '{\n\t"a" : 1,\n\t"b" : {\n\t\t"x" : 2\n\t}\n}'),
        ("{}", "a", {"x": 2}, '{\n    "a": {\n        "x": 2\n    }\n}'),
        ("\n  {}", "a", 1, '\n  {\n      "a": 1\n  }'),
        ('{\n  "o": {}\n}', "o.a", 1, '{\n  "o": {\n    "a": 1\n  }\n}'),
        ('{\n  "p": {},\n  "o": {}\n}', "o.a", 1, '{\n  "p": {},\n  "o": {\n    "a": 1\n  }\n}'),
        ('{\n  "o": {"a": 1}\n}', "o.b", {"x": 2}, '{\n  "o": {"a": 1, "b": {"x": 2}}\n}'),
        (
            '{\n  "o": {\n    "a": {"x": 1}\n  }\n}',
            "o.a",
            {"x": 2},
            '{\n  "o": {\n    "a": {\n      "x": 2\n    }\n  }\n}',
        ),
    ],
)
def test_new_member_is_formatted_like_its_neighbours(text: str, path: str, value: Any, after: str) -> None:
    assert put_member(text, tuple(path.split(".")), value) == after


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('{"o": {"x": 1}, "x": 1,\n "y": 1, "y": 2}', 2, 10),
        ('{"x": 1, "l": [{"y": 1}, {"y": 1}],\n "x": 2}', 2, 2),
        ('\n{"x": 1, "x": 2}', 2, 10),
    ],
)
def test_duplicate_key_is_reported_with_its_position(text: str, line: int, column: int) -> None:
    with pytest.raises(MalformedJson, match="appears twice") as raised:
        parse(text)
    assert (raised.value.line, raised.value.column) == (line, column)


def test_numbers_keep_their_spelling() -> None:
    assert parse('{"a": 0.10, "b": -0, "c": 1e400}') == {"a": "0.10", "b": "-0", "c": "1e400"}
