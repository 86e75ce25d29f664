from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpunode.change import FileChange, FileState, digest
from gpunode.journal import announce
from gpunode.journal.record import Commit, Done, Entry, Failed, Intent, Result
from gpunode.journal.store import Store
from tests.unit.journal.chronicles import AT, BEGIN, CONFIG, CUDA, RUN, SECRET, entries


def announcements_of(of: Sequence[Entry]) -> list[Mapping[str, str]]:
    told = (announce.message_fields(of[:number], entry) for number, entry in enumerate(of, 1))
    return [fields for fields in told if fields]


def test_begin_changes_and_end_are_announced_with_the_run_id() -> None:
    found = announcements_of(entries())
    made = [announce.CHANGE_MADE_MESSAGE_ID] * 4 + [announce.CHANGE_FAILED_MESSAGE_ID, announce.CHANGE_MADE_MESSAGE_ID]
    assert [one["MESSAGE_ID"] for one in found] == [announce.RUN_BEGUN_MESSAGE_ID, *made, announce.RUN_ENDED_MESSAGE_ID]
    assert {one["GPUNODE_RUN"] for one in found} == {RUN}
    assert {one["GPUNODE_VERB"] for one in found} == {"setup"}
    assert {one["SYSLOG_IDENTIFIER"] for one in found} == {"gpunode"}
    assert all(one["MESSAGE"] and one["PRIORITY"] in "3456" for one in found)


def test_file_announced_by_hash_and_package_by_version_and_origin() -> None:
    _, file, package, *_ = announcements_of(entries())
    assert file["GPUNODE_SUBJECT"] == CONFIG
    assert (file["GPUNODE_STEP"], file["GPUNODE_SEQ"], file["GPUNODE_KIND"]) == ("step-1", "1", "file")
    assert file["GPUNODE_BEFORE"] == f"sha256:{digest(b'old')}"
    assert file["GPUNODE_AFTER"] == f"sha256:{digest(b'new')}"
    assert (package["GPUNODE_BEFORE"], package["GPUNODE_AFTER"]) == ("470", "595")
    assert package["GPUNODE_ORIGIN"] == CUDA


def test_secrets_and_contents_are_not_announced() -> None:
    secret = FileChange("/etc/x", FileState(b"password"), FileState(b"pass\nword"))
    more = (Intent(7, "s", "s", secret), Done(7), Failed(7, "at https://me:hunter2@host/"))
    text = repr(announcements_of((*entries(), *more)))
    assert SECRET not in text
    assert "pass" not in text.replace("--yes", "")


@pytest.mark.parametrize(
    ("result", "priority"), [("done", "5"), ("waiting", "5"), ("interrupted", "4"), ("failed", "3")]
)
def test_priority_follows_the_result(result: Result, priority: str) -> None:
    (_, end) = announcements_of((BEGIN, Commit(result, "because", AT)))
    assert (end["PRIORITY"], end["GPUNODE_RESULT"], end["GPUNODE_REASON"]) == (priority, result, "because")


def test_fields_without_a_value_are_omitted() -> None:
    assert all(value for one in announcements_of(entries()) for value in one.values())


def test_store_announces_only_synced_entries(tmp_path: Path) -> None:
    heard: list[tuple[str, bool]] = []

    def listen(so_far: Sequence[Entry], entry: Entry) -> None:
        (journal,) = tmp_path.glob("var/lib/gpunode/runs/*/journal.jsonl")
        heard.append((type(entry).__name__, entry in so_far and journal.read_bytes().count(b"\n") == len(so_far)))

    run = Store(tmp_path, announce=listen).begin("setup")
    run.record_done(run.record_intent("s", "s", FileChange("/etc/x", None, FileState(b"x"))))
    run.commit("done")
    assert heard == [("Begin", True), ("Intent", True), ("Done", True), ("Commit", True)]
