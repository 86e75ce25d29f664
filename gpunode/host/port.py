"""The interface of a node for the workflows: probe it, and change it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from gpunode.change import Change, FileChange, PackageChange, RuntimeExpectation, Trigger
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Distro
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress reported by a long command.

    Attributes:
        percent: of this phase, 0 to 100.
        detail: the package or file at hand.
    """

    phase: Literal["download", "install", "build", "wait", "run"]
    percent: float
    detail: str = ""


OnProgress: TypeAlias = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    """No-op progress callback."""


@dataclass(frozen=True, slots=True)
class TriggerResult:
    """The result of a trigger.

    Attributes:
        seconds: its duration; for a restart, the unit's downtime.
        skipped: why there was nothing to do; empty if it was done.
        had_failed: whether the unit had failed before, and so was started instead.
    """

    trigger: Trigger
    seconds: float
    skipped: str = ""
    had_failed: bool = False


@dataclass(frozen=True, slots=True)
class GpuClient:
    """A process that has a GPU's device open.

    Attributes:
        command: shortened, without secrets; empty for a process that only NVML shows.
        unit: the system's unit that started it; empty for a process of a user or a container.
        container: the beginning of its id.
        pod: ``namespace/name``, or its UID where the kubelet keeps no log of it.
    """

    pid: int
    command: str = ""
    unit: str = ""
    container: str = ""
    pod: str = ""

    def __str__(self) -> str:
        owner = f" in pod {self.pod}" if self.pod else f" in container {self.container}" if self.container else ""
        owner = f" of {self.unit}" if self.unit else owner
        return f"{self.pid} ({self.command}){owner}" if self.command else f"{self.pid}{owner}"


@dataclass(frozen=True, slots=True)
class Workloads:
    """Running workloads that a change could disturb.

    Attributes:
        gpu_clients: the processes that have a GPU's device open.
        containers: running containers of containerd, as ``namespace/id``.
    """

    gpu_clients: tuple[GpuClient, ...] = ()
    containers: tuple[str, ...] = ()


class HostView(Protocol):
    """A read-only node, as plan, doctor and capture use it."""

    def run_probe(self, probe: Probe, /) -> Capture:
        """Run ``probe``; never raise because of the node's state."""
        ...

    def read_live_distribution(self) -> Distro | None:
        """Return the present distribution of this machine or the mounted root; None if only the evidence has it."""
        ...

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation | None:
        """Simulate the package manager; return None without one."""
        ...


class Host(HostView, Protocol):
    """A node that can be changed."""

    def refuse_unsafe_changes(self, changes: Sequence[Change], /) -> None:
        """Refuse if a file among ``changes`` cannot be replaced or removed without loss.

        Raises:
            Refused: if one has other names, is sealed, or is on a read-only file system.
        """
        ...

    def complete_change(self, change: Change, /) -> Change:
        """Replace unsettled states in ``change`` by their values: a key is fetched and verified.

        Raises:
            Refused: if a key is not the expected one.
            ChangeFailed: if it could not be fetched.
        """
        ...

    def check_candidate_files(self, expectation: RuntimeExpectation, changes: Sequence[FileChange], /) -> str:
        """Let the runtime's own parser read its files as ``changes`` would leave them, and compare the result.

        Returns:
            A description of the check for the screen, also if there is no parser.

        Raises:
            Refused: if the parser rejects them, or reads something unexpected.
        """
        ...

    def check_written_files(self, expectation: RuntimeExpectation, /) -> None:
        """Check with the runtime's own parser, if any, that the written files mean what was intended.

        Raises:
            ChangeFailed: if they do not.
        """
        ...

    def check_daemon(self, expectation: RuntimeExpectation, /) -> None:
        """Check that the running daemon, if it can be queried, has the intended configuration.

        Raises:
            ChangeFailed: if it has not; its last log lines are in ``why``.
        """
        ...

    def apply(self, changes: Sequence[Change], /) -> None:
        """Apply ``changes``, all of one kind; package changes are one transaction.

        Raises:
            Conflict: if a file matches neither ``before`` nor ``after``.
            ChangeFailed: if one failed; the message says what was restored.
            Busy: if a lock is held.
        """
        ...

    def list_offered_versions(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        """Return the versions of each package that its archives have now."""
        ...

    def find_workloads(self) -> Workloads:
        """Return the running GPU processes and containers."""
        ...

    def run_triggers(self, triggers: Sequence[Trigger], /) -> tuple[TriggerResult, ...]:
        """Run ``triggers``, all of one kind, and wait for them.

        Raises:
            ChangeFailed: if one failed; its target is the ``subject`` in ``why``.
        """
        ...
