"""Edited journals: every verb that reads them exits with 9, names file and line, and changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.hostile.image import DAEMON_JSON, Image, gpunode, make_image, needs_root

pytestmark = needs_root
Edit = Callable[[list[bytes], list[Path]], list[bytes]]


@pytest.fixture(scope="module")
def twice_set_up(tmp_path_factory: pytest.TempPathFactory) -> Image:
    image = make_image(tmp_path_factory.mktemp("twice"))
    assert image.setup().exit_code == 0
    image.path(DAEMON_JSON).write_text("{}")
    assert image.setup().exit_code == 0
    return image


def replace_in_line(old: bytes, new: bytes, line: int) -> Edit:
    return lambda lines, _: [text.replace(old, new) if at == line else text for at, text in enumerate(lines, 1)]


# The edit of the first run's lines, and the line that the message must name.
EDITS: dict[str, tuple[Edit, int]] = {
    "a bit flipped": (replace_in_line(b'"seq":1', b'"seq":3', 2), 2),
    "another path": (replace_in_line(b"/etc/docker/daemon.json", b"/etc/passwd", 2), 2),
    "another object": (replace_in_line(b'"sha256":"', b'"sha256":"../../', 2), 2),
    "two lines swapped": (lambda lines, _: [lines[0], lines[2], lines[1], *lines[3:]], 2),
    "a line gone": (lambda lines, _: [*lines[:2], *lines[3:]], 3),
    "the first line gone": (lambda lines, _: lines[1:], 1),
    "every line gone": (lambda _lines, _runs: [], 1),
    "a line twice": (lambda lines, _: [*lines[:3], lines[2], *lines[3:]], 4),
    "a line of another run": (lambda lines, runs: [*lines[:2], runs[1].read_bytes().split(b"\n")[2], *lines[3:]], 3),
    "another run whole": (lambda _, runs: runs[1].read_bytes().split(b"\n")[:-1], 1),
    "a format to come": (replace_in_line(b'"v":4', b'"v":99', 3), 3),
    "no such format": (replace_in_line(b'"v":4', b'"v":0', 3), 3),
    "a format no longer read": (replace_in_line(b'"v":4', b'"v":2', 3), 3),
    "an endless format": (replace_in_line(b'"v":4', b'"v":' + b"9" * 5000, 3), 3),
    "no line at all": (lambda lines, _: [*lines, b"#" * 1000], 6),
    "60 MiB": (lambda lines, _: [*lines, b"x" * (60 << 20)], 1),
}


@pytest.mark.parametrize(("edit", "line"), EDITS.values(), ids=EDITS)
def test_edited_journal_stops_every_command(twice_set_up: Image, tmp_path: Path, edit: Edit, line: int) -> None:
    image = Image(tmp_path)
    shutil.copytree(twice_set_up.root, image.root, symlinks=True)
    runs = sorted(image.root.glob("var/lib/gpunode/runs/*/journal.jsonl"))
    lines = edit(runs[0].read_bytes().split(b"\n")[:-1], runs)
    runs[0].write_bytes(b"\n".join(lines) + b"\n")
    os.chmod(runs[0], 0o600)
    before = image.tree()
    for done in (image.setup(), image.rollback("--yes"), image.rollback("--list"), image.rollback(runs[0].parent.name)):
        assert (done.exit_code, "Traceback" in done.said) == (9, False), done.said
        assert f"the journal {runs[0]} is damaged in line {line}" in done.err
        assert "next: " in done.err
    assert image.tree() == before


def test_truncated_journal_reads_as_an_interrupted_run(twice_set_up: Image, tmp_path: Path) -> None:
    """It looks the same as a power cut, and is treated as one: possible changes count as made."""
    image = Image(tmp_path)
    shutil.copytree(twice_set_up.root, image.root, symlinks=True)
    first = min(image.root.glob("var/lib/gpunode/runs/*/journal.jsonl"))
    first.write_bytes(b"\n".join(first.read_bytes().split(b"\n")[:2]) + b"\n")
    assert "incomplete" in image.rollback("--list").out
    assert image.setup().exit_code == 0


def test_newest_run_without_a_first_entry_stops_every_command(twice_set_up: Image, tmp_path: Path) -> None:
    """Its changes are unknown, so a rollback must not undo the run before it instead."""
    image = Image(tmp_path)
    shutil.copytree(twice_set_up.root, image.root, symlinks=True)
    newest = max(image.root.glob("var/lib/gpunode/runs/*/journal.jsonl"))
    newest.write_bytes(b"")
    before = image.tree()
    plan = ["plan", str(image.recipe())]
    for words in (["log"], plan, ["rollback", "--list"], ["rollback", "--yes"], ["remove", "--yes"]):
        answer = gpunode(*words, "--root", str(image.root))
        assert answer.exit_code == 9, answer.said
        assert f"the journal {newest} is damaged in line 1" in answer.err
        assert "its first entry is missing" in answer.err
    assert image.tree() == before
    shutil.move(newest.parent, tmp_path / "away")
    assert image.setup().exit_code == 0
