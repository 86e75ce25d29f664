"""The age of the tables that decide on a driver, compared with the date of the node."""

from __future__ import annotations

from typing import Final

from gpunode.catalog import tables
from gpunode.facts.model import Facts, Known

# NVIDIA releases a new branch about every three months.
_MAX_AGE_DAYS: Final = 90
_DRIVER_DECIDING_TABLES: Final = ("branches.csv", "gpus.csv", "releases.csv", "cuda_repositories.csv")


def note_old_tables(facts: Facts) -> tuple[str, ...]:
    """Return a note if the evidence is more than 90 days younger than the oldest table that decides on a driver."""
    if not isinstance(facts.observed_on, Known):
        return ()
    collected = min(map(tables.collected_on, _DRIVER_DECIDING_TABLES))
    days = (facts.observed_on.value - collected).days
    if days <= _MAX_AGE_DAYS:
        return ()
    note = (
        f"gpunode's tables of driver branches and GPUs are from {collected}, and this node's date is "
        f"{facts.observed_on.value}, {days} days later: newer branches and GPUs may be missing, and an "
        "ended branch may be listed as maintained. Install a newer release of gpunode, or choose the branch "
        "yourself with --driver"
    )
    return (note,)
