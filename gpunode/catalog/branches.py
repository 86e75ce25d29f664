"""NVIDIA's driver branches: kind, end of life and names of packages. Source: branches.csv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeAlias, cast

from gpunode.catalog import tables
from gpunode.fast_dataclass import dataclass

BranchKind: TypeAlias = Literal["production", "lts", "new-feature", "legacy"]
ModuleFlavour: TypeAlias = Literal["open", "proprietary"]

FIRST_OPEN_ONLY_BRANCH = 615
"""The first branch for which NVIDIA packages only the open kernel modules (installation guide 620, §4.1)."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A driver branch.

    Attributes:
        is_maintained: whether NVIDIA still maintains it.
        eol: the month in which maintenance ended or ends, ``2028-06``; empty when no date is known.
        newest_seen: the newest version known to exist; empty when none is.
        has_suffixed_packages: whether Ubuntu's package names carry the branch (``nvidia-dkms-580``); NVIDIA dropped it
            at 590.
    """

    number: int
    kind: BranchKind
    is_maintained: bool
    eol: str
    newest_seen: str
    has_suffixed_packages: bool
    flavours: frozenset[ModuleFlavour]


@lru_cache(maxsize=1)
def all_branches() -> tuple[Branch, ...]:
    """Return every branch of the table, oldest first."""
    return tuple(_branch_from_row(row) for row in tables.rows("branches.csv"))


def is_unlisted(number: int) -> bool:
    """Return whether the branch is newer than the table, so that its kind and its end are unknown."""
    return number > all_branches()[-1].number


def find(number: int) -> Branch | None:
    """Return the branch with this number; one newer than the table is assumed to be like its newest. None for a gap."""
    latest = all_branches()[-1]
    if is_unlisted(number):
        return replace(latest, number=number, kind="new-feature", is_maintained=True, eol="", newest_seen="")
    return next((branch for branch in all_branches() if branch.number == number), None)


def production() -> Branch:
    """Return the production branch, which gets fixes for about a year."""
    return next(branch for branch in reversed(all_branches()) if branch.is_maintained and branch.kind == "production")


def maintained_lts_branches() -> tuple[Branch, ...]:
    """Return the long-term support branches that get fixes, three years each; newest first."""
    return tuple(branch for branch in reversed(all_branches()) if branch.is_maintained and branch.kind == "lts")


def newest_maintained_branch() -> Branch:
    """Return the newest maintained branch, of whatever kind."""
    return next(branch for branch in reversed(all_branches()) if branch.is_maintained)


def _branch_from_row(row: Mapping[str, str]) -> Branch:
    return Branch(
        number=int(row["branch"]),
        kind=cast("BranchKind", row["kind"]),
        is_maintained=row["active"] == "yes",
        eol=row["eol"],
        newest_seen=row["newest_seen"],
        has_suffixed_packages=row["suffixed_names"] == "yes",
        flavours=frozenset(cast("list[ModuleFlavour]", row["flavours"].split())),
    )
