"""rollback: undo a run through the journal: its configuration byte for byte, on request all its changes."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpunode.change import (
    CONFFILES,
    Change,
    FileChange,
    FileState,
    PackageChange,
    ServiceChange,
    Trigger,
)
from gpunode.errors import Conflict, GpunodeError, RebootRequired, Refused, VerifyFailed
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Facts, Unknown
from gpunode.host.port import Host, Settled
from gpunode.journal.history import RunSummary, to_undo
from gpunode.journal.record import MAKING, Verb
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.redaction.evidence import without_secrets
from gpunode.runtimes import RUNTIMES, DesiredConfig, Runtime
from gpunode.workflow import mig_layouts, present, standing, undo
from gpunode.workflow.apply import Applier, failure_recorded
from gpunode.workflow.converge import DEPENDENCIES
from gpunode.workflow.disruption import DOCKER, refuse_undoing
from gpunode.workflow.events import Observer
from gpunode.workflow.recovery import still_owed
from gpunode.workflow.source_lists import keep_sources_readable
from gpunode.workflow.undo import Part, Undo, Undoing


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """What a rollback or a removal did; ``run`` is itself a run that can be rolled back.

    Attributes:
        whole: whether packages, archives and units were undone, too.
    """

    undone: Undoing
    run: str
    settled: tuple[Settled, ...]
    whole: bool = False

    @property
    def of(self) -> str:
        """The run that was undone."""
        return self.undone.of


def undoing(
    store: Store, host: Host, of: str, facts: Facts | None = None, *, force: bool = False, disrupt: bool = False
) -> Undoing:
    """What undoes ``of``, compared with the node as it is.

    Args:
        store: the journal.
        host: the node.
        of: the run.
        facts: of the node, where packages, sources, units and all else are undone, too; None for configuration alone.
        force: whether files come back that somebody edited since; the edit is backed up as any other version.
        disrupt: whether containers may be stopped, and the driver taken from processes that use a GPU.

    Raises:
        Conflict: a later run touched something of it or needs it, or somebody edited a file since.
        DrainRequired: containers would be stopped, or processes lose the driver.
        Undetermined: a file, or what docker runs, cannot be read.
        Refused: the package manager would do something else.
    """
    entries = store.read(of)
    whole = facts is not None
    parts = tuple(Part(intent.stage, intent.step, intent.change) for intent in to_undo(entries, whole=whole))
    standing.refuse_shared(store, of, {part.change.subject for part in parts})
    files = tuple(_files_back(host, parts, str(store.root), force=force))
    runs = {run.run: run for run in store.runs()}
    layouts, unchanged = mig_layouts.back(host, parts, force=force)
    files, notes, incomplete = (*files, *layouts), unchanged, bool(unchanged)
    if facts is None:
        left = runs[of].standing & runs[of].beyond
        undone = Undoing(of, files, notes, incomplete, owed=tuple(store.owed()), left=tuple(sorted(left)))
    else:
        undone = Undoing(of, files, notes, incomplete, owed=still_owed(store.owed(), facts))
        undone = _whole(host, facts, undone, parts, backward=_goes_backward(runs, of))
        readable, kept = keep_sources_readable(undone.parts, undone.kept, facts, store.objects.path_of_content)
        undone = replace(undone, parts=readable, kept=kept)
        going = standing.going((part.step, part.change) for part in undone.parts)
        standing.refuse_needed(store, of, going, partial(_is_there, host, undo.installed(facts)))
    if not disrupt:
        docker = facts.unit(DOCKER) if facts else Unknown("not asked", "units")
        refuse_undoing(undone.changes, undone.owed, docker, host)
    return undone


def _is_there(host: Host, packages: Collection[PackageId], change: Change) -> bool:
    """Whether the file or package of ``change`` is on the node; of all else nobody takes it away unasked."""
    match change:
        case FileChange(path=path):
            return present.state(host, path) is not None
        case PackageChange(id=package):
            return package in packages
        case _:
            return True


def _goes_backward(runs: Mapping[str, RunSummary], run: str) -> bool:
    """Whether undoing ``run`` takes away what was made; to undo an undoing makes it again."""
    if runs[run].verb in MAKING:
        return True
    of = runs[run].begin.of
    return of in runs and not _goes_backward(runs, of)


def _files_back(host: Host, parts: Sequence[Part], root: str, *, force: bool) -> Iterator[Part]:
    """The files among ``parts`` that are not as they were, each from what is there now.

    The configuration files of packages that were purged come with these, whatever they are now.
    """
    changes = [(part, part.change) for part in parts if isinstance(part.change, FileChange)]
    purged = {change.path for part, change in changes if part.step == CONFFILES and change.after is not None}
    backed_up = [(part, change) for part, change in changes if part.step == CONFFILES and change.after is not None]
    shipped = present.database(host).shipped() if backed_up else {}
    yield from (
        p for p, change in backed_up if _is_to_come_back(change, present.state(host, change.path), shipped, force)
    )
    # A file that the run wrote more than once, such as one that a daemon rejected and that was put back, goes straight
    # to what it was at first: in between lie states that nobody wants, and their stages put them in another order.
    ways: dict[str, list[tuple[Part, FileChange]]] = {}
    for part, change in changes:
        if part.step != CONFFILES:
            ways.setdefault(change.path, []).append((part, change))
    for path, way in ways.items():
        part, oldest = way[-1]
        after = oldest.after if isinstance(oldest.after, FileState) else None
        folders = tuple(dict.fromkeys(folder for _, change in way for folder in change.folders))
        now = present.state(host, path)
        if now == after and not (after is None and _left_behind(host, folders)):
            continue
        known = [state for _, change in way for state in (change.before, change.after)]
        went_with_its_package = now is None and path in purged
        if now not in known and not went_with_its_package and not force:
            back = replace(way[0][1], after=after)
            raise edited(back, now, _keeping(back, now, root))
        owes = frozenset().union(*(change.triggers for _, change in way))
        yield replace(part, change=undo.read_again(FileChange(path, now, after, owes, folders)))


def _is_to_come_back(change: FileChange, now: FileState | None, shipped: Mapping[str, str], force: bool) -> bool:
    """Whether a package's configuration file is to be put back: its package is yet to come, or brought its own.

    Raises:
        Conflict: the package is back, and somebody has edited the file since.
    """
    if now is None or now == change.after:
        return now is None
    if force or change.path not in shipped or md5(now.content) == shipped[change.path]:
        return True
    raise edited(change, now)


def md5(content: bytes) -> str:
    """As a package database notes it of a configuration file."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _left_behind(host: Host, folders: Sequence[str]) -> bool:
    """Whether a folder that was made for a file outlived it: an undo was stopped before it was removed."""
    return any(host.look(Probe(folder, glob=folder, contents=False)).data for folder in folders)


def _whole(host: Host, facts: Facts, undone: Undoing, parts: Sequence[Part], *, backward: bool) -> Undoing:
    """``undone``, which has the files, with the packages and units of ``parts``, in order."""
    # A module stays until the next boot, which reads the files that are back; a build goes with its package.
    steps = {part.change.id: part for part in parts if isinstance(part.change, PackageChange)}
    wanted = {change.id: change.settled for change in PackageChange.among(part.change for part in parts)}
    units = [part for part in parts if isinstance(part.change, ServiceChange)]
    packages, needed = undo.packages_back(wanted, undo.installed(facts), present.database(host))
    lost: tuple[str, ...] = ()
    if backward:
        # The other way round, the archives that have the packages are yet to come back.
        packages, lost = undo.obtainable(host, packages)
        packages = undo.completed(host, packages)
    coming = not backward and any(change.settled for change in packages)
    everything = (
        *undone.parts,
        *(_package(steps, change) for change in packages),
        *(part for unit in units if (part := undo.service_back(facts, unit, coming=coming)) is not None),
    )
    everything, serving = undo.with_the_driver(everything, packages, wanted, undo.installed(facts))
    ordered = undo.undo_order(everything) if backward else undo.redo_order(everything)
    reboot = undo.reboot_reason(facts, packages)
    return replace(
        undone,
        parts=ordered,
        notes=(*undone.notes, *lost),
        incomplete=undone.incomplete or bool(lost),
        reboot=reboot,
        kept=(*needed, *serving),
    )


def _package(steps: Mapping[PackageId, Part], change: PackageChange) -> Part:
    known = steps.get(change.id)
    if known is None:
        return Part("packages", DEPENDENCIES, change)
    owed = known.change.triggers if isinstance(known.change, PackageChange) else frozenset[Trigger]()
    return replace(known, change=replace(change, triggers=owed))


def edited(change: FileChange, now: FileState | None, keep: str = "") -> Conflict:
    """The three versions of a file that somebody edited since, as the two ways from gpunode's to the others.

    Args:
        change: what would take gpunode's version back.
        now: what is there.
        keep: the command that takes gpunode's part out of it and keeps the edits; empty where there is none.
    """
    edit, back = (
        "\n".join(without_secrets(one).diff()) or "(only secrets differ)"
        for one in (FileChange(change.path, change.before, now), change)
    )
    by_hand = "undo the second by hand and keep the first"
    return Conflict(
        f"{change.path} was edited since gpunode wrote it",
        why=f"the edit of gpunode's version:\n{edit}\nwhat a rollback of gpunode's version would do:\n{back}",
        hint=(f"remove what gpunode added and keep the edits:\n{keep}\n" if keep else f"{by_hand};\n")
        + "or add --force: the edited file is backed up first, and rolling that run back restores it",
    )


def _keeping(change: FileChange, now: FileState | None, root: str) -> str:
    """The command that takes out of ``now`` the runtimes that gpunode added; empty where it added none."""
    row = next((row for row in RUNTIMES if change.path in {row.config, row.drop_in}), None)
    if row is None or row.unit == "":
        return ""
    former, ours, present = (_handlers(row, state) for state in (change.after, change.before, now))
    command = ["gpunode", "ctk", "runtime", "unconfigure", f"--runtime={row.id}"]
    command += ["--root", root] if root != "/" else []
    commands = (
        shlex.join([*command, *([] if name == DesiredConfig().handler else [f"--nvidia-runtime-name={name}"])])
        for name in sorted((ours & present) - former)
    )
    return "\n".join(commands)


def _handlers(row: Runtime, state: object) -> frozenset[str]:
    """The runtimes that a file registers; none where it cannot be read."""
    try:
        content = state.content if isinstance(state, FileState) else b""
        return frozenset(row.inspect({row.config: content}, DesiredConfig()).handlers)
    except Refused:
        return frozenset()


def rollback(
    undone: Undoing,
    host: Host,
    store: Store,
    *,
    version: str,
    argv: tuple[str, ...],
    tell: Observer,
    pause: Callable[[], None] = lambda: None,
    verb: Verb = "rollback",
    whole: bool = False,
) -> RollbackResult:
    """Everything is as ``undone`` says, and the daemons that read the files have read them again.

    Raises:
        ChangeFailed: something could not be restored; every backup is kept.
    """
    run = store.begin(verb, version=version, argv=argv, of=undone.of, whole=whole)
    course = Undo(Applier(host, run, tell, pause), host, f"as it was before {undone.of or 'gpunode'}", undone.owed)
    with failure_recorded(run):
        course.carry_out(undone.parts)
    undone = replace(undone, reboot=undone.reboot or mig_layouts.pending(host, undone.changes))
    run.commit("waiting" if undone.reboot else "done", undone.reboot)
    return RollbackResult(undone, run.id, tuple(course.settled), whole)


def record_undone(store: Store, of: RunSummary, *, version: str, argv: tuple[str, ...], whole: bool) -> None:
    """``of``, of which nothing is left on the node, counts as undone from now on.

    Raises:
        ChangeFailed: it could not be written.
    """
    if not of.is_undone(whole=whole):
        store.begin("rollback", version=version, argv=argv, of=of.run, whole=whole).commit("done")


def not_all_back(undone: Undoing) -> VerifyFailed:
    """What stays away although everything else is as before."""
    also = (f"a reboot is needed, too: {undone.reboot}",) if undone.reboot else ()
    return VerifyFailed(
        "not everything was restored",
        why="\n".join((*undone.remarks, *also)),
        hint="install the missing packages in a version that the archives have",
    )


def shortcoming(done: RollbackResult) -> GpunodeError | None:
    """What a rollback or removal that is through could not do; None when it did it all."""
    if done.undone.incomplete:
        return not_all_back(done.undone)
    if done.undone.reboot:
        return RebootRequired(
            "a reboot is needed; everything before it is done", why=done.undone.reboot, hint="systemctl reboot"
        )
    return None
