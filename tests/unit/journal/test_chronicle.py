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


def test_each_change_is_told_with_its_end() -> None:
    told = record_of_run(entries())
    assert told is not None
    assert [record.outcome for record in told.change_records] == ["done", "done", "done", "done", "failed", "done"]
    assert [record.ended_at for record in told.change_records[:2]] == [AT + 1.5, AT + 2.5]
    assert told.change_records[4].error.startswith("dpkg said")
    assert told.ending == "done"
    assert len(told.changes) == 5, "what failed was not changed"


def test_a_run_that_was_cut_short_says_what_may_have_happened() -> None:
    told = record_of_run(entries(ended=False))
    assert told is not None
    assert told.ending == "incomplete"
    assert told.change_records[5].outcome == "unknown"
    assert told.change_records[5].ended_at is None
    assert told.trigger_records == (TriggerRecord(RESTART, (1,)),)


def test_a_run_that_goes_on_is_not_called_cut_short_and_one_that_ended_does_not_go_on() -> None:
    going, over = record_of_run(entries(ended=False), is_running=True), record_of_run(entries(), is_running=True)
    assert going is not None
    assert over is not None
    assert (going.ending, over.ending) == ("running", "done")


def test_a_journal_without_its_first_line_tells_of_no_run() -> None:
    assert record_of_run(()) is None


def test_a_run_that_was_forgotten_later_says_by_whom() -> None:
    told = record_of_run((*entries(), Forget("bob", AT + 99)))
    assert told is not None
    assert told.forgotten == Forget("bob", AT + 99)
    assert told.ending == "done"


def test_several_changes_owe_one_settlement() -> None:
    first, second = Intent(1, "s", "s", FILE), Intent(2, "s", "s", FILE)
    assert trigger_records(first, second, TriggerCompleted(RELOAD, "", 5.0)) == (TriggerRecord(RELOAD, (1, 2), 5.0),)


def test_a_change_that_failed_owes_nothing() -> None:
    first, second = Intent(1, "s", "s", FILE), Intent(2, "s", "s", FILE)
    assert trigger_records(first, Failed(1, "no")) == ()
    assert trigger_records(first, Done(1), second, Failed(2, "no")) == (TriggerRecord(RELOAD, (1,)),)


def test_what_is_owed_again_after_its_settlement_is_another_debt() -> None:
    first, second = Intent(1, "s", "s", FILE), Intent(2, "s", "s", FILE)
    told = trigger_records(
        first, TriggerCompleted(RELOAD, "", 5.0), second, Failed(2, "no"), TriggerPending(REFRESH, 1)
    )
    assert told == (TriggerRecord(RELOAD, (1,), 5.0), TriggerRecord(REFRESH, (1,)))


def test_a_restart_settles_a_reload_and_an_earlier_runs_debt_is_told_as_such() -> None:
    assert trigger_records(Intent(1, "s", "s", FILE), TriggerCompleted(RESTART, "", 5.0)) == (
        TriggerRecord(RELOAD, (1,), 5.0),
    )
    assert trigger_records(TriggerCompleted(RESTART, "skipped", 5.0)) == (TriggerRecord(RESTART, (), 5.0, "skipped"),)


def test_how_it_ended_is_the_commits_word() -> None:
    begin = Begin("000001-20261121T081932Z", AT, "remove", "1", "", "", "", "alice", ())
    told = record_of_run((begin, Commit("waiting", "a reboot is needed", AT)))
    assert told is not None
    assert told.ending == "waiting"
