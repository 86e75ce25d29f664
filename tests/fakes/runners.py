"""Runners for tests: one that sets an environment, one that answers from a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpunode.facts.evidence import Capture, Probe
from gpunode.host.local import LocalHost
from gpunode.host.process import FinishedCommand, Runner


class EnvRunner(Runner):
    """The real runner, with a given environment for every command."""

    def __init__(self, **environment: str) -> None:
        super().__init__()
        self._extra = environment

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **given: Any) -> FinishedCommand:
        """Run as ``Runner.run`` does."""
        return super().run(argv, env={**self._extra, **(env or {})}, **given)


class ScriptedRunner(Runner):
    """Runs nothing: ``answer`` returns the result of each command; ``calls`` holds the commands with their input."""

    def __init__(self, answer: Callable[[tuple[str, ...]], FinishedCommand]) -> None:
        super().__init__()
        self._answer = answer
        self.calls: list[tuple[str, ...]] = []
        self.stdin: list[bytes] = []

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", **given: Any) -> FinishedCommand:
        """Return the scripted result of ``argv``."""
        self.calls.append(tuple(argv))
        self.stdin.append(stdin)
        return self._answer(tuple(argv))


def ended(
    argv: Sequence[str] = (), status: int = 0, out: bytes = b"", err: bytes = b"", *, late: bool = False
) -> FinishedCommand:
    """Return the result of an ended command."""
    return FinishedCommand(tuple(argv), 124 if late else status, out, err, 0.1, late)


def looked(runner: Runner, probe: Probe) -> Capture:
    """Return the answer to ``probe`` on a host whose commands ``runner`` runs."""
    host = LocalHost()
    host.runner = runner
    return host.run_probe(probe)
