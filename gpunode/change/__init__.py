"""Changes of a node as data, with the states before and after.

Nothing here touches a node. A change has enough information to be shown, applied, journaled and undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import TypeAlias

from gpunode.change.base import CONFFILES_STEP_ID as CONFFILES_STEP_ID
from gpunode.change.base import FILE_STEP_IDS as FILE_STEP_IDS
from gpunode.change.base import GPU_SERVICES as GPU_SERVICES
from gpunode.change.base import OBSOLETE_STEP_ID as OBSOLETE_STEP_ID
from gpunode.change.base import OVERWRITTEN_STEP_ID as OVERWRITTEN_STEP_ID
from gpunode.change.base import RUNTIME_CONFIG_STAGE as RUNTIME_CONFIG_STAGE
from gpunode.change.base import SET_ASIDE_STEP_ID as SET_ASIDE_STEP_ID
from gpunode.change.base import Action as Action
from gpunode.change.base import BaseChange as BaseChange
from gpunode.change.base import Trigger as Trigger
from gpunode.change.base import short_unit_name as short_unit_name
from gpunode.change.base import sort_triggers as sort_triggers
from gpunode.change.cluster import ObjectChange as ObjectChange
from gpunode.change.files import Deferred as Deferred
from gpunode.change.files import FileChange as FileChange
from gpunode.change.files import FileState as FileState
from gpunode.change.files import SigningKey as SigningKey
from gpunode.change.files import UnknownContent as UnknownContent
from gpunode.change.files import digest as digest
from gpunode.change.files import restrict_writes_to_root as restrict_writes_to_root
from gpunode.change.node import CommandChange as CommandChange
from gpunode.change.node import MigChange as MigChange
from gpunode.change.node import MigInstance as MigInstance
from gpunode.change.node import MigLayout as MigLayout
from gpunode.change.node import ModuleChange as ModuleChange
from gpunode.change.node import ServiceChange as ServiceChange
from gpunode.change.node import ServiceState as ServiceState
from gpunode.change.node import display_command as display_command
from gpunode.change.packages import KnownAfter as KnownAfter
from gpunode.change.packages import PackageChange as PackageChange
from gpunode.change.packages import PackageState as PackageState
from gpunode.fast_dataclass import dataclass

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
