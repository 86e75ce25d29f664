"""gpunode in place of nvidia-ctk: every vector's command is run with gpunode, and the results are compared.

SOURCE.md explains the vectors and their verdicts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.cli import boundary
from tests.conformance.runtimes.golden import Tree, Vector, comments, judge, parsed, runs, tree, vectors

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what is configured is root's")

VECTORS = vectors()
REFUSED = [vector for vector in VECTORS if vector.is_refused]
PRINTED = [vector for vector in VECTORS if not vector.is_refused and vector.stdout is not None]
WRITTEN = [vector for vector in VECTORS if vector not in REFUSED and vector not in PRINTED]
# Each of these also runs in its own process.
AS_PROCESSES = (1, 12, 42, 64, 97, 123, 142)
# Their default was a runtime that only our entry described, in a file that we did not write: the undo removes that
# default and says so. A file that we wrote is restored as it was.
DANGLING = frozenset({132})
# These need the runtime's answer, and gpunode runs no programs of an image; `tests/e2e/runtimes` tests a live node.
ASKS_THE_RUNTIME = frozenset({45, 46})
WRITTEN = [vector for vector in WRITTEN if vector.number not in ASKS_THE_RUNTIME]


@dataclass(frozen=True)
class Told:
    """The result of a command."""

    code: int
    out: str
    err: str


Gpunode = Callable[[Sequence[str]], Told]


@pytest.fixture
def gpunode(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Gpunode:
    # Other tests cover power cuts; syncing would take most of the time.
    monkeypatch.setattr(os, "fsync", lambda _: None)

    def run(words: Sequence[str]) -> Told:
        monkeypatch.setattr(sys, "argv", ["gpunode", *words])
        capsys.readouterr()
        code = boundary.run_cli(list(words))
        return Told(code, *capsys.readouterr())

    return run


def name(vector: Vector) -> str:
    return vector.folder.name


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the vector's node with nvidia-ctk's input."""
    vector: Vector = request.getfixturevalue("vector")
    folder = tmp_path / "root"
    vector.lay_out(folder)
    return folder


def test_every_vector_has_a_verdict() -> None:
    assert [vector.number for vector in VECTORS] == list(range(1, 152))
    assert {vector.verdict for vector in VECTORS} == {"match", "match-plus", "deviate", "refuse"}
    assert all(vector.ours for vector in VECTORS if vector.verdict == "deviate")


@pytest.mark.parametrize("vector", [vector for vector in VECTORS if vector.number in ASKS_THE_RUNTIME], ids=name)
def test_runtime_of_an_image_is_not_run(vector: Vector, root: Path, gpunode: Gpunode) -> None:
    before = tree(root)
    told = gpunode(vector.argv(root))
    assert told.code == 3
    assert "not run programs of" in told.err
    assert tree(root) == before


@pytest.mark.parametrize("vector", REFUSED, ids=name)
def test_vector_is_refused(vector: Vector, root: Path, gpunode: Gpunode) -> None:
    before = tree(root)
    told = gpunode(vector.argv(root))
    assert told.code in {2, 3}, told
    assert told.err.startswith("gpunode: ")
    assert "next: " in told.err
    for words in vector.ours[1:]:
        assert words in told.err
    assert tree(root) == before
    assert runs(root) == ()


@pytest.mark.parametrize("vector", PRINTED, ids=name)
def test_vector_is_printed(vector: Vector, root: Path, gpunode: Gpunode) -> None:
    before = tree(root)
    told = gpunode(vector.argv(root))
    assert told.code == 0, told
    _compare(vector, root, told)
    assert tree(root) == before
    assert runs(root) == ()


@pytest.mark.parametrize("vector", WRITTEN, ids=name)
def test_vector_is_written_once_and_undone(vector: Vector, root: Path, gpunode: Gpunode) -> None:
    before = tree(root)
    told = gpunode(vector.argv(root))
    assert told.code == 0, told
    _compare(vector, root, told)
    _check_round_trip(vector, root, gpunode, vector.argv(root), before)


# It had our entry before, so there was nothing to record, and the entry is removed by its name alone.
OURS_BEFORE = frozenset({119})


OTHERWISE = [
    pytest.param(vector, mode, id=f"{name(vector)}-{mode}")
    for vector in WRITTEN
    for mode in ("auto", "in-place", "drop-in")
    if "--mode" in vector.argv(Path())
    and vector.number not in {*ASKS_THE_RUNTIME, *OURS_BEFORE}
    and mode != vector.told["mode"]
]


@pytest.mark.long
@pytest.mark.parametrize(("vector", "mode"), OTHERWISE)
def test_other_mode_is_refused_or_written_once_and_undone(
    vector: Vector, root: Path, gpunode: Gpunode, mode: str
) -> None:
    words = [mode if word == vector.told["mode"] else word for word in vector.argv(root)]
    before = tree(root)
    told = gpunode(words)
    assert told.code in {0, 2, 3}, told
    if told.code:
        assert tree(root) == before
    else:
        _check_round_trip(vector, root, gpunode, words, before)


def _check_round_trip(vector: Vector, root: Path, gpunode: Gpunode, words: Sequence[str], before: Tree) -> None:
    """Assert that the command loses no comment, has nothing to do a second time, and can be undone."""
    once, recorded = tree(root), runs(root)
    for path in vector.paths:
        if path in before and path.endswith(".toml"):
            left = comments(once[path][1].decode())
            assert [one for one in comments(before[path][1].decode()) if one not in left] == [], path
    again = gpunode(words)
    assert again.code == 0, again
    assert (tree(root), runs(root)) == (once, recorded)
    if once == before:
        return
    back = gpunode(vector.undo(root))
    assert back.code == 0, back
    if vector.number in DANGLING and once[vector.paths[0]] == before[vector.paths[0]]:
        _compare_without_default(before, tree(root), vector.paths[0])
        assert "would not start" in back.out
    else:
        assert tree(root) == before


def _compare_without_default(before: Tree, after: Tree, path: str) -> None:
    meant = parsed(".toml", before[path][1])
    del meant["crio"]["runtime"]["default_runtime"]
    assert parsed(".toml", after[path][1]) == meant
    assert {**after, path: before[path]} == before


@pytest.mark.parametrize("vector", [vector for vector in VECTORS if vector.number in AS_PROCESSES], ids=name)
def test_vector_is_answered_by_a_process(vector: Vector, root: Path) -> None:
    command = [sys.executable, "-m", "gpunode", *vector.argv(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    _compare(vector, root, Told(0, done.stdout, done.stderr))


def _compare(vector: Vector, root: Path, told: Told) -> None:
    found = {path: data for path, (_, data) in tree(root).items()}
    judge(vector, found)
    for path, data in vector.others("expected").items():
        assert parsed(path, found[path]) == parsed(path, data), path
    if vector.stdout is not None:
        _compare_printed(vector, told.out)


def _compare_printed(vector: Vector, out: str) -> None:
    """Assert that a blank line separates two documents, the drop-in first."""
    assert vector.stdout is not None
    kind = ".json" if vector.stdout.startswith("{") else ".toml"
    if not (vector.paths[1] and kind == ".toml"):
        assert parsed(kind, out.encode()) == parsed(kind, vector.stdout.encode())
        return
    # nvidia-ctk's top-level file has keys before tables, and table keys are indented.
    (theirs,) = [pair for pair in _pairs(vector.stdout) if re.match(r"[a-z]", pair[1])]
    meant = [parsed(kind, part.encode()) for part in theirs]
    assert meant in [[parsed(kind, part.encode()) for part in pair] for pair in _pairs(out)]


def _pairs(text: str) -> list[tuple[str, str]]:
    lines = text.splitlines(keepends=True)
    cuts = [number for number, line in enumerate(lines) if not line.strip()]
    pairs = [("".join(lines[:cut]), "".join(lines[cut + 1 :])) for cut in cuts]
    return [pair for pair in pairs if all(_is_toml(part) for part in pair)]


def _is_toml(text: str) -> bool:
    try:
        parsed(".toml", text.encode())
    except ValueError:
        return False
    return True
