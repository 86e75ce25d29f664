"""The TOML editor on the input files of nvidia-ctk's vectors: nothing is lost, and additions can be removed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpunode.errors import Refused
from gpunode.runtimes import DesiredConfig, find_runtime
from gpunode.runtimes.documents import Document, decode_config, is_same_value, parse_toml
from gpunode.runtimes.tomltext import edit_toml

HERE = Path(__file__).parent
NOT_TOML = ("040", "059", "082")
# Many vectors have the same input file.
_CONTENTS = {path.read_bytes(): path for path in (*HERE.glob("vectors/*/input.toml"), *HERE.glob("dumps/*.toml"))}
FILES = sorted(path for path in _CONTENTS.values() if not path.parent.name.startswith(NOT_TOML))
# Without gpunode's backup these are compared by meaning, since an empty header or space within braces may remain.
BY_MEANING = ("019", "026", "027", "029", "034", "048", "051", "056", "070", "084", "086", "133", "138")
ENTRY = {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "/usr/bin/nvidia-container-runtime"}}


def tables(document: Document, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield above
    for key, value in document.items():
        if isinstance(value, dict):
            yield from tables(value, (*above, key))


def with_key(document: Document, path: tuple[str, ...], value: Any) -> Document:
    after = copy.deepcopy(document)
    table = after
    for key in path:
        table = table[key]
    table["gpunode test"] = value
    return after


def holds(larger: Any, smaller: Any) -> bool:
    """True if ``larger`` is ``smaller`` with something added."""
    if isinstance(larger, dict) and isinstance(smaller, dict):
        return all(key in larger and holds(larger[key], value) for key, value in smaller.items())
    return is_same_value(larger, smaller)


def is_taken_out(back: str, text: str, file: Path) -> bool:
    """True if ``back`` equals ``text``, or means the same and has its comments where no more is promised."""
    if back == text or not file.parent.name.startswith(BY_MEANING):
        return back == text
    one, other = (["".join(line.split()) for line in each.splitlines() if "#" in line] for each in (back, text))
    return is_same_value(parse_toml(back), parse_toml(text)) and one == other


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_key_added_anywhere_can_be_removed_again(file: Path) -> None:
    text = decode_config(file.read_bytes(), file.name)
    before = parse_toml(text)
    places = list(tables(before))
    for path in places[:: 1 + len(places) // 8]:
        # A value in a table that has a header and nothing else of its own: its header would go with it.
        for value in (ENTRY, "x"):
            after = with_key(before, path, value)
            added = edit_toml(text, before, after)
            assert is_same_value(parse_toml(added), after)
            lines = iter(added.splitlines())
            assert all(line in lines for line in text.splitlines()) or "{" in text
            back = edit_toml(added, after, before)
            assert is_taken_out(back, text, file) or (value == "x" and abs(len(text) - len(back)) < 120), path


@pytest.mark.parametrize(
    "desired",
    [DesiredConfig(mode="in-place"), DesiredConfig(default=True, enable_cdi=True, systemd_cgroup=True)],
    ids=["plain", "all"],
)
@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_configured_file_can_be_edited_back(file: Path, desired: DesiredConfig) -> None:
    containerd, data = find_runtime("containerd"), file.read_bytes()
    try:
        edits = containerd.configure({containerd.config: data}, desired).edits
    except Refused:
        return  # the other tests say which
    for one in edits:
        before, after = (parse_toml(decode_config(content, file.name)) for content in (one.before, one.after))
        if holds(after, before):
            text = decode_config(one.before, file.name)
            assert is_taken_out(edit_toml(edit_toml(text, before, after), after, before), text, file)
