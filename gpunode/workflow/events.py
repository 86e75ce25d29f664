"""Events of a workflow; the screen and the JSON envelope are two of the observers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from gpunode.change import Change, Trigger
from gpunode.facts.model import Facts
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import TriggerResult
from gpunode.recipe import Recipe
from gpunode.workflow.converge import StagePlan


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The node has been probed."""

    recipe: Recipe
    facts: Facts


@dataclass(frozen=True, slots=True)
class PlanCompleted:
    """The plan is complete and nothing has been done; an empty plan means a converged node."""

    stages: tuple[StagePlan, ...]


TRANSACTION_STEP_ID: Final = "packages"
"""The step id under which all package changes of a stage are shown."""


@dataclass(frozen=True, slots=True)
class Applying:
    """Changes of one kind are being made; packages come as one transaction."""

    step: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The changes have been made and journaled; ``note`` says what was checked on the way."""

    step: str
    changes: tuple[Change, ...]
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Triggering:
    """Triggers of one kind are being carried out."""

    triggers: tuple[Trigger, ...]


@dataclass(frozen=True, slots=True)
class Triggered:
    """A trigger has been carried out."""

    result: TriggerResult


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for the user, such as what an earlier run left pending or what was restored."""

    text: str


Event: TypeAlias = Surveyed | PlanCompleted | Applying | Applied | Triggering | Triggered | Notice
Observer: TypeAlias = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Ignore the event."""
    del event
