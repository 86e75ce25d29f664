from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpunode.cli import CommandExit
from gpunode.cli.compare import compare
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import UsageError
from gpunode.facts.evidence import Capture
from gpunode.host.capture import save_capture
from gpunode.host.port import HostView
from tests.unit.diagnoses.test_comparison import node, seen


@pytest.fixture
def captures(tmp_path: Path) -> tuple[str, str]:
    save_capture(node(0), tmp_path / "good.tgz")
    save_capture(node(1, **{"kernel-release": seen("uname -r", "6.1.0-21-amd64\n")}), tmp_path / "bad.tgz")
    return str(tmp_path / "good.tgz"), str(tmp_path / "bad.tgz")


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_likely_difference_exits_with_4(captures: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandExit) as caught:
        compare(*captures, OutputOptions(json=True))
    assert caught.value.exit_code == 4
    found = answer(capsys)
    assert (found["command"], found["status"], found["exit_code"]) == ("compare", "different", 4)
    first = found["result"]["differences"][0]
    assert set(first) == {"trait", "title", "name", "good", "bad", "weight", "why", "near_root_cause"}
    assert (first["good"], first["bad"], first["weight"]) == ("6.1.0-18-amd64", "6.1.0-21-amd64", "likely")


def test_compare_screen_shows_both_values_and_why_they_matter(
    captures: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandExit):
        compare(*captures, OutputOptions())
    shown = capsys.readouterr().out
    assert "running kernel  6.1.0-18-amd64 → 6.1.0-21-amd64" in shown
    assert "a module is built for one kernel" in shown
    assert shown.splitlines()[-1].startswith("1 likely explanation")


def test_traits_not_compared_are_listed_with_side_and_reason(
    captures: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/etc/docker/daemon.json"
    save_capture(node(1, **{f"file:{path}": Capture(path, "denied", error="Permission denied")}), tmp_path / "user.tgz")
    compare(captures[0], str(tmp_path / "user.tgz"), OutputOptions(json=True))
    (row,) = answer(capsys)["result"]["not_compared"]
    assert row == {"trait": f"file:{path}", "title": path, "side": "bad", "reason": "denied", "names": []}
    compare(captures[0], str(tmp_path / "user.tgz"), OutputOptions())
    shown = " ".join(capsys.readouterr().out.split())
    assert f"user.tgz (permission denied): {path}" in shown
    assert "not there" not in shown


def test_equal_nodes_exit_with_0(captures: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    compare(captures[0], captures[0], OutputOptions(json=True))
    assert answer(capsys)["status"] == "ok"
    compare(captures[0], captures[0], OutputOptions())
    assert "no difference" in capsys.readouterr().out


def test_nodes_without_a_common_trait_exit_with_13(
    captures: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text("$ dmesg\n[ 1.0] usb 1-1: new device\n")
    with pytest.raises(CommandExit) as caught:
        compare(str(log), captures[1], OutputOptions(json=True))
    assert caught.value.exit_code == 13
    found = answer(capsys)
    assert (found["status"], found["exit_code"]) == ("undetermined", 13)
    assert "kernel" in found["result"]["missing"]
    with pytest.raises(CommandExit):
        compare(str(log), captures[1], OutputOptions())
    shown = capsys.readouterr().out
    assert "cannot tell: the reports have too little in common" in shown
    assert "no difference" not in shown


def test_missing_second_name_means_this_machine(
    captures: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def collect_doctor_evidence(_: HostView) -> object:
        return node(1)

    monkeypatch.setattr("gpunode.workflow.doctor.collect_doctor_evidence", collect_doctor_evidence)
    compare(captures[0], None, OutputOptions(json=True))
    assert answer(capsys)["exit_code"] == 0


def test_two_standard_inputs_or_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="standard input"):
        compare("-", "-", OutputOptions())
    with pytest.raises(UsageError, match="folder of reports"):
        compare(str(tmp_path), None, OutputOptions())


def test_empty_name_is_refused() -> None:
    with pytest.raises(UsageError, match="an empty name"):
        compare("", "", OutputOptions())
