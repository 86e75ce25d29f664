"""A node in memory: a changeable capture, to rehearse setup and rollback."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gpunode.change import Change, FileChange, FileState, PackageChange, RuntimeExpectation, SigningKey, Trigger
from gpunode.errors import Conflict
from gpunode.facts.evidence import NOT_CAPTURED_REASON, Capture, Evidence, Ownership, Probe
from gpunode.host.port import TriggerResult, Workloads
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Simulation
from gpunode.runtimes import DesiredConfig, find_runtime


class RehearsalHost:
    """A node whose files are a dictionary; packages, modules and services are left to projection."""

    def __init__(self, evidence: Evidence, files: Mapping[str, FileState | None]) -> None:
        self._evidence = evidence
        self.files = dict(files)

    def run_probe(self, probe: Probe, /) -> Capture:
        """Return the file that the rehearsal has written, else the capture's answer."""
        if probe.path in self.files:
            state = self.files[probe.path]
            if state is None:
                return Capture(probe.path, "absent")
            return Capture(probe.path, "ok", state.content, ownership=Ownership(state.mode, state.uid, state.gid))
        return self._evidence.get(probe.key, Capture(probe.source, "absent", error=NOT_CAPTURED_REASON))

    def read_live_distribution(self) -> None:
        """Return None: the evidence has all that there is."""

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation | None:
        """Return None: a capture has no package manager."""
        del changes
        return None

    def refuse_unsafe_changes(self, changes: Sequence[Change], /) -> None:
        """Accept everything: files in a dictionary have no links, flags or mounts."""

    def complete_change(self, change: Change, /) -> Change:
        """Name a key without fetching it: a rehearsal uses no network."""
        if isinstance(change, FileChange) and isinstance(change.after, SigningKey):
            return replace(change, after=FileState(f"({change.after.what})\n".encode(), change.after.mode))
        return change

    def check_candidate_files(self, expectation: RuntimeExpectation, changes: Sequence[FileChange], /) -> str:
        """Check the candidates with gpunode's own parser, since there is no runtime."""
        files = {path: state.content for path, state in self.files.items() if state is not None}
        files.update({c.path: c.after.content for c in changes if isinstance(c.after, FileState)})
        runtime = find_runtime(expectation.runtime)
        observed = runtime.inspect(files, DesiredConfig(config=expectation.path))
        assert expectation.handlers <= frozenset(observed.handlers.items()), "the candidate lacks the intended handler"
        return f"not run: a rehearsal does not run {expectation.runtime}'s own parser"

    def check_written_files(self, expectation: RuntimeExpectation, /) -> None:
        """Do nothing: there is no parser, and the candidates were checked."""
        del expectation

    def check_daemon(self, expectation: RuntimeExpectation, /) -> None:
        """Do nothing: there is no daemon."""
        del expectation

    def apply(self, changes: Sequence[Change], /) -> None:
        """Change files in the dictionary; packages, modules and services change only in the projected facts.

        Raises:
            Conflict: if a file does not match ``before``.
        """
        for change in FileChange.of_kind(changes):
            if not change.is_generated:
                self._write(change)

    def _write(self, change: FileChange) -> None:
        if self.files.get(change.path) != change.before:
            raise Conflict(f"{change.path} has changed since it was planned", why="another program wrote it meanwhile")
        self.files[change.path] = change.after if isinstance(change.after, FileState) else None

    def list_offered_versions(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        """Return nothing: a capture has no archives."""
        del packages
        return {}

    def find_workloads(self) -> Workloads:
        """Return no workloads: nothing runs on a captured node."""
        return Workloads()

    def run_triggers(self, triggers: Sequence[Trigger], /) -> tuple[TriggerResult, ...]:
        """Report every trigger as skipped."""
        return tuple(TriggerResult(trigger, 0.0, "not run: a rehearsal") for trigger in triggers)
