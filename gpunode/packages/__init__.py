"""Package systems: the meaning of each one's files and answers, and the files written for it. Pure; one folder each."""

from __future__ import annotations

from typing import Final

from gpunode.facts.model import Facts
from gpunode.packages.deb import DEB
from gpunode.packages.system import Database, PackageSystem

__all__ = ["SYSTEMS", "Database", "PackageSystem", "system"]

SYSTEMS: Final[tuple[PackageSystem, ...]] = (DEB,)
"""In the order in which their databases are looked for; the first is assumed if a node has none."""

_SYSTEM_BY_ID: Final = {package_system.id: package_system for package_system in SYSTEMS}


def system(facts: Facts) -> PackageSystem:
    """The package system of a node."""
    return _SYSTEM_BY_ID[facts.package_system]
