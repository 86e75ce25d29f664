"""Real ansible-core, the oldest that the collection supports and the newest that this Python can have."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

COLLECTION: Final = Path(__file__).parents[3] / "recipes" / "ansible"
_CACHE: Final = Path.home() / ".cache" / "gpunode-lab" / "ansible"
_WANTED: Final = {"oldest": ("ansible-core==2.16.*",), "newest": ("ansible-core>=2.17", "ansible-lint>=24")}
_STAND_IN: Final = Path(__file__).with_name("stand_in.py")


@dataclass(frozen=True, slots=True)
class Ansible:
    """An ansible-core in its own environment, with the collection on its search path."""

    bin: Path
    collections: Path

    def run(self, *argv: str, cwd: Path, env: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
        """Return how one of Ansible's programs ended."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        own = {
            "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCALHOST_WARNING": "0",
            "ANSIBLE_LOCAL_TEMP": str(cwd / "local"),
            "ANSIBLE_REMOTE_TEMP": str(cwd / "remote"),
            "LC_ALL": "C.UTF-8",
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PWD": str(cwd),
        }
        command = [str(self.bin / argv[0]), *argv[1:]]
        return subprocess.run(command, cwd=cwd, env={**kept, **own, **env}, capture_output=True, text=True, check=False)

    def module(self, name: str, arguments: Mapping[str, Any], *, check: bool = False, diff: bool = False) -> Any:
        """Return the result of a module, run as Ansible runs it on a node."""
        words = {**arguments, "_ansible_check_mode": check, "_ansible_diff": diff}
        done = subprocess.run(
            [str(self.bin / "python"), str(Path(__file__).with_name("run_module.py")), name, json.dumps(words)],
            env={**os.environ, "PYTHONPATH": str(self.collections)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True, slots=True)
class StandIn:
    """A program that answers like gpunode with given envelopes, and records how it was called."""

    path: Path

    def answers(self, **verbs: Sequence[str]) -> None:
        """Set the answers of each verb, given one after another; the last one repeats."""
        self.path.with_name("answers.json").write_text(json.dumps(verbs))

    @property
    def calls(self) -> list[list[str]]:
        """The command lines that it was called with."""
        calls = self.path.with_name("calls")
        return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    @property
    def verbs(self) -> list[str]:
        """The commands that it was called for."""
        return [call[0] for call in self.calls]


def stand_in(folder: Path) -> StandIn:
    """Return a new stand-in in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gpunode"
    path.write_text(f"#!{sys.executable}\n{_STAND_IN.read_text()}")
    path.chmod(0o755)
    return StandIn(path)


@pytest.fixture
def program(tmp_path: Path) -> StandIn:
    """Return the gpunode of one host."""
    return stand_in(tmp_path / "host")


@pytest.fixture(scope="session", params=[pytest.param("oldest", marks=pytest.mark.long), "newest"])
def ansible(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ansible:
    """Return each ansible-core; each is built once and kept."""
    return _ansible(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Ansible:
    """Return the newest ansible-core, with ansible-lint."""
    return _ansible("newest", tmp_path_factory)


def _ansible(which: str, tmp_path_factory: pytest.TempPathFactory) -> Ansible:
    collections = tmp_path_factory.mktemp("collections")
    place = collections / "ansible_collections" / "gpunode" / "node"
    shutil.copytree(COLLECTION, place, ignore=shutil.ignore_patterns("__pycache__", "*.tar.gz", ".ansible"))
    return Ansible(_environment(which) / "bin", collections)


def _environment(which: str) -> Path:
    """Return an environment with the wanted ansible-core, of this Python's version."""
    place = _CACHE / f"{which}-{sys.version_info.major}.{sys.version_info.minor}"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "ready").exists():
            shutil.rmtree(place, ignore_errors=True)
            venv = [sys.executable, "-m", "venv", str(place)]
            if subprocess.run(venv, capture_output=True, check=False).returncode:
                pytest.skip("needs Python's venv module: apt-get install python3-venv")
            pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *_WANTED[which]]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"needs {_WANTED[which][0]}, and pip cannot install it: {done.stderr.strip()[-300:]}")
            (place / "ready").touch()
    return place
