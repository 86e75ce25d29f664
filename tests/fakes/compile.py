"""The stand-ins' C sources, compiled once per test run; without a compiler, tests that need one are skipped."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.needs import lacking

FAKES = Path(__file__).parent


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="gpunode-fakes-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def library(source: str, name: str) -> Path:
    """Return the folder that holds ``source`` as the shared library ``name``."""
    folder = _folder() / Path(source).stem
    folder.mkdir(exist_ok=True)
    _compile("-shared", "-fPIC", "-o", str(folder / name), str(FAKES / source))
    return folder


@cache
def program(source: str) -> Path:
    """Return ``source``, compiled as a program."""
    path = _folder() / Path(source).stem
    _compile("-o", str(path), str(FAKES / source), "-ldl")
    return path


def _compile(*arguments: str) -> None:
    if reason := lacking("gcc"):
        pytest.skip(reason)
    done = subprocess.run(
        ["gcc", "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", *arguments],
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
