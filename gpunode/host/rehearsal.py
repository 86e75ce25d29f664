"""A node in memory: a capture that can be changed, to rehearse setup and rollback on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpunode.change import (
    Change,
    FileChange,
    FileState,
    PackageChange,
    RuntimeExpectation,
    SigningKey,
    Trigger,
)
from gpunode.errors import Conflict
from gpunode.facts.evidence import Capture, Evidence, Ownership, Probe
from gpunode.facts.model import Distro
from gpunode.host.port import Settled, Workloads
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Simulation
from gpunode.runtimes import DesiredConfig, runtime


class RehearsalHost:
    """Files are a dictionary; packages, modules and services are left to projection."""

    def __init__(self, evidence: Evidence, files: Mapping[str, FileState | None]) -> None:
        self._evidence = evidence
        self.files = dict(files)

    def look(self, probe: Probe, /) -> Capture:
        """What the capture holds, or what the rehearsal has written since."""
        if probe.path in self.files:
            return _as_capture(probe.path, self.files[probe.path])
        return self._evidence.get(probe.key, Capture(probe.source, "absent", error="not captured"))

    def distribution(self) -> Distro | None:
        """Return None: the evidence has all that there is."""
        return None

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation | None:
        """None: a capture has no package manager."""
        del changes
        return None

    def vet(self, changes: Sequence[Change], /) -> None:
        """A file in a dictionary has no more to it than a change says."""

    def realize(self, change: Change, /) -> Change:
        """A key is named, not fetched: a rehearsal reaches no network."""
        if isinstance(change, FileChange) and isinstance(change.after, SigningKey):
            return replace(change, after=FileState(f"({change.after.what})\n".encode(), change.after.mode))
        return change

    def check(self, expectation: RuntimeExpectation, changes: Sequence[FileChange], /) -> str:
        """Reads the candidates with gpunode's own parser; the runtime's is not here."""
        files = {path: state.content for path, state in self.files.items() if state is not None}
        files.update({c.path: c.after.content for c in changes if isinstance(c.after, FileState)})
        row = runtime(expectation.runtime)
        found = row.inspect(files, DesiredConfig(config=expectation.path))
        assert expectation.handlers <= frozenset(found.handlers.items()), "the candidate lacks the intended handler"
        return f"not run: a rehearsal does not run {expectation.runtime}'s own parser"

    def read_back(self, expectation: RuntimeExpectation, /) -> None:
        """Nothing: the parser is not here, and the candidates are what the dictionary holds."""
        del expectation

    def confirm(self, expectation: RuntimeExpectation, /) -> None:
        """Nothing: there is no daemon to ask."""
        del expectation

    def apply(self, changes: Sequence[Change], /) -> None:
        """Files change in the dictionary; packages, modules and services only in the projected facts.

        Raises:
            Conflict: a file is not as ``before`` says.
        """
        for change in changes:
            if isinstance(change, FileChange) and not change.is_generated:
                self._write(change)

    def _write(self, change: FileChange) -> None:
        if self.files.get(change.path) != change.before:
            raise Conflict(f"{change.path} has changed since it was planned", why="something else wrote it meanwhile")
        self.files[change.path] = change.after if isinstance(change.after, FileState) else None

    def offered(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        """Nothing: a capture has no archives."""
        del packages
        return {}

    def workloads(self) -> Workloads:
        """None: nothing runs on a captured node."""
        return Workloads()

    def trigger(self, triggers: Sequence[Trigger], /) -> tuple[Settled, ...]:
        """Says that none was run."""
        return tuple(Settled(trigger, 0.0, "not run: a rehearsal") for trigger in triggers)


def _as_capture(path: str, state: FileState | None) -> Capture:
    if state is None:
        return Capture(path, "absent")
    return Capture(path, "ok", state.content, ownership=Ownership(state.mode, state.uid, state.gid))
