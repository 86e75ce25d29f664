from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode import yaml


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &anchor 1\n", "line 1: anchors"),
        ("a: 1\nb: *anchor\n", "line 2: anchors"),
        ("a: &x [1]\nb:\n  <<: *x\n", "line 1: anchors"),
        ("<<: {a: b}\n", "line 1: a key that is not a plain text"),
        ("? [a]\n: b\n", "line 1: a key"),
        ("a: !tag b\n", "line 1: the tag !tag"),
        ("a: !!python/object/apply:os.system [x]\n", "line 1: the tag tag:yaml.org,2002:python"),
        ("a: b\n---\nc: d\n", "line 2: not YAML: but found another document"),
        ("a: b\na: c\n", "line 2: a stands there twice"),
        ("a:\tb\n", "line 1: not YAML"),
        ("a: 'b\n", "not YAML"),
        ("a: \x07\n", "not YAML: "),
        ("- " * 20_000 + "a", "nested too deeply"),
        ("[" * 20_000, "nested too deeply"),
        ('{"a": ' * 20_000, "nested too deeply"),
        ("a" * (1 << 20), "longer than 256 KiB"),
        ("{" + " " * (1 << 20) + "}", "longer than 256 KiB"),
    ],
)
def test_unsupported_yaml_is_refused_with_reason_and_place(text: str, reason: str) -> None:
    with pytest.raises(yaml.YamlError, match=reason):
        yaml.load(text)


def test_tab_indented_json_is_parsed() -> None:
    assert yaml.load('{\n\t"a": ["b", null, 1]\n}\n') == {"a": ["b", None, 1]}


def test_numbers_dates_and_booleans_are_strings() -> None:
    written = "a: 0x1F\nb: 1:30\nc: 2026-01-01\nd: yes\ne: ~\nf:\ng: |\n  two\n  lines\nh: {i: [1_0, null]}\n"
    assert yaml.load(written) == {
        "a": "0x1F",
        "b": "1:30",
        "c": "2026-01-01",
        "d": "yes",
        "e": None,
        "f": None,
        "g": "two\nlines\n",
        "h": {"i": ["1_0", None]},
    }


PLAIN = st.text("abz/_.-=09", min_size=1, max_size=8).filter(lambda word: word[0] not in "-.09=")
WORDS = PLAIN.map(lambda word: (word, word)) | st.text("a \"'#:\\-0", max_size=6).map(lambda w: (json.dumps(w), w))


def _block(draw: st.DrawFn, depth: int, step: int) -> tuple[list[str], Any]:
    """Return lines and their meaning, as Go's encoders write: block style, each level indented by ``step``."""
    if depth == 0 or draw(st.booleans()):
        text, value = draw(WORDS)
        return [text], value
    lines: list[str] = []
    if draw(st.booleans()):
        items = [_block(draw, depth - 1, step) for _ in range(draw(st.integers(1, 3)))]
        for inner, _ in items:
            lines += [f"- {inner[0]}", *(f"  {line}" for line in inner[1:])]
        return lines, [value for _, value in items]
    keys = draw(st.lists(st.sampled_from(["alpha", "beta", "gamma"]), min_size=1, unique=True))
    members = {key: _block(draw, depth - 1, step) for key in keys}
    for key, (inner, value) in members.items():
        if isinstance(value, str):
            lines.append(f"{key}: {inner[0]}")
        else:
            indent = " " * (draw(st.sampled_from([0, step])) if isinstance(value, list) else step)
            lines += [f"{key}:", *(indent + line for line in inner)]
    return lines, {key: value for key, (_, value) in members.items()}


@st.composite
def blocks(draw: st.DrawFn) -> tuple[str, Any]:
    lines, value = _block(draw, 4, draw(st.sampled_from([2, 4])))
    return "\n".join(("---", *lines, "")), value


@given(blocks())
def test_block_style_round_trips(block: tuple[str, Any]) -> None:
    text, value = block
    assert yaml.load(text) == value


def test_shared_object_is_written_twice() -> None:
    labels = {"app": "x"}
    assert yaml.render_document({"a": labels, "b": labels}, "why") == "# why\na:\n  app: x\nb:\n  app: x\n"


@pytest.mark.parametrize("text", ["", "=", "<<", "y", "N", "on", "null", "~", "1e3", "12e4567", "0o17", "1:30", ".inf"])
def test_ambiguous_yaml_1_1_text_is_quoted(text: str) -> None:
    assert yaml.render_document({"key": text}).split(": ")[1][0] in "\"'"
