"""The keys on which auditing programs rely; add new ones here and in docs/reference/log-format.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gpunode.change import FileChange, PackageChange, PackageState, Trigger, digest
from gpunode.cli import CommandExit, inputs, log, undo
from gpunode.cli.boundary import run_cli
from gpunode.cli.envelope import to_json_types
from gpunode.cli.log import LOG_SCHEMA_VERSION, full_run_record, summarize_run
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.events import applied_lines
from gpunode.cli.screen.text import Line
from gpunode.errors import UsageError
from gpunode.journal import record
from gpunode.journal.history import RunRecord
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.workflow.events import Applied
from tests.fakes.journals import encode_lines
from tests.unit.journal import chronicles
from tests.unit.journal.chronicles import AT, BEGIN, CONFIG, CUDA, RESTART, SECRET, entries

SUMMARY = {
    "run", "verb", "undoes", "with_packages", "started_at", "ended_at", "user", "uid", "loginuid", "login", "recipe",
    "recipe_sha256", "version", "result", "reason", "counts", "undone_by",
}  # fmt: skip
WHOLE = SUMMARY | {"argv", "boot_id", "changes", "triggers"}
CHANGE = {"seq", "stage", "step", "reason", "started_at", "ended_at", "result", "error", "kind", "subject"}
KINDS = {
    "file": {"before", "after", "folders"},
    "package": {"before", "after"},
    "service": {"before", "after"},
    "module": {"before", "after"},
    "command": {"argv", "purpose", "undo"},
}
STATES = {
    "file": {"sha256", "mode", "uid", "gid"},
    "package": {"version", "auto", "held", "config_files_only", "origin"},
    "service": {"enabled", "active"},
    "module": {"loaded"},
}
TRIGGER = {"kind", "target", "required_by", "completed_at", "note"}


# Of a run in ``rollback --list``.
UNDO = {
    "run", "verb", "undoes", "with_packages", "recipe", "user", "started_at", "ended_at", "result", "reason",
    "subjects", "configuration", "other_subjects", "undone_by", "fully_undone", "rollback",
}  # fmt: skip


def run_record(*, ended: bool = True) -> RunRecord:
    """Return the file as read from a journal without backups: its content is its name."""
    data = b"".join(encode_lines(entries(ended=ended)))
    return RunRecord(record.decode_without_contents(data))


def test_audit_records_have_exactly_the_documented_keys() -> None:
    assert LOG_SCHEMA_VERSION == 1
    assert set(summarize_run(run_record(), {})) == SUMMARY
    found = full_run_record(run_record(), {})
    assert set(found) == WHOLE
    assert {row["kind"] for row in found["changes"]} == set(KINDS)
    for row in found["changes"]:
        assert set(row) == CHANGE | KINDS[row["kind"]]
        for state in (row.get("before"), row.get("after")):
            assert state is None or set(state) == STATES[row["kind"]]
    assert all(set(row) == TRIGGER for row in found["triggers"])


def test_every_audit_key_is_described_in_the_docs() -> None:
    page = Path(__file__).parents[3].joinpath("docs/reference/log-format.md").read_text()
    described = set(re.findall(r"`([a-z_0-9]+)`", page))
    assert WHOLE | CHANGE | TRIGGER | UNDO | set().union(*KINDS.values(), *STATES.values()) <= described


def test_audit_record_says_who_when_and_what_changed() -> None:
    found = full_run_record(run_record(), {1000: "alice"})
    assert (found["user"], found["uid"], found["loginuid"], found["login"]) == ("alice", 0, 1000, "alice")
    assert (found["started_at"], found["ended_at"]) == ("2026-11-21T08:19:32Z", "2026-11-21T08:19:41Z")
    assert found["counts"] == {"file": 1, "module": 1, "package": 2, "service": 1}
    file, package = found["changes"][0], found["changes"][1]
    assert file["subject"] == CONFIG
    assert file["before"] == {"sha256": digest(b"old"), "mode": "0644", "uid": 0, "gid": 0}
    assert file["after"]["sha256"] == digest(b"new")
    assert package["before"]["version"] == "470"
    assert package["after"]["origin"] == CUDA
    assert found["triggers"][0]["note"] == "with the former configuration"


def test_interrupted_run_has_no_end_in_the_record() -> None:
    found = full_run_record(run_record(ended=False), {})
    assert (found["result"], found["ended_at"]) == ("incomplete", None)
    assert [row["result"] for row in found["changes"]][-2:] == ["failed", "unknown"]
    assert found["triggers"][0]["completed_at"] is None


def test_audit_record_contains_no_secret() -> None:
    assert SECRET not in json.dumps(to_json_types(full_run_record(run_record(), {})))


def log_answer(capsys: pytest.CaptureFixture[str], root: Path, run: str = "") -> dict[str, Any]:
    log.show_log(run, OutputOptions(json=True), str(root))
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["result"]
    return found


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an image with two recorded runs; the backups of both are gone, and the second was interrupted."""
    monkeypatch.setenv("SUDO_USER", "alice")
    (tmp_path / "etc").mkdir()
    store = Store(tmp_path)
    for number in (1, 2):
        run = store.begin("setup", recipe="containerd")
        for entry in entries():
            if isinstance(entry, record.Intent):
                run.record_done(run.record_intent(entry.stage, entry.step, entry.change, entry.reason))
        if number == 1:
            run.commit("done")
        run.close()
    for path in (tmp_path / "var/lib/gpunode/objects").glob("??/*"):
        path.unlink()
    return tmp_path


def test_log_reads_the_journal_without_backups_and_writes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    found = log_answer(capsys, root)
    assert found["schema"] == LOG_SCHEMA_VERSION
    assert [(run["run"][:6], run["result"]) for run in found["runs"]] == [("000001", "done"), ("000002", "incomplete")]
    for name in ("1", found["runs"][0]["run"]):
        assert log_answer(capsys, root, name)["run"]["changes"][0]["after"]["sha256"] == digest(b"new")
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before, "nothing is written"


def test_rollback_list_has_flat_rows_with_these_keys(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(root).lock():
        undo.show_runs(OutputOptions(json=True), str(root), "")
    found = json.loads(capsys.readouterr().out)["result"]
    assert set(found) == {"runs"}
    assert {frozenset(run) for run in found["runs"]} == {frozenset(UNDO)}
    assert [(run["run"][:6], run["result"]) for run in found["runs"]] == [("000001", "done"), ("000002", "running")]
    assert found["runs"][0]["configuration"] == [CONFIG]
    assert "libcuda1" in found["runs"][0]["other_subjects"]
    undo.show_runs(OutputOptions(json=True), str(root), CONFIG)
    assert json.loads(capsys.readouterr().out)["result"]["runs"][1]["result"] == "incomplete"


def test_log_shows_a_running_run_without_waiting(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(root).lock():
        assert [run["result"] for run in log_answer(capsys, root)["runs"]] == ["done", "running"]


def test_unknown_run_is_refused_with_the_existing_ones(root: Path) -> None:
    with pytest.raises(UsageError) as stopped:
        log.show_log("7", OutputOptions(json=True), str(root))
    assert "1, 2" in stopped.value.why


def test_run_of_a_cluster_is_named_by_its_whole_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for _ in range(2):
        inputs.open_cluster_journal().begin("k8s apply").commit("done")
    assert run_cli(["log", "k2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["run"]["run"].startswith("000002-")
    for word in ("k", "k3", "k02"):
        assert run_cli(["log", word]) == 2
        assert f"there is no run {word}" in (told := capsys.readouterr().err)
        assert "recorded: k1, k2" in told


def test_node_without_runs_has_an_empty_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").mkdir()
    assert log_answer(capsys, tmp_path)["runs"] == []
    log.show_log("", OutputOptions(), str(tmp_path))
    assert "no run of gpunode" in capsys.readouterr().out


def test_log_screen_shows_the_recorded_details(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.show_log("", OutputOptions(), str(root))
    table = capsys.readouterr().out
    assert re.search(r"1 +\d{4}-\d\d-\d\d \d\d:\d\d [+-]\d{4} +alice +setup containerd +done\n +changed ", table)
    assert "incomplete" in table
    log.show_log("2", OutputOptions(), str(root))
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


def test_commands_below_the_table_name_the_root_folder() -> None:
    """Without it the commands would undo a run of the build machine."""
    run = RunRecord((BEGIN, record.Commit("done", "", AT)))
    page = screen_text(log.run_table_lines([run], previews={run.id: ""}, root="/mnt/my image"))
    assert "sudo gpunode log RUN --root '/mnt/my image'" in page
    assert "sudo gpunode rollback RUN --root '/mnt/my image'" in page


def test_run_that_needed_a_reboot_is_not_called_waiting_for_ever() -> None:
    """Its record says how it ended, and the reboot may be long past."""
    run = RunRecord((BEGIN, record.Commit("waiting", "nouveau drives the GPU", AT)))
    for lines in (log.run_table_lines([run]), log.run_lines(run, {})):
        shown = screen_text(lines)
        assert "done up to a reboot" in shown
        assert "waiting" not in shown


def test_file_that_was_only_read_again_is_not_called_changed() -> None:
    same = chronicles.state(b"same")
    reread = record.Intent(1, "runtime", "runtime-config", FileChange(CONFIG, same, same, frozenset({RESTART})))
    run = RunRecord((BEGIN, reread, record.Done(1, AT), record.Commit("done", "", AT)))
    assert f"changed nothing; reloaded {CONFIG}" in screen_text(log.run_table_lines([run]))
    assert log.undo_record(run, "")["subjects"] == []


def test_packages_of_a_failed_transaction_are_not_called_changed() -> None:
    install = PackageChange(PackageId("libcuda1"), None, PackageState("580"))
    write = record.Intent(1, "runtime", "runtime-config", FileChange(CONFIG, None, chronicles.state(b"new")))
    intents = (write, record.Done(1, AT), record.Intent(2, "packages", "driver", install))
    run = RunRecord((BEGIN, *intents, record.Failed(2, "no room", AT), record.Commit("failed", "no room", AT)))
    assert f"changed {CONFIG}\n" in screen_text(log.run_table_lines([run]))
    assert log.undo_record(run, "")["subjects"] == [CONFIG]


def test_package_that_stays_is_called_marked_and_not_installed() -> None:
    """After a cut transaction, dpkg finishes the packages, and setup sets only their marks."""
    mark = PackageChange(PackageId("libcuda1"), PackageState("580"), PackageState("580", auto=True, held=True))
    intent = record.Intent(1, "packages", "marks", mark)
    told = screen_text(log.run_lines(RunRecord((BEGIN, intent, record.Done(1, AT), record.Commit("done", "", AT))), {}))
    assert "libcuda1  580, manual → auto, hold" in told
    purge = PackageChange(PackageId("x"), PackageState("1"), None)
    summary = screen_text(applied_lines(Applied("marks", (mark, mark, purge), 0.0), rehearsed=False))
    assert summary.endswith("1 package purged, 2 marked")


def test_whole_index_is_read_for_packages_and_not_for_an_earlier_run() -> None:
    refresh, restart = (record.TriggerCompleted(one, "", AT) for one in (Trigger("index-refresh"), RESTART))
    told = screen_text(log.run_lines(RunRecord((BEGIN, refresh, restart, record.Commit("done", "", AT))), {}))
    assert re.search(r"index-refresh .*  for the packages\n.*restart containerd.service .*  of an earlier run", told)


def screen_text(lines: Iterable[Line]) -> str:
    return "\n".join(line.text for line in lines)


def test_log_exits_with_success(root: Path) -> None:
    try:
        log.show_log("1", OutputOptions(), str(root))
    except CommandExit as answer:
        pytest.fail(f"exit {answer.exit_code}")


def test_run_of_a_cluster_is_in_no_image(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_cli(["log", "k1", "--root", str(tmp_path)]) == 2
    assert "--root cannot be used with k1" in capsys.readouterr().err
