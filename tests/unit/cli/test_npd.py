from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.cli import CommandExit, monitoring
from gpunode.diagnoses.model import Diagnosis, OpenQuestion, Suspect
from gpunode.errors import Refused, UsageError
from gpunode.facts import pasted
from gpunode.workflow.doctor import Examination, diagnose_evidence
from tests.unit.workflow.test_fleet import NOUVEAU

FOLDER = Path(__file__).parents[3] / "recipes/node-problem-detector"
SICK = diagnose_evidence(pasted.collect_pieces([(one["source"], one["text"]) for one in NOUVEAU]))
HEALTHY = replace(SICK, diagnosis=Diagnosis((), ()), driver_works=True)


def run_check(examined: Examination | Exception, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    def examine() -> Examination:
        if isinstance(examined, Exception):
            raise examined
        return examined

    try:
        monitoring.report_npd_status(examine)
    except CommandExit as answer:
        return answer.exit_code, capsys.readouterr().out
    return 0, capsys.readouterr().out


def test_npd_status_is_0_healthy_1_problem_2_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    status, message = run_check(SICK, capsys)
    assert (status, message) == (1, "nouveau-bound: nouveau owns the GPU\n")
    left = replace(SICK.diagnosis, unexplained=(Suspect("toolkit-not-installed", "no toolkit", (), ()),))
    status, message = run_check(replace(SICK, diagnosis=left), capsys)
    assert (status, message) == (1, "nouveau-bound (and 1 more): nouveau owns the GPU\n")
    assert run_check(HEALTHY, capsys) == (0, "the driver works, no fault found\n")
    status, message = run_check(replace(HEALTHY, diagnosis=Diagnosis((), (OpenQuestion("why?", ()),))), capsys)
    assert (status, message) == (2, "undetermined: why?\n")


@pytest.mark.parametrize("error", [Refused("it cannot be had", why="x", hint="y"), ValueError("a bug")])
def test_internal_error_does_not_blame_the_node(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    status, message = run_check(error, capsys)
    assert status == 2
    assert message.startswith("not examined: ")


@given(st.text())
def test_npd_message_is_one_line_within_the_length_limit(text: str) -> None:
    shown = monitoring.ascii_line(text)
    assert len(shown.encode()) <= monitoring.MAX_NPD_MESSAGE_LENGTH
    assert shown.isascii()
    assert not shown or shown.isprintable()


def test_npd_option_must_be_given_alone() -> None:
    with pytest.raises(UsageError, match="--npd must be given alone"):
        monitoring.run_npd_plugin(alone=False)


def test_shipped_npd_configuration_matches_the_plugin() -> None:
    found = json.loads((FOLDER / "gpunode.json").read_text())
    (rule,) = found["rules"]
    assert (found["plugin"], rule["type"]) == ("custom", "permanent")
    assert rule["condition"] in {one["type"] for one in found["conditions"]}
    assert found["pluginConfig"]["max_output_length"] == monitoring.MAX_NPD_MESSAGE_LENGTH
    assert "/usr/local/bin/gpunode doctor --npd" in rule["args"][-1]
    assert {"GPUProblem"} == {one["type"] for one in found["conditions"]}


@pytest.mark.usefixtures("allow_subprocess")
@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("echo nouveau-bound; exit 1", 1, "nouveau-bound\n"),
        ("echo works", 0, "works\n"),
        ("exit 1", 2, "gpunode did not run\n"),
        ("exit 127", 2, "gpunode did not run\n"),
    ],
)
def test_failing_nsenter_does_not_blame_the_node(program: str, status: int, said: str, tmp_path: Path) -> None:
    (rule,) = json.loads((FOLDER / "gpunode.json").read_text())["rules"]
    nsenter = tmp_path / "nsenter"
    nsenter.write_text(f"#!/bin/sh\n{program}\n")
    nsenter.chmod(0o755)
    done = subprocess.run(
        [rule["path"], *rule["args"]], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (status, said)
