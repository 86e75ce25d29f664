"""Messages of commands if gpunode's files are on the node but its record is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpunode.catalog.driver import DriverChoice
from gpunode.change import FileState, PackageState
from gpunode.cli.boundary import run_cli
from gpunode.package_id import PackageId
from gpunode.packages.deb.preferences import PIN_FILE, render_driver_pin
from tests.fakes.dpkg import STATUS, Packages
from tests.fakes.memory_node import MemoryNode, command

PIN = render_driver_pin(DriverChoice(580, "", "open", "x"), ("Debian",))
PACKAGES = Packages({PackageId("libcuda1"): PackageState("580.95.05-1")}, {})
LOST = "gpunode's record of this node was lost"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return an image with the pin and a driver package."""
    release = 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'
    for path, text in ((PIN_FILE, PIN.decode()), (STATUS, PACKAGES.status), ("/etc/os-release", release)):
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "docker", "--only", "runtime-config", "--gpu", "10de:1eb8"),
        ("log",),
        ("rollback", "--list"),
    ],
)
def test_commands_report_a_lost_record(words: tuple[str, ...], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([*words, "--root", str(root)]) == 0
    assert LOST in " ".join(capsys.readouterr().out.split())
    assert run_cli([*words, "--root", str(root), "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert any(note.startswith(LOST) for note in answer["notes"])


def test_undo_reports_a_lost_record_and_removes_nothing(tmp_path: Path) -> None:
    node = MemoryNode(tmp_path, PACKAGES, {PIN_FILE: FileState(PIN)})

    removed, back = command(node, "remove"), command(node, "rollback", "--packages")

    assert (removed.exit_code, back.exit_code) == (7, 2)
    assert "installed under its pin: libcuda1" in removed.text
    assert LOST in back.text
    assert node.files[PIN_FILE] == FileState(PIN)
    assert PackageId("libcuda1") in node.packages.states
