"""Changes of a node as data, with the states before and after.

Nothing here touches a node. A change has enough information to be shown, applied, journaled and undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import TypeAlias

from gpunode.change.base import (
    CONFFILES_STEP_ID,
    FILE_STEP_IDS,
    GPU_SERVICES,
    OBSOLETE_STEP_ID,
    OVERWRITTEN_STEP_ID,
    RUNTIME_CONFIG_STAGE,
    SET_ASIDE_STEP_ID,
    Action,
    BaseChange,
    Trigger,
    short_unit_name,
    sort_triggers,
)
from gpunode.change.cluster import ObjectChange
from gpunode.change.files import (
    Deferred,
    FileChange,
    FileState,
    SigningKey,
    UnknownContent,
    digest,
    restrict_writes_to_root,
)
from gpunode.change.node import (
    CommandChange,
    MigChange,
    MigInstance,
    MigLayout,
    ModuleChange,
    ServiceChange,
    ServiceState,
    display_command,
)
from gpunode.change.packages import KnownAfter, PackageChange, PackageState
from gpunode.values import dataclass

__all__ = [
    "CONFFILES_STEP_ID",
    "FILE_STEP_IDS",
    "GPU_SERVICES",
    "OBSOLETE_STEP_ID",
    "OVERWRITTEN_STEP_ID",
    "RUNTIME_CONFIG_STAGE",
    "SET_ASIDE_STEP_ID",
    "Action",
    "BaseChange",
    "Change",
    "CommandChange",
    "Deferred",
    "FileChange",
    "FileState",
    "KnownAfter",
    "MigChange",
    "MigInstance",
    "MigLayout",
    "ModuleChange",
    "ObjectChange",
    "PackageChange",
    "PackageState",
    "RuntimeExpectation",
    "ServiceChange",
    "ServiceState",
    "SigningKey",
    "Trigger",
    "UnknownContent",
    "digest",
    "display_command",
    "restrict_writes_to_root",
    "short_unit_name",
    "sort_changes",
    "sort_triggers",
    "triggers_of",
]

Change: TypeAlias = FileChange | PackageChange | ServiceChange | ModuleChange | CommandChange | MigChange | ObjectChange


def sort_changes(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return ``changes`` in the order in which a stage applies them: files, packages, commands, modules, MIG, units.

    A unit that is stopped temporarily for the others, and that a trigger starts again, comes first.
    """
    return tuple(sorted(changes, key=lambda change: (not change.is_temporary_stop, change.rank)))


def triggers_of(changes: Iterable[Change]) -> tuple[Trigger, ...]:
    """Return the distinct triggers of ``changes``, in the order in which they are settled.

    Law: inverse changes have the same triggers, so a daemon also restarts after its file is restored.
    """
    return sort_triggers(trigger for change in changes for trigger in change.triggers)


@dataclass(frozen=True, slots=True)
class RuntimeExpectation:
    """The content that a runtime's own parser must find in a candidate configuration before it is written.

    Attributes:
        runtime: the id of a row in ``runtimes.RUNTIMES``.
        path: the root file, whether that changes or an imported one.
        handlers: maps runtime names to the binaries that they run.
        default: the default runtime after the change; None if it does not matter.
    """

    runtime: str
    path: str
    handlers: frozenset[tuple[str, str]] = field(default=frozenset())
    default: str | None = None
