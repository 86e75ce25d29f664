"""ctk: one container runtime's configuration by itself, edited as asked, checked, journaled; read again on request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from gpunode.change import FileChange, FileState, RuntimeExpectation, Trigger, is_generated
from gpunode.errors import ChangeFailed, GpunodeError, Interrupted, Refused
from gpunode.facts import systemd
from gpunode.facts.derive import about_kubelet
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Fact, Known, Unit, Unknown
from gpunode.facts.probes import TOOLKIT_LIST, kubelet_probes, unit_probe
from gpunode.host.port import Host, HostView, Settled
from gpunode.host.runtime import differences
from gpunode.journal.footprint import FileTrail
from gpunode.journal.record import CONFIGURATION
from gpunode.journal.store import Store
from gpunode.recipe import Driver, Recipe
from gpunode.recipe import Runtime as RecipeRuntime
from gpunode.runtimes import Configured, Edit, Edited, Files, Former, Runtime, Wish, after_edits, located
from gpunode.runtimes.found import States, by_looking, contents, file_changes
from gpunode.runtimes.installations import chosen, kubelet_using, with_kubelets_driver
from gpunode.steps import cdi
from gpunode.steps.outcome import Planned
from gpunode.steps.runtime_config import RUNTIME_CONFIG, disrupts, reads_again, reread_by
from gpunode.workflow import present
from gpunode.workflow.apply import Applier
from gpunode.workflow.converge import look_at_kubelet, managed, survey
from gpunode.workflow.events import Observer
from gpunode.workflow.setup import NO_DAEMON, refuse_while_running

if TYPE_CHECKING:
    from gpunode.recipe import RuntimeName

CtkVerb: TypeAlias = Literal["configure", "unconfigure"]
Effective: TypeAlias = Callable[[str], Configured | None]
_DUMP_BYTES = 16 << 20
_DUMP_S = 30.0
# ``containerd github.com/containerd/containerd/v2 2.1.9~ds1 …``, ``crio version 1.30.0``.
_VERSION = re.compile(r"\sv?(\d+(?:\.\d+)+)")
_NOT_ASKED = "left to the user: --restart was not given"


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be written; nothing of it is yet.

    Attributes:
        about: the runtime, or what else is written.
        main: the file that stands at the top, whether it changes or not.
        present: the files that it reads, as they are.
        how: where it is written and why there.
        changes: in the order of writing; none when the files are as asked.
        expectation: what the runtime's own parser must find in them; None where there is none.
        trigger: what makes the running daemon read them; None for a runtime without one.
        stops: what that stops; empty when nothing.
        is_usual: whether ``main`` is the file that the runtime reads by itself.
        own: the files that say what the runtime does; of the others that it reads some say how it is started.
        reloads: whether a reload is enough for the daemon to read them.
        overlooked: why the daemon must start again although no file changes; empty where it need not.
    """

    about: str
    main: str
    present: States
    how: str
    changes: tuple[FileChange, ...]
    expectation: RuntimeExpectation | None = None
    trigger: Trigger | None = None
    stops: str = ""
    notes: tuple[str, ...] = ()
    is_usual: bool = True
    own: frozenset[str] = frozenset()
    reloads: bool = False
    overlooked: str = ""

    @property
    def after(self) -> Files:
        """The files as they will be."""
        changed = {change.path: _bytes(change.after) for change in self.changes}
        merged = {**contents(self.present), **changed}
        return {path: content for path, content in merged.items() if content is not None}


@dataclass(frozen=True, slots=True)
class Asked:
    """How it was asked for.

    Attributes:
        version: of gpunode, for the journal; likewise ``argv``.
        restart: whether the daemon is made to read what was written.
        pause: called before anything is written; raises Interrupted when the end was asked for.
    """

    verb: CtkVerb
    version: str
    argv: tuple[str, ...] = ()
    restart: bool = False
    pause: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Done:
    """What was done; ``run`` is the journal's name for it, ``checked`` what the runtime's own parser said before."""

    run: str
    settled: tuple[Settled, ...] = ()
    checked: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """The runtime that is meant, as this node has it, and the wish with what the node says of it."""

    row: Runtime
    wish: Wish
    notes: tuple[str, ...] = ()


def place(
    host: HostView, row: Runtime, wish: Wish, dumps: Sequence[Sequence[str]] = (), *, image: bool = False
) -> Place:
    """Of containerds the one that the kubelet uses, unless a file is named; with its version where that matters.

    Args:
        host: the node.
        row: the runtime that was asked for.
        wish: for it.
        dumps: commands of which the first that is there prints what options are copied from.
        image: whether the node is a root folder that no kernel of its own runs on.

    Raises:
        Refused: the kubelet uses a containerd of which nobody knows what it reads; or none of ``dumps`` is there.
    """
    found = Place(row, wish)
    if row.id == "containerd" and not wish.config:
        found = _kubelets(host, row, wish, image=image)
    if found.row.product and dumps:
        ignored = f"--config-source=command is ignored: the files of {found.row.product} are read"
        dumps, found = (), replace(found, notes=(*found.notes, ignored))
    version = None if found.row.product else _version(host, row, wish, dumps)
    source = _dumped(host, dumps) if dumps else None
    return replace(found, wish=replace(found.wish, version=version, source=source))


def _kubelets(host: HostView, row: Runtime, wish: Wish, *, image: bool) -> Place:
    facts = about_kubelet(look_at_kubelet(host, kubelet_probes(image=image)), image=image)
    where = chosen(row, facts)
    if kubelet_using(where.row, facts) is None:
        return Place(where.row, wish, where.notes)
    needed = replace(wish, enable_cri=True)
    files = contents(by_looking(host.look, where.row, needed))
    return Place(where.row, with_kubelets_driver(where.row, facts, needed, files), where.notes)


def _version(host: HostView, row: Runtime, wish: Wish, dumps: Sequence[Sequence[str]]) -> tuple[int, ...] | None:
    program = dumps[0][0] if dumps else {"docker": "dockerd"}.get(row.id, row.id)
    # What reads no drop-ins is edited in place, whatever its version; docker's says whether it must be told of CDI.
    matters = row.drop_in or (row.id == "docker" and wish.cdi)
    told = host.look(Probe(f"version:{program}", argv=(program, "--version"))).text if matters else ""
    found = _VERSION.search(told)
    return tuple(int(number) for number in found[1].split(".")) if found else None


def _dumped(host: HostView, dumps: Sequence[Sequence[str]]) -> bytes:
    for argv in dumps:
        told = host.look(Probe(" ".join(argv), argv=tuple(argv), timeout_s=_DUMP_S, limit_bytes=_DUMP_BYTES))
        if told.outcome != "absent":
            break
    if told.outcome == "ok":
        return told.data
    raise Refused(
        f"`{told.source}` does not print the configuration",
        why=told.error.strip()[-500:] or told.outcome,
        hint="correct that, or leave --config-source out: then the file itself is read",
    )


def configuring(host: HostView, row: Runtime, wish: Wish) -> Draft:
    """What has the runtime run containers by NVIDIA's binary, as ``wish`` says.

    Raises:
        Refused: its files cannot be edited so.
        Undetermined: they cannot be read.
    """
    there = by_looking(host.look, row, wish)
    row = located(row, contents(there), wish)
    edited = row.configure(contents(there), wish)
    binary = row.inspect(after_edits(contents(there), edited), wish).handlers.get(wish.handler, wish.binary)
    default = wish.handler if wish.default else None
    meant = RuntimeExpectation(row.id, _main(row, wish), frozenset({(wish.handler, binary)}), default)
    return _draft(row, wish, there, edited, meant)


def specifying(host: HostView, row: Runtime, *, image: bool) -> Draft:
    """What gives containers the GPUs of a runtime that takes no handler: a CDI specification, present and fresh.

    Raises:
        Undetermined: it cannot be told what there is.
    """
    facts = survey(host, image=image)
    outcome = cdi.plan(_by_cdi(row), facts)
    assert isinstance(outcome, Planned), "the step refuses nothing"
    files = tuple(change for change in outcome.changes if isinstance(change, FileChange))
    trigger = next((trigger for change in files for trigger in change.triggers), None)
    path = cdi.output(facts)
    return Draft(row.id, path, {}, outcome.reason, files, trigger=trigger, notes=outcome.notes)


def _by_cdi(row: Runtime) -> Recipe:
    """A recipe that asks for no more than that."""
    return Recipe(row.id, driver=Driver(version="none"), runtime=RecipeRuntime(cast("RuntimeName", row.id)))


def offered(host: HostView, row: Runtime, *, image: bool) -> Verdict:
    """Whether the runtime finds in the specification what containers ask for.

    Raises:
        Undetermined: it cannot be told what there is.
    """
    from gpunode.workflow.cdi_checks import cdi_checks

    checks = tuple(cdi_checks(_by_cdi(row), survey(host, image=image), host)) if not image else ()
    failed = tuple(check for check in checks if check.status == "failed")
    untold = (
        "nothing runs in an image" if image else "; ".join(c.detail for c in checks if c.id == "cdi" and not failed)
    )
    is_told = any(check.status == "passed" for check in checks)
    wrong = "; ".join(check.detail for check in failed)
    return Verdict(otherwise=wrong, untold="" if is_told or failed else untold)


def unconfiguring(host: HostView, row: Runtime, wish: Wish, trails: Mapping[str, FileTrail]) -> Draft:
    """What takes out of the runtime's files what configure added.

    Args:
        host: the node.
        row: the runtime.
        wish: names the handler and the files.
        trails: what gpunode's recorded runs have made of each file.

    Raises:
        Refused: its files cannot be edited so.
        Undetermined: they cannot be read.
    """
    there = by_looking(host.look, row, wish)
    row = located(row, contents(there), wish)
    files, rounds = contents(there), []
    for former in _formers(trails):
        rounds.append(row.unconfigure(files, wish, former))
        files = after_edits(files, rounds[-1])
    notes = tuple(dict.fromkeys(note for one in rounds for note in one.notes))
    edited = Edited(tuple(_joined(edit for one in rounds for edit in one.edits)), rounds[0].how, notes)
    draft = _draft(row, wish, there, edited, RuntimeExpectation(row.id, _main(row, wish)))
    return replace(draft, changes=tuple(_with_folders(change, trails) for change in draft.changes))


def _with_folders(change: FileChange, trails: Mapping[str, FileTrail]) -> FileChange:
    """A file that goes takes along the folders that were made for it, where they are empty then."""
    if change.after is not None or change.path not in trails:
        return change
    made = (folder for span in trails[change.path].spans for folder in span.folders)
    return replace(change, folders=tuple(dict.fromkeys(made)))


def hooking(host: HostView, path: str, content: bytes, note: str) -> Draft:
    """What makes the file at ``path`` hold ``content``, which no daemon of ours reads."""
    state = present.state(host, path)
    after = replace(state or FileState(b""), content=content)
    changes = () if state == after else (FileChange(path, state, after),)
    how = "an OCI hook, which podman and CRI-O read"
    return Draft("OCI hook", path, {path: state} if state else {}, how, changes, notes=(note,))


def _formers(trails: Mapping[str, FileTrail]) -> Iterator[Mapping[str, Former]]:
    """What gpunode did, newest first: a file that somebody wrote between two of its changes goes back through both."""
    known = {path: trail.spans[::-1] for path, trail in trails.items() if not trail.forgotten}
    for depth in range(max(map(len, known.values()), default=1)):
        spans = {path: spans[depth] for path, spans in known.items() if depth < len(spans)}
        yield {path: Former(_bytes(span.before), _bytes(span.after)) for path, span in spans.items()}


def _bytes(state: object) -> bytes | None:
    return state.content if isinstance(state, FileState) else None


def _joined(edits: Iterator[Edit]) -> Iterator[Edit]:
    """One edit for each path; a way that leads back to where it began is none."""
    found: dict[str, Edit] = {}
    for edit in edits:
        first = found.pop(edit.path, edit)
        found[edit.path] = Edit(edit.path, first.before, edit.after, edit.like)
    return (edit for edit in found.values() if edit.before != edit.after)


def _draft(row: Runtime, wish: Wish, there: States, edited: Edited, meant: RuntimeExpectation) -> Draft:
    before, main = contents(there), _main(row, wish)
    trigger = _trigger(row, wish, before, edited)
    changes = file_changes(edited, there, frozenset({trigger}) if trigger else frozenset())
    return Draft(
        about=row.id,
        main=main,
        present=there,
        how=edited.how,
        changes=changes,
        # What a product makes of its files is there for a parser only after its next start.
        expectation=None if row.product else meant,
        trigger=trigger,
        stops=disrupts(row, trigger, before, wish) if trigger else "",
        notes=(*edited.notes, *(note for change in changes if (note := managed(change)))),
        is_usual=not wish.config or wish.config == located(row, before, replace(wish, config="")).config,
        own=frozenset({main, wish.drop_in, *row.own_files} - row.generated),
        reloads=reads_again(row) == "reload",
        overlooked=edited.restart,
    )


def _trigger(row: Runtime, wish: Wish, before: Files, edited: Edited) -> Trigger | None:
    if not row.unit or row.watches:
        return None
    if not edited.edits and wish.cdi:
        # What is new in the file to a daemon that has not read it, nobody knows; a feature is not reloaded.
        return Trigger("restart", row.unit)
    return reread_by(row, before, after_edits(before, edited), wish)


def _main(row: Runtime, wish: Wish) -> str:
    return wish.config or row.config


def shown(draft: Draft) -> tuple[bytes, ...]:
    """The files as they would be, those alone that change, and at the end the one at the top."""
    paths = dict.fromkeys((*(change.path for change in draft.changes if change.path != draft.main), draft.main))
    after = draft.after
    return tuple(after[path] for path in paths if path in after)


def unread(host: HostView, draft: Draft) -> bool:
    """Whether the daemon runs and is older than one of its files; where a time is unknown, nobody can tell."""
    if draft.trigger is None or draft.trigger.kind == "cdi":
        return False
    unit = _unit(host, draft.trigger.target)
    if not isinstance(unit, Known) or unit.value.started_at is None:
        return False
    since = max(unit.value.started_at, (draft.reloads and unit.value.changed_at) or 0.0)
    # What registers the runtime by itself does so at a start that finds the toolkit.
    came = _changed(host, TOOLKIT_LIST) if draft.overlooked else 0.0
    return came > since or any(_changed(host, path) > since for path in draft.present if path in draft.own)


def _changed(host: HostView, path: str) -> float:
    """When the file was last changed; 0 where nobody can tell."""
    owner = host.look(Probe(f"file:{path}", path=path)).ownership
    return owner.changed or 0.0 if owner else 0.0


def reread(draft: Draft) -> Draft:
    """The same, its files as they are, for a daemon that has not read them."""
    state = draft.present.get(draft.main)
    owes = frozenset({draft.trigger}) if draft.trigger else frozenset()
    return replace(draft, changes=(FileChange(draft.main, state, state, owes),))


def _unit(host: HostView, name: str) -> Fact[Unit]:
    probe = unit_probe(name)
    told = host.look(probe)
    if told.outcome != "ok":
        return Unknown(told.error or told.outcome, probe.key)
    try:
        found = systemd.units(told.text).get(name)
    except ValueError as error:
        return Unknown(str(error), probe.key)
    return Known(found, probe.key) if found else Unknown("systemctl does not show it", probe.key)


def refuse_disruption(host: HostView, draft: Draft) -> None:
    """Nothing, unless reading the files again would stop running containers.

    Raises:
        DrainRequired: it would; they are named.
        Undetermined: the daemon does not say what runs.
    """
    if draft.stops and draft.trigger:
        refuse_while_running(_unit(host, draft.trigger.target), host, "go on with --allow-disruption")


def carry_out(draft: Draft, host: Host, store: Store, asked: Asked, tell: Observer) -> Done:
    """The files are as drafted, all of them or none; with ``asked.restart`` the daemon has read them.

    Raises:
        Refused: the runtime's own parser does not take them; nothing was written.
        ChangeFailed: one could not be written, or the daemon did not come back; what was put back is said.
        Conflict: somebody edited one meanwhile; the others are as they were.
    """
    host.vet(draft.changes)
    asked.pause()
    owes = draft.trigger is not None and draft.trigger not in store.owed()
    unsettled = tuple(change for change in store.unsettled() if draft.trigger in change.triggers)
    run = store.begin(asked.verb, version=asked.version, argv=asked.argv)
    applier = Applier(host, run, tell, lambda: None, unsettled)
    try:
        # After the run has begun: should it be killed meanwhile, the next one takes the candidates away.
        is_new = any(change.before != change.after for change in draft.changes)
        checked = host.check(draft.expectation, draft.changes) if draft.expectation and is_new else ""
        _write(applier, draft, checked, owes=owes)
        settled = _settle(applier, draft, asked, owes=owes)
    except GpunodeError as error:
        run.commit("interrupted" if isinstance(error, Interrupted) else "failed", error.what)
        raise
    except BaseException as error:
        run.commit("failed", f"a bug: {type(error).__name__}")
        raise
    run.commit("done")
    return Done(run.id, settled, checked)


def _write(applier: Applier, draft: Draft, checked: str, *, owes: bool) -> None:
    try:
        for change in draft.changes:
            note = checked if change is draft.changes[-1] else ""
            step = cdi.CDI.id if is_generated(change) else RUNTIME_CONFIG.id
            applier.one(CONFIGURATION, step, change, draft.how, note)
    except GpunodeError as failure:
        # A drop-in that nothing imports, or an import that leads nowhere: half of it is worse than nothing.
        if applier.take_back(failure) and draft.trigger and owes:
            applier.run.settle(draft.trigger, "put back before any daemon read it")
        raise


def _settle(applier: Applier, draft: Draft, asked: Asked, *, owes: bool) -> tuple[Settled, ...]:
    """The daemon has read the files, where that was asked for; ``owes`` says that no earlier run owes the same."""
    if draft.trigger is None:
        return ()
    if asked.restart or draft.trigger.kind == "cdi":
        if draft.expectation:
            applier.expect(draft.expectation, draft.trigger)
        return applier.settle((draft.trigger,))
    if owes:
        # Else the next setup would take it for a debt of a run that was cut short.
        applier.run.settle(draft.trigger, _NOT_ASKED)
    return ()


def conclude(store: Store) -> None:
    """An edit that was cut short, and of which nothing is left to do, is over."""
    cut = store.cut_short()
    if cut is not None and cut.begin.verb in {"configure", "unconfigure"}:
        store.conclude(cut.begin.run, "cut short; a later run found nothing left to do")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a runtime is as asked.

    Attributes:
        pending: whether its files are not.
        otherwise: how the running daemon differs from its files; empty when it does not.
        untold: why the daemon was not asked; empty when it was.
    """

    pending: bool = False
    otherwise: str = ""
    untold: str = ""


def verdict(host: HostView, draft: Draft, effective: Effective, *, is_live: bool) -> Verdict:
    """Whether files and daemon are as ``draft`` would leave them.

    Args:
        host: the node.
        draft: of what was asked.
        effective: what the runtime has, by its name.
        is_live: whether this is the system that runs, and not an image's.

    Raises:
        Undetermined: the daemon answers root alone.
    """
    if draft.changes:
        return Verdict(pending=True)
    if not is_live:
        return Verdict(untold="nothing runs in an image")
    if not draft.is_usual:
        return Verdict(untold=f"it reads {draft.main} only where it is told to")
    if untold := asleep(host, draft):
        return Verdict(untold=untold)
    if unread(host, draft):
        return Verdict(otherwise=draft.overlooked or "its files were changed after it read them last")
    if draft.expectation is None:
        return Verdict(untold="what it has is made at its start, and no parser of its own tells")
    return _asked(draft, effective)


def asleep(host: HostView, draft: Draft) -> str:
    """Why no daemon has to be made to read the files; empty where one has, or nobody can tell."""
    if draft.trigger is None:
        return "it looks at its files by itself"
    if draft.trigger.kind == "cdi":
        return f"{draft.about} has no daemon"
    unit = _unit(host, draft.trigger.target)
    if not isinstance(unit, Known) or unit.value.state.active:
        return ""
    return "it does not run, and reads its files when it starts" if unit.value.exists else "it is not installed here"


def _asked(draft: Draft, effective: Effective) -> Verdict:
    assert draft.expectation is not None, "what has a daemon has an expectation"
    try:
        found = effective(draft.about)
    except ChangeFailed as error:
        is_down = NO_DAEMON.search(error.why) is not None
        return Verdict(untold="it does not run") if is_down else Verdict(otherwise=f"{error.what}: {error.why}")
    if found is None:
        return Verdict(untold=f"no {draft.about} is installed here")
    return Verdict(otherwise="\n".join(differences(draft.expectation, found)))
