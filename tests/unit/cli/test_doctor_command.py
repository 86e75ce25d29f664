from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpunode.cli.answered import Answered
from gpunode.cli.commands import How
from gpunode.cli.doctor import doctor
from gpunode.errors import UsageError
from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence
from gpunode.host.port import HostView
from tests.unit.workflow.test_fleet import NOUVEAU

pytestmark = pytest.mark.usefixtures("allow_subprocess")


@pytest.fixture
def rack(tmp_path: Path) -> Path:
    for name in ("n1", "n2"):
        (tmp_path / f"{name}.json").write_text(json.dumps(NOUVEAU))
    (tmp_path / "n3.tar.gz").write_bytes(b"\x1f\x8b broken")
    return tmp_path


def asked(*named: str, json_: bool = True) -> int:
    try:
        doctor(named, How(json=json_))
    except Answered as answer:
        return answer.exit_code
    return 0


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_fleet_is_a_row_for_each_report_and_its_causes_counted(
    rack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(str(rack)) == 8
    found = answer(capsys)
    assert (found["status"], found["exit_code"], found["findings"]) == ("problem-found", 8, [])
    assert [(row["report"], row["status"], row["cause"]) for row in found["result"]["reports"]] == [
        ("n1.json", "problem", "nouveau-bound"),
        ("n2.json", "problem", "nouveau-bound"),
        ("n3.tar.gz", "unreadable", ""),
    ]
    (cause,) = found["result"]["causes"]
    assert (cause["cause"], cause["reports"]) == ("nouveau-bound", ["n1.json", "n2.json"])


def test_a_fleet_on_the_screen_names_each_node_its_cause_and_what_to_look_at_next(
    rack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(str(rack), json_=False) == 8
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["✗", "n1.json", "nouveau-bound"]
    assert lines[2].split()[:4] == ["!", "n3.tar.gz", "not", "read:"]
    assert any(line.split()[:3] == ["2", "×", "nouveau-bound"] for line in lines)
    assert lines[-2] == "3 reports: 2 with a problem, 1 not read"
    assert lines[-1] == f"next: gpunode doctor {rack}/n1.json"


def test_reports_that_cannot_be_told_end_with_13(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("nothing of interest")
    assert asked(str(tmp_path / "a.txt"), str(tmp_path / "missing.txt")) == 13
    assert [row["status"] for row in answer(capsys)["result"]["reports"]] == ["unknown", "unreadable"]


@pytest.mark.parametrize("alone", ["-", "nouveau-bound"])
def test_a_cause_and_standard_input_stand_alone(alone: str, rack: Path) -> None:
    with pytest.raises(UsageError, match="stands alone"):
        asked(str(rack / "n1.json"), alone)


def test_a_name_that_is_neither_is_told_with_those_like_it() -> None:
    with pytest.raises(UsageError) as caught:
        asked("nouveau-bond")
    assert "nouveau-bound" in caught.value.why


@pytest.fixture
def sick(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is one with nouveau."""

    def examine(_: HostView) -> Evidence:
        return pasted.evidence([(one["source"], one["text"]) for one in NOUVEAU])

    monkeypatch.setattr("gpunode.workflow.doctor.examine", examine)


@pytest.mark.usefixtures("sick")
def test_metrics_are_written_beside_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Answered) as caught:
        doctor((), How(json=True), prometheus=str(tmp_path / "gpunode.prom"))
    assert caught.value.exit_code == answer(capsys)["exit_code"] == 8
    assert 'cause="nouveau-bound"' in (tmp_path / "gpunode.prom").read_text()


@pytest.mark.usefixtures("sick")
@pytest.mark.parametrize(
    ("named", "file", "said"),
    [
        ((), "x.txt", "would never be read"),
        ((), "missing/x.prom", "cannot be written"),
        (("report.json",), "x.prom", "this machine alone"),
    ],
)
def test_metrics_that_nobody_would_read_are_refused(
    named: tuple[str, ...], file: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        doctor(named, How(), prometheus=str(tmp_path / file))


def test_an_xid_by_its_number_is_told_with_the_cause_as_which_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("xid-79") == 0
    found = answer(capsys)["result"]
    assert (found["xid"]["code"], found["cause"]["cause"]) == (79, "gpu-fallen-off-bus")


def test_an_xid_that_decides_nothing_by_itself_is_told_with_what_its_catalog_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked("Xid 32", json_=False) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Xid 32" in told
    assert "start the program again" in told
    assert "no cause by itself" in told


def test_an_xid_that_nobody_knows_is_no_cause() -> None:
    with pytest.raises(UsageError, match="xid-999"):
        doctor(["xid-999"], How(json=True))


def test_an_empty_name_is_not_the_working_folder() -> None:
    with pytest.raises(UsageError, match="an empty name"):
        doctor(("",), How())
