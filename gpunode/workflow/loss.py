"""Packages that a plan purges and that nothing could bring back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from gpunode.change import PackageChange, PackageState
from gpunode.errors import Refused
from gpunode.facts.model import Facts, known
from gpunode.host.port import HostView
from gpunode.package_id import PackageId
from gpunode.packages import system
from gpunode.workflow.converge import StagePlan

VersionLookup: TypeAlias = Callable[[Collection[PackageId]], Mapping[PackageId, Collection[str]]]
# An index that has none of so many installed packages is no index of this system.
_ASKED_BESIDE = 30


def archive_lookup(host: HostView, facts: Facts) -> VersionLookup:
    """Return what asks the package index of ``host`` by looking alone; a capture has none."""

    def list_offered_versions(packages: Collection[PackageId]) -> Mapping[PackageId, Collection[str]]:
        answer = host.look(system(facts).archives_of(packages))
        versions: dict[PackageId, list[str]] = {}
        for name, version in system(facts).archives(answer.text) if answer.outcome == "ok" else ():
            versions.setdefault(PackageId.of(name), []).append(version)
        return versions

    return list_offered_versions


def lost_packages(
    plans: Sequence[StagePlan], facts: Facts, list_offered_versions: VersionLookup
) -> tuple[PackageChange, ...] | None:
    """Return the purges of packages that no archive has, in whatever version; None where there is no package index.

    Such as a package that somebody built, or got as a file: a rollback could not bring it back.
    """
    purges = [c for plan in plans for c in plan.packages if not c.is_there_after and c.is_there_before]
    if not purges:
        return ()
    installed: Mapping[PackageId, PackageState] = known(facts.packages, {})
    beside = islice(sorted(installed), _ASKED_BESIDE)
    found = list_offered_versions(dict.fromkeys((*(change.id for change in purges), *beside)))
    return tuple(change for change in purges if not found.get(change.id)) if found else None


def loss_note(lost: Sequence[PackageChange] | None) -> str:
    """Return what a rollback could not restore, as one sentence; empty where nothing is lost, or nobody knows."""
    names = ", ".join(f"{one.id} {one.before.version}" for one in lost or () if one.before)
    return f"no archive has {names}, so a rollback could not restore what this plan purges" if names else ""


def refuse_loss(lost: Sequence[PackageChange] | None) -> None:
    """Refuse to purge packages that no archive has.

    Raises:
        Refused: there are such packages.
    """
    if note := loss_note(lost):
        raise Refused(
            note,
            why="the new driver conflicts with them, and they were installed from a file or from a source that is gone",
            hint="keep a copy of the package file, or add the source that has it; to continue anyway:\n"
            "add --allow-loss to the same command",
        )
