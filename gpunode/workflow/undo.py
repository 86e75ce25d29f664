"""An undo as data, its executor, and the handling of files that somebody edited; for every command that undoes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

from gpunode.change import (
    CONFFILES_STEP_ID,
    OBSOLETE_STEP_ID,
    OVERWRITTEN_STEP_ID,
    SET_ASIDE_STEP_ID,
    Change,
    CommandChange,
    FileChange,
    FileState,
    PackageChange,
    PackageState,
    RuntimeExpectation,
    Trigger,
    sort_triggers,
    triggers_of,
)
from gpunode.command import command
from gpunode.errors import Conflict, Refused
from gpunode.facts.model import Facts, PackageSource, require, value_or
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import Host, HostView, TriggerResult
from gpunode.journal.footprint import FileTrail, NetChange, join_net_changes
from gpunode.journal.record import Verb
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.packages.simulation import differences_from_plan
from gpunode.runtimes import Edit
from gpunode.workflow import live_state
from gpunode.workflow.apply import Applier, recording_failure
from gpunode.workflow.converge import DEPENDENCIES_STEP_ID
from gpunode.workflow.events import Observer


@dataclass(frozen=True, slots=True)
class UndoStep:
    """A change that undoes another, with the stage and step of the undone change.

    Attributes:
        expectation: what a runtime's own parser must find in the file first; None if the file is restored unchanged.
        notes: what the user should know about it.
    """

    stage: str
    step_id: str
    change: Change
    expectation: RuntimeExpectation | None = None
    notes: tuple[str, ...] = ()

    @property
    def file(self) -> FileChange | None:
        """The change, if it is a file's."""
        return self.change if isinstance(self.change, FileChange) else None


@dataclass(frozen=True, slots=True)
class KeptItem:
    """A thing that an undo leaves as it is, and why: a package that others need, a list that would contradict another.

    Attributes:
        subject: a path, a unit, or packages, as in "a, b and c".
        reason: the rest of a sentence that begins with the subject.
    """

    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.subject} {self.reason}"


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """The plan of an undo, shown before it is carried out.

    Attributes:
        undone_run: the run's id; empty for a removal, which undoes all runs.
        steps: in the order in which they are carried out.
        notes: what the user should know: what cannot be restored, and what was edited.
        kept: what stays as it is.
        is_incomplete: whether part of the former state cannot be restored.
        reboot_reason: why the rest needs a reboot; empty if it does not.
        pending_triggers: what earlier runs left to do, such as a restart after a rollback that was killed.
        not_undone: what else the run changed, if only its configuration is undone.
        with_packages: whether packages, archives and units are undone, too.
    """

    undone_run: str
    steps: tuple[UndoStep, ...]
    notes: tuple[str, ...] = ()
    is_incomplete: bool = False
    reboot_reason: str = ""
    pending_triggers: tuple[Trigger, ...] = ()
    not_undone: tuple[str, ...] = ()
    kept: tuple[KeptItem, ...] = ()
    with_packages: bool = False

    @property
    def verb(self) -> Verb:
        """The command whose plan this is."""
        return "rollback" if self.undone_run else "remove"

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes and the kept items, a sentence each."""
        return (*self.notes, *map(str, self.kept))

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes, in order."""
        return tuple(step.change for step in self.steps)

    @property
    def files(self) -> tuple[FileChange, ...]:
        """The files among the changes."""
        return FileChange.of_kind(self.changes)

    @property
    def packages(self) -> tuple[PackageChange, ...]:
        """The packages among the changes: one transaction."""
        return PackageChange.of_kind(self.changes)


def with_dependencies_to_install(host: HostView, packages: Sequence[PackageChange]) -> tuple[PackageChange, ...]:
    """Return ``packages`` with the dependencies that the package manager adds.

    Raises:
        Refused: the package manager would do something else.
    """
    simulation = host.simulate(packages) if packages else None
    if simulation is None:
        return tuple(packages)
    if wrong := differences_from_plan(packages, simulation):
        raise Refused(
            f"{simulation.manager} would change more than the former packages; no package was changed",
            why="\n".join(wrong),
            hint="a hold, a pin or a package installed since is the usual reason; the same rollback without --packages "
            "restores the configuration alone",
        )
    named = {change.id for change in packages}
    dependencies = (
        PackageChange(
            action.id,
            PackageState(action.former) if action.former else None,
            PackageState(action.version, auto=not action.former),
        )
        for action in simulation.actions
        if action.verb == "install" and action.id not in named
    )
    return (*packages, *dependencies)


def carry_out(plan: UndoPlan, applier: Applier, reason: str) -> tuple[TriggerResult, ...]:
    """Carry out the steps of ``plan`` in order, then run the triggers.

    Raises:
        GpunodeError: a step failed; the steps before it stay done, and journaled.
    """
    results: list[TriggerResult] = []
    for kind, same in groupby(plan.steps, key=lambda step: type(step.change)):
        batch = tuple(same)
        if kind is PackageChange:
            _apply_packages(batch, applier)
            continue
        for step in batch:
            applier.check_interrupt()
            _apply_step(step, applier, reason)
        triggers = triggers_of(step.change for step in batch)
        results += applier.run_triggers([trigger for trigger in triggers if trigger.runs_at_stage_end])
    late = {trigger for trigger in triggers_of(plan.changes) if not trigger.runs_at_stage_end}
    pending = {*plan.pending_triggers}.difference(result.trigger for result in results)
    return (*results, *applier.run_triggers(sort_triggers(late | pending)))


def _apply_packages(batch: Sequence[UndoStep], applier: Applier) -> None:
    applier.check_interrupt()
    host, steps = applier.host, {step.change: step.step_id for step in batch}
    changes = with_dependencies_to_install(host, PackageChange.of_kind(steps))
    former = live_state.read_package_database(host).obsolete_conffiles()
    aside = live_state.read_set_aside_files(host)
    applier.apply_packages(batch[0].stage, changes, lambda change: steps.get(change, DEPENDENCIES_STEP_ID))
    for change in live_state.find_set_aside_changes(host, aside):
        back = FileChange(change.path, live_state.read_file_state(host, change.path), change.before)
        applier.apply_change("packages", SET_ASIDE_STEP_ID, back, "put there by this undo")
    now = live_state.read_package_database(host).obsolete_conffiles()
    # Remove configuration files that only the removed version shipped; keep those that somebody edited.
    for path in sorted(now.keys() - former.keys()):
        state = live_state.read_regular_file_state(host, path)
        if state is not None and live_state.package_checksum(state.content) == now[path]:
            why = "its package's former version does not ship it"
            applier.apply_change("packages", OBSOLETE_STEP_ID, FileChange(path, state, None), why)


def _apply_step(step: UndoStep, applier: Applier, reason: str) -> None:
    file, note = step.file, ""
    if file is not None:
        if file.before is None:
            # A package that was restored meanwhile has installed its own version, which was unknown before.
            file = replace(file, before=live_state.read_file_state(applier.host, file.path))
        if step.step_id == CONFFILES_STEP_ID and file.before is None:
            return  # its package was not restored
        if step.step_id == OVERWRITTEN_STEP_ID and file.before is not None:
            return  # a package that stays has a file here
        if step.expectation is not None:
            note = applier.host.check_candidate_files(step.expectation, (file,))
    applier.apply_change(step.stage, step.step_id, file or step.change, reason, note)


def installed_packages(facts: Facts) -> Mapping[PackageId, PackageState]:
    """Return the installed packages. Raises Undetermined if they are unknown."""
    return require(facts.packages, "which packages are installed")


def drop_source_conflicts(
    steps: Sequence[UndoStep], kept: Sequence[KeptItem], facts: Facts, backup_of: Callable[[bytes], str]
) -> tuple[tuple[UndoStep, ...], tuple[KeptItem, ...]]:
    """Drop the steps after which the package manager would reject its sources; also return what stays instead.

    Such a step restores a list that contradicts one that stays, such as gpunode's list that replaced it, or removes a
    keyring that a remaining entry names: gpunode's entry needs gpunode's version of it, others' entries need any.

    ``kept`` is what the undo already leaves, possibly gpunode's own list; ``backup_of`` returns the backup's path
    for some content.
    """
    kept_subjects, kept_items, remaining = {item.subject for item in kept}, list(kept), list(steps)
    while (conflict := _find_contradicting_restore(remaining, facts)) is not None:
        step, other = conflict
        remaining.remove(step)
        if step.file:
            kept_items.append(_describe_kept_list(step.file, other, backup_of))
    for source in value_or(facts.sources, ()):
        if source.enabled and source.file not in _changed_paths(remaining):
            for step in [
                step
                for step in remaining
                if _removes_or_changes_keyring(source, step, is_own=source.file in kept_subjects)
            ]:
                remaining.remove(step)
                kept_items.append(KeptItem(step.change.subject, f"stays: {source.file} names it"))
    return tuple(remaining), tuple(kept_items)


def _removes_or_changes_keyring(source: PackageSource, step: UndoStep, *, is_own: bool) -> bool:
    """Return whether ``step`` removes an entry's keyring, or changes it if gpunode wrote the entry (``is_own``)."""
    file = step.file
    if file is None or file.path not in source.signed_by.replace(",", " ").split():
        return False
    return is_own or file.after is None


def _find_contradicting_restore(steps: Sequence[UndoStep], facts: Facts) -> tuple[UndoStep, PackageSource] | None:
    """Return the first step that restores an entry which contradicts a remaining one, and that remaining entry."""
    remaining = [source for source in value_or(facts.sources, ()) if source.file not in _changed_paths(steps)]
    architecture = value_or(facts.architecture, "")
    for step in steps:
        restored = _restored_source_entries(step)
        for source in restored:
            if other := next(
                (entry for entry in remaining if deb.have_contradicting_checks(source, entry, architecture)), None
            ):
                return step, other
        remaining += restored
    return None


def _restored_source_entries(step: UndoStep) -> tuple[PackageSource, ...]:
    """Return the entries that ``step`` restores in a list of sources; none for any other file or step."""
    if step.file is None or not isinstance(former := step.file.after, FileState):
        return ()
    try:
        return deb.parse_source_list(step.file.path, former.content.decode("utf-8", "replace")) or ()
    except ValueError:
        return ()  # the package manager could not read it before gpunode, either


def _changed_paths(steps: Sequence[UndoStep]) -> frozenset[str]:
    return frozenset(step.file.path for step in steps if step.file)


def _describe_kept_list(file: FileChange, other: PackageSource, backup_of: Callable[[bytes], str]) -> KeptItem:
    former = file.after
    assert isinstance(former, FileState)
    copy = command("sudo", "install", "-m", f"{former.mode:04o}", backup_of(former.content), file.path)
    does = "not restored" if file.before is None else "kept as it is"
    return KeptItem(
        file.path,
        f"{does}: {other.file}:{other.line} is for the same archive with another key or option, and is kept; "
        f"{deb.MANAGER} would read no list at all. Once that entry is gone, `{copy}` restores the former list",
    )


def find_package_repair(facts: Facts) -> CommandChange | None:
    """Return the command that completes an interrupted change of packages; None if there is none.

    Until it has run, the package database does not match the disk, and a package that lost some of its files can
    neither count as installed nor be removed.
    """
    return deb.REPAIR_COMMAND if value_or(facts.packages_interrupted, default=False) else None


def find_broken_packages(store: Store, host: HostView) -> tuple[frozenset[str], bool]:
    """Return the packages that a transaction left unfinished, and whether a run of gpunode may have left them.

    That is possible if a run changed one of them, or if the last run that changed or repaired packages did not
    complete: it can leave other packages unfinished as well, such as the one that builds the initramfs.

    Raises:
        Undetermined: the package database cannot be read.
        JournalDamaged: a journal is damaged.
    """
    broken = live_state.read_package_database(host).list_unfinished() | live_state.list_journaled_packages(host)
    last_is_cut, changed = False, set[str]()
    for run in store.read_runs():
        packages = {change.id.name for change in PackageChange.of_kind(run.changes("done", "unknown"))}
        if packages or run.verb == "repair":
            last_is_cut = run.ending in {"incomplete", "failed", "interrupted"}
        changed |= packages
    return broken, last_is_cut or not changed.isdisjoint(broken)


def run_package_repair(
    repair: CommandChange, host: Host, store: Store, *, on_event: Observer, check_interrupt: Callable[[], None]
) -> None:
    """Carry out ``repair`` as a run of its own.

    Raises:
        ChangeFailed: the repair failed; nothing else was touched.
    """
    run = store.begin("repair")
    applier = Applier(host, run, on_event, check_interrupt)
    with recording_failure(applier):
        applier.check_interrupt()
        applier.apply_change("sources", "repair", repair, repair.purpose)
    run.commit("done")


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """A file without gpunode's changes.

    Attributes:
        is_merged: whether it contains somebody's edits.
        is_unclear: whether gpunode's part cannot be separated from other edits, so that it may remain.
        keeps_changed: whether it contains a value that gpunode set and somebody changed.
        notes: what the user should know about it.
    """

    state: FileState | None
    is_merged: bool = False
    is_unclear: bool = False
    keeps_changed: bool = False
    notes: tuple[str, ...] = ()


# Maps a span and the file's present state to the file without the span; None leaves the file as it is.
ResolveEdit: TypeAlias = Callable[[NetChange[FileChange], FileState | None], RestoredFile | None]


def restore_file(trail: FileTrail, current: FileState | None, resolve_edit: ResolveEdit) -> RestoredFile:
    """Return the file without gpunode's changes, undone newest first.

    Somebody's edit that a later run of gpunode overwrote, as when it repairs drift, is not restored.

    Raises:
        Conflict: from ``resolve_edit``, if gpunode's own values were edited since.
    """
    trail = _join_over_edits(trail, is_whole=True)
    joined = _join_over_edits(trail, is_whole=False)
    try:
        restored = _undo_newest_first(trail, current, resolve_edit)
    except Conflict:
        if len(joined) == len(trail):
            raise
        return _undo_newest_first(joined, current, resolve_edit)
    return _undo_newest_first(joined, current, resolve_edit) if restored.keeps_changed else restored


def _undo_newest_first(trail: FileTrail, current: FileState | None, resolve_edit: ResolveEdit) -> RestoredFile:
    restored = RestoredFile(current)
    # Somebody may have put back what gpunode left before a later edit, which is no part of the file then.
    as_left = [n for n, span in enumerate(trail, 1) if current is not None and span.may_have_left(current)]
    for span in reversed(trail[: max(as_left, default=len(trail))]):
        if span.may_have_left(restored.state):
            restored = replace(restored, state=span.change.before)
        elif restored.state != span.change.before:  # else the run was cut short before it, or somebody undid it
            resolved = resolve_edit(span, restored.state)
            if resolved is None:
                return restored
            restored = replace(
                resolved,
                is_unclear=restored.is_unclear or resolved.is_unclear,
                keeps_changed=restored.keeps_changed or resolved.keeps_changed,
                notes=(*restored.notes, *resolved.notes),
            )
    return restored


def _join_over_edits(trail: FileTrail, *, is_whole: bool) -> FileTrail:
    """Merge the net changes of ``trail`` around somebody's edit, dropping the edit.

    ``is_whole``: only where nothing of the edit is left. Otherwise, what was overwritten must not be seen again.
    """
    joined: FileTrail = ()
    for span in trail:
        joined = (*joined[:-1], *_join_over_edit(joined[-1], span, is_whole=is_whole)) if joined else (span,)
    return joined


def _join_over_edit(
    former: NetChange[FileChange], later: NetChange[FileChange], *, is_whole: bool
) -> tuple[NetChange[FileChange], ...]:
    """Return both net changes, or one that merges them without the edit in between."""
    from gpunode.runtimes.reversal import RevertedFile, revert_edit  # loaded on use: few undos meet an edited file

    before_edit, edited, made = former.change.after, later.change.before, later.change.after
    if not (isinstance(before_edit, FileState) and isinstance(edited, FileState) and isinstance(made, FileState)):
        return former, later
    reverted = revert_edit(Edit(later.change.path, before_edit.content, edited.content), made.content)
    # As ``later`` would have left the file without the edit: what it kept of that is not gpunode's.
    state = replace(
        made,
        content=reverted.content if reverted else made.content,
        mode=made.mode ^ (before_edit.mode ^ edited.mode) & ~(edited.mode ^ made.mode),  # bit by bit
        uid=before_edit.uid if edited.uid == made.uid else made.uid,
        gid=before_edit.gid if edited.gid == made.gid else made.gid,
    )
    is_joined = later.is_known and _lacks_edit(state, former.change.before, before_edit, edited)
    if is_whole:
        is_joined &= reverted == RevertedFile(made.content) and replace(before_edit, content=made.content) == made
    if not is_joined:
        return former, later
    span = join_net_changes(former, replace(later, change=replace(later.change, after=state)))
    return (span,) if span else ()


def _lacks_edit(state: FileState, before: FileState | None, left: FileState, found: FileState) -> bool:
    """Return whether ``state`` keeps no line of an edit from ``left`` to ``found``: none added, none deleted.

    Lines are compared, since keys do not show comments. Lines that gpunode added after ``before`` may be missing.
    """
    contents = (state.content, left.content, found.content, before.content if before else b"")
    # JSON's commas come and go with the lines around them.
    has, had, theirs, first = ({line.strip(b" \t,") for line in content.splitlines()} for content in contents)
    return has.isdisjoint(theirs - had) and (had & first) - theirs <= has


def recorded_edit(change: FileChange) -> Edit:
    """Return the edit that a file change makes, as bytes."""
    before, after = (state.content if isinstance(state, FileState) else None for state in (change.before, change.after))
    return Edit(change.path, before, after)


def revert_change(
    change: FileChange, current: FileState, entries: Collection[tuple[str, ...]] | None = None, *, keeps_changed: bool
) -> RestoredFile | None:
    """Return ``current`` without ``change``, with somebody's edits; None if they cannot be separated.

    ``entries`` are the tables that are removed as a whole, see ``revert_edit``. With ``keeps_changed``, a value that
    gpunode set and somebody edited stays; otherwise the two cannot be separated.
    """
    from gpunode.runtimes.reversal import revert_edit  # loaded on use: few undos meet an edited file

    reversal = revert_edit(recorded_edit(change), current.content, entries)
    if reversal is None or (reversal.changed and not keeps_changed):
        return None
    names = ", ".join(".".join(keys) for keys in reversal.removed)
    notes = [f"{change.path}: edits of gpunode's tables are removed with them: {names}"] if names else []
    notes += [f"{change.path}: {'.'.join(keys)} was edited since and stays" for keys in reversal.kept]
    notes += [
        f"{change.path}: {'.'.join(keys)} is kept: its program was changed since"
        for keys in reversal.changed
        if keys[-2:-1] == ("runtimes",)
    ]
    merged = RestoredFile(None, is_merged=True, keeps_changed=bool(reversal.changed), notes=tuple(notes))
    before, after = change.before, change.after
    if before is None or not isinstance(after, FileState):
        state = replace(current, content=reversal.content) if reversal.content.strip() else None
        return replace(merged, state=state)
    mode = before.mode if current.mode == after.mode else current.mode
    owner = before if (current.uid, current.gid) == (after.uid, after.gid) else current
    return replace(merged, state=replace(current, content=reversal.content, mode=mode, uid=owner.uid, gid=owner.gid))
