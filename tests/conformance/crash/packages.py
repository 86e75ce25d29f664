"""A package manager that writes the package database of a constructed root file by file, without apt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gpunode.change import KnownAfter, PackageChange
from gpunode.host.process import Runner
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Action, Simulation
from tests.fakes.dpkg import EXTENDED_STATES, STATUS, Packages, obey

_VERSION = "1.20.1-1"


class FilePackages:
    """A stand-in for ``host.apt.Apt`` whose archive has every package in one version."""

    def __init__(self, runner: Runner, *_: object) -> None:
        self._root = Path(runner.root)

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation:
        """Return exactly the requested actions."""
        wanted = obey(tuple(change for change in changes if not change.is_mark))
        versions = {change.id: _VERSION for change in changes if isinstance(change.after, KnownAfter)}
        return Simulation(
            tuple(Action(one.verb, one.id, versions.get(one.id, one.version), one.former) for one in wanted.actions)
        )

    def list_offered_versions(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        """Return the only version of each package."""
        return {package: frozenset({_VERSION}) for package in packages}

    def transact(self, changes: Sequence[PackageChange], /) -> None:
        """Act like apt and dpkg: the actions one package at a time, then the marks."""
        batch = tuple(changes)
        packages = Packages.read(*(self._path(path).read_text() for path in (STATUS, EXTENDED_STATES)))
        self._write(packages := packages.announced(batch))
        for change in batch:
            if not change.is_mark:
                self._write(packages := packages.changed(change))
        self._write(packages.marked(batch))

    def _write(self, packages: Packages) -> None:
        for name, text in ((STATUS, packages.status), (EXTENDED_STATES, packages.extended_states)):
            path = self._path(name)
            if path.read_text() != text:
                path.with_suffix(".new").write_text(text)
                path.with_suffix(".new").rename(path)

    def _path(self, name: str) -> Path:
        return self._root / name.lstrip("/")

    def refresh(self, lists: Sequence[str], /) -> None:
        """Do nothing: there is no index."""

    def download(self, changes: Sequence[PackageChange], /) -> None:
        """Do nothing: there is no archive."""

    def fetch(self, url: str, limit_bytes: int, /) -> bytes:
        """There is no key."""
        raise AssertionError(url)
