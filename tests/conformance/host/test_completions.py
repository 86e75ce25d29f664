"""The Tab key: each shell's own completion, with the files that `make install` installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpunode

FILES = Path(gpunode.__file__).parent / "completions"
CASES = [
    ("gpunode roll", "rollback"),
    ("gpunode setup --runtime cont", "containerd"),
    ("gpunode plan k8s-", "k8s-containerd"),
    ("gpunode setup --only runtime-c", "runtime-config"),
    ("gpunode doctor gpu-fallen", "gpu-fallen-off-bus"),
]
# Bash's state when a user types the words and presses Tab.
_BASH = """\
source "$1"
COMP_WORDS=($2)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_gpunode_completion gpunode
printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh reads keys only from a terminal; its own zpty provides one.
_ZSH = """\
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT=; fpath=($1 \\$fpath); autoload -Uz compinit; compinit -u -D; echo ready-''now"
zpty -r -m shell out '*ready-now*'
zpty -w -n shell "$2"$'\\t'
zpty -r -m shell out "*$3*"
print -r -- "$out"
zpty -d shell
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "bin" / "gpunode"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpunode "$@"\n')
    program.chmod(0o755)
    place = os.fspath(Path(gpunode.__file__).parents[1])
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": place, "HOME": str(tmp_path)}


def shell_output(environment: dict[str, str], *argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=environment, timeout=120).stdout


def shell(name: str) -> str:
    if (found := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize(("typed", "completed"), CASES)
def test_bash_completes(environment: dict[str, str], typed: str, completed: str) -> None:
    file = os.fspath(FILES / "gpunode.bash")
    assert completed in shell_output(environment, shell("bash"), "-c", _BASH, "bash", file, typed).split()


@pytest.mark.parametrize(("typed", "completed"), CASES)
def test_fish_completes(environment: dict[str, str], typed: str, completed: str) -> None:
    ask = f"source {FILES / 'gpunode.fish'}; complete -C '{typed}'"
    assert completed in {
        line.split("\t")[0] for line in shell_output(environment, shell("fish"), "-c", ask).splitlines()
    }


def test_zsh_completes(environment: dict[str, str]) -> None:
    assert "gpunode rollback" in shell_output(
        environment, shell("zsh"), "-f", "-c", _ZSH, "zsh", os.fspath(FILES), "gpunode roll", "gpunode rollback"
    )
