"""Package systems: the meaning of each one's files and answers, and the files written for it. Pure; one folder each."""

from __future__ import annotations

from typing import Final

from gpunode.change import Change, CommandChange
from gpunode.facts.model import Facts
from gpunode.package_id import PackageId
from gpunode.packages.deb import DEB
from gpunode.packages.system import Database, PackageSystem

__all__ = ["SYSTEMS", "Database", "PackageSystem", "is_repair", "list_reinstalled", "system"]

SYSTEMS: Final[tuple[PackageSystem, ...]] = (DEB,)
"""In the order in which their databases are looked for; the first is assumed if a node has none."""

_SYSTEM_BY_ID: Final = {package_system.id: package_system for package_system in SYSTEMS}


def system(facts: Facts) -> PackageSystem:
    """The package system of a node."""
    return _SYSTEM_BY_ID[facts.package_system]


def is_repair(change: Change) -> bool:
    """Return whether it is a ``repair_change``."""
    return isinstance(change, CommandChange) and any(change.argv == one.repair_change.argv for one in SYSTEMS)


def list_reinstalled(change: Change) -> tuple[tuple[PackageId, str], ...]:
    """Return the packages that a ``reinstall_change`` names, with their versions ("" for any); () for other changes."""
    starts = [package_system.reinstall_change({}, "").argv[:3] for package_system in SYSTEMS]
    if not isinstance(change, CommandChange) or not any(change.runs_command(*start) for start in starts):
        return ()
    named = (word.partition("=") for word in change.argv[4:])
    return tuple((PackageId.of(name), version) for name, _, version in named)
