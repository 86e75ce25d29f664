from __future__ import annotations

import json
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.cli.capture import capture, find_missing_probes
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import UsageError
from gpunode.facts.evidence import Capture, Evidence
from gpunode.host.capture import load_capture
from gpunode.host.port import HostView

EVIDENCE: Evidence = {
    "node-name": Capture("/proc/sys/kernel/hostname", "ok", b"dgx-a17\n", content_kind="table"),
    "modules": Capture("/proc/modules", "denied", error="Permission denied"),
    "smi": Capture("nvidia-smi", "timeout", error="no answer within 10 s"),
    "modinfo:nvidia": Capture("modinfo nvidia", "failed", error="not found", exit_status=1),
    "units": Capture("systemctl show", "failed", error="no systemd", exit_status=1),
    "kernel-journal": Capture("journalctl -k", "failed", error="longer than 4194304 bytes", exit_status=0),
}


@pytest.fixture(autouse=True)
def _node(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect_doctor_evidence(_: HostView) -> Evidence:
        return EVIDENCE

    monkeypatch.setattr("gpunode.workflow.doctor.collect_doctor_evidence", collect_doctor_evidence)


@pytest.mark.parametrize("name", ["node.tar.gz", "node"])
def test_capture_saves_all_evidence_and_reports_its_size(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture(str(tmp_path / name), OutputOptions(json=True), anonymize=False, force=False)
    result = json.loads(capsys.readouterr().out)["result"]
    assert load_capture(tmp_path / name) == EVIDENCE
    assert result["probes"] == len(EVIDENCE)
    assert result["bytes"] == sum(one.stat().st_size for one in tmp_path.rglob("*") if one.is_file())


def test_anonymized_capture_names_no_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture(str(tmp_path / "node.tgz"), OutputOptions(), anonymize=True, force=False)
    assert load_capture(tmp_path / "node.tgz")["node-name"].data == b"host-1\n"
    assert "host and user names are replaced" in " ".join(capsys.readouterr().out.split())


def test_capture_says_what_it_contains_and_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture(str(tmp_path / "node.tgz"), OutputOptions(), anonymize=False, force=False)
    said = " ".join(capsys.readouterr().out.split())
    assert said.index("will contain") < said.index("next: ")
    assert "1 system tables" in said
    assert "could not read units: no systemd" in said
    assert "could not read smi: timed out" in said
    assert "could not read modules: permission denied" in said


def test_capture_after_sudo_is_read_with_sudo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("HOME", pwd.getpwuid(0).pw_dir)
    for caller, words in (("1000", "next: sudo gpunode doctor "), ("", "next: gpunode doctor ")):
        monkeypatch.setenv("SUDO_UID", caller) if caller else monkeypatch.delenv("SUDO_UID")
        capture(str(tmp_path / f"node{caller}.tgz"), OutputOptions(), anonymize=False, force=False)
        assert words in capsys.readouterr().out


def test_existing_capture_is_not_overwritten_without_force(tmp_path: Path) -> None:
    path = tmp_path / "node.tgz"
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        capture(str(path), OutputOptions(json=True), anonymize=False, force=False)
    assert path.read_bytes() == b"mine"
    capture(str(path), OutputOptions(json=True), anonymize=False, force=True)
    assert load_capture(path)


def test_missing_probes_are_those_without_an_answer() -> None:
    assert list(find_missing_probes(EVIDENCE)) == ["modules", "smi", "units", "kernel-journal"]
    assert find_missing_probes({}) == {}


def test_status_of_a_tool_that_answered_is_no_gap() -> None:
    """On bare metal systemd-detect-virt prints "none" and exits with 1."""
    bare_metal = Capture("systemd-detect-virt", "failed", b"none\n", exit_status=1)
    assert find_missing_probes({"virt": bare_metal}) == {}
    assert find_missing_probes({"virt": replace(bare_metal, data=b"")}) == {"virt": "exit status 1"}
