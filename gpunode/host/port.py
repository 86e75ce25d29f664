"""The interface of a node for the workflows: probe it, and change it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from gpunode.change import Change, FileChange, PackageChange, RuntimeExpectation, Trigger
from gpunode.facts.evidence import Capture, Probe


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


def unheard(_: Progress) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class Action:
    """One package that a simulated transaction would install, upgrade or remove.

    Attributes:
        version: after the transaction; empty for a removal.
        former: before it; empty for a new package.
        origin: of the archive that it comes from, as apt prints it (``Debian:12.5/stable``).
    """

    verb: Literal["install", "remove", "purge"]
    name: str
    version: str = ""
    former: str = ""
    origin: str = ""


NOT_SIMULATED: Final = "not simulated: "


@dataclass(frozen=True, slots=True)
class Simulation:
    """The package manager's simulation of a transaction.

    Attributes:
        problem: its refusal, verbatim; or, after ``NOT_SIMULATED``, why it was not asked.
    """

    actions: tuple[Action, ...]
    problem: str = ""


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

    def offered(self, names: Collection[str], /) -> Mapping[str, frozenset[str]]:
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
