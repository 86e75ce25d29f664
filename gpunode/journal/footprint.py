"""What all runs of a journal together have made of a node: what `remove` takes away again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from gpunode.change import (
    CONFFILES,
    OBSOLETE,
    Change,
    CommandChange,
    FileChange,
    FileState,
    MigChange,
    ModuleChange,
    PackageChange,
    PackageState,
    ServiceChange,
    Trigger,
)
from gpunode.journal.record import Begin, Commit, Done, Entry, Failed, Intent
from gpunode.package_id import PackageId

_THROUGH = frozenset({"done", "waiting"})
_OF_PACKAGES = frozenset({CONFFILES, OBSOLETE})


@dataclass(frozen=True, slots=True)
class FileTrail:
    """What gpunode did to one file.

    Attributes:
        spans: the changes, oldest first. Those that followed one another are one; between two of them somebody else
            wrote the file.
        forgotten: whether the bytes of one of them are gone, so that it cannot be taken back.
        left: the sha256 of the file as gpunode left it; empty where it left none.
    """

    spans: tuple[FileChange, ...]
    stage: str
    forgotten: bool = False
    left: str = ""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What gpunode did to a node, each thing with what was there before the first run that touched it.

    Attributes:
        packages: the state of each before gpunode; None for what was not there.
        marks: the state in which gpunode left each of them, for its marks; not of those where that is not known.
        services: from what the unit was before gpunode to what it was left as.
        modules: those that gpunode loaded.
        commands: those that were run, oldest first.
        mig: by GPU, from its layout before gpunode to the one that it was left in.
    """

    files: Mapping[str, FileTrail] = field(default_factory=dict)
    packages: Mapping[PackageId, PackageState | None] = field(default_factory=dict)
    marks: Mapping[PackageId, PackageState] = field(default_factory=dict)
    services: Mapping[str, ServiceChange] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    commands: tuple[CommandChange, ...] = ()
    mig: Mapping[str, MigChange] = field(default_factory=dict)
    package_triggers: Mapping[PackageId, frozenset[Trigger]] = field(default_factory=dict)

    @property
    def objects(self) -> frozenset[str]:
        """The backup objects that are needed to take it all back; of a footprint that is not loaded."""
        return frozenset(
            state.content.decode()
            for trail in self.files.values()
            for span in trail.spans
            for state in (span.before, span.after)
            if isinstance(state, FileState)
        )

    def loaded(self, load: Callable[[str], bytes | None]) -> Footprint:
        """The same with the bytes of files, which ``load`` gives by the name of their object, or None for lost ones."""
        return replace(self, files={path: _loaded(trail, load) for path, trail in self.files.items()})


def of(entries: Iterable[Entry]) -> Footprint:
    """The footprint of ``entries``: those of all runs, oldest first, as ``Store.entries`` gives them.

    A change that was only intended counts, since it may have happened; so does a package of a transaction that failed
    in its middle, if it was not spared. What was undone leaves no trace, nor what a removal took back; what it left,
    since others needed it, is still gpunode's. An undo that was only intended may not have happened either, so what it
    was to take back is still gpunode's: whoever reads the footprint compares it with the node.
    """
    runs = _runs(entries)
    removals, withdrawals = _standing_removals(runs), _withdrawals(runs)
    changes = [made for run in runs for made in _changes(run, removals, withdrawals)]
    return Footprint(
        files=_files(changes),
        packages=_packages(changes),
        marks=_marks(changes),
        services=_services(changes),
        modules=_modules(changes),
        commands=tuple(one.change for one in changes if isinstance(one.change, CommandChange)),
        mig=_mig(changes),
        package_triggers=_package_triggers(changes),
    )


def _runs(entries: Iterable[Entry]) -> list[list[Entry]]:
    runs: list[list[Entry]] = []
    for entry in entries:
        if isinstance(entry, Begin):
            runs.append([])
        if runs:
            runs[-1].append(entry)
    return runs


def _begin(run: Sequence[Entry]) -> Begin:
    begin = run[0]
    assert isinstance(begin, Begin)
    return begin


def _standing_removals(runs: Sequence[Sequence[Entry]]) -> frozenset[str]:
    """The removals that were done and not undone."""
    undone: set[str] = set()
    removals: set[str] = set()
    for run in reversed(runs):
        begin = _begin(run)
        if begin.run in undone or not any(isinstance(entry, Commit) and entry.result in _THROUGH for entry in run):
            continue
        undone.add(begin.of)
        removals |= {begin.run} if begin.verb == "remove" else set()
    return frozenset(removals)


def _withdrawals(runs: Sequence[Sequence[Entry]]) -> frozenset[str]:
    """The runs that took a handler out of a configuration, and those that undid or redid one of these."""
    found: set[str] = set()
    for run in runs:
        begin = _begin(run)
        if begin.verb == "unconfigure" or begin.of in found:
            found.add(begin.run)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Made:
    """A change, by a removal, or by a run that took a handler out of a configuration.

    Attributes:
        is_known: whether it is known to have been made; else the run ended before that was recorded.
    """

    stage: str
    change: Change
    is_removal: bool
    is_withdrawal: bool
    is_known: bool


def _changes(run: Sequence[Entry], removals: AbstractSet[str], withdrawals: AbstractSet[str]) -> Iterator[_Made]:
    """Yield the changes of a run that were made, or may have been."""
    name = _begin(run).run
    ended = {type_: {entry.seq for entry in run if isinstance(entry, type_)} for type_ in (Done, Failed)}
    # A package's own configuration files go and come with it.
    intents = (entry for entry in run if isinstance(entry, Intent) and entry.step not in _OF_PACKAGES)
    for intent in intents:
        if intent.seq not in ended[Failed]:
            is_known = intent.seq in ended[Done]
            yield _Made(intent.stage, intent.change, name in removals, name in withdrawals, is_known)


@dataclass(frozen=True, slots=True)
class _Span:
    """A change of a file, or several that followed one another; one that is not known to be made stands alone."""

    change: FileChange
    is_known: bool


def _files(changes: Iterable[_Made]) -> dict[str, FileTrail]:
    spans: dict[str, tuple[_Span, ...]] = {}
    stages: dict[str, str] = {}
    for made in changes:
        if not isinstance(change := made.change, FileChange) or change.is_generated:
            continue
        if made.is_removal:
            spans.pop(change.path, None)
            stages.pop(change.path, None)
        else:
            former = _confirm_last(spans.get(change.path, ()), change)
            stages.setdefault(change.path, made.stage)
            # What it took out of somebody else's lines is nothing that gpunode added, and is not put back.
            if not made.is_withdrawal or (former and former[-1].change.after == change.before):
                former = _append_span(former, _Span(change, made.is_known))
            spans[change.path] = former
    return {
        path: FileTrail(tuple(span.change for span in found), stages[path]) for path, found in spans.items() if found
    }


def _confirm_last(spans: tuple[_Span, ...], later: FileChange) -> tuple[_Span, ...]:
    """``spans`` with the last one known to be made, or left out, as the state that ``later`` found tells."""
    if not spans or spans[-1].is_known:
        return spans
    if spans[-1].change.after == later.before:
        return _append_span(spans[:-1], _Span(spans[-1].change, is_known=True))
    return spans[:-1] if spans[-1].change.before == later.before else spans


def _append_span(spans: tuple[_Span, ...], span: _Span) -> tuple[_Span, ...]:
    """``spans`` with ``span`` after them; a way that leads back to where it began is none, if it is known to be gone.

    One that may have led back is passed over: the file tells, since it is then as before, or as it was left.
    """
    change = span.change
    if change.before == change.after:
        return spans
    if not spans or spans[-1].change.after != change.before:
        return (*spans, span)
    last = spans[-1].change
    if last.before == change.after:
        return spans[:-1] if span.is_known else spans
    if not span.is_known:
        return (*spans, span)
    folders = tuple(dict.fromkeys((*last.folders, *change.folders)))
    joined = FileChange(change.path, last.before, change.after, last.triggers | change.triggers, folders)
    return (*spans[:-1], _Span(joined, is_known=True))


def _packages(changes: Iterable[_Made]) -> dict[PackageId, PackageState | None]:
    first: dict[PackageId, PackageState | None] = {}
    for made in changes:
        if not isinstance(change := made.change, PackageChange):
            continue
        first.setdefault(change.id, change.before)
        if made.is_removal or (made.is_known and change.after == first[change.id]):
            del first[change.id]  # taken back: what is there of that name from now on is somebody else's
    return first


def _marks(changes: Iterable[_Made]) -> dict[PackageId, PackageState]:
    last = {made.change.id: made for made in changes if isinstance(made.change, PackageChange)}
    return {
        package: after
        for package, made in last.items()
        if made.is_known and isinstance(change := made.change, PackageChange)
        if isinstance(after := change.after, PackageState)
    }


def _package_triggers(changes: Iterable[_Made]) -> dict[PackageId, frozenset[Trigger]]:
    found: dict[PackageId, frozenset[Trigger]] = {}
    for made in changes:
        if isinstance(change := made.change, PackageChange) and change.triggers:
            found[change.id] = found.get(change.id, frozenset()) | change.triggers
    return found


def _services(changes: Iterable[_Made]) -> dict[str, ServiceChange]:
    found: dict[str, ServiceChange] = {}
    for made in changes:
        if isinstance(change := made.change, ServiceChange):
            former = found.get(change.unit, change)
            if made.is_known or former.before != change.after:
                found[change.unit] = replace(former, after=change.after)
    return {unit: change for unit, change in found.items() if change.before != change.after}


def _mig(changes: Iterable[_Made]) -> dict[str, MigChange]:
    found: dict[str, MigChange] = {}
    for made in changes:
        if isinstance(change := made.change, MigChange):
            former = found.get(change.gpu, change)
            if made.is_known or former.before != change.after:
                found[change.gpu] = replace(change, before=former.before)
    return {gpu: change for gpu, change in found.items() if change.before != change.after}


def _modules(changes: Iterable[_Made]) -> tuple[str, ...]:
    loaded = {one.change.module: one.change.after for one in changes if isinstance(one.change, ModuleChange)}
    return tuple(module for module, is_loaded in loaded.items() if is_loaded)


def _loaded(trail: FileTrail, load: Callable[[str], bytes | None]) -> FileTrail:
    forgotten = False

    def state(of: FileState) -> FileState:
        nonlocal forgotten
        content = load(of.content.decode())
        forgotten = forgotten or content is None
        return replace(of, content=content or b"")

    spans = tuple(
        replace(
            span,
            before=span.before and state(span.before),
            after=state(span.after) if isinstance(span.after, FileState) else span.after,
        )
        for span in trail.spans
    )
    last = trail.spans[-1].after
    left = last.content.decode() if isinstance(last, FileState) else ""
    return replace(trail, spans=spans, forgotten=forgotten, left=left)
