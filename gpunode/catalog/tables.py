"""The tables of this package, read from the files beside it: comments (``#``), one header line, rows."""

from __future__ import annotations

import csv
import pkgutil
from collections.abc import Iterator, Mapping
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpunode.facts.model import Facts

# NVIDIA releases a new branch about every three months.
_MAX_TABLE_AGE_DAYS: Final = 90
_DRIVER_DECIDING_TABLES: Final = ("branches.csv", "gpus.csv", "releases.csv", "cuda_repositories.csv")


@cache
def _read_table_file(name: str) -> str:
    # pkgutil also reads from a zipapp, and is the cheapest way in the standard library at start-up.
    data = pkgutil.get_data(__package__, name)
    assert data is not None, f"{name} is not beside this file"
    return data.decode()


@cache
def _table_without_comments(name: str) -> str:
    """Return the table without its comments, the header line first."""
    text = _read_table_file(name)
    while text.startswith("#"):
        text = text.partition("\n")[2]
    return text


def read_collection_date(name: str) -> date:
    """Return the date on which the rows of the table ``name`` were collected, as its comments say."""
    # No regular expression: each plan would compile it.
    return date.fromisoformat(_read_table_file(name).partition("Collected ")[2].split(None, 1)[0].rstrip("."))


def note_old_tables(facts: Facts) -> tuple[str, ...]:
    """Return a note if the evidence is more than 90 days younger than the oldest table that decides on a driver."""
    from gpunode.facts.model import Known  # on use: completion of driver branches needs no facts

    if not isinstance(facts.observed_on, Known):
        return ()
    collected = min(map(read_collection_date, _DRIVER_DECIDING_TABLES))
    days = (facts.observed_on.value - collected).days
    if days <= _MAX_TABLE_AGE_DAYS:
        return ()
    note = (
        f"gpunode's tables of driver branches and GPUs are from {collected}, and this node's date is "
        f"{facts.observed_on.value}, {days} days later: newer branches and GPUs may be missing, and an "
        "ended branch may be listed as maintained. Install a newer release of gpunode, or choose the branch "
        "yourself with --driver"
    )
    return (note,)


def rows(name: str) -> Iterator[Mapping[str, str]]:
    """Return every row of the table ``name``, in order."""
    return csv.DictReader(_table_without_comments(name).splitlines())


def find(name: str, *key: str) -> Mapping[str, str] | None:
    """Return the row of the table ``name`` whose first columns are ``key``, or None.

    A converged run needs a few of 1445 devices, so only the line that is found is parsed.
    """
    text = _table_without_comments(name)
    wanted = ",".join(key) + ","
    if not all(part.isalnum() for part in key):
        return None
    start = text.find(f"\n{wanted}") + 1
    if not start:
        return None
    header = text[: text.index("\n")]
    end = text.find("\n", start)
    return next(csv.DictReader([header, text[start : end if end >= 0 else None]]))
