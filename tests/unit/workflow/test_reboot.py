"""The unit that resumes after a reboot: its arguments, read by systemd's own rules."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.errors import UsageError
from gpunode.workflow.setup import resume_unit
from tests.needs import lacking

# Any file name on a UTF-8 system, except those that the unit cannot contain.
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1)


def exec_start(unit: bytes) -> str:
    (line,) = [line for line in unit.decode().split("\n") if line.startswith("ExecStart=")]
    return line.removeprefix("ExecStart=")


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4))
def test_resume_unit_keeps_every_argument(argv: list[str]) -> None:
    """systemd.service(5): words in double quotes, backslashes as in C, then ``%%`` and ``$$`` are the characters."""
    words = shlex.split(exec_start(resume_unit(argv)).replace("$$", "$").replace("%%", "%"))
    assert words == argv


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4))
def test_resume_unit_expands_nothing(argv: list[str]) -> None:
    line = exec_start(resume_unit(argv))
    assert "%" not in line.replace("%%", "")
    assert "$" not in line.replace("$$", "")


@pytest.mark.parametrize("word", ["a\nExecStart=/bin/false", "\t", "\0", "\udcff"])
def test_argument_that_would_break_the_unit_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        resume_unit(["gpunode", word])


def test_resume_unit_deletes_itself_even_if_gpunode_fails() -> None:
    unit = resume_unit(["gpunode"]).decode()
    assert "ExecStopPost=/bin/rm -f /etc/systemd/system/gpunode-resume.service" in unit
    assert "--reboot" not in unit
    assert "Restart=" not in unit


def test_systemd_accepts_the_resume_unit(tmp_path: Path, allow_subprocess: None) -> None:
    if reason := lacking("systemd-analyze"):
        pytest.skip(reason)
    path = tmp_path / "gpunode-resume.service"
    path.write_bytes(resume_unit(["/bin/sh", "-c", 'echo "$HOME" 100% \\ ; true', "it's"]))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    assert "gpunode-resume" not in told.stderr, told.stderr
