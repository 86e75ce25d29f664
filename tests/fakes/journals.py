"""Journals that earlier versions of gpunode left."""

from __future__ import annotations

from gpunode.journal.record import Forget
from gpunode.journal.store import Store


def forget(store: Store, run: str) -> None:
    """Give up the backups of ``run`` as `rollback --forget` of an earlier gpunode did."""
    store._add(run, Forget("ada", 0.0))
    store._collect(store._runs_with_backups(store.ids()))
