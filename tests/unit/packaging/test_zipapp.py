"""gpunode.pyz: the same bytes for the same content, and a start that every Python can read."""

from __future__ import annotations

import ast
import hashlib
import io
import zipfile
from pathlib import Path

import payload
import pytest

ROOT = Path(payload.__file__).parents[1]
MOMENT = 1_700_000_000


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    folder = tmp_path / "modules"
    (folder / "gpunode").mkdir(parents=True)
    (folder / "gpunode/__init__.py").write_text("")
    (folder / "gpunode/installed.py").write_text("WORDS = {}\n")
    return folder


def test_build_is_reproducible(modules: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.pyz", tmp_path / "second.pyz"
    payload.write(modules, "1.2.3", MOMENT, first)
    (modules / "gpunode/__init__.py").touch()
    payload.write(modules, "1.2.3", MOMENT, second)
    assert first.read_bytes() == second.read_bytes()


def test_zipapp_contains_the_modules_and_their_sha256(modules: Path, tmp_path: Path) -> None:
    target = tmp_path / "gpunode.pyz"
    payload.write(modules, "1.2.3", MOMENT, target)
    assert target.read_bytes().startswith(b"#!/usr/bin/python3 -I\n")
    assert target.stat().st_mode & 0o777 == 0o755
    with zipfile.ZipFile(target) as outer:
        assert outer.namelist() == ["__main__.py", "installed.py", "payload.zip", "unpack.py"]
        inner, start = outer.read("payload.zip"), outer.read("__main__.py").decode()
    assert f'PAYLOAD_SHA256 = "{hashlib.sha256(inner).hexdigest()}"' in start
    assert 'VERSION = "1.2.3"' in start
    with zipfile.ZipFile(io.BytesIO(inner)) as archive:
        assert archive.namelist() == ["gpunode/__init__.py", "gpunode/installed.py"]


def test_old_pythons_can_parse_the_start_script() -> None:
    text = (ROOT / "packaging/zipapp/__main__.py").read_text("utf-8")
    tree = ast.parse(text, feature_version=(3, 4))
    newer = (ast.JoinedStr, ast.AnnAssign, ast.Starred, ast.AsyncFunctionDef, ast.Nonlocal)
    assert not [node for node in ast.walk(tree) if isinstance(node, newer)]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert not any(one.returns or one.args.kwonlyargs for one in functions)
    assert text.isascii()  # Python 2 reads nothing else without being told


@pytest.mark.parametrize("name", ["requirements", "build", "sbom"])
def test_every_requirement_is_pinned_with_a_hash(name: str) -> None:
    lines = (ROOT / f"packaging/{name}.txt").read_text("utf-8").splitlines()
    pinned = [line for line in lines if line[:1].isalpha()]
    assert pinned
    assert all("==" in line and line.endswith("\\") for line in pinned)


def test_zipapp_requirements_cover_every_dependency() -> None:
    lines = (ROOT / "packaging/requirements.txt").read_text("utf-8").splitlines()
    pinned = [line.partition("==")[0] for line in lines if line[:1].isalpha()]
    project = (ROOT / "pyproject.toml").read_text("utf-8").partition("dependencies = [")[2].partition("]")[0]
    wanted = {line.split('"')[1].partition(">")[0] for line in project.splitlines() if '"' in line}
    assert wanted <= set(pinned)
