from __future__ import annotations

from gpunode.change import FileChange, FileState
from gpunode.journal.chronicle import TriggerRecord, record_of_run
from gpunode.journal.record import Begin, Commit, Done, Entry, Failed, Forget, Intent, TriggerCompleted, TriggerPending
from tests.unit.journal.chronicles import AT, BEGIN, REFRESH, RELOAD, RESTART, entries

FILE = FileChange("/etc/x", None, FileState(b"x"), frozenset({RELOAD}))


def trigger_records(*later: Entry) -> tuple[TriggerRecord, ...]:
    told = record_of_run((BEGIN, *later))
    assert told is not None
    return told.trigger_records


def test_each_change_is_recorded_with_its_outcome() -> None:
    told = record_of_run(entries())
    assert told is not None
    assert [record.outcome for record in told.change_records] == ["done", "done", "done", "done", "failed", "done"]
    assert [record.ended_at for record in told.change_records[:2]] == [AT + 1.5, AT + 2.5]
    assert told.change_records[4].error.startswith("dpkg said")
    assert told.ending == "done"
    assert len(told.changes) == 5, "what failed was not changed"


def test_interrupted_run_lists_intended_changes() -> None:
    told = record_of_run(entries(ended=False))
    assert told is not None
    assert told.ending == "incomplete"
    assert told.change_records[5].outcome == "unknown"
    assert told.change_records[5].ended_at is None
    assert told.trigger_records == (TriggerRecord(RESTART, (1,)),)


def test_running_run_is_not_called_interrupted() -> None:
    going, over = record_of_run(entries(ended=False), is_running=True), record_of_run(entries(), is_running=True)
    assert going is not None
    assert over is not None
    assert (going.ending, over.ending) == ("running", "done")


def test_journal_without_a_begin_has_no_run() -> None:
    assert record_of_run(()) is None


def test_forgotten_run_says_by_whom() -> None:
    told = record_of_run((*entries(), Forget("bob", AT + 99)))
    assert told is not None
    assert told.forgotten == Forget("bob", AT + 99)
    assert told.ending == "done"


def test_several_changes_share_one_settlement() -> None:
    first, second = Intent(1, "s", "s", FILE), Intent(2, "s", "s", FILE)
    assert trigger_records(first, second, TriggerCompleted(RELOAD, "", 5.0)) == (TriggerRecord(RELOAD, (1, 2), 5.0),)


def test_failed_change_has_no_trigger() -> None:
    first, second = Intent(1, "s", "s", FILE), Intent(2, "s", "s", FILE)
    assert trigger_records(first, Failed(1, "no")) == ()
    assert trigger_records(first, Done(1), second, Failed(2, "no")) == (TriggerRecord(RELOAD, (1,)),)


def test_trigger_after_its_settlement_is_pending_again() -> None:
    first, second = Intent(1, "s", "s", FILE), Intent(2, "s", "s", FILE)
    told = trigger_records(
        first, TriggerCompleted(RELOAD, "", 5.0), second, Failed(2, "no"), TriggerPending(REFRESH, 1)
    )
    assert told == (TriggerRecord(RELOAD, (1,), 5.0), TriggerRecord(REFRESH, (1,)))


def test_restart_settles_a_reload_and_earlier_triggers_are_marked() -> None:
    assert trigger_records(Intent(1, "s", "s", FILE), TriggerCompleted(RESTART, "", 5.0)) == (
        TriggerRecord(RELOAD, (1,), 5.0),
    )
    assert trigger_records(TriggerCompleted(RESTART, "skipped", 5.0)) == (TriggerRecord(RESTART, (), 5.0, "skipped"),)


def test_commit_decides_the_ending() -> None:
    begin = Begin("000001-20261121T081932Z", AT, "remove", "1", "", "", "", "alice", ())
    told = record_of_run((begin, Commit("waiting", "a reboot is needed", AT)))
    assert told is not None
    assert told.ending == "waiting"
