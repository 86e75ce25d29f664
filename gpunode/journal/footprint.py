"""The footprint of runs: each thing that they changed on a node, with its former state, for an undo. Pure.

The footprint of one run is what a rollback undoes, that of all runs what ``remove`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Generic, TypeAlias, TypeVar

from gpunode.change import (
    CONFFILES_STEP_ID,
    FILE_STEP_IDS,
    OVERWRITTEN_STEP_ID,
    RUNTIME_CONFIG_STAGE,
    Change,
    CommandChange,
    FileChange,
    FileState,
    MigChange,
    PackageChange,
    ServiceChange,
    UnknownContent,
)
from gpunode.fast_dataclass import dataclass
from gpunode.journal.history import RunRecord, find_effective_undos
from gpunode.journal.record import Intent
from gpunode.package_id import PackageId

_BACKUP_STEP_IDS = frozenset({CONFFILES_STEP_ID, OVERWRITTEN_STEP_ID})

FoundT = TypeVar("FoundT")
StatefulT = TypeVar("StatefulT", FileChange, PackageChange, ServiceChange, MigChange)


@dataclass(frozen=True, slots=True)
class NetChange(Generic[StatefulT]):
    """A span: the changes of one subject by consecutive runs, reduced to its state before the first and after the last.

    Attributes:
        stage: the stage of the first change, like ``step``.
        is_known: False if the last change may not have been made.
        folders: the folders that were made for a file.
        intermediate_states: the states in between, one of which the thing may still have; a file's by digest.
    """

    stage: str
    step: str
    change: StatefulT
    is_known: bool = True
    folders: tuple[str, ...] = ()
    intermediate_states: frozenset[object] = frozenset()

    def may_have_left(self, state: object) -> bool:
        """Return whether the runs left the thing in ``state``, completely or partway."""
        name = state.with_digest() if isinstance(state, FileState) else state
        return state == self.change.after or name in self.intermediate_states


# gpunode's changes to one file, oldest first; between two of them somebody else wrote the file. Once loaded, the trail
# is empty if the bytes of any of them are gone, since it then cannot be undone.
FileTrail: TypeAlias = tuple[NetChange[FileChange], ...]


@dataclass(frozen=True, slots=True)
class Footprint:
    """The changes of runs that are still on a node.

    Attributes:
        packages: from the state of each before the first run to the state in which the last one left it.
        units: the same for units, and ``layouts`` by GPU; unchanged ones are left out.
        conffiles: the backups of files that a transaction deleted or overwrote along with packages; for a whole node,
            only of files that packages overwrote.
        commands: the commands that cannot be undone; only for a single run.
    """

    files: Mapping[str, FileTrail] = field(default_factory=dict)
    packages: Mapping[PackageId, NetChange[PackageChange]] = field(default_factory=dict)
    units: Mapping[str, NetChange[ServiceChange]] = field(default_factory=dict)
    layouts: Mapping[str, NetChange[MigChange]] = field(default_factory=dict)
    conffiles: tuple[NetChange[FileChange], ...] = ()
    commands: tuple[CommandChange, ...] = ()

    @property
    def subjects(self) -> frozenset[str]:
        """The subjects of everything in it."""
        packages = (str(package) for package in self.packages)
        conffiles = (span.change.path for span in self.conffiles)
        return frozenset((*self.files, *packages, *self.units, *self.layouts, *conffiles))

    def part(self, *, is_configuration: bool) -> Footprint:
        """Return the files and layouts of the runtimes' configuration, which a plain rollback undoes; or the rest."""
        stage, wanted = RUNTIME_CONFIG_STAGE, is_configuration
        files = {path: trail for path, trail in self.files.items() if (trail[0].stage == stage) is wanted}
        layouts = {gpu: span for gpu, span in self.layouts.items() if (span.stage == stage) is wanted}
        return Footprint(files, layouts=layouts) if is_configuration else replace(self, files=files, layouts=layouts)

    def with_contents(self, load: Callable[[str], bytes | None]) -> Footprint:
        """Return the same with the bytes of files; ``load`` returns them by the object's name, or None."""
        files = {path: _load_trail(trail, load) for path, trail in self.files.items()}
        conffiles = tuple(loaded for span in self.conffiles for loaded in _load_trail((span,), load))
        return replace(self, files=files, conffiles=conffiles)


def footprint_of_node(runs: Sequence[RunRecord]) -> Footprint:
    """Return the footprint of all runs, which are sorted oldest first and without the bytes of files.

    A change that was only intended counts, since it may have been made; so does a package of a transaction that failed
    midway, if it may have been touched. Undone changes leave no trace, nor does what a removal undid; what a removal
    left because others needed it is still gpunode's. An undo that was only intended may not have happened either, so
    what it would have removed is still gpunode's: readers of the footprint compare it with the node.
    """
    undos, withdrawals = {undo.id for undo in find_effective_undos(runs)}, _find_handler_removals(runs)
    changes = [
        _MadeChange(
            record.intent,
            is_undo=run.id in undos and run.id not in withdrawals and record.outcome == "done",
            is_removal=run.id in undos and run.verb == "remove",
            is_handler_removal=run.id in withdrawals,
            is_known=record.outcome == "done",
        )
        for run in runs
        for record in run.change_records
        # A package's own configuration files are removed and restored with it.
        if record.outcome != "failed" and record.intent.step not in FILE_STEP_IDS
    ]
    backups = (
        span for run in runs if not run.is_fully_undone for span in _find_backups(run, frozenset({OVERWRITTEN_STEP_ID}))
    )
    first = {span.change.path: span for span in reversed(tuple(backups))}
    return replace(_make_footprint(changes, _build_trails(changes)), conffiles=tuple(first.values()))


def footprint_of_run(run: RunRecord) -> Footprint:
    """Return the footprint of one run, which is without the bytes of files.

    A file that the run wrote more than once is one span, as when a daemon rejected it and it was restored: nobody wants
    the states in between. A failed change counts, too, since the undo compares it with the node; only a package is
    known to be untouched then.
    """
    known = run.change_records
    changes = [
        _MadeChange(record.intent, is_known=record.outcome == "done", is_run_alone=True)
        for record in known
        if record.intent.step not in _BACKUP_STEP_IDS and record.may_have_been_made
    ]
    footprint = _make_footprint(
        changes, {net_change.change.path: (net_change,) for net_change in _join_by_subject(changes, FileChange)}
    )
    return replace(
        footprint,
        conffiles=tuple(_find_backups(run, _BACKUP_STEP_IDS)),
        commands=tuple(
            change for change in CommandChange.of_kind(record.change for record in known) if change.undo is None
        ),
    )


def _find_backups(run: RunRecord, steps: Collection[str]) -> Iterator[NetChange[FileChange]]:
    """Yield the backups that the run made under ``steps``."""
    for record in run.change_records:
        # Skip a backup that a rollback restored: its package is removed again, and the purge deletes the file.
        if record.intent.step in steps and not record.change.exists_after:
            for file in FileChange.of_kind((record.change,)):
                yield NetChange(record.intent.stage, record.intent.step, file)


def _make_footprint(changes: Sequence[_MadeChange], files: Mapping[str, FileTrail]) -> Footprint:
    """Return the footprint with these ``files``, and with the other things that ``changes`` changed."""
    return Footprint(
        files,
        {span.change.id: span for span in _join_by_subject(changes, PackageChange)},
        {span.change.unit: span for span in _join_by_subject(changes, ServiceChange)},
        {span.change.gpu: span for span in _join_by_subject(changes, MigChange)},
    )


@dataclass(frozen=True, slots=True)
class _MadeChange:
    """A change that was made, or may have been.

    Attributes:
        is_undo: whether an effective undo made it, unless that undid a run that removed a handler.
        is_removal: whether the effective undo undid all runs.
        is_handler_removal: whether a run made it that removed a handler from a file.
        is_known: False if the run ended before it was recorded that the change was made.
        is_run_alone: whether the footprint covers only its run, so that changes by others do not matter.
    """

    intent: Intent
    is_undo: bool = False
    is_removal: bool = False
    is_handler_removal: bool = False
    is_known: bool = True
    is_run_alone: bool = False

    @property
    def change(self) -> Change:
        return self.intent.change


def _find_handler_removals(runs: Iterable[RunRecord]) -> frozenset[str]:
    """Return the runs that removed a handler from a configuration, and those that undid or redid one of these."""
    removal_runs: set[str] = set()
    for run in runs:
        if run.verb == "unconfigure" or run.begin.undoes in removal_runs:
            removal_runs.add(run.id)
    return frozenset(removal_runs)


def _changes_of_kind(changes: Iterable[_MadeChange], kind: type[StatefulT]) -> Iterator[tuple[_MadeChange, StatefulT]]:
    for made in changes:
        if isinstance(change := made.change, kind) and change.is_final_state_known and not change.is_temporary_stop:
            yield made, change


def _join_by_subject(changes: Iterable[_MadeChange], kind: type[StatefulT]) -> tuple[NetChange[StatefulT], ...]:
    """Return a span for each thing of a kind that differs from its first state, even if others changed it since."""
    found: dict[str, NetChange[StatefulT]] = {}
    for made, change in _changes_of_kind(changes, kind):
        former, span = found.get(change.subject), _begin_net_change(made, change)
        if made.is_removal:
            span = None  # from now on, a thing of that name is somebody else's
        elif former is not None:
            span = former if span is None else join_net_changes(former, span, is_run_alone=made.is_run_alone)
        _put_in_undo_order(found, change.subject, span, is_new=span is not None and span.change.before is None)
    return tuple(found.values())


def _put_in_undo_order(values: dict[str, FoundT], subject: str, value: FoundT | None, *, is_new: bool) -> None:
    """Put ``value`` in the right place for an undo, which goes backwards; None removes the thing.

    A created file is removed after everything that has named it since, so it keeps the place of its creation. An edited
    file has the place of its last edit, which may name things made shortly before.
    """
    if value is None or not is_new:
        values.pop(subject, None)
    if value is not None:
        values[subject] = value


def _begin_net_change(made_change: _MadeChange, change: StatefulT) -> NetChange[StatefulT] | None:
    """Return the span that begins with ``change``; None if that leaves the thing unchanged."""
    if change.before == change.after and not change.records_unchanged_state:
        return None
    return NetChange(made_change.intent.stage, made_change.intent.step, change, made_change.is_known, change.folders)


def join_net_changes(
    former: NetChange[StatefulT], later: NetChange[StatefulT], *, is_run_alone: bool = False
) -> NetChange[StatefulT] | None:
    """Join two spans of the same thing; None if the thing is known to be in its former state."""
    first, last = former.change, later.change
    if first.before == last.after:
        return None if later.is_known else replace(former, is_known=False)
    joined = replace(last, before=first.before, triggers=first.triggers | last.triggers)
    folders = tuple(dict.fromkeys((*former.folders, *later.folders)))
    # Between two runs somebody else may have created what the second one found, or deleted a file: those are theirs.
    between = {first.after, last.before} if is_run_alone else {first.after} - {None}
    intermediate_states = (former.intermediate_states | later.intermediate_states | between) - {first.before}
    return NetChange(former.stage, former.step, joined, later.is_known, folders, intermediate_states)


def _build_trails(changes: Iterable[_MadeChange]) -> dict[str, FileTrail]:
    trails: dict[str, FileTrail] = {}
    taken_out: dict[str, FileTrail] = {}
    for made, change in _changes_of_kind(changes, FileChange):
        if made.is_removal:
            trails.pop(change.path, None)
            continue
        spans = _confirm_last_span(trails.get(change.path, ()), change)
        if made.is_undo and (shorter := _end_with_state(spans, change.after)) is not None:
            spans = shorter
        # What it removed from somebody else's lines was not added by gpunode, and is not restored.
        elif not made.is_handler_removal or (spans and spans[-1].change.after == change.before):
            span = _begin_net_change(made, change)
            taken_out |= {change.path: spans} if made.is_handler_removal else {}
            spans = spans if span is None else _append_net_change(spans, span)
        elif (former := taken_out.get(change.path)) and former[-1].change.after == change.after:
            spans = former  # the handler that gpunode had added has been restored
        _put_in_undo_order(trails, change.path, spans or None, is_new=bool(spans) and spans[0].change.before is None)
    return trails


def _confirm_last_span(spans: FileTrail, later: FileChange) -> FileTrail:
    """Return ``spans`` with the last one confirmed or dropped, according to the state that ``later`` found."""
    if not spans or spans[-1].is_known:
        return spans
    last = spans[-1]
    if last.change.after == later.before:
        return _append_net_change(spans[:-1], replace(last, is_known=True))
    # A span that made folders may have left them, although its file does not exist.
    return spans[:-1] if last.change.before == later.before and not last.folders else spans


def _end_with_state(spans: FileTrail, state: FileState | UnknownContent | None) -> FileTrail | None:
    """Return ``spans`` after a return to ``state``; None if their last one is not known to have come from there.

    An edit that --force discarded is not restored.
    """
    last = spans[-1] if spans else None
    if last is None or state == last.change.before:
        return spans[:-1] if last else None
    if state is not None and state not in last.intermediate_states:
        return None
    return (*spans[:-1], replace(last, change=replace(last.change, after=state)))


def _append_net_change(spans: FileTrail, later: NetChange[FileChange]) -> FileTrail:
    """Return ``spans`` followed by ``later``, joined with the last one if that is known and ended where it begins.

    A span that may have led back is skipped: the file shows whether it is as before, or as it was left.
    """
    follows = bool(spans) and spans[-1].change.after == later.change.before
    if not follows or (not later.is_known and spans[-1].change.before != later.change.after):
        return (*spans, later)
    joined = join_net_changes(spans[-1], later)
    return (*spans[:-1], joined) if joined else spans[:-1]


def _load_trail(spans: FileTrail, load: Callable[[str], bytes | None]) -> FileTrail:
    loaded = ((span, span.change.with_contents(load)) for span in spans)
    found = tuple(replace(span, change=change) for span, change in loaded if change is not None)
    return found if len(found) == len(spans) else ()
