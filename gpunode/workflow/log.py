"""log: the changes that gpunode made to this node; reads only the journals."""

from __future__ import annotations

from gpunode.errors import UsageError
from gpunode.journal.chronicle import RunRecord, record_of_run
from gpunode.journal.store import Store


def list_runs(store: Store, run: str = "") -> tuple[RunRecord, ...]:
    """Return every recorded run, oldest first, or the one with that id or number. Needs no backups.

    Raises:
        UsageError: there is no such run.
        JournalDamaged: a journal is.
    """
    runs = store.runs()
    wanted = [one for one in runs if not run or run in {one.run, one.number}]
    if run and not wanted:
        known = ", ".join(one.number for one in runs)
        raise UsageError(f"there is no run {run}", why=f"recorded: {known or 'none'}", hint="gpunode log")
    newest = runs[-1].run if runs else ""
    found = (
        record_of_run(
            store.entries(one.run),
            is_running=one.run == newest and store.at_work() is not None,
            undone_by=one.undone_by,
        )
        for one in wanted
    )
    return tuple(one for one in found if one is not None)
