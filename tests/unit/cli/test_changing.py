"""What a program is told of a run that stopped in its middle."""

from __future__ import annotations

from pathlib import Path

from gpunode.change import FileChange, FileState
from gpunode.cli.changing import stopped
from gpunode.errors import ChangeFailed
from gpunode.journal.store import Store


def change(path: str) -> FileChange:
    return FileChange(path, None, FileState(b"x", 0o644, 0, 0))


def test_what_was_changed_before_the_failure_is_told(tmp_path: Path) -> None:
    """Ansible takes ``changed`` for the truth, and runs its handlers by it."""
    store = Store(tmp_path)
    store.begin("setup", version="0").commit("done")
    before = store.ids()
    run = store.begin("setup", version="0")
    run.done(run.intend("sources", "pin", change("/etc/made")))
    run.failed(run.intend("sources", "pin", change("/etc/failed")), "no room")
    run.commit("failed", "no room")

    answer = stopped("setup", ChangeFailed("no room"), store, before)

    assert (answer.changed, answer.exit_code, answer.result) == (True, 6, {"run": run.id})
    assert answer.changes == (change("/etc/made"),)


def test_a_run_that_never_began_changed_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin("setup", version="0").commit("done")
    answer = stopped("setup", ChangeFailed("no room"), store, store.ids())
    assert (answer.changed, answer.changes, answer.result) == (False, (), {})
