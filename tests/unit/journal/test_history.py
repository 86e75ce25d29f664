from __future__ import annotations

from gpunode.change import FileChange, FileState, Trigger
from gpunode.journal.history import RunRecord
from gpunode.journal.record import Begin, Commit, Done, Entry, Failed, Intent, TriggerCompleted
from tests.unit.journal.chronicles import AT, BEGIN, RELOAD, RESTART, entries

FILE = FileChange("/etc/x", None, FileState(b"x"), frozenset({RELOAD}))


def triggers_of(*later: Entry) -> list[tuple[Trigger, tuple[int, ...], float | None, str]]:
    """Return the triggers of a run: each with the changes that require it, when it was settled, and the note."""
    return [
        (
            one.trigger,
            tuple(seq for _, seq in one.required_by),
            one.completion.at if one.completion else None,
            one.completion.note if one.completion else "",
        )
        for one in RunRecord((BEGIN, *later)).trigger_records
    ]


def test_each_change_is_recorded_with_its_outcome() -> None:
    told = RunRecord(entries())
    assert [record.outcome for record in told.change_records] == ["done", "done", "done", "done", "failed", "done"]
    assert [record.ended_at for record in told.change_records[:2]] == [AT + 1.5, AT + 2.5]
    assert told.change_records[4].error.startswith("dpkg said")
    assert told.ending == "done"
    assert len(told.changes("done", "unknown")) == 5, "what failed was not changed"


def test_interrupted_run_lists_intended_changes() -> None:
    told = RunRecord(entries(ended=False))
    assert told.ending == "incomplete"
    assert told.change_records[5].outcome == "unknown"
    assert told.change_records[5].ended_at is None
    assert triggers_of(*entries(ended=False)[1:]) == [(RESTART, (1,), None, "")]


def test_running_run_is_not_called_interrupted() -> None:
    going, over = RunRecord(entries(ended=False), is_running=True), RunRecord(entries(), is_running=True)
    assert (going.ending, over.ending) == ("running", "done")


def test_several_changes_share_one_settlement() -> None:
    first, second = Intent(1, "s", "s", FILE), Intent(2, "s", "s", FILE)
    assert triggers_of(first, second, TriggerCompleted(RELOAD, "", 5.0)) == [(RELOAD, (1, 2), 5.0, "")]


def test_failed_change_has_no_trigger() -> None:
    first, second = Intent(1, "s", "s", FILE), Intent(2, "s", "s", FILE)
    assert triggers_of(first, Failed(1, "no")) == []
    assert triggers_of(first, Done(1), second, Failed(2, "no")) == [(RELOAD, (1,), None, "")]


def test_trigger_after_its_settlement_is_pending_again() -> None:
    first, second = Intent(1, "s", "s", FILE), Intent(2, "s", "s", FILE)
    told = triggers_of(first, TriggerCompleted(RELOAD, "", 5.0), second)
    assert told == [(RELOAD, (1,), 5.0, ""), (RELOAD, (2,), None, "")]


def test_restart_settles_a_reload_and_earlier_triggers_are_marked() -> None:
    settled = triggers_of(Intent(1, "s", "s", FILE), TriggerCompleted(RESTART, "", 5.0))
    assert settled == [(RELOAD, (1,), 5.0, "")]
    assert triggers_of(TriggerCompleted(RESTART, "skipped", 5.0)) == [(RESTART, (), 5.0, "skipped")]


def test_commit_decides_the_ending() -> None:
    begin = Begin("000001-20261121T081932Z", AT, "remove", "1", "", "", "", "alice", ())
    told = RunRecord((begin, Commit("waiting", "a reboot is needed", AT)))
    assert told.ending == "waiting"
