from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode import diagnoses
from gpunode.cli import CommandExit
from gpunode.cli.doctor import doctor
from gpunode.cli.output_options import OutputOptions
from gpunode.diagnoses import rules_by_cause
from gpunode.diagnoses.model import Proof
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.errors import Refused, UsageError
from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence
from gpunode.host import bugs
from gpunode.host.port import HostView
from tests.unit.workflow.test_fleet import NOUVEAU

SAMPLES = Path(diagnoses.__file__).parent.parent / "samples"

pytestmark = pytest.mark.usefixtures("allow_subprocess")


@pytest.fixture
def rack(tmp_path: Path) -> Path:
    for name in ("n1", "n2"):
        (tmp_path / f"{name}.json").write_text(json.dumps(NOUVEAU))
    (tmp_path / "n3.tar.gz").write_bytes(b"\x1f\x8b broken")
    return tmp_path


def exit_code_of_doctor(*named: str, json_: bool = True, verbose: bool = False, **more: str) -> int:
    try:
        doctor(named, OutputOptions(json=json_, verbose=verbose), **more)
    except CommandExit as answer:
        return answer.exit_code
    return 0


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_fleet_has_a_row_for_each_report_and_counts_causes(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of_doctor(str(rack)) == 8
    found = answer(capsys)
    assert (found["status"], found["exit_code"], found["findings"]) == ("problem-found", 8, [])
    assert [(row["report"], row["status"], row["cause"]) for row in found["result"]["reports"]] == [
        ("n1.json", "problem", "nouveau-bound"),
        ("n2.json", "problem", "nouveau-bound"),
        ("n3.tar.gz", "unreadable", ""),
    ]
    (cause,) = found["result"]["causes"]
    assert (cause["cause"], cause["reports"]) == ("nouveau-bound", ["n1.json", "n2.json"])


def test_fleet_screen_names_nodes_causes_and_the_next_command(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of_doctor(str(rack), json_=False) == 8
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 nodes: 2 broken, 1 unread"
    assert lines[2].split()[:3] == ["2", "×", "nouveau-bound:"]
    assert lines[2].endswith("  n1.json, n2.json")
    assert lines[3].strip().startswith("next: ")
    assert lines[3].endswith(" (the fix reboots the node)")
    assert lines[4].split()[:3] == ["1", "×", "unread:"]
    assert lines[4].endswith("  n3")
    assert lines[-1] == f"next: gpunode doctor {rack}/n1.json"


def test_json_reference_names_every_key_of_a_diagnosis(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs/reference/json-output.md").read_text("utf-8")
    rows = {line.split(" | ")[0].strip("| `"): line for line in page.splitlines() if line.startswith("| `")}
    exit_code_of_doctor(str(rack / "n1.json"))
    found = answer(capsys)
    assert [key for key in found["findings"][0] if f"`{key}`" not in rows["findings"]] == []
    assert [key for key in found["result"] if f"`{key}`" not in rows["doctor"]] == []
    exit_code_of_doctor(str(rack))
    found = answer(capsys)["result"]
    keys = {**found, **found["reports"][0]}
    assert [key for key in keys if f"`{key}`" not in rows["doctor` of several reports"]] == []


def test_verbose_fleet_has_a_line_for_each_report(rack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of_doctor(str(rack), verbose=True, json_=False) == 8
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["✗", "n1.json", "nouveau-bound"]
    assert lines[2].split()[:4] == ["!", "n3.tar.gz", "not", "read:"]


def test_undiagnosable_reports_exit_with_13(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("nothing of interest")
    assert exit_code_of_doctor(str(tmp_path / "a.txt"), str(tmp_path / "missing.txt")) == 13
    assert [row["status"] for row in answer(capsys)["result"]["reports"]] == ["unknown", "unreadable"]


@pytest.mark.parametrize("alone", ["-", "nouveau-bound"])
def test_cause_or_standard_input_must_be_given_alone(alone: str, rack: Path) -> None:
    with pytest.raises(UsageError, match="must be given alone"):
        exit_code_of_doctor(str(rack / "n1.json"), alone)


def test_unknown_name_is_answered_with_similar_ones() -> None:
    with pytest.raises(UsageError) as caught:
        exit_code_of_doctor("nouveau-bond")
    assert "nouveau-bound" in caught.value.why


@pytest.fixture
def sick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make doctor see a machine with nouveau."""

    def collect_doctor_evidence(_: HostView) -> Evidence:
        return pasted.collect_pieces([(one["source"], one["text"]) for one in NOUVEAU])

    monkeypatch.setattr("gpunode.workflow.doctor.collect_doctor_evidence", collect_doctor_evidence)


@pytest.mark.usefixtures("sick")
def test_metrics_are_written_beside_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandExit) as caught:
        doctor((), OutputOptions(json=True), prometheus=str(tmp_path / "gpunode.prom"))
    assert caught.value.exit_code == answer(capsys)["exit_code"] == 8
    assert 'cause="nouveau-bound"' in (tmp_path / "gpunode.prom").read_text()


@pytest.mark.usefixtures("sick")
@pytest.mark.parametrize(
    ("named", "file", "said"),
    [
        ((), "x.txt", "would never be read"),
        ((), "missing/x.prom", "cannot be written"),
        (("report.json",), "x.prom", "this machine only"),
    ],
)
def test_unreadable_metrics_file_name_is_refused(named: tuple[str, ...], file: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        doctor(named, OutputOptions(), prometheus=str(tmp_path / file))


@pytest.mark.parametrize("words", [("xid-79",), ("xid", "79")])
def test_xid_number_is_explained_with_its_cause(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of_doctor(*words) == 0
    found = answer(capsys)["result"]
    assert (found["xid"]["code"], found["cause"]["cause"]) == (79, "gpu-fallen-off-bus")


def test_xid_without_a_cause_is_explained_by_the_catalog(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code_of_doctor("Xid 32", json_=False) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Xid 32" in told
    assert "restart the program" in told
    assert "not a cause by itself" in told


def test_unknown_xid_is_refused() -> None:
    with pytest.raises(UsageError, match="Xid 999 is not in NVIDIA's catalog"):
        doctor(["xid-999"], OutputOptions(json=True))


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make one rule fail with a bug, and return the folder of tracebacks."""

    def check(_: Snapshot) -> Iterable[Proof]:
        raise KeyError("nobody thought of that")

    failing = {**rules_by_cause(), "nouveau-bound": replace(rules_by_cause()["nouveau-bound"], check=check)}
    monkeypatch.setattr(diagnoses, "rules_by_cause", lambda: failing)
    folder = tmp_path / "log"
    monkeypatch.setattr(bugs, "TRACEBACK_FOLDER", folder)
    monkeypatch.setattr(bugs, "explain_untrusted_folder", lambda _: "")
    monkeypatch.setattr("gpunode.host.bugs.os.geteuid", lambda: 0)
    return folder


def test_failing_rule_saves_one_traceback_and_the_others_run(
    failing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "n1.json"
    report.write_text(json.dumps(NOUVEAU))
    for _ in range(2):  # as if a timer had run it
        exit_code_of_doctor(str(report))
        found = answer(capsys)
        (kept,) = failing.iterdir()
        assert found["result"]["bugs"] == str(kept)
        assert any("nouveau-bound could not be checked" in doubt["question"] for doubt in found["unknown"])
    assert kept.stat().st_mode & 0o777 == 0o600
    text = kept.read_text()
    assert "\n\nnouveau-bound:\nTraceback" in text
    assert "nobody thought of that" in text
    assert __file__ in text

    exit_code_of_doctor(str(report), json_=False)
    said = capsys.readouterr().out
    assert "the traceback is in" in said
    assert "Traceback" not in said


def test_traceback_is_shown_with_verbose_and_saved_for_a_fleet(
    failing: Path, rack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(CommandExit):
        doctor((str(rack / "n1.json"),), OutputOptions(verbose=True))
    assert "Traceback (most recent call last)" in capsys.readouterr().out
    for kept in failing.iterdir():
        kept.unlink()
    exit_code_of_doctor(str(rack))
    assert len(list(failing.iterdir())) == 1


def test_traceback_is_shown_where_it_cannot_be_saved(
    failing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing.write_text("a file stands where the folder should be")
    report = tmp_path / "n1.json"
    report.write_text(json.dumps(NOUVEAU))
    exit_code_of_doctor(str(report), json_=False)
    assert "nobody thought of that" in capsys.readouterr().out


def test_file_that_is_not_there_makes_no_wsl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "post.txt").write_text(
        "$ cat /usr/lib/wsl/lib/nvidia-smi\ncat: /usr/lib/wsl/lib/nvidia-smi: No such file or directory\n"
        "$ nvidia-smi\nNVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    )
    assert exit_code_of_doctor(str(tmp_path / "post.txt")) == 13
    assert not answer(capsys)["findings"]


def test_empty_name_is_not_the_working_folder() -> None:
    with pytest.raises(UsageError, match="an empty name"):
        doctor(("",), OutputOptions())


@pytest.mark.parametrize("named", [{"html": ""}, {"prometheus": ""}, {"prometheus": "-"}])
def test_option_without_a_file_name_suggests_no_odd_name(named: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        doctor((), OutputOptions(), **named)
    assert "-.prom" not in caught.value.hint


def test_report_that_exhausts_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("gpunode.workflow.doctor.diagnose_evidence", full)
    report = tmp_path / "report.txt"
    report.write_text("$ nvidia-smi\nNo devices were found\n")
    with pytest.raises(Refused, match=r"report\.txt was not examined"):
        doctor([str(report)], OutputOptions(json=True))


LOCK = """\
schema = 1
recipe = "containerd"
distribution = "ubuntu"
release = "24.04"
architecture = "amd64"
[packages]
nvidia-open-580 = "580.95.05-1"
"""


def test_hazards_of_the_next_boot_are_told_and_are_no_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A .run driver works until a new kernel is installed, and a loaded module until a boot applies a blacklist."""
    node, page = tmp_path / "node", tmp_path / "page.html"
    shutil.copytree(SAMPLES / "debian12-run-driver", node)
    blacklist = {"path": "/etc/modprobe.d/mine.conf", "text": "blacklist nvidia\n", "mode": "0644", "uid": 0, "gid": 0}
    with (node / "data/modprobe-d").open("a") as files:
        files.write(f"{json.dumps(blacklist)}\n")
    assert exit_code_of_doctor(str(node), html=str(page)) == 13
    found = answer(capsys)
    assert found["findings"] == []
    assert [one.partition(":")[0] for one in found["notes"]] == [
        "NVIDIA's .run installer has installed a driver",
        "/etc/modprobe.d/mine.conf",
    ]
    assert "No fault, but worth knowing" in page.read_text()
    assert exit_code_of_doctor(str(node), json_=False) == 13
    shown = capsys.readouterr().out
    assert "\nno fault, but worth knowing\n  ! NVIDIA's .run installer has installed a driver" in shown


def test_selected_report_has_no_notes_on_the_whole_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps(NOUVEAU))
    assert exit_code_of_doctor(str(report)) == 8
    assert answer(capsys)["notes"] == []


def test_lock_implies_the_recipe_it_was_written_with(
    rack: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path_factory.mktemp("locks") / "fleet.lock"
    lock.write_text(LOCK)
    assert exit_code_of_doctor(str(rack), lock=str(lock)) == 8
    assert answer(capsys)["result"]["recipe"] == "recipe containerd, lock fleet.lock"
    exit_code_of_doctor(str(rack), lock=str(lock), recipe="docker")
    assert answer(capsys)["result"]["recipe"] == "recipe docker, lock fleet.lock"
    lock.write_text(LOCK.replace("containerd", "inference"))
    with pytest.raises(UsageError, match="'inference', which does not come with gpunode") as refused:
        doctor([str(rack)], OutputOptions(json=True), lock=str(lock))
    assert f"--recipe inference.toml --lock {lock}" in refused.value.hint
