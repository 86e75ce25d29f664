from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpunode.cli import commands
from gpunode.cli.commands import How, capture, incomplete
from gpunode.facts.evidence import Capture, Evidence
from gpunode.host.capture import load
from gpunode.host.port import HostView

EVIDENCE: Evidence = {
    "node-name": Capture("/proc/sys/kernel/hostname", "ok", b"dgx-a17\n"),
    "modules": Capture("/proc/modules", "denied", error="Permission denied"),
    "smi": Capture("nvidia-smi", "timeout", error="no answer within 10 s"),
    "modinfo:nvidia": Capture("modinfo nvidia", "failed", error="not found", exit_status=1),
    "units": Capture("systemctl show", "failed", error="no systemd", exit_status=1),
    "kernel-journal": Capture("journalctl -k", "failed", error="longer than 4194304 bytes", exit_status=0),
}


@pytest.fixture(autouse=True)
def _node(monkeypatch: pytest.MonkeyPatch) -> None:
    def examine(_: HostView) -> Evidence:
        return EVIDENCE

    monkeypatch.setattr("gpunode.workflow.doctor.examine", examine)


@pytest.mark.parametrize("name", ["node.tar.gz", "node"])
def test_all_that_doctor_sees_is_saved_and_its_size_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture(str(tmp_path / name), How(json=True), anonymize=False)
    result = json.loads(capsys.readouterr().out)["result"]
    assert load(tmp_path / name) == EVIDENCE
    assert result["probes"] == len(EVIDENCE)
    assert result["bytes"] == sum(one.stat().st_size for one in tmp_path.rglob("*") if one.is_file())


def test_on_request_it_names_no_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture(str(tmp_path / "node.tgz"), How(), anonymize=True)
    assert load(tmp_path / "node.tgz")["node-name"].data == b"host-1\n"
    assert "host names masked" in " ".join(capsys.readouterr().out.split())


def test_incomplete_is_what_nobody_answered_not_what_was_answered_with_no() -> None:
    assert incomplete(EVIDENCE) == ["modules", "smi", "units", "kernel-journal"]
    assert commands.incomplete({}) == []
