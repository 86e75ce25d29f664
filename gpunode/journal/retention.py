"""Which backups must stay: for the runs that can be undone, and for what remove takes the node back to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from gpunode.journal import footprint
from gpunode.journal.record import Commit, Entry, Forget, Intent


def needed_objects(journals: Mapping[str, Sequence[Entry]], kept: Collection[str]) -> frozenset[str]:
    """Return the names of the backups to keep, of all ``journals``; ``kept`` are the runs that keep theirs."""
    names = {name for run, entries in journals.items() for name in _objects_of_run(entries, kept=run in kept)}
    # What `remove` takes the node back to, however old the run is that found it.
    given_up = {run for run, entries in journals.items() if find_forget(entries)}
    alone = {name for run in given_up for name in _contents_of(journals[run])}
    others = {name for run, entries in journals.items() if run not in given_up for name in _contents_of(entries)}
    whole = footprint.footprint_of_node(entry for entries in journals.values() for entry in entries)
    return whole.objects - (alone - others) | names


def find_forget(entries: Iterable[Entry]) -> Forget | None:
    """Return the entry by which somebody gave up undoing the run; None without one."""
    return next((entry for entry in entries if isinstance(entry, Forget)), None)


def _objects_of_run(entries: Sequence[Entry], *, kept: bool) -> Iterator[str]:
    """Yield the objects needed to undo a run: none once it is over and old, or forgotten."""
    if find_forget(entries) or not (kept or not any(isinstance(entry, Commit) for entry in entries)):
        return
    yield from _contents_of(entries)


def _contents_of(entries: Iterable[Entry]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, Intent):
            yield from (content.decode() for content in entry.change.contents)
