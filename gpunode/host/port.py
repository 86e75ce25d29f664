"""The interface of a node for the workflows: probe it, and change it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from gpunode.change import Change, FileChange, PackageChange, RuntimeExpectation, Trigger
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Distro
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a long command reports.

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
class Settled:
    """A trigger has been carried out.

    Attributes:
        seconds: how long it took; for a restart, how long the unit was down.
        skipped: why there was nothing to do; empty when it was done.
        had_failed: whether the unit had failed before and was started, whatever was owed.
    """

    trigger: Trigger
    seconds: float
    skipped: str = ""
    had_failed: bool = False


@dataclass(frozen=True, slots=True)
class Workloads:
    """What would be disturbed.

    Attributes:
        gpu: processes that have a GPU's device open, as ``pid (command)``.
        containers: running containers of containerd, as ``namespace/id``.
    """

    gpu: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()


class HostView(Protocol):
    """A read-only node, as plan, doctor and capture use it."""

    def look(self, probe: Probe, /) -> Capture:
        """What ``probe`` returns; never raises for what the node says or lacks."""
        ...

    def distribution(self) -> Distro | None:
        """Return the distribution as this machine, or the mounted root, has it now; None if only the evidence tells."""
        ...

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation | None:
        """What the package manager would do, changing nothing; None where there is no package manager to ask."""
        ...


class Host(HostView, Protocol):
    """A node that can be changed."""

    def vet(self, changes: Sequence[Change], /) -> None:
        """Nothing, if every file among ``changes`` can be replaced or removed and nothing else is lost by it.

        Raises:
            Refused: one has other names, is sealed, is a mount point, or stands where nothing can be written.
        """
        ...

    def realize(self, change: Change, /) -> Change:
        """``change`` with every unsettled state replaced by what it is: a key is fetched and compared.

        Raises:
            Refused: a key is not the one that was meant.
            ChangeFailed: it could not be fetched.
        """
        ...

    def check(self, expectation: RuntimeExpectation, changes: Sequence[FileChange], /) -> str:
        """Has the runtime's own parser read its files as ``changes`` would leave them, and compares the result.

        Returns:
            What was checked, for the screen; it says so where no parser is there to ask.

        Raises:
            Refused: the parser does not take it, or reads something else than was meant.
        """
        ...

    def read_back(self, expectation: RuntimeExpectation, /) -> None:
        """The runtime's own parser reads in the files, now that they are written, what was meant; or is not there.

        Raises:
            ChangeFailed: it reads something else.
        """
        ...

    def confirm(self, expectation: RuntimeExpectation, /) -> None:
        """The running daemon, having read its configuration, says that it has what was meant; or cannot be asked.

        Raises:
            ChangeFailed: it says otherwise; its own last lines are in ``why``.
        """
        ...

    def apply(self, changes: Sequence[Change], /) -> None:
        """Makes ``changes``, all of one kind; package changes are one transaction.

        Raises:
            Conflict: a file is neither as ``before`` nor as ``after`` says.
            ChangeFailed: it could not be done; what was put back is said.
            Busy: a lock is held.
        """
        ...

    def offered(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        """The versions of each package that its archives have now."""
        ...

    def workloads(self) -> Workloads:
        """What uses the GPUs, and the containers that run."""
        ...

    def trigger(self, triggers: Sequence[Trigger], /) -> tuple[Settled, ...]:
        """Carries out ``triggers``, all of one kind, and waits until they are done.

        Raises:
            ChangeFailed: one of them failed; its target is the ``subject`` in ``why``.
        """
        ...


class PackageManager(Protocol):
    """What installs and removes packages; every call waits for its locks."""

    def refresh(self, lists: Sequence[str], /) -> None:
        """The package index of the repositories in the files ``lists`` is as their servers have it; of all for none.

        Raises:
            ChangeFailed: some index could not be had; those of before are in place.
            Busy: a lock is held.
        """
        ...

    def fetch(self, url: str, limit_bytes: int, /) -> bytes:
        """The content at ``url``, with the proxy, CA and credentials that packages are fetched with.

        Raises:
            ChangeFailed: it could not be fetched, or is larger than ``limit_bytes``.
        """
        ...

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation | None:
        """What ``transact`` would do, changing nothing and locking nothing; None without the package manager."""
        ...

    def offered(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        """The versions of each package that its archives have now."""
        ...

    def download(self, changes: Sequence[PackageChange], /) -> None:
        """What ``transact`` would install is in the package manager's own cache; nothing else is changed.

        Raises:
            ChangeFailed: it could not be had.
            Busy: a lock is held.
        """
        ...

    def transact(self, changes: Sequence[PackageChange], /) -> None:
        """``changes`` are made, in one transaction; packages are marked as their states say.

        Raises:
            ChangeFailed: it could not be done, or a refreshed index makes it do something else than was planned.
            Busy: a lock is held.
        """
        ...
