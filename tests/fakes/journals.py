"""Journals as text, and what earlier versions of gpunode left in them."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.journal.record import Entry, Forget, encode
from gpunode.journal.store import Store


def forget(store: Store, run: str) -> None:
    """Give up the backups of ``run`` as `rollback --forget` of an earlier gpunode did."""
    store._add(run, Forget("ada", 0.0))
    store._collect(store._runs_with_backups(store.ids()))


def encode_lines(entries: Iterable[Entry], above: bytes = b"") -> tuple[bytes, ...]:
    """Return ``entries`` as the lines that follow the line ``above``, one for each."""
    written: list[bytes] = []
    for entry in entries:
        written.append(encode(entry, above=written[-1] if written else above))
    return tuple(written)
