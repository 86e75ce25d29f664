"""The end of a command whose output cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpunode
from gpunode.cli.boundary import run_cli
from gpunode.errors import Interrupted, UsageError

pytestmark = pytest.mark.usefixtures("allow_subprocess")
PROJECT = str(Path(gpunode.__file__).parent.parent)


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``line``, in which ``gpunode`` is this checkout's."""
    env = {**os.environ, "PYTHONPATH": PROJECT, "PYTHON": sys.executable}
    script = f'gpunode() {{ "$PYTHON" -m gpunode "$@"; }}\n{line}'
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, cwd=cwd, env=env, check=False)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_change_the_exit_code(closed: str, tmp_path: Path) -> None:
    assert shell(f"gpunode recipe list {closed}", tmp_path).returncode == 0
    failed = shell(f"gpunode plan nonsense {closed}", tmp_path)
    assert failed.returncode == 2, failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["undo"], "gpunode rollback --list"),
        (["recipe", "validate"], "gpunode recipe check --help"),
        (["setup", "--dry-run"], "gpunode plan --help"),
        (["plan", "--recipe", "containerd"], "gpunode recipe list"),
        (["rollback", "--dry-run"], "`gpunode rollback --help` lists its options"),
        (["k8s", "install"], "`gpunode k8s --help` lists its options"),
        (["frobnicate"], "`gpunode --help` lists its options"),
        (["plan", "--frobnicate"], "`gpunode plan --help` lists its options"),
    ],
)
def test_command_of_another_tool_is_answered_with_ours(
    typed: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(typed) == UsageError.exit_code
    assert f"next: {hint}\n" in capsys.readouterr().err


def test_ctrl_c_during_a_command_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpunode.cli.recipes.list_recipes", interrupt)
    assert run_cli(["recipe", "list"]) == Interrupted.exit_code
    assert "interrupted" in capsys.readouterr().err


def test_root_in_a_loop_of_links_is_a_wrong_argument(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.joinpath("loop").symlink_to("loop")
    assert run_cli(["plan", "containerd", "--root", str(tmp_path / "loop")]) == UsageError.exit_code
    assert "bug in gpunode" not in capsys.readouterr().err


def test_opened_file_does_not_take_a_closed_standard_descriptor(tmp_path: Path) -> None:
    """Otherwise the next error message would be written into it."""
    code = (
        "from gpunode.cli import boundary; import os\n"
        "boundary._open_standard_streams()\n"
        "assert os.open('victim', os.O_CREAT | os.O_WRONLY) > 2"
    )
    done = shell(f'"$PYTHON" -c "{code}" <&- >&- 2>&-', tmp_path)
    assert done.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_lost_output_is_reported_and_keeps_the_exit_code(tmp_path: Path) -> None:
    lost = shell("gpunode recipe list --json > /dev/full", tmp_path)
    assert (lost.returncode, lost.stderr) == (2, "gpunode: the output cannot be written: No space left on device\n")
    (tmp_path / "bad.toml").write_text("schema = 2\n")
    assert shell("gpunode recipe check bad.toml --json > /dev/full", tmp_path).returncode == 2
    (tmp_path / "sick.txt").write_text("$ sudo dmesg\nNVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.\n")
    assert shell("gpunode doctor sick.txt --json", tmp_path).returncode == 8
    assert shell("gpunode doctor sick.txt --json > /dev/full", tmp_path).returncode == 2
    assert json.loads(shell("gpunode recipe check bad.toml --json", tmp_path).stdout)["exit_code"] == 2
