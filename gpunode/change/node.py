"""Changes of units, kernel modules and MIG layouts, and commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import ClassVar

from gpunode.change.base import Action, BaseChange, Trigger, short_unit_name
from gpunode.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of a unit: enabled at boot or not, running now or not."""

    enabled: bool
    active: bool

    def __str__(self) -> str:
        return f"{'enabled' if self.enabled else 'disabled'}, {'active' if self.active else 'inactive'}"


@dataclass(frozen=True, slots=True)
class ServiceChange(BaseChange):
    """A unit is enabled or disabled, started or stopped."""

    kind_name: ClassVar[str] = "service"
    rank: ClassVar[int] = 5
    _undo_ranks: ClassVar[tuple[int, int]] = (0, 6)

    unit: str
    before: ServiceState
    after: ServiceState
    triggers: frozenset[Trigger] = frozenset()

    @property
    def subject(self) -> str:
        return self.unit

    @property
    def action(self) -> Action:
        if self.before.active != self.after.active:
            return "start" if self.after.active else "stop"
        if self.before.enabled != self.after.enabled:
            return "enable" if self.after.enabled else "disable"
        return "keep"

    @property
    def participle(self) -> str:
        return self._choose_verb("enabled", "disabled", "started", "stopped") or "kept"

    @property
    def is_temporary_stop(self) -> bool:
        return Trigger("start", self.unit) in self.triggers

    @property
    def unit_running_after(self) -> str:
        return self.unit if self.after.active else ""

    def without_start(self) -> ServiceChange:
        return replace(self, after=replace(self.after, active=False))

    @property
    def instruction(self) -> str:
        return f"{self._choose_verb('enable', 'disable', 'start', 'stop') or 'keep'} {short_unit_name(self.unit)}"

    @property
    def summary(self) -> str:
        return f"{short_unit_name(self.unit)} {self.participle}"

    def _choose_verb(self, enable: str, disable: str, start: str, stop: str) -> str:
        words = [enable if self.after.enabled else disable] if self.before.enabled != self.after.enabled else []
        words += [start if self.after.active else stop] if self.before.active != self.after.active else []
        return " and ".join(words)

    @property
    def states(self) -> tuple[str, str]:
        return str(self.before), str(self.after)

    @property
    def record(self) -> dict[str, object]:
        return {"before": asdict(self.before), "after": asdict(self.after)}

    def removes_what_packages_need(self, stage: str, step: str) -> bool:
        return not (self.after.active and self.after.enabled)

    def inverse(self) -> ServiceChange:
        return replace(self, before=self.after, after=self.before)


@dataclass(frozen=True, slots=True)
class ModuleChange(BaseChange):
    """A kernel module is loaded or unloaded."""

    kind_name: ClassVar[str] = "module"
    rank: ClassVar[int] = 3

    module: str
    before: bool
    after: bool
    triggers: frozenset[Trigger] = frozenset()

    @property
    def subject(self) -> str:
        return self.module

    @property
    def action(self) -> Action:
        return "load" if self.after else "unload"

    @property
    def participle(self) -> str:
        return "loaded" if self.after else "unloaded"

    @property
    def instruction(self) -> str:
        return f"{self.action} the kernel module {self.module}"

    @property
    def is_undoable(self) -> bool:
        return False

    @property
    def record(self) -> dict[str, object]:
        return {"before": {"loaded": self.before}, "after": {"loaded": self.after}}

    def inverse(self) -> ModuleChange:
        return replace(self, before=self.after, after=self.before)


def display_command(argv: Sequence[str]) -> str:
    """Return a command in a readable form: a shell script by the name given to it, Helm's by the release."""
    match argv:
        case ("sh", "-c", _, name, *_):
            return name
        case ("helm", "upgrade", "--install", name, *_):
            return f"helm upgrade --install {name}"
        case _:
            return " ".join(argv)


def without_helm_values(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a Helm command without the values that it sets, which may include secrets."""
    pairs = zip(("", *argv), argv, strict=False)
    return tuple(f"{word.partition('=')[0]}=…" if last == "--set-json" else word for last, word in pairs)


@dataclass(frozen=True, slots=True)
class CommandChange(BaseChange):
    """A command that is none of the other kinds: repairing packages, building a DKMS module, releasing a chart.

    Attributes:
        cluster: the cluster that it changes, as in ``ObjectChange``; empty for a command on this machine.
    """

    kind_name: ClassVar[str] = "command"
    rank: ClassVar[int] = 2

    argv: tuple[str, ...]
    purpose: str
    undo: tuple[str, ...] | None = None
    cluster: str = ""
    triggers: frozenset[Trigger] = frozenset()

    @property
    def subject(self) -> str:
        return display_command(self.argv)

    @property
    def action(self) -> Action:
        return "run"

    @property
    def participle(self) -> str:
        return "run"

    @property
    def summary(self) -> str:
        return self.subject

    def describe_progress(self, title: str) -> str:
        return self.subject

    def runs_command(self, *words: str) -> bool:
        return self.argv[: len(words)] == words

    @property
    def log_details(self) -> tuple[str, ...]:
        return (f"for {self.purpose}" + (f"; undone by {display_command(self.undo)}" if self.undo else ""),)

    @property
    def record(self) -> dict[str, object]:
        undone_by = None if self.undo is None else list(without_helm_values(self.undo))
        return {"argv": list(without_helm_values(self.argv)), "purpose": self.purpose, "undo": undone_by}

    def inverse(self) -> CommandChange | None:
        if self.undo is None:
            return None
        return replace(self, argv=self.undo, purpose=f"undo: {self.purpose}", undo=self.argv)


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance of MIG and the compute instances in it.

    Attributes:
        profile: its name without ``MIG`` (``1g.10gb+me``).
        start: the first memory slice that it occupies; ``size`` is the number of slices.
        compute: the slices of each of its compute instances, in order (``3``); usually a single one with all slices.
    """

    profile: str
    start: int
    size: int
    compute: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MigLayout:
    """A GPU's partition by MIG; ``instances`` are sorted by first slice, none if MIG is off."""

    enabled: bool
    instances: tuple[MigInstance, ...] = ()

    @property
    def record(self) -> dict[str, object]:
        """The layout in JSON's types."""
        return {"enabled": self.enabled, "instances": [{**asdict(instance), "compute": list(instance.compute)}
                                                       for instance in self.instances]}  # fmt: skip

    def is_part_of(self, other: MigLayout) -> bool:
        """Return whether each instance is also in ``other``, with no more compute instances than there."""
        others = {(instance.profile, instance.start): instance for instance in other.instances}
        pairs = [(instance, others.get((instance.profile, instance.start))) for instance in self.instances]
        return all(
            it and instance.size == it.size and instance.compute == it.compute[: len(instance.compute)]
            for instance, it in pairs
        )

    def __str__(self) -> str:
        counts = Counter(instance.profile for instance in self.instances)
        parts = ", ".join(f"{count} × {profile}" for profile, count in counts.items())
        return parts or ("MIG on, no instances" if self.enabled else "MIG off")


@dataclass(frozen=True, slots=True)
class MigChange(BaseChange):
    """The MIG layout of a GPU changes; ``gpu`` is its UUID."""

    kind_name: ClassVar[str] = "mig"
    rank: ClassVar[int] = 4
    is_undone_by_plain_rollback: ClassVar[bool] = True

    gpu: str
    before: MigLayout
    after: MigLayout
    triggers: frozenset[Trigger] = frozenset()

    @property
    def subject(self) -> str:
        return self.gpu

    @property
    def action(self) -> Action:
        return "partition"

    @property
    def participle(self) -> str:
        return f"partitioned: {self.after}"

    @property
    def instruction(self) -> str:
        return f"partition {self.gpu}: {self.before} → {self.after}"

    @property
    def states(self) -> tuple[str, str]:
        return str(self.before), str(self.after)

    @property
    def log_details(self) -> tuple[str, ...]:
        return f"before {self.before}", f"after  {self.after}"

    @property
    def record(self) -> dict[str, object]:
        return {"before": self.before.record, "after": self.after.record}

    def inverse(self) -> MigChange:
        return replace(self, before=self.after, after=self.before)
