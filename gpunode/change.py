"""Changes: what is to be done to a node, as data, with what was there before and what is there after.

Nothing here touches a node. A change says enough to be shown, applied, journaled and undone.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from gpunode.package_id import PackageId

TriggerKind: TypeAlias = Literal["index-refresh", "daemon-reload", "initramfs", "cdi", "reload", "restart"]
_ORDER: tuple[TriggerKind, ...] = ("index-refresh", "daemon-reload", "initramfs", "cdi", "reload", "restart")
# What later changes of the same run read: packages need the index, units need systemd to have read them.
_ENDS_ITS_STAGE: frozenset[TriggerKind] = frozenset({"index-refresh", "daemon-reload"})


@dataclass(frozen=True, slots=True)
class Trigger:
    """What a change owes, once.

    Attributes:
        target: the unit for reload and restart, the list file for an index refresh; ``if-possible`` for a specification
            that nobody asked for, so that a run does not fail for want of it; else empty.
    """

    kind: TriggerKind
    target: str = ""

    @property
    def ends_stage(self) -> bool:
        """Whether it is settled at the end of its stage; the others are settled at the end of the run."""
        return self.kind in _ENDS_ITS_STAGE

    @property
    def needs_services(self) -> bool:
        """Whether only a running system can settle it; an image's daemons read their files when it boots."""
        return self.kind in {"daemon-reload", "cdi", "reload", "restart"}

    def __str__(self) -> str:
        return f"{self.kind} {self.target}".strip()


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as it is or shall be.

    Attributes:
        mode: the permission bits alone (``0o644``).
        attributes: the extended attributes by name, ACL and capabilities among them. No plan asks for any, so states
            are not compared by them; a file that was removed comes back with them.
    """

    content: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    attributes: tuple[tuple[str, bytes], ...] = field(default=(), compare=False)


def closed(state: FileState) -> FileState:
    """The file with root as its owner, writable by root alone; who may read it stays as it is."""
    return replace(state, uid=0, mode=state.mode & ~0o022)


@dataclass(frozen=True, slots=True)
class Deferred:
    """A file's state that cannot be known yet, such as a file that a package will ship."""

    what: str
    known_after: str


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A repository's key: its bytes are known once fetched, its fingerprints before.

    Attributes:
        url: where it is downloaded from.
        fingerprints: the primary keys it may hold, no more and no fewer; 40 upper-case hex digits each.
    """

    url: str
    fingerprints: frozenset[str]
    mode: int = 0o644

    @property
    def what(self) -> str:
        """The key as the plan shows it."""
        return f"signing key {' '.join(sorted(self.fingerprints))} from {self.url}"

    @property
    def known_after(self) -> str:
        """When the bytes are known."""
        return "its download; a file with any other key is refused"


Unsettled: TypeAlias = Deferred | SigningKey


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file is created (``before`` is None), replaced, or removed (``after`` is None).

    One that stays as it is (``before == after``) owes its triggers all the same: somebody else has changed it, and its
    daemon has not read it. One that is promised with the trigger ``cdi`` is written by what the trigger starts.

    Attributes:
        folders: those that are made for a new file, outermost first; whoever undoes the change removes them again.
            They are known when the change is about to be made, and changes are not compared by them.
    """

    path: str
    before: FileState | None
    after: FileState | Unsettled | None
    triggers: frozenset[Trigger] = frozenset()
    folders: tuple[str, ...] = field(default=(), compare=False)


def is_generated(change: Change) -> bool:
    """Whether the change only owes the trigger that has another program write the file."""
    return (
        isinstance(change, FileChange)
        and isinstance(change.after, Deferred)
        and any(trigger.kind == "cdi" for trigger in change.triggers)
    )


@dataclass(frozen=True, slots=True)
class PackageState:
    """An installed package, or what a removed one left behind.

    Attributes:
        auto: installed as somebody's dependency, so autoremove may take it.
        config_files_only: removed; its configuration files stay.
        origin: the archive that it comes from and the key that vouches for it; for the record, so not compared.
    """

    version: str
    auto: bool = False
    held: bool = False
    config_files_only: bool = False
    origin: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class KnownAfter:
    """A package's state whose exact version only the package index tells.

    Attributes:
        prefix: what the version must start with, epoch left out (``580.``); empty when any will do.
        auto: whether it counts as a dependency afterwards, which it does only where it did so before.
    """

    prefix: str = ""
    why: str = ""
    auto: bool = False


@dataclass(frozen=True, slots=True)
class PackageChange:
    """A package is installed, brought to another version, or purged (``after`` is None)."""

    id: PackageId
    before: PackageState | None
    after: PackageState | KnownAfter | None
    triggers: frozenset[Trigger] = frozenset()


def is_mark(change: PackageChange) -> bool:
    """Whether the package stays as it is and only its marks change."""
    before, after = change.before, change.after
    return (
        isinstance(after, PackageState)
        and before is not None
        and before.version == after.version
        and not before.config_files_only
        and not after.config_files_only
    )


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What systemd is to do with a unit at boot, and whether it runs now."""

    enabled: bool
    active: bool


@dataclass(frozen=True, slots=True)
class ServiceChange:
    """A unit is enabled or disabled, started or stopped."""

    unit: str
    before: ServiceState
    after: ServiceState
    triggers: frozenset[Trigger] = frozenset()


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """A kernel module is loaded or unloaded."""

    module: str
    before: bool
    after: bool
    triggers: frozenset[Trigger] = frozenset()


@dataclass(frozen=True, slots=True)
class CommandChange:
    """A command that is none of the above: repairing packages, building a DKMS module, releasing a chart.

    Attributes:
        cluster: the one that it changes, as in ``ObjectChange``; empty for a command of this machine.
    """

    argv: tuple[str, ...]
    why: str
    undo: tuple[str, ...] | None = None
    cluster: str = ""
    triggers: frozenset[Trigger] = frozenset()


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """What gpunode's field manager owns of an object in a cluster changes.

    Attributes:
        cluster: the uid of its namespace kube-system, by which clusters are told apart.
        api_version: as the object says it (``apps/v1``), likewise ``kind``.
        namespace: empty for an object of the whole cluster.
        before: the fields that gpunode owned, as JSON; None when it owned none.
        after: the fields that it owns from now on; None when it gives them up.
        shared: others own fields of the object, too: it is neither made nor deleted with ours.
    """

    cluster: str
    api_version: str
    kind: str
    namespace: str
    name: str
    before: str | None
    after: str | None
    shared: bool = False

    @property
    def effect(self) -> Literal["created", "changed", "deleted"]:
        """What becomes of the object."""
        if self.shared or (self.before and self.after):
            return "changed"
        return "created" if self.after else "deleted"


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance of MIG and the compute instances in it.

    Attributes:
        profile: its name without ``MIG`` (``1g.10gb+me``).
        start: the first memory slice that it occupies; ``size`` is how many.
        compute: the slices of each of its compute instances, in order (``3``); one that holds all slices is usual.
    """

    profile: str
    start: int
    size: int
    compute: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MigLayout:
    """How MIG divides a GPU; ``instances`` by their first slice, none where MIG is off."""

    enabled: bool
    instances: tuple[MigInstance, ...] = ()

    def __str__(self) -> str:
        counts = Counter(one.profile for one in self.instances)
        parts = ", ".join(f"{count} × {profile}" for profile, count in counts.items())
        return parts or ("MIG on, no instances" if self.enabled else "MIG off")


@dataclass(frozen=True, slots=True)
class MigChange:
    """A GPU is divided otherwise; ``gpu`` is its UUID."""

    gpu: str
    before: MigLayout
    after: MigLayout
    triggers: frozenset[Trigger] = frozenset()


Change: TypeAlias = FileChange | PackageChange | ServiceChange | ModuleChange | CommandChange | MigChange | ObjectChange


def subject(change: Change) -> str:
    """What the change is about, in one or two words: a path, a package, a unit."""
    match change:
        case FileChange(path=path):
            return path
        case PackageChange(id=package):
            return str(package)
        case ServiceChange(unit=unit):
            return unit
        case ModuleChange(module=module):
            return module
        case CommandChange(argv=argv):
            return spelled(argv)
        case ObjectChange(kind=kind, namespace=namespace, name=name):
            return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
        case MigChange(gpu=gpu):
            return gpu


def spelled(argv: Sequence[str]) -> str:
    """A command as people read it: its words; a shell's script by the name that it was given, Helm's by the release."""
    match argv:
        case ("sh", "-c", _, name, *_):
            return name
        case ("helm", "upgrade", "--install", name, *_):
            return f"helm upgrade --install {name}"
        case _:
            return " ".join(argv)


def without_values(argv: Sequence[str]) -> tuple[str, ...]:
    """A command of Helm without the values that it gives: somebody may have put a secret among a release's."""
    pairs = zip(("", *argv), argv, strict=False)
    return tuple(f"{word.partition('=')[0]}=…" if last == "--set-json" else word for last, word in pairs)


def inverse(change: Change) -> Change | None:
    """The change that undoes ``change``; None where there is none.

    Law: an involution for file, package, service, module, MIG and object changes whose states are all known.
    """
    match change:
        case FileChange(before=before, after=after):
            if isinstance(after, Deferred | SigningKey):
                return None
            return replace(change, before=after, after=before)
        case PackageChange(before=before, after=after):
            return None if isinstance(after, KnownAfter) else replace(change, before=after, after=before)
        case ServiceChange(before=was, after=now):
            return replace(change, before=now, after=was)
        case ModuleChange(before=loaded, after=wanted):
            return replace(change, before=wanted, after=loaded)
        case CommandChange(argv=argv, why=why, undo=undo):
            return None if undo is None else replace(change, argv=undo, why=f"undo: {why}", undo=argv)
        case ObjectChange(before=before, after=after):
            return replace(change, before=after, after=before)
        case MigChange(before=was, after=now):
            return replace(change, before=now, after=was)


def diff(change: FileChange) -> Iterator[str]:
    """The change as a unified diff, a line each without its line end; one line says so when it is not text."""
    match change.after:
        case Deferred() | SigningKey() as unsettled:
            yield f"--- {change.path if change.before else '/dev/null'}"
            yield f"+++ {change.path}"
            yield f"+ ({unsettled.what}; known after {unsettled.known_after})"
            return
        case after:
            pass
    if change.before is not None and after is not None and change.before.content == after.content:
        if modes := tuple(_ownership(change.before, after)):
            yield from (f"--- {change.path}", f"+++ {change.path}", *modes)
        return
    old, new = _lines(change.before), _lines(after)
    if old is None or new is None:
        yield f"binary file {change.path} differs"
        yield from _ownership(change.before, after)
        return
    marked = difflib.unified_diff(
        old,
        new,
        change.path if change.before else "/dev/null",
        change.path if after else "/dev/null",
        lineterm="",
    )
    yield from (part for line in marked for part in line.split("\n"))
    yield from _ownership(change.before, after)


def _lines(state: FileState | None) -> list[str] | None:
    """The file's lines, carriage returns and all; None when it is not text."""
    if state is None:
        return []
    try:
        text = state.content.decode()
    except UnicodeDecodeError:
        return None
    *lines, rest = text.split("\n")
    return None if "\0" in text else [*lines, *([f"{rest}\n\\ No newline at end of file"] if rest else [])]


def _ownership(before: FileState | None, after: FileState | None) -> Iterator[str]:
    if before is None or after is None:
        return
    was, now = (f"mode {s.mode:04o} owner {s.uid}:{s.gid}" for s in (before, after))
    if was != now:
        yield f"-{was}"
        yield f"+{now}"


_RANK: dict[type[Change], int] = {
    FileChange: 0,
    PackageChange: 1,
    CommandChange: 2,
    ModuleChange: 3,
    MigChange: 4,
    ServiceChange: 5,
    ObjectChange: 6,
}


def ordered(changes: Iterable[Change]) -> tuple[Change, ...]:
    """``changes`` in the order in which a stage applies them: files, packages, commands, modules, MIG, services."""
    return tuple(sorted(changes, key=lambda change: _RANK[type(change)]))


def triggers(changes: Iterable[Change]) -> tuple[Trigger, ...]:
    """What ``changes`` owe, once each, in the order in which they are settled.

    Law: the same for the inverse changes, so a daemon restarts after its file is restored, too.
    """
    # No unit of this machine reads an object of a cluster.
    owing = (change for change in changes if not isinstance(change, ObjectChange))
    return settle_order(trigger for change in owing for trigger in change.triggers)


def settle_order(owed: Iterable[Trigger]) -> tuple[Trigger, ...]:
    """``owed``, once each, in the order in which it is settled: every trigger after those whose work it reads."""
    return tuple(sorted(set(owed), key=lambda trigger: (_ORDER.index(trigger.kind), trigger.target)))


@dataclass(frozen=True, slots=True)
class RuntimeExpectation:
    """What a runtime's own parser must find in a candidate configuration before it replaces the present one.

    Attributes:
        runtime: a row of ``runtimes.RUNTIMES``.
        path: its root file, whether that changes or one that it imports.
        handlers: runtime name to the binary that it runs.
        default: the default runtime after the change; None when it does not matter.
    """

    runtime: str
    path: str
    handlers: frozenset[tuple[str, str]] = field(default=frozenset())
    default: str | None = None
