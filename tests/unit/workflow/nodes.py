"""A node in memory whose solver, daemons and containers behave as a test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpunode.change import Change, FileState, PackageChange, Trigger
from gpunode.errors import ChangeFailed
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Facts, Known
from gpunode.host.port import TriggerResult
from gpunode.host.rehearsal import RehearsalHost
from gpunode.packages.simulation import Simulation

Solver = Callable[[Sequence[PackageChange]], Simulation]


class Node(RehearsalHost):
    """Records its calls; a daemon starts if ``accepts`` is true for its file."""

    def __init__(
        self,
        facts: Facts,
        *,
        solver: Solver | None = None,
        accepts: Callable[[Trigger, Node], bool] = lambda _trigger, _node: True,
        docker_ps: Capture | None = None,
        refuses: type[Change] | None = None,
    ) -> None:
        super().__init__({}, {path: fact.value for path, fact in facts.files.items() if isinstance(fact, Known)})
        self.solver, self.accepts, self.docker_ps, self.refuses = solver, accepts, docker_ps, refuses
        self.units: Capture | None = None
        self.made: list[Change] = []
        self.triggered: list[Trigger] = []

    def run_probe(self, probe: Probe, /) -> Capture:
        if probe.key == "docker-ps" and self.docker_ps is not None:
            return self.docker_ps
        if probe.key == "units" and self.units is not None:
            return self.units
        return super().run_probe(probe)

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation | None:
        return self.solver(changes) if self.solver else None

    def apply(self, changes: Sequence[Change], /) -> None:
        if self.refuses and isinstance(changes[0], self.refuses):
            raise ChangeFailed("it could not be done", why="the test says so")
        super().apply(changes)
        self.made += changes

    def run_triggers(self, triggers: Sequence[Trigger], /) -> tuple[TriggerResult, ...]:
        self.triggered += triggers
        for trigger in triggers:
            if not self.accepts(trigger, self):
                raise ChangeFailed(f"{trigger.target} did not start again", why="its last lines: bad file")
        return tuple(TriggerResult(trigger, 0.1) for trigger in triggers)

    def bytes_of(self, path: str) -> bytes | None:
        """Return the current content of the file."""
        state = self.files.get(path)
        return state.content if isinstance(state, FileState) else None
