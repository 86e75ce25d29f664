"""Outcomes of steps, and the definition of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.change import Change, RuntimeExpectation
from gpunode.errors import DrainRequired, GpunodeError, RebootRequired
from gpunode.facts.model import Facts
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe

Stage: TypeAlias = Literal["sources", "packages", "kernel", "runtime"]


@dataclass(frozen=True, slots=True)
class Planned:
    """The changes of a step; none if the node already matches the recipe.

    Attributes:
        reason: why they are made, or why none are needed, one sentence.
        notes: warnings about the node's state, even without changes.
        change_notes: notes about these changes.
        expectation: what the runtime's own parser must find before a configuration of these changes is used.
        stopped_workloads: what stops while this is done (``docker containers``); empty when nothing does.
        is_deferred: whether the reason is what another step, program or the next boot will do: nothing was checked.
        is_requested: whether the recipe asks for this at all; where it does not, nothing was checked either.
    """

    changes: tuple[Change, ...]
    reason: str
    notes: tuple[str, ...] = ()
    change_notes: tuple[str, ...] = ()
    expectation: RuntimeExpectation | None = None
    stopped_workloads: str = ""
    is_deferred: bool = False
    is_requested: bool = True

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Both kinds of notes, each once."""
        return tuple(dict.fromkeys((*self.change_notes, *self.notes)))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal of the step, which stops the whole run.

    Attributes:
        exit_code: 3 refused, 11 drain required, 13 cannot tell.
        held: the packages that somebody put on hold, where that is why.
    """

    what: str
    why: str
    hint: str
    exit_code: int = 3
    held: tuple[PackageId, ...] = ()


BlockingAction: TypeAlias = Literal["drain", "console", "reboot"]
WAIT_ERRORS: Final[Mapping[BlockingAction, type[GpunodeError]]] = {
    "drain": DrainRequired,
    "console": RebootRequired,
    "reboot": RebootRequired,
}
"""How a run ends that waits, by what it waits for; what has to come first in front."""
WAIT_PHRASES: Final[Mapping[BlockingAction, str]] = {
    "drain": "a drain",
    "console": "somebody at the console",
    "reboot": "a reboot",
}
"""What is waited for, in words."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A step blocked by something that gpunode does not do unasked; later steps still run.

    Attributes:
        waits_for: workloads that must leave first; somebody who answers the firmware at the next boot; a reboot.
    """

    waits_for: BlockingAction
    reason: str


def reboot_suffices(waits: Sequence[Blocked]) -> bool:
    """Return True if a reboot without anybody at the console lets the run continue."""
    return bool(waits) and all(wait.waits_for == "reboot" for wait in waits)


StepOutcome: TypeAlias = Planned | Refusal | Blocked


@dataclass(frozen=True, slots=True)
class StepPackageRules:
    """The packages that a step installs by name, and that a lock file holds.

    Attributes:
        list_wanted: those that this recipe asks for on this node.
        is_owned: whether a package of a lock file is the step's, whatever the recipe and the node. What no step owns is
            the driver's, or came along with it.
    """

    list_wanted: Callable[[Recipe, Facts], Iterable[PackageId]]
    is_owned: Callable[[PackageId], bool]


@dataclass(frozen=True, slots=True)
class Step:
    """A step in the table; ``plan`` is pure.

    Attributes:
        needs: the ids of the steps without whose work this one's is of no use: no rollback takes that away first.
        for_driver: whether only a driver needs the step. A run that takes no such step works without a GPU, too.
        packages: what it installs by name; None where a lock file holds none of it.
        files: what it reads on every node, outside of the folders that are read whole (``facts.probes.FOLDERS``), of
            the runtimes' configuration and of the package system's.
    """

    id: str
    title: str
    stage: Stage
    plan: Callable[[Recipe, Facts], StepOutcome]
    needs: tuple[str, ...] = ()
    for_driver: bool = False
    packages: StepPackageRules | None = None
    files: tuple[str, ...] = ()
