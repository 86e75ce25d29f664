"""The interface of every kind of change, and the triggers that changes require."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

from gpunode.fast_dataclass import dataclass

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

TriggerKind: TypeAlias = Literal["index-refresh", "daemon-reload", "initramfs", "start", "cdi", "reload", "restart"]
_TRIGGER_ORDER: tuple[TriggerKind, ...] = (
    "index-refresh",
    "daemon-reload",
    "initramfs",
    "start",
    "cdi",
    "reload",
    "restart",
)
GPU_SERVICES: Final = (
    "nvidia-persistenced.service",
    "nvlsm.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-dcgm.service",
    "gpunode-mps.service",
)
"""Services that hold GPUs open without running workloads, in start order."""
# Later changes of the same run need these: packages need the index, units need systemd to have read them.
_TRIGGERS_RUN_PER_STAGE: frozenset[TriggerKind] = frozenset({"index-refresh", "daemon-reload"})

# The name of an action in plans and in the JSON output.
Action: TypeAlias = Literal[
    "create", "edit", "delete", "reload",
    "install", "upgrade", "downgrade", "mark", "purge",
    "enable", "disable", "start", "stop", "keep",
    "load", "unload", "run", "partition",
]  # fmt: skip

# The stage whose files are a node's configuration, which a plain rollback restores.
RUNTIME_CONFIG_STAGE = "runtime"
# Steps, in any stage, for backups of packages' own configuration files before a purge deletes them; for deletions of
# files that only an undone version shipped; and for backups of unpackaged files that a package may overwrite, or that
# are deleted with it because it ships a configuration file of that name.
CONFFILES_STEP_ID = "conffiles"
OBSOLETE_STEP_ID = "obsolete"
OVERWRITTEN_STEP_ID = "overwritten"
# The step for files that the package manager put beside configuration files that somebody had edited.
SET_ASIDE_STEP_ID = "set-aside"
FILE_STEP_IDS: Final = frozenset({CONFFILES_STEP_ID, OBSOLETE_STEP_ID, OVERWRITTEN_STEP_ID})


@dataclass(frozen=True, slots=True)
class Trigger:
    """Follow-up work that a change requires; done once, however many changes require it.

    Attributes:
        target: the unit for start, reload and restart, the list file for an index refresh; ``if-possible`` for a
            specification that was not requested, so that a run does not fail without it; else empty.
    """

    kind: TriggerKind
    target: str = ""

    @property
    def runs_at_stage_end(self) -> bool:
        """True if it is settled at the end of its stage; the others are settled at the end of the run."""
        return self.kind in _TRIGGERS_RUN_PER_STAGE

    @property
    def needs_services(self) -> bool:
        """True if only a running system can settle it; an image's daemons read their files when it boots."""
        return self.kind in {"daemon-reload", "start", "cdi", "reload", "restart"}

    def __str__(self) -> str:
        return f"{self.kind} {self.target}".strip()


def sort_triggers(triggers: Iterable[Trigger]) -> tuple[Trigger, ...]:
    """Return the distinct ``triggers`` in the order to run them: each after those whose results it reads."""

    def rank(trigger: Trigger) -> tuple[int, int, str]:
        place = GPU_SERVICES.index(trigger.target) if trigger.target in GPU_SERVICES else len(GPU_SERVICES)
        return _TRIGGER_ORDER.index(trigger.kind), place if trigger.kind == "start" else 0, trigger.target

    return tuple(sorted(set(triggers), key=rank))


class BaseChange(ABC):
    """A kind of change: a subclass is a frozen dataclass with ``before`` and ``after``, if it has states.

    Also add a new one to the union ``Change``; mypy then reports its missing host adapter and projection, and
    ``tests/unit/test_change.py`` a field that the journal cannot store.

    Attributes:
        kind_name: the name in the journal and in all JSON.
        rank: the position in a stage: what others depend on comes first.
        triggers: required once the change is made, and also once it is undone.
    """

    __slots__ = ()
    kind_name: ClassVar[str]
    rank: ClassVar[int]
    # Whether a plain rollback undoes it in the configuration's stage.
    is_undone_by_plain_rollback: ClassVar[bool] = False
    # Whether recording it as failed means that the node is unchanged.
    leaves_node_unchanged_on_failure: ClassVar[bool] = False
    # The positions in an undo of a setup, and in an undo of an undo; a file's depend on its stage.
    _undo_ranks: ClassVar[tuple[int, int]] = (2, 4)
    triggers: frozenset[Trigger]

    @property
    @abstractmethod
    def subject(self) -> str:
        """The thing that is changed, in one or two words: a path, a package, a unit."""

    @property
    @abstractmethod
    def action(self) -> Action:
        """The action as one word. A package's new version is an upgrade: only its package system orders versions."""

    @property
    @abstractmethod
    def participle(self) -> str:
        """The action as a participle: ``created``."""

    @property
    def instruction(self) -> str:
        """The change as a short instruction: ``enable containerd``."""
        return f"{self.action} {self.subject}"

    @property
    def summary(self) -> str:
        """The subject and the participle: ``/etc/x.conf created``."""
        return f"{self.subject} {self.participle}"

    def describe_progress(self, title: str) -> str:
        """Return the text to show while it is made; ``title`` is that of its step."""
        return f"{title}: {self.subject}"

    @property
    def states(self) -> tuple[str, str]:
        """The states before and after in a few words; empty if there is none to show."""
        return "", ""

    @property
    def is_final_state_known(self) -> bool:
        """True if the state afterwards is known."""
        return True

    @property
    def only_triggers_reread(self) -> bool:
        """True if the state stays, and its reader only has to read it again."""
        return False

    @property
    def records_unchanged_state(self) -> bool:
        """True if its subject stays as it is unless a command is killed, such as a package that may lose its hold."""
        return False

    @property
    def is_temporary_stop(self) -> bool:
        """True if it stops a unit only until its trigger starts it again."""
        return False

    @property
    def is_undoable(self) -> bool:
        """True unless an undo leaves it alone: a module, a file that is only reread, a temporary stop of a unit."""
        return not (self.only_triggers_reread or self.is_temporary_stop)

    @property
    def may_recur_in_stage(self) -> bool:
        """True if a new plan of the stage may contain it again: making it once does not complete it."""
        return False

    @property
    def exists_before(self) -> bool:
        """True unless it creates its subject."""
        return True

    @property
    def exists_after(self) -> bool:
        """True unless it removes its subject."""
        return True

    @property
    def unit_running_after(self) -> str:
        """The unit that runs afterwards; empty for a change of anything else."""
        return ""

    def without_start(self) -> Self:
        """Return it without running its unit afterwards."""
        return self

    def runs_command(self, *words: str) -> bool:
        """Return whether it is a command that begins with ``words``."""
        return False

    @property
    def final_state_known_when(self) -> str:
        """When the state afterwards will be known; empty if it is known now."""
        return ""

    @property
    def origin(self) -> str:
        """The archive that a package comes from, and its signing key; empty for any other change."""
        return ""

    @property
    def outcome_text(self) -> str:
        """The result for the log: the participle, with the versions of a package."""
        return self.participle

    @property
    def log_details(self) -> tuple[str, ...]:
        """Further lines for the log; requires a change whose contents are digests."""
        return ()

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that are created for it."""
        return ()

    @property
    def contents(self) -> tuple[bytes, ...]:
        """The bytes that have to be backed up before the change is journaled."""
        return ()

    @property
    @abstractmethod
    def record(self) -> dict[str, object]:
        """The states in JSON's types, for ``log --json``; requires a change whose contents are digests."""

    @abstractmethod
    def inverse(self) -> BaseChange | None:
        """Return the change that undoes this one; None if there is none.

        Law: an involution if all states are known.
        """

    def undo_rank(self, stage: str, step: str, *, is_redo: bool) -> int:
        """Return the position in an undo of a setup, or with ``is_redo`` in an undo of an undo."""
        return self._undo_ranks[is_redo]

    def removes_what_packages_need(self, stage: str, step: str) -> bool:
        """Return whether it removes what remaining packages may need: a file outside the configuration, a unit."""
        return False

    def restrict_writes_to_root(self) -> Self:
        """Return it with a result that only root can write."""
        return self

    @classmethod
    def of_kind(cls, changes: Iterable[object]) -> tuple[Self, ...]:
        """Return the ``changes`` of this kind."""
        return tuple(change for change in changes if isinstance(change, cls))


def short_unit_name(unit: str) -> str:
    """Return a unit's usual short name: ``containerd``."""
    return unit.removesuffix(".service")
