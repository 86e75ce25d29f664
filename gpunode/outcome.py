"""Outcomes of steps, and the definition of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gpunode.change import Change, RuntimeExpectation
from gpunode.errors import Refused
from gpunode.facts.model import Facts
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId

if TYPE_CHECKING:
    from gpunode.recipe import Recipe

Stage: TypeAlias = Literal["sources", "packages", "kernel", "runtime"]


@dataclass(frozen=True, slots=True)
class Planned:
    """The changes of a step; none if the node matches the recipe, the step is deferred, or nobody requests it.

    Attributes:
        reason: why they are made, or why none are needed, as one sentence.
        notes: warnings about the node's state, even without changes.
        change_notes: notes about these changes.
        expectation: what the runtime's own parser must find before it uses a configuration with these changes.
        stopped_workloads: what stops meanwhile (``docker containers``); empty if nothing does.
        is_deferred: whether another step, program or the next boot will do it, as the reason says: nothing was checked.
        is_requested: whether the recipe requests this at all; if not, nothing was checked either.
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
        """The distinct notes of both kinds."""
        return tuple(dict.fromkeys((*self.change_notes, *self.notes)))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal of the step, which stops the whole run.

    Attributes:
        held: the packages that somebody put on hold, if they are the reason.
    """

    what: str
    why: str
    hint: str
    held: tuple[PackageId, ...] = ()

    @classmethod
    def of(cls, error: Refused) -> Refusal:
        """Return the refusal that ``error`` raises."""
        return cls(error.what, error.why, error.hint)

    def as_error(self) -> Refused:
        """Return the error that raises this refusal."""
        return Refused(self.what, why=self.why, hint=self.hint)


BlockingAction: TypeAlias = Literal["console", "reboot"]
WAIT_PHRASES: Final[Mapping[BlockingAction, str]] = {
    "console": "somebody at the console",
    "reboot": "a reboot",
}
"""Phrases for what a run waits for."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A step blocked by something that gpunode only does on request; later steps still run.

    Attributes:
        waits_for: somebody who answers the firmware at the next boot; a reboot.
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
        list_wanted: returns those that this recipe requests on this node.
        is_owned: whether a package of a lock file belongs to the step, for any recipe and node. Packages that no step
            owns are the driver's, or its dependencies.
        list_companions: returns the installed packages that came with them and that a lock file also holds.
    """

    list_wanted: Callable[[Recipe, Facts], Iterable[PackageId]]
    is_owned: Callable[[PackageId], bool]
    list_companions: Callable[[Recipe, Facts], Iterable[PackageId]] = lambda _recipe, _facts: ()


@dataclass(frozen=True, slots=True)
class Step:
    """A step in the table; ``plan`` is pure.

    Attributes:
        serves: the ids of the steps whose packages need this step's files and units; an undo leaves them with these.
        needs: the ids of the steps without which this one's work is useless: no rollback undoes theirs first.
        for_driver: whether only a driver needs the step. A run without such steps also works without a GPU.
        uses_driver: whether the recipe's driver decides part of its plan, although it also works without one.
        packages: the packages that it installs by name; None if none of them are in a lock file.
        files: the files that it reads on every node, apart from folders that are read completely
            (``facts.probes.FOLDERS``), the runtimes' configuration and the package system's files.
        folder_files: files in those folders that gpunode writes, which stay in effect if a later recipe drops the step.
    """

    id: str
    title: str
    stage: Stage
    plan: Callable[[Recipe, Facts], StepOutcome]
    serves: tuple[str, ...]
    needs: tuple[str, ...] = ()
    for_driver: bool = False
    uses_driver: bool = False
    packages: StepPackageRules | None = None
    files: tuple[str, ...] = ()
    folder_files: tuple[str, ...] = ()
