"""A package archive with a solver like apt's: it upgrades what it may, and removes what it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpunode.change import PackageChange, PackageState
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Action, Simulation

Depends = frozenset[str]


class _RefusedError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Solver:
    """Installed and available packages with their dependencies; the driver's packages must have one version.

    Attributes:
        installed: the installed packages with their dependencies.
        archive: the newest versions with their dependencies.
        others: the installed packages that accept any version of their dependencies.
    """

    installed: Mapping[str, Depends]
    archive: Mapping[str, Depends]
    others: frozenset[str] = frozenset()
    old: str = "535.261.03-1"
    new: str = "580.178.04-1"

    def __call__(self, changes: Sequence[PackageChange]) -> Simulation:
        purged = {str(change.id) for change in changes if change.after is None}
        named = [str(change.id) for change in changes if change.after is not None]
        try:
            return Simulation(tuple(self._actions(named, purged)), manager="apt")
        except _RefusedError as refused:
            return Simulation((), f"The following packages have unmet dependencies:\n {refused}")

    def states(self) -> dict[str, PackageState]:
        """Return the states of the installed packages."""
        return {name: PackageState(self.old) for name in self.installed}

    def _actions(self, named: Sequence[str], purged: set[str]) -> list[Action]:
        brought: set[str] = set()
        for name in named:
            if name not in self.others:
                self._bring(name, purged, brought)
        gone = set(purged)
        while broken := self._broken(gone, brought):
            name = min(broken)
            if name in self.others and name in named:
                raise _RefusedError(f"{name} : Depends: {broken[name]} but it is not going to be installed")
            if not self._upgraded(name, gone, brought):
                gone.add(name)
        kept = [
            Action("install", PackageId.of(n), self.new, self.old if n in self.installed else "")
            for n in sorted(brought)
        ]
        return kept + [Action("purge", PackageId.of(n), "", self.old) for n in sorted(gone & self.installed.keys())]

    def _upgraded(self, name: str, gone: set[str], brought: set[str]) -> bool:
        if name in self.others or name not in self.archive:
            return False
        with suppress(_RefusedError):
            self._bring(name, gone, brought)
        return name in brought

    def _bring(self, name: str, gone: set[str], brought: set[str]) -> None:
        if name in brought:
            return
        coming = {name}
        while more := {need for one in coming for need in self.archive[one]} - coming - brought:
            if lacking := sorted(more & gone | more - self.archive.keys()):
                wants = min(one for one in coming if lacking[0] in self.archive[one])
                raise _RefusedError(f"{wants} : Depends: {lacking[0]} but it is not going to be installed")
            coming |= more
        brought |= coming

    def _broken(self, gone: set[str], brought: set[str]) -> dict[str, str]:
        """Return each package with unmet dependencies, and those."""
        staying = self.installed.keys() - gone - brought
        return {
            name: lacking[0]
            for name in staying
            if (
                lacking := sorted(
                    need
                    for need in self.installed[name]
                    if need in gone or (need in brought and name not in self.others)
                )
            )
        }
