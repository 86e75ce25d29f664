from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from gpunode.diagnoses.model import Confidence
from gpunode.facts.evidence import Evidence
from gpunode.host import reports
from gpunode.host.reports import FleetReport
from gpunode.workflow import fleet, parallel_jobs
from gpunode.workflow.doctor import diagnose_evidence
from gpunode.workflow.fleet import FleetRow, fleet_rows, overall_verdict, tally_causes

pytestmark = pytest.mark.usefixtures("allow_subprocess")

NOUVEAU = [
    {"source": "lspci -nnk", "text": "65:00.0 VGA compatible controller [0300]: NVIDIA Corporation GA102 [10de:2204]\n"
     "\tKernel driver in use: nouveau\n\tKernel modules: nvidiafb, nouveau\n"},
    {"source": "lsmod", "text": "Module                  Size  Used by\nnouveau              2433024  1\n"},
]  # fmt: skip


def report(path: Path, pieces: object = NOUVEAU) -> FleetReport:
    path.write_text(json.dumps(pieces))
    return FleetReport(path.name, str(path))


def test_every_report_has_a_row_and_unreadable_ones_say_why(tmp_path: Path) -> None:
    found = [
        report(tmp_path / "a.json"),
        FleetReport("link", "/x", "it is a link"),
        report(tmp_path / "b.json", {"no": "list"}),
        FleetReport("gone.json", str(tmp_path / "gone.json")),
        report(tmp_path / "c.json"),
    ]
    answers = list(fleet_rows(found))
    assert [row.report for row in answers] == [one.name for one in found]
    assert [row.status for row in answers] == ["problem", "unreadable", "unknown", "unreadable", "problem"]
    assert answers[0].cause == answers[4].cause == "nouveau-bound"
    assert answers[1].error == "it is a link"
    assert "gone.json" in answers[3].error


def test_undetermined_row_has_the_verdict_of_its_node(tmp_path: Path) -> None:
    pieces = [{"source": "pasted text", "text": "Failed to initialize NVML: Unknown Error\n"}]
    undetermined = report(tmp_path / "a.json", pieces)
    (row,) = fleet_rows([undetermined])
    examined = diagnose_evidence(reports.read_report(undetermined.path))
    assert (row.status, row.unknown) == ("unknown", (examined.faultless_verdict,))
    assert examined.faultless_verdict == "the evidence does not decide the cause"


def _raise_killed(name: str) -> NoReturn:
    if name.endswith("killer.json"):
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("a bug")


def test_crash_of_a_report_process_affects_only_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [report(tmp_path / name) for name in ("a.json", "killer.json", "b.json")]
    read = reports.read_report

    def dying(name: str) -> object:
        return _raise_killed(name) if name.endswith("killer.json") else read(name)

    monkeypatch.setattr(reports, "read_report", dying)
    answers = {row.report: row for row in fleet_rows(found)}
    assert answers["killer.json"].status == "unreadable"
    assert "was killed" in answers["killer.json"].error
    assert answers["a.json"].cause == answers["b.json"].cause == "nouveau-bound"


def test_report_that_needs_more_memory_is_read_again_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [report(tmp_path / f"{name}.json") for name in "abcd"]
    read = reports.read_report

    def large(name: str) -> Evidence:
        _, held = read(name), bytearray({"b.json": 5 << 28, "c.json": 4 << 30}.get(Path(name).name, 0))
        del held
        return read(name)

    monkeypatch.setattr(reports, "read_report", large)
    answers = {row.report: row for row in fleet_rows(found)}
    assert answers["c.json"].error == "it takes more memory than it may: at most 3 GiB"
    assert {answers[f"{name}.json"].cause for name in "abd"} == {"nouveau-bound"}


def test_endless_report_is_stopped_by_the_cpu_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: str) -> NoReturn:
        while True:
            pass

    monkeypatch.setattr(reports, "read_report", endless)
    monkeypatch.setattr(parallel_jobs, "_CPU_LIMIT_S", 0.05)
    (row,) = fleet_rows([report(tmp_path / "a.json")])
    assert (row.status, "processor time" in row.error) == ("unreadable", True)


def test_caller_that_leaves_kills_the_jobs_that_run(tmp_path: Path) -> None:
    def job(seconds: float) -> str:
        if seconds:
            time.sleep(seconds)
            tmp_path.joinpath("ended").touch()
        return "done"

    results = parallel_jobs.run_parallel([0.0, 2.0], job)
    assert next(results) == "done"
    results.close()  # type: ignore[attr-defined]
    for process in multiprocessing.active_children():
        process.join()
    assert not tmp_path.joinpath("ended").exists()


def test_jobs_end_with_their_parent() -> None:
    script = (
        "import time\n"
        "from gpunode.workflow.parallel_jobs import run_parallel\n"
        "def job(_): print('begun', flush=True); time.sleep(3); print('ended', flush=True)\n"
        "list(run_parallel([1], job))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begun\n"
        parent.kill()
        assert parent.stdout.readline() == ""


def test_internal_error_is_reported_in_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "read_report", _raise_killed)
    (row,) = fleet_rows([report(tmp_path / "a.json")])
    assert row.error == "a bug in gpunode: ValueError: a bug"


def row(name: str, status: fleet.FleetRowStatus, cause: str = "", *others: str) -> FleetRow:
    return FleetRow(name, f"/x/{name}", status, cause=cause, other_causes=others)


def test_causes_are_counted_by_frequency_including_further_roots() -> None:
    answers = [
        row("a", "problem", "nouveau-bound"),
        row("b", "problem", "pcie-link-degraded", "nouveau-bound"),
        row("c", "healthy"),
        row("d", "unreadable"),
    ]
    counted = tally_causes(answers)
    assert next((one.cause, one.reports) for one in counted) == ("nouveau-bound", ("a", "b"))
    assert len(counted) == 2
    assert all(one.title for one in counted)


def test_overall_verdict_is_the_worst_row() -> None:
    assert overall_verdict([row("a", "healthy")]) == "healthy"
    assert overall_verdict([row("a", "healthy"), row("b", "unreadable")]) == "unknown"
    assert overall_verdict([row("a", "unknown"), row("b", "problem", "nouveau-bound")]) == "problem"


@pytest.mark.parametrize(
    ("cause", "command"),
    [
        ("inforom-corrupted", "nvidia-smi -q | grep -iE '^gpu|inforom'"),
        ("nvlink-link-inactive", "nvidia-smi nvlink -s"),
        ("gsp-rpc-timeout", "sudo dmesg | grep -iE 'xid|gsp|gfw|wpr2|nvrm'"),
    ],
)
@pytest.mark.parametrize("confidence", ["likely", "certain"])
def test_nodes_whose_steps_differ_are_looked_at_before_a_repair(
    cause: str, command: str, confidence: Confidence
) -> None:
    rows = [
        replace(row(name, "problem", cause), confidence=confidence, advice=f"repair {name}", command=f"repair {name}")
        for name in ("first", "second")
    ]
    (tally,) = tally_causes(rows)
    assert tally.command == command or (confidence == "certain" and "ADDRESS" not in tally.command)
