"""Journals as text, and what earlier versions of gpunode left in them."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.journal.record import Entry, Forget, encode
from gpunode.journal.store import Store


def forget(store: Store, run: str) -> None:
    """Give up the backups of ``run`` as `rollback --forget` of an earlier gpunode did."""
    store._append_entries(run, Forget("ada", 0.0))
    store._prune_backups(store._runs_with_backups(store.ids()))


def encode_lines(entries: Iterable[Entry], previous_line: bytes = b"") -> tuple[bytes, ...]:
    """Return ``entries`` as the lines that follow the line ``previous_line``, one for each."""
    written: list[bytes] = []
    for entry in entries:
        written.append(encode(entry, previous_line=written[-1] if written else previous_line))
    return tuple(written)
