"""Taking changes back, for rollback and remove: compared with the node as it is, put in order, carried out."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from gpunode.catalog.conflicts import driver_packages
from gpunode.change import (
    CONFFILES,
    CONFIGURATION,
    OBSOLETE,
    Change,
    FileChange,
    FileState,
    PackageChange,
    PackageState,
    RuntimeExpectation,
    ServiceChange,
    ServiceState,
    Trigger,
    settle_order,
    triggers,
)
from gpunode.errors import Refused
from gpunode.facts.model import Facts, Known, need
from gpunode.host.port import Host, HostView, Settled
from gpunode.package_id import PackageId
from gpunode.packages import Database
from gpunode.packages.simulation import Action, is_removal, unplanned
from gpunode.runtimes import DesiredConfig
from gpunode.workflow import present
from gpunode.workflow.apply import Applier
from gpunode.workflow.converge import DEPENDENCIES


@dataclass(frozen=True, slots=True)
class Part:
    """A change that takes something back, with the stage and the step of the one that it takes back.

    Attributes:
        expectation: what a runtime's own parser must find in the file first; None where it comes back as it was.
    """

    stage: str
    step: str
    change: Change
    expectation: RuntimeExpectation | None = None


@dataclass(frozen=True, slots=True)
class KeptItem:
    """A thing that an undo leaves as it is, and why: a package that others need now, a list that would contradict one.

    Attributes:
        subject: a path, a package, a unit.
        how: the rest of the sentence that begins with it.
    """

    subject: str
    how: str

    def __str__(self) -> str:
        return f"{self.subject} {self.how}"


@dataclass(frozen=True, slots=True)
class Undoing:
    """What will be taken back, shown before it is done.

    Attributes:
        of: the run that is undone; empty for all of them.
        parts: in the order in which they are carried out.
        notes: what the user should know: what cannot come back, and what was edited.
        kept: what stays as it is.
        incomplete: whether something of the former state cannot come back.
        reboot: why the rest needs a reboot; empty when it does not.
        owed: what runs before this one owe and none has settled, such as a restart after a rollback that was killed.
        left: what the run changed beside its configuration, where the configuration alone is undone.
    """

    of: str
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    incomplete: bool = False
    reboot: str = ""
    owed: tuple[Trigger, ...] = ()
    left: tuple[str, ...] = ()
    kept: tuple[KeptItem, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and what stays as it is, a sentence each."""
        return (*self.notes, *map(str, self.kept))

    @property
    def changes(self) -> tuple[Change, ...]:
        """What is changed, in order."""
        return tuple(part.change for part in self.parts)

    @property
    def files(self) -> tuple[FileChange, ...]:
        """The files among the changes."""
        return FileChange.among(self.changes)

    @property
    def packages(self) -> tuple[PackageChange, ...]:
        """The packages among the changes: one transaction."""
        return PackageChange.among(self.changes)


def read_again(change: FileChange) -> FileChange:
    """``change``, owing a restart in place of a reload where a reload would not bring it into the running daemon.

    What SIGHUP brought in it need not take out: dockerd keeps the default runtime that its file names no more.
    """
    reloads = frozenset(trigger for trigger in change.triggers if trigger.kind == "reload")
    if not reloads or _taken_on_reload(change):
        return change
    restarts = {Trigger("restart", trigger.target) for trigger in reloads}
    return replace(change, triggers=(change.triggers - reloads) | restarts)


def _taken_on_reload(change: FileChange) -> bool:
    from gpunode.runtimes import docker  # only where a file of docker's comes back

    before, after = (
        {change.path: state.content} if isinstance(state, FileState) else {} for state in (change.before, change.after)
    )
    try:
        return docker.takes_on_reload(before, after, DesiredConfig(config=change.path))
    except Refused:
        return False  # one of the two is no configuration, so nobody knows what the daemon has of it


def undo_order(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return ``parts`` in the order in which a setup is undone: what uses a thing goes before the thing.

    A daemon's configuration before the packages that it names, the blacklist of nouveau after the driver. The archives
    and pins go last, so that packages can be fetched, and simulated, while they are there.
    """
    return tuple(sorted(parts, key=lambda part: part.change.undo_rank(part.stage, part.step)))


def redo_order(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return ``parts`` in the order in which a setup makes such changes: to undo a rollback."""
    return tuple(sorted(parts, key=lambda part: part.change.redo_rank(part.stage, part.step)))


def packages_back(
    wanted: Mapping[PackageId, PackageState | None], installed: Mapping[PackageId, PackageState], database: Database
) -> tuple[tuple[PackageChange, ...], tuple[KeptItem, ...]]:
    """What brings the packages to ``wanted``, and those that stay because others need them now.

    Args:
        wanted: the state of each; None for what was not there.
        installed: the packages that there are.
        database: of the node, as it is now.
    """
    changes = [
        PackageChange(package, installed.get(package), state)
        for package, state in wanted.items()
        if not _is_so(installed.get(package), state)
    ]
    leaving = [change.id for change in changes if is_removal(change)]
    changing = [change.id for change in changes if not is_removal(change)]
    staying = database.needed(leaving, changing)
    kept = tuple(KeptItem(str(package), f"stays: {by} needs it now") for package, by in sorted(staying.items()))
    return tuple(change for change in changes if change.id not in staying), kept


def with_the_driver(
    parts: Sequence[Part],
    packages: Sequence[PackageChange],
    wanted: Mapping[PackageId, PackageState | None],
    there: Collection[PackageId],
) -> tuple[tuple[Part, ...], tuple[KeptItem, ...]]:
    """``parts`` without what a driver that stays is run with: its blacklist, archive, key, pin and units; and why."""
    going = {change.id for change in packages}
    staying = {one for one, state in wanted.items() if state is None and one in there and one not in going}
    if not (drivers := sorted(driver_packages(staying))):
        return tuple(parts), ()
    serving = [part for part in parts if _serves_packages(part)]
    kept = tuple(KeptItem(part.change.subject, f"stays with {drivers[0]}") for part in serving)
    return tuple(part for part in parts if part not in serving), kept


def _serves_packages(part: Part) -> bool:
    match part.change:
        case FileChange(after=None):
            return part.stage != CONFIGURATION and part.step not in (CONFFILES, OBSOLETE)
        case ServiceChange(after=after):
            return not after.active or not after.enabled
        case _:
            return False


def _is_so(present: PackageState | None, wanted: PackageState | None) -> bool:
    """Whether a package is as wanted already; nothing brings back the mere residue of a removed one."""
    if wanted is None or wanted.config_files_only:
        return present is None or (wanted is not None and present.config_files_only)
    return present == wanted


def obtainable(host: Host, changes: Sequence[PackageChange]) -> tuple[tuple[PackageChange, ...], tuple[str, ...]]:
    """``changes`` without those to versions that no archive has any more, and a note for each of these.

    Where what is left needs one of them, nothing comes back: a removal must not hang on that.
    """
    coming = [change for change in changes if _is_fetched(change)]
    offered = host.offered([change.id for change in coming])
    gone = [change for change in coming if _version(change) not in offered.get(change.id, ())]
    if not gone:
        return tuple(changes), ()
    notes = tuple(_lost(change, sorted(offered.get(change.id, ()))) for change in gone)
    rest = tuple(change for change in changes if change not in gone)
    simulation = host.simulate(rest) if rest else None
    if simulation is None or not simulation.problem:
        return rest, notes
    left = [change for change in coming if change not in gone]
    also = f"nor does what came with it: {', '.join(str(change.id) for change in left)}"
    return tuple(change for change in rest if change not in left), (*notes, also)


def _is_fetched(change: PackageChange) -> bool:
    state = change.settled
    is_there = change.before is not None and state is not None and change.before.version == state.version
    return state is not None and not state.config_files_only and not is_there


def _version(change: PackageChange) -> str:
    state = change.settled
    return state.version if state else ""


def _lost(change: PackageChange, offered: Sequence[str]) -> str:
    others = f" (they have {', '.join(offered)})" if offered else ""
    return f"{change.id} {_version(change)} cannot be restored: no archive has it any more{others}"


def completed(host: HostView, packages: Sequence[PackageChange]) -> tuple[PackageChange, ...]:
    """``packages`` with what the package manager brings along with them.

    Raises:
        Refused: it would do something else.
    """
    simulation = host.simulate(packages) if packages else None
    if simulation is None:
        return tuple(packages)
    if wrong := unplanned(packages, simulation):
        raise Refused(
            f"{simulation.manager} would not just restore the former packages; no package was touched",
            why="\n".join(wrong),
            hint="a hold, a pin or a package that came since usually asks for this; the configuration alone comes back "
            "with\n  gpunode rollback",
        )
    named = {change.id for change in packages}
    others = (action for action in simulation.actions if action.verb == "install" and action.id not in named)
    return (*packages, *(_dependency(action) for action in others))


def _dependency(action: Action) -> PackageChange:
    former = PackageState(action.former) if action.former else None
    return PackageChange(action.id, former, PackageState(action.version, auto=former is None))


def service_back(facts: Facts, part: Part, *, coming: bool = False) -> Part | None:
    """``part``, a unit's, from what the unit is now; None where nothing is left to do, or the unit is gone.

    ``coming``: its package is among those that come back before it.
    """
    change = part.change
    assert isinstance(change, ServiceChange)
    fact = facts.unit(change.unit)
    if coming and isinstance(fact, Known) and not fact.value.exists:
        return replace(part, change=replace(change, before=ServiceState(enabled=False, active=False)))
    if not isinstance(fact, Known) or not fact.value.exists or fact.value.state == change.after:
        return None
    return replace(part, change=replace(change, before=fact.value.state))


def reboot_reason(facts: Facts, packages: Sequence[PackageChange]) -> str:
    """Why a reboot is needed after ``packages``: the driver goes, and its module stays in the kernel until then."""
    loaded = facts.loaded_driver.value if isinstance(facts.loaded_driver, Known) else None
    if loaded is None or not replaces(packages, driver_packages(change.id for change in packages)):
        return ""
    return f"the kernel keeps the module of driver {loaded.version} until the next boot"


@dataclass(slots=True)
class Undo:
    """Carries parts out in one journaled run; ``settled`` gathers what was triggered."""

    applier: Applier
    host: Host
    reason: str
    owed: tuple[Trigger, ...] = ()
    settled: list[Settled] = field(default_factory=list)

    def carry_out(self, parts: Sequence[Part]) -> None:
        """Every part is done in its turn, then what they owe.

        Raises:
            GpunodeError: one could not be done; those before it stay done, and journaled.
        """
        for kind, same in groupby(parts, key=lambda part: type(part.change)):
            batch = tuple(same)
            if kind is PackageChange:
                self._transaction(batch)
                continue
            for part in batch:
                self.applier.pause()
                self._one(part)
            owed = [one for one in triggers(part.change for part in batch) if one.ends_stage]
            self.settled += self.applier.settle(owed)
        late = [one for one in triggers(part.change for part in parts) if not one.ends_stage]
        done = {one.trigger for one in self.settled}
        self.settled += self.applier.settle(settle_order({*late, *(one for one in self.owed if one not in done)}))

    def _transaction(self, batch: Sequence[Part]) -> None:
        self.applier.pause()
        steps = {part.change.id: part.step for part in batch if isinstance(part.change, PackageChange)}
        wanted = tuple(part.change for part in batch if isinstance(part.change, PackageChange))
        changes = completed(self.host, wanted)
        former = present.database(self.host).obsolete()
        self.applier.transaction(batch[0].stage, changes, lambda change: steps.get(change.id, DEPENDENCIES))
        now = present.database(self.host).obsolete()
        self._remove_unedited({path: md5 for path, md5 in now.items() if path not in former})

    def _remove_unedited(self, obsolete: Mapping[str, str]) -> None:
        """Configuration files that only the version which went had are gone, as before it came; edited ones stay."""
        for path, md5 in sorted(obsolete.items()):
            state = present.state(self.host, path)
            if state is not None and hashlib.md5(state.content, usedforsecurity=False).hexdigest() == md5:
                change = FileChange(path, state, None)
                self.applier.one("packages", OBSOLETE, change, "its package's former version does not ship it")

    def _one(self, part: Part) -> None:
        change, note = part.change, ""
        if isinstance(change, FileChange):
            if change.before is None:
                # A package that came back meanwhile has brought its own version, which nobody could know before.
                change = replace(change, before=present.state(self.host, change.path))
            if part.step == CONFFILES and change.before is None:
                return  # its package did not come back
            if part.expectation is not None:
                note = self.host.check(part.expectation, (change,))
        self.applier.one(part.stage, part.step, change, self.reason, note)


def installed(facts: Facts) -> Mapping[PackageId, PackageState]:
    """The packages that there are. Raises Undetermined when that cannot be told."""
    return need(facts.packages, "which packages are installed")


# What editors, tools and people call the version before: also a date, as in config.toml.20260101 or config.toml-2026.
_LEFT = (".bak", ".backup", ".orig", ".old", ".save", ".prev", ".dpkg-", ".ucf-", ".rpm", ".2", "-2", "_2", "~")


def leftovers(path: str, names: Iterable[str]) -> Iterator[str]:
    """Those of ``names`` that other tools or people left beside ``path`` as its former versions."""
    return (name for name in names if name.startswith(path) and name.removeprefix(path).startswith(_LEFT))


def replaces(packages: Sequence[PackageChange], those: Collection[PackageId]) -> bool:
    """Whether one of ``those`` that is there goes, wholly or but for its configuration, or comes in another version."""
    return any(change.id in those and _is_replaced(change) for change in packages)


def _is_replaced(change: PackageChange) -> bool:
    if change.before is None or change.before.config_files_only:
        return False
    state = change.settled
    return state is None or state.config_files_only or state.version != change.before.version
