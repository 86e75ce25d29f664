"""The keys on which programs that audit nodes rely; a new one is added here and in docs/reference/log-format.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpunode.change import digest
from gpunode.cli import CommandExit, runs
from gpunode.cli.audit import SCHEMA, full_run_record, summarize_run
from gpunode.cli.envelope import to_json_types
from gpunode.cli.output_options import OutputOptions
from gpunode.errors import UsageError
from gpunode.journal import record
from gpunode.journal.chronicle import RunRecord, record_of_run
from gpunode.journal.store import Store
from tests.unit.journal.chronicles import CONFIG, CUDA, SECRET, entries

SUMMARY = {
    "run", "verb", "of", "whole", "begun", "ended", "user", "uid", "loginuid", "login", "recipe", "recipe_sha256",
    "version", "result", "why", "counts", "undone_by", "forgotten",
}  # fmt: skip
WHOLE = SUMMARY | {"argv", "boot_id", "changes", "triggers"}
CHANGE = {"seq", "stage", "step", "reason", "at", "ended", "result", "why", "kind", "subject"}
KINDS = {
    "file": {"before", "after", "folders"},
    "package": {"before", "after"},
    "service": {"before", "after"},
    "module": {"before", "after"},
    "command": {"argv", "for", "undo"},
}
STATES = {
    "file": {"sha256", "mode", "uid", "gid"},
    "package": {"version", "auto", "held", "config_files_only", "origin"},
    "service": {"enabled", "active"},
    "module": {"loaded"},
}
TRIGGER = {"kind", "target", "owed_by", "settled", "note"}


def told(*, ended: bool = True) -> RunRecord:
    """As the journal is read without backups: a file's content is its name."""
    data = b"".join(record.encode_lines(entries(ended=ended)))
    found = record_of_run(record.decode_without_contents(data))
    assert found is not None
    return found


def test_the_keys_are_those_that_programs_rely_on() -> None:
    assert SCHEMA == 1
    assert set(summarize_run(told(), {})) == SUMMARY
    found = full_run_record(told(), {})
    assert set(found) == WHOLE
    assert {row["kind"] for row in found["changes"]} == set(KINDS)
    for row in found["changes"]:
        assert set(row) == CHANGE | KINDS[row["kind"]]
        for state in (row.get("before"), row.get("after")):
            assert state is None or set(state) == STATES[row["kind"]]
    assert all(set(row) == TRIGGER for row in found["triggers"])


def test_every_key_is_described() -> None:
    page = Path(__file__).parents[3].joinpath("docs/reference/log-format.md").read_text()
    described = set(re.findall(r"`([a-z_0-9]+)`", page))
    assert WHOLE | CHANGE | TRIGGER | set().union(*KINDS.values(), *STATES.values()) <= described


def test_who_when_and_from_what_to_what() -> None:
    found = full_run_record(told(), {1000: "alice"})
    assert (found["user"], found["uid"], found["loginuid"], found["login"]) == ("alice", 0, 1000, "alice")
    assert (found["begun"], found["ended"]) == ("2026-11-21T08:19:32Z", "2026-11-21T08:19:41Z")
    assert found["counts"] == {"file": 1, "module": 1, "package": 2, "service": 1}
    file, package = found["changes"][0], found["changes"][1]
    assert file["subject"] == CONFIG
    assert file["before"] == {"sha256": digest(b"old"), "mode": "0644", "uid": 0, "gid": 0}
    assert file["after"]["sha256"] == digest(b"new")
    assert package["before"]["version"] == "470"
    assert package["after"]["origin"] == CUDA
    assert found["triggers"][0]["note"] == "with the former configuration"


def test_a_run_that_was_cut_short_has_no_end() -> None:
    found = full_run_record(told(ended=False), {})
    assert (found["result"], found["ended"]) == ("cut short", None)
    assert [row["result"] for row in found["changes"]][-2:] == ["failed", "intended"]
    assert found["triggers"][0]["settled"] is None


def test_no_secret_gets_out() -> None:
    assert SECRET not in json.dumps(to_json_types(full_run_record(told(), {})))


def answered(capsys: pytest.CaptureFixture[str], root: Path, run: str = "") -> dict[str, Any]:
    runs.show_log(run, OutputOptions(json=True), str(root))
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["result"]
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image in which two runs are recorded; the backups of both are gone, the second was cut short."""
    (tmp_path / "etc").mkdir()
    store = Store(tmp_path)
    for number in (1, 2):
        run = store.begin("setup", version="1", recipe="containerd", user="alice")
        for entry in entries():
            if isinstance(entry, record.Intent):
                run.done(run.intend(entry.stage, entry.step, entry.change, entry.reason))
        if number == 1:
            run.commit("done")
        run.close()
    for path in (tmp_path / "var/lib/gpunode/objects").glob("??/*"):
        path.unlink()
    return tmp_path


def test_the_log_reads_the_journals_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    found = answered(capsys, root)
    assert found["schema"] == SCHEMA
    assert [(run["run"][:6], run["result"]) for run in found["runs"]] == [("000001", "done"), ("000002", "cut short")]
    for name in ("1", found["runs"][0]["run"]):
        assert answered(capsys, root, name)["run"]["changes"][0]["after"]["sha256"] == digest(b"new")
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before, "nothing is written"


def test_a_run_that_goes_on_is_told_as_such_without_waiting_for_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(root).lock():
        assert [run["result"] for run in answered(capsys, root)["runs"]] == ["done", "going on"]


def test_a_run_that_there_is_not_is_said_with_those_that_there_are(root: Path) -> None:
    with pytest.raises(UsageError) as stopped:
        runs.show_log("7", OutputOptions(json=True), str(root))
    assert "1, 2" in stopped.value.why


def test_a_node_without_runs_has_an_empty_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").mkdir()
    assert answered(capsys, tmp_path)["runs"] == []
    runs.show_log("", OutputOptions(), str(tmp_path))
    assert "no run of gpunode" in capsys.readouterr().out


def test_a_person_reads_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.show_log("", OutputOptions(), str(root))
    table = capsys.readouterr().out
    assert re.search(
        r"1 +\d{4}-\d\d-\d\d \d\d:\d\d [+-]\d{4} +alice +setup containerd +done\n +changed 1 command, 1 file", table
    )
    assert "cut short" in table
    runs.show_log("2", OutputOptions(), str(root))
    page = " ".join(capsys.readouterr().out.split())
    for word in (
        "never: it was interrupted",
        digest(b"new"),
        "0600",
        "470 → 595",
        f"from {CUDA}",
        "why: because",
        "000002-",
    ):
        assert word in page, word
    assert page.count(CUDA) == 1, "an archive is named once for the packages that come from it"


def test_an_answer_is_no_failure(root: Path) -> None:
    try:
        runs.show_log("1", OutputOptions(), str(root))
    except CommandExit as answer:
        pytest.fail(f"exit {answer.exit_code}")
