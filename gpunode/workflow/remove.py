"""remove: remove everything that gpunode added; keep and list what others need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpunode.change import Change, FileChange, FileState, PackageChange, PackageState, ServiceChange, digest
from gpunode.command import command
from gpunode.errors import GpunodeError, Refused, VerifyFailed
from gpunode.facts.model import Facts, Known, value_or
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import Host, HostView
from gpunode.journal.additions import RecordedAdditions
from gpunode.journal.footprint import NetChange
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.runtimes import RUNTIMES, DesiredConfig, Removal, Runtime, find_runtime
from gpunode.runtimes.file_states import list_toolkit_handlers
from gpunode.runtimes.installations import resolve_runtime_if_possible
from gpunode.workflow import live_state, undo
from gpunode.workflow.lost_record import LostRecord
from gpunode.workflow.recovery import find_lost_record
from gpunode.workflow.undo import KeptItem, RestoredFile, UndoPlan, revert_change
from gpunode.workflow.undo_plan import UndoRequest, edit_conflict_error, plan_undo


def plan_removal(
    store: Store, host: Host, facts: Facts, *, force: bool = False, allow_disruption: bool = False
) -> UndoPlan:
    """Return the plan that removes everything that gpunode ever added.

    With ``force``, a file in which gpunode's part can no longer be identified is restored to its former state; without
    it, that raises Conflict. Raises like ``plan_undo``.
    """

    def resolve_edit(span: NetChange[FileChange], now: FileState | None) -> RestoredFile | None:
        after = span.change.after
        if not isinstance(after, FileState) or now is None:
            return None  # gpunode removed a file and somebody wrote another, or somebody removed gpunode's
        if force or store.read_additions().is_other_own_version(span.change, now):
            return RestoredFile(span.change.before)
        return _revert_keeping_edits(span.change, now)

    request = UndoRequest(store, "", store.footprint(), resolve_edit, force=force, allow_disruption=allow_disruption)
    undone = plan_undo(request, host, facts)
    first = {package: span.change.before for package, span in request.footprint.packages.items()}
    notes = (*undone.notes, *_package_changes_not_undone(first, undo.installed_packages(facts)))
    # What cannot be restored does not matter to a node without gpunode.
    return replace(undone, notes=notes, is_incomplete=False)


def _revert_keeping_edits(change: FileChange, current: FileState) -> RestoredFile:
    """Return ``current`` without ``change``, but with others' edits."""
    docker, back = find_runtime("docker"), change.inverse()
    assert back is not None, "a footprint holds what is settled"
    # dockerd does not start if its default runtime is missing; its other keys are independent of gpunode's.
    is_dockers = change.path == docker.config
    restored = revert_change(change, current, keeps_changed=is_dockers)
    if restored is None:
        raise edit_conflict_error(back, current)
    if is_dockers:
        try:
            restored = _without_dangling_default(docker, change, current, restored)
        except Refused as error:  # no longer a valid docker configuration
            raise edit_conflict_error(back, current) from error
    note = f"{change.path} was edited since gpunode wrote it; the edits are kept, gpunode's lines are removed"
    return replace(restored, notes=(note, *restored.notes))


def _without_dangling_default(
    runtime: Runtime, change: FileChange, now: FileState, restored: RestoredFile
) -> RestoredFile:
    """Return ``restored`` without a default runtime that was removed. Raises Refused if it cannot be read."""
    from gpunode.runtimes.removal import remove_dangling_default  # loaded on use: few removals meet an edited file

    states = (now, change.before, restored.state)
    files, former, after = ({change.path: state.content} if state else {} for state in states)
    removal = remove_dangling_default(runtime, DesiredConfig(), Removal(files, former, after))
    content = removal.files_after.get(change.path)
    remaining_state = None if content is None else replace(restored.state or now, content=content)
    return replace(restored, state=remaining_state, notes=(*restored.notes, *removal.notes))


@dataclass(frozen=True, slots=True)
class Remainder:
    """The things of gpunode that are still on the node after a removal.

    Attributes:
        kept: what stays, with the reason.
        not_removed: what the removal should have removed.
        lost_record: traces that no recorded run explains.
    """

    kept: tuple[KeptItem, ...] = ()
    not_removed: tuple[str, ...] = ()
    lost_record: LostRecord | None = None

    @property
    def failure(self) -> GpunodeError | None:
        """The error that the removal ends with; None if there is a reason for everything that stays."""
        if self.not_removed:
            return VerifyFailed(
                "not everything was removed",
                why=f"these are still there although every command succeeded: {', '.join(self.not_removed)}",
                hint="the log of this run has the commands with their output; remove these by hand",
            )
        return self.lost_record.removal_error() if self.lost_record else None


def find_remainder(store: Store, host: HostView, facts: Facts, undone: UndoPlan) -> Remainder:
    """Look for everything that any recorded run ever added, and for files marked as gpunode's.

    ``facts`` are those after ``undone`` was carried out, or found nothing to do.
    """
    recorded = store.read_additions()
    not_removed = tuple(
        dict.fromkeys(change.subject for change in undone.changes if not _is_carried_out(change, host, facts))
    )
    named = {*not_removed, *(item.subject for item in undone.kept), *(change.path for change in undone.files)}
    remainder = (
        *_find_remaining_files(recorded, store, host),
        *_find_remaining_additions(recorded, facts, with_modules=not undone.reboot_reason),
        *_find_copied_handlers(undone, facts, store),
    )
    kept = tuple(item for item in remainder if item.subject not in named)
    return Remainder((*undone.kept, *kept), not_removed, find_lost_record(store, facts))


def _is_carried_out(change: Change, host: HostView, facts: Facts) -> bool:
    """Return whether what ``change`` removes is gone; true if that cannot be seen."""
    match change:
        case FileChange(path=path, before=FileState() as before):
            # A package's own file is restored first, then removed with its package.
            return live_state.read_regular_file_state(host, path) != before
        case PackageChange(id=package, after=None):
            return package not in undo.installed_packages(facts)
        case ServiceChange(unit=unit, after=after) if not change.is_temporary_stop:
            fact = facts.unit(unit)
            return not isinstance(fact, Known) or not fact.value.exists or fact.value.state == after
        case _:
            return True


def _find_remaining_files(recorded: RecordedAdditions, store: Store, host: HostView) -> Iterator[KeptItem]:
    for path, origins in recorded.written.items():
        state = live_state.read_regular_file_state(host, path)
        name = digest(state.content) if state is not None else ""
        if name in origins:
            former = origins[name] or recorded.sha256_before[path]
            what_next = _describe_backup(store, former) if former else _remove_command(path)
            yield KeptItem(path, f"looks as gpunode once wrote it, although a later run removed it: {what_next}")
    for path in sorted(recorded.generated):
        if live_state.read_regular_file_state(host, path) is not None:
            is_volatile = path.startswith(("/run/", "/var/run/"))
            until = "until the next boot" if is_volatile else f"until somebody removes it: {_remove_command(path)}"
            yield KeptItem(path, f"stays, which nvidia-ctk wrote, {until}")


def _describe_backup(store: Store, name: str) -> str:
    """Return where the backup of a file is that is not only gpunode's, and so must not be removed."""
    backup = store.objects.path(name)
    where = f"is in {backup}" if backup.exists() else "no longer exists"
    return f"it was made from somebody else's file, whose backup {where}"


def _remove_command(path: str) -> str:
    return f"`{command('sudo', 'rm', path)}`"


def _find_remaining_additions(recorded: RecordedAdditions, facts: Facts, *, with_modules: bool) -> Iterator[KeptItem]:
    """Yield the recorded packages, units and kernel modules that the facts still show."""
    installed, loaded = undo.installed_packages(facts), value_or(facts.modules, frozenset())
    for package in sorted(recorded.packages):
        if package in installed and not installed[package].config_files_only:
            how = (
                "is installed, as a run of gpunode once installed it; it is kept, because it was there before gpunode "
                "or came back after gpunode had removed it"
            )
            yield KeptItem(str(package), how)
    for unit in sorted(recorded.units):
        fact = facts.unit(unit)
        if isinstance(fact, Known) and fact.value.exists and fact.value.state.enabled:
            disable = command("sudo", "systemctl", "disable", unit)
            yield KeptItem(unit, f"is enabled, as a run of gpunode once made it: `{disable}`")
    for module in sorted(recorded.modules if with_modules else ()):
        if module.replace("-", "_") in loaded:
            yield KeptItem(module, "stays in the kernel until the next boot")


def _find_copied_handlers(undone: UndoPlan, facts: Facts, store: Store) -> Iterator[KeptItem]:
    """Yield handlers that were removed from one file and that another file still registers with NVIDIA's program."""
    from gpunode.runtimes.reversal import changed_handlers  # on use: `log` and `rollback --list` load this module, too

    removed = frozenset[str]().union(*(changed_handlers(undo.recorded_edit(change)) for change in undone.files))
    for runtime in (resolve_runtime_if_possible(runtime, facts) for runtime in (RUNTIMES if removed else ())):
        by_name = store.command("ctk", "runtime", "unconfigure", f"--runtime={runtime.id}")
        where = "is also in a file where gpunode did not write it"
        for name in (handler for handler in list_toolkit_handlers(facts, runtime) if handler in removed):
            yield KeptItem(f"the runtime {name} of {runtime.id}", f"{where}: `{by_name}` removes it")


def _package_changes_not_undone(
    first: Mapping[PackageId, PackageState | None], installed: Mapping[PackageId, PackageState]
) -> Iterator[str]:
    """Yield gpunode's changes of packages that were installed before it; these are not undone."""
    former = {package: state for package, state in first.items() if state is not None and not state.config_files_only}
    gone = sorted(str(package) for package in former if package not in installed)
    changed = sorted(
        str(package)
        for package in former
        if package in installed and installed[package].version != former[package].version
    )
    if gone:
        yield f"gpunode purged these packages and does not reinstall them: {', '.join(gone)}"
    if changed:
        yield f"these were installed before gpunode, in other versions, and are kept: {', '.join(changed)}"
