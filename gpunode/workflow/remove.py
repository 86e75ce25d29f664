"""remove: remove everything that gpunode added; list and keep what others need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from gpunode.change import (
    Change,
    FileChange,
    FileState,
    MigChange,
    PackageChange,
    PackageState,
    RuntimeExpectation,
    ServiceChange,
    Trigger,
    digest,
)
from gpunode.command import command
from gpunode.errors import GpunodeError, Refused, VerifyFailed
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Facts, Known, known
from gpunode.host.port import Host, HostView
from gpunode.journal.additions import RecordedAdditions
from gpunode.journal.footprint import FileTrail, Footprint
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.runtimes import RUNTIMES, DesiredConfig, RecordedEdit, after_edits, runtime
from gpunode.runtimes.keys import taken_back
from gpunode.workflow import mig_layouts, present, undo
from gpunode.workflow.disruption import DOCKER, refuse_undoing
from gpunode.workflow.lost_record import LostRecord
from gpunode.workflow.recovery import find_lost_record
from gpunode.workflow.rollback import edited
from gpunode.workflow.source_lists import keep_sources_readable
from gpunode.workflow.undo import KeptItem, Part, Undoing

_STEP = "remove"
_Reversible = TypeVar("_Reversible", MigChange, ServiceChange)
# Where DKMS (Debian) and shim-signed (Ubuntu) keep the key that they sign modules with.
_MACHINE_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")


@dataclass(frozen=True, slots=True)
class _Back:
    """A file without what gpunode did to it."""

    state: FileState | None
    is_merged: bool = False
    notes: tuple[str, ...] = ()


def removing(
    store: Store,
    host: Host,
    facts: Facts,
    *,
    owed: tuple[Trigger, ...] = (),
    force: bool = False,
    disrupt: bool = False,
) -> Undoing:
    """The changes that remove everything that gpunode ever added.

    Args:
        store: the journals, whose runs together tell what was added.
        host: the node.
        facts: of it.
        owed: what earlier runs owe and none has settled.
        force: whether a file from which gpunode's part cannot be told any more comes back as it was before gpunode.
        disrupt: whether containers may be stopped, and the driver taken from processes that use a GPU.

    Raises:
        Conflict: somebody edited the very lines of a file that gpunode wrote.
        DrainRequired: containers would be stopped, or processes lose the driver.
        Refused: the package manager would do something else.
    """
    footprint = store.footprint()
    files, file_notes, unknown = _files(footprint, host, force=force)
    added = {one: before for one, before in footprint.packages.items() if before is None or before.config_files_only}
    installed = undo.installed(facts)
    packages, needed = undo.packages_back(added, installed, present.database(host))
    packages = undo.completed(host, (*packages, *_restore_marks(footprint, installed)))
    of_packages = (Part("packages", _STEP, _owing(footprint, change)) for change in packages)
    divided = [Part("runtime", _STEP, _reversed(change)) for change in footprint.mig.values()]
    layouts, unchanged = mig_layouts.back(host, divided, force=force)
    parts = undo.undo_order((*files, *layouts, *of_packages, *_units(footprint, facts)))
    parts, serving = undo.with_the_driver(parts, packages, added, installed)
    kept = (*unknown, *needed, *serving)
    parts, kept = keep_sources_readable(parts, kept, facts, store.objects.path_of_content)
    if not disrupt:
        refuse_undoing([part.change for part in parts], owed, facts.unit(DOCKER), host)
    notes = (*file_notes, *unchanged, *_not_undone(footprint.packages, installed), *_enrolled_keys(host))
    return Undoing("", parts, notes, reboot=undo.reboot_reason(facts, packages), owed=owed, kept=kept)


def _restore_marks(footprint: Footprint, installed: Mapping[PackageId, PackageState]) -> Iterator[PackageChange]:
    """Yield what gives packages that were there before gpunode their marks back: automatic or manual, held or not.

    What somebody marked otherwise since stays so.
    """
    for package, before in footprint.packages.items():
        now, after = installed.get(package), footprint.marks.get(package)
        if before is None or before.config_files_only or now is None or now.config_files_only:
            continue
        is_gpunodes = after is None or (now.auto, now.held) == (after.auto, after.held)
        if is_gpunodes and (now.auto, now.held) != (before.auto, before.held):
            yield PackageChange(package, now, replace(now, auto=before.auto, held=before.held))


def _units(footprint: Footprint, facts: Facts) -> Iterator[Part]:
    for change in footprint.services.values():
        if (part := undo.service_back(facts, Part("kernel", _STEP, _reversed(change)))) is not None:
            yield part


def _reversed(change: _Reversible) -> _Reversible:
    return replace(change, before=change.after, after=change.before)


def _owing(footprint: Footprint, change: PackageChange) -> PackageChange:
    """``change`` with what gpunode's own changes of the package owed."""
    return replace(change, triggers=footprint.package_triggers.get(change.id, frozenset()))


def _files(footprint: Footprint, host: Host, *, force: bool) -> tuple[list[Part], list[str], list[KeptItem]]:
    parts: list[Part] = []
    notes: list[str] = []
    kept: list[KeptItem] = []
    for path, trail in footprint.files.items():
        now = present.state(host, path)
        is_ours = now is not None and (force or digest(now.content) == trail.left)
        if trail.forgotten and now is not None and not (trail.spans[0].before is None and is_ours):
            kept.append(KeptItem(path, "stays as it is: its backup was deleted"))
            continue
        back = _Back(None) if trail.forgotten else _without(trail, now, force=force)
        if back.state == now:
            continue
        change = undo.read_again(FileChange(path, now, back.state, _owed(trail), _folders(trail)))
        parts.append(Part(trail.stage, _STEP, change, _expectation(path) if back.is_merged else None))
        if back.is_merged:
            notes.append(f"{path} was edited since gpunode wrote it; the edits stay, gpunode's lines go")
        notes += back.notes
    return parts, notes, kept


def _owed(trail: FileTrail) -> frozenset[Trigger]:
    return frozenset().union(*(span.triggers for span in trail.spans))


def _folders(trail: FileTrail) -> tuple[str, ...]:
    return tuple(dict.fromkeys(folder for span in trail.spans for folder in span.folders))


def _without(trail: FileTrail, now: FileState | None, *, force: bool) -> _Back:
    """The file without gpunode's changes, the newest taken out first.

    Raises:
        Conflict: one cannot be told from what somebody wrote since.
    """
    back = _Back(now)
    for span in reversed(trail.spans):
        after = span.after if isinstance(span.after, FileState) else None
        if back.state == after:
            back = replace(back, state=span.before)
        elif back.state == span.before:
            continue  # the change did not happen: its run was cut short; or somebody undid it
        elif after is None or back.state is None:
            return back  # gpunode took a file away and somebody wrote another, or somebody took gpunode's away
        else:
            back = _Back(span.before) if force else _merged(span, after, back)
    return back


def _merged(span: FileChange, after: FileState, back: _Back) -> _Back:
    """``back`` without what ``span`` did."""
    now, before = back.state, span.before
    assert now is not None, "what is not there needs no merging"
    content, notes = _content(span, after, now)
    if content is None:
        raise edited(replace(span, before=after, after=before), now)
    notes = (*back.notes, *notes)
    if before is None:
        return _Back(replace(now, content=content) if content.strip() else None, is_merged=True, notes=notes)
    mode = before.mode if now.mode == after.mode else now.mode
    owner = before if (now.uid, now.gid) == (after.uid, after.gid) else now
    state = replace(now, content=content, mode=mode, uid=owner.uid, gid=owner.gid)
    return _Back(state, is_merged=True, notes=notes)


def _content(span: FileChange, after: FileState, now: FileState) -> tuple[bytes | None, tuple[str, ...]]:
    """What is left of ``now``, None where that cannot be told; and what the user should know of it."""
    before = span.before.content if span.before else None
    docker = runtime("docker")
    if span.path != docker.config:
        return taken_back(before, after.content, now.content, span.path), ()
    # By its own rules, for dockerd does not start with a default runtime that is not there.
    former = RecordedEdit(before, after.content)
    try:
        undone = docker.unconfigure({span.path: now.content}, DesiredConfig(handler=""), {span.path: former})
    except Refused:
        return None, ()
    left = after_edits({span.path: now.content}, undone)
    return left.get(span.path, b""), undone.notes


def _expectation(path: str) -> RuntimeExpectation | None:
    """That the runtime whose file it is can read it."""
    return next((RuntimeExpectation(row.id, row.config) for row in RUNTIMES if path in {row.config, row.drop_in}), None)


@dataclass(frozen=True, slots=True)
class Remainder:
    """What is there of gpunode's once a removal is through, found by looking at the node.

    Attributes:
        kept: what stays, with the reason.
        missed: what the removal should have taken away.
        lost: what no record tells of.
    """

    kept: tuple[KeptItem, ...] = ()
    missed: tuple[str, ...] = ()
    lost: LostRecord | None = None

    @property
    def failure(self) -> GpunodeError | None:
        """The error that the removal ends with; None where all that stays has a reason."""
        if self.missed:
            return VerifyFailed(
                "not everything was removed",
                why=f"these are there although each command succeeded: {', '.join(self.missed)}",
                hint="the log of this run has the commands with their output; remove these by hand",
            )
        return self.lost.refusal() if self.lost else None


def find_remainder(store: Store, host: HostView, facts: Facts, undone: Undoing) -> Remainder:
    """Look for everything that any recorded run ever added, and for what says that gpunode made it.

    Args:
        store: the journals.
        host: the node.
        facts: of it, after ``undone`` was carried out, or where it found nothing to do.
        undone: the removal.
    """
    recorded = store.additions()
    missed = tuple(dict.fromkeys(change.subject for change in undone.changes if not _is_made(change, host, facts)))
    named = {*missed, *(one.subject for one in undone.kept), *(change.path for change in undone.files)}
    found = (*_find_files(recorded, store, host), *_find_packages(recorded, facts), *_find_units(recorded, facts))
    modules = () if undone.reboot else _find_modules(recorded, facts)
    kept = tuple(one for one in (*found, *modules) if one.subject not in named)
    return Remainder((*undone.kept, *kept), missed, find_lost_record(store, facts))


def _is_made(change: Change, host: HostView, facts: Facts) -> bool:
    """Return whether what ``change`` takes away is gone; of what cannot be seen, yes."""
    match change:
        case FileChange(path=path, before=FileState() as before):
            # A package's own file is put back first, and then goes with its package.
            return present.state(host, path) != before
        case PackageChange(id=package, after=None):
            return package not in undo.installed(facts)
        case ServiceChange(unit=unit, after=after):
            fact = facts.unit(unit)
            return not isinstance(fact, Known) or not fact.value.exists or fact.value.state == after
        case _:
            return True


def _find_files(recorded: RecordedAdditions, store: Store, host: HostView) -> Iterator[KeptItem]:
    for path, contents in recorded.written.items():
        state = present.state(host, path)
        name = digest(state.content) if state is not None else ""
        if name in contents:
            former = contents[name] or recorded.found[path]
            what_next = _former_content(store, former) if former else _remove_command(path)
            yield KeptItem(path, f"is as gpunode once wrote it, although a later run took that away: {what_next}")
    for path in sorted(recorded.generated):
        if present.state(host, path) is not None:
            is_volatile = path.startswith(("/run/", "/var/run/"))
            until = "until the next boot" if is_volatile else f"until somebody removes it: {_remove_command(path)}"
            yield KeptItem(path, f"stays, which nvidia-ctk wrote, {until}")


def _former_content(store: Store, name: str) -> str:
    """Return where the backup is of a file that is not gpunode's alone, and so is not to be removed."""
    backup = store.objects.path(name)
    where = f"is in {backup}" if backup.exists() else "is not kept any more"
    return f"it was made from somebody else's file, whose backup {where}"


def _remove_command(path: str) -> str:
    return f"`{command('sudo', 'rm', path)}`"


def _find_packages(recorded: RecordedAdditions, facts: Facts) -> Iterator[KeptItem]:
    installed = undo.installed(facts)
    for package in sorted(recorded.packages):
        if package in installed and not installed[package].config_files_only:
            how = (
                "is installed, as a run of gpunode once installed it; it stays, since it was there before gpunode, "
                "or came again after gpunode had taken it away"
            )
            yield KeptItem(str(package), how)


def _find_units(recorded: RecordedAdditions, facts: Facts) -> Iterator[KeptItem]:
    for unit in sorted(recorded.units):
        fact = facts.unit(unit)
        if isinstance(fact, Known) and fact.value.exists and fact.value.state.enabled:
            disable = command("sudo", "systemctl", "disable", unit)
            yield KeptItem(unit, f"is enabled, as a run of gpunode once made it: `{disable}`")


def _find_modules(recorded: RecordedAdditions, facts: Facts) -> Iterator[KeptItem]:
    loaded = known(facts.modules, frozenset())
    for module in sorted(recorded.modules):
        if module.replace("-", "_") in loaded:
            yield KeptItem(module, "stays in the kernel until the next boot")


def _not_undone(
    first: Mapping[PackageId, PackageState | None], installed: Mapping[PackageId, PackageState]
) -> Iterator[str]:
    """What gpunode did to packages that were there before it: that is not taken back."""
    there = {one: state for one, state in first.items() if state is not None and not state.config_files_only}
    gone = sorted(str(one) for one in there if one not in installed)
    changed = sorted(str(one) for one in there if one in installed and installed[one].version != there[one].version)
    if gone:
        yield f"gpunode purged these packages and does not reinstall them: {', '.join(gone)}"
    if changed:
        yield f"these were installed before gpunode, in other versions, and stay as they are: {', '.join(changed)}"


def _enrolled_keys(host: HostView) -> Iterator[str]:
    """Keys for Secure Boot that are in the firmware: only its own console takes one out again."""
    for key in _MACHINE_KEYS:
        told = host.look(Probe("mok-test", argv=("mokutil", "--test-key", key)))
        if "already enrolled" in f"{told.text}{told.error}":
            yield (
                f"the key {key} stays enrolled for Secure Boot; `mokutil --delete {key}`, a reboot and the password on "
                "the console take it out"
            )
