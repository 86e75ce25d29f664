"""Questions on a real terminal, with one of the output streams elsewhere."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conformance.hostile.image import PATIENCE_S, TOP, command

_QUESTION = "Overwrite it? [y/N]"


def ask_on_terminal(folder: Path, redirection: str) -> tuple[int, str]:
    """Capture a node to a file that exists, answer no, and return the exit code and what the terminal shows."""
    (folder / "node.tar.gz").touch()
    terminal, slave = pty.openpty()
    os.write(terminal, b"n\n")
    script = f"{shlex.join(command())} capture node.tar.gz {redirection}; exit ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": str(TOP), "TERM": "xterm"}
    try:
        done = subprocess.run(
            ("bash", "-c", script), cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave, timeout=PATIENCE_S
        )
    finally:
        os.close(slave)
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        return done.returncode, screen.read(1 << 16).decode()


@pytest.mark.parametrize("redirection", ["", "2>errors", "| tee out", "| grep nothing", "2>&1 | cat >out"])
def test_question_is_shown_on_the_terminal(redirection: str, tmp_path: Path) -> None:
    exit_code, shown = ask_on_terminal(tmp_path, redirection)
    assert (exit_code, _QUESTION in shown) == (2, True)


@pytest.mark.parametrize("redirection", [">out", ">/dev/null"])
def test_question_that_nobody_would_see_is_not_asked(redirection: str, tmp_path: Path) -> None:
    exit_code, shown = ask_on_terminal(tmp_path, redirection)
    assert exit_code == 2
    assert "nobody would see the question" in shown
    assert "gpunode capture --force node.tar.gz" in shown
