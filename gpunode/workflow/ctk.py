"""ctk: one container runtime's configuration by itself, edited as asked, checked, journaled; read again on request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from gpunode.change import FileChange, FileState, RuntimeExpectation, Trigger
from gpunode.errors import ChangeFailed, GpunodeError, Interrupted, Refused
from gpunode.facts import systemd
from gpunode.facts.derive import about_kubelet
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Fact, Facts, Known, Unit, Unknown
from gpunode.facts.probes import kubelet_probes, unit_probe
from gpunode.host.port import Host, HostView, Settled
from gpunode.host.runtime import differences
from gpunode.journal.footprint import FileTrail
from gpunode.journal.record import CONFIGURATION
from gpunode.journal.store import Store
from gpunode.runtimes import Configured, Edit, Edited, Files, Former, Runtime, Wish, after_edits, located, runtime
from gpunode.runtimes.found import States, by_looking, contents, file_changes
from gpunode.runtimes.installations import chosen, kubelet_using, with_kubelets_driver
from gpunode.steps.runtime_config import RUNTIME_CONFIG, disrupts, reads_again, reread_by
from gpunode.workflow import present
from gpunode.workflow.apply import Applier
from gpunode.workflow.converge import look_at_kubelet, managed
from gpunode.workflow.events import Observer
from gpunode.workflow.setup import NO_DAEMON, refuse_while_running

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
        own_files: those whose change the daemon has to read.
        product: what the runtime is part of; empty for one of its own, which can be asked.
        restart: why the daemon must be started again although no file changes; empty where it need not be.
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
    own_files: frozenset[str] = frozenset()
    product: str = ""
    restart: str = ""

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
    """What a command is about on this node.

    Attributes:
        facts: those that tell which kubelet is here; None where that does not matter.
        notes: what the user should know of the choice.
    """

    row: Runtime
    facts: Facts | None = None
    notes: tuple[str, ...] = ()


def placed(host: HostView, row: Runtime, wish: Wish, *, is_image: bool) -> Place:
    """The row to go by: where no file was named, of containerds the one that the kubelet uses.

    Raises:
        Refused: the kubelet uses one of which nobody knows what it reads.
    """
    if wish.config or row.id != "containerd":
        return Place(row)
    facts = about_kubelet(look_at_kubelet(host, kubelet_probes(image=is_image)), image=is_image)
    found = chosen(row, facts)
    return Place(found.row, facts, found.notes)


def for_kubelet(place: Place, wish: Wish) -> Wish:
    """``wish``, and the CRI plugin switched on where a kubelet needs it."""
    is_needed = place.facts is not None and kubelet_using(place.row, place.facts) is not None
    return replace(wish, enable_cri=wish.enable_cri or is_needed)


def configuring(host: HostView, row: Runtime, wish: Wish, facts: Facts | None = None) -> Draft:
    """What has the runtime run containers by NVIDIA's binary, as ``wish`` says.

    Args:
        host: the node.
        row: the runtime.
        wish: what is asked for.
        facts: those that tell which kubelet is here; None where that does not matter.

    Raises:
        Refused: its files cannot be edited so.
        Undetermined: they cannot be read.
    """
    there = by_looking(host.look, row, wish)
    row = located(row, contents(there), wish)
    wish = with_kubelets_driver(row, facts, wish, contents(there)) if facts else wish
    edited = row.configure(contents(there), wish)
    binary = row.inspect(after_edits(contents(there), edited), wish).handlers.get(wish.handler, wish.binary)
    default = wish.handler if wish.default else None
    expectation = RuntimeExpectation(row.id, _main(row, wish), frozenset({(wish.handler, binary)}), default)
    return _draft(row, wish, there, edited, expectation)


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


def _draft(row: Runtime, wish: Wish, there: States, edited: Edited, expectation: RuntimeExpectation) -> Draft:
    before, main = contents(there), _main(row, wish)
    can_be_told = row.unit and not row.watches
    trigger = reread_by(row, before, after_edits(before, edited), wish) if can_be_told else None
    if trigger and not edited.edits and wish.cdi:
        # What is new in the file to a daemon that has not read it, nobody knows; a feature is not reloaded.
        trigger = replace(trigger, kind="restart")
    changes = file_changes(edited, there, frozenset({trigger}) if trigger else frozenset())
    notes = (*edited.notes, *(note for change in changes if (note := managed(change))))
    stops = disrupts(row, trigger, before, wish) if trigger else ""
    is_usual = main == row.config or main == located(runtime(row.id), before, replace(wish, config="")).config
    draft = Draft(row.id, main, there, edited.how, changes, expectation, trigger, stops, notes, is_usual)
    own = row.own_files | ({main} - row.generated)
    return replace(draft, own_files=own, product=row.product, restart=edited.restart)


def _main(row: Runtime, wish: Wish) -> str:
    return wish.config or row.config


def shown(draft: Draft) -> tuple[bytes, ...]:
    """The files as they would be, those alone that change, and at the end the one at the top."""
    paths = dict.fromkeys((*(change.path for change in draft.changes if change.path != draft.main), draft.main))
    after = draft.after
    return tuple(after[path] for path in paths if path in after)


def unread(host: HostView, draft: Draft) -> bool:
    """Whether the daemon runs and is older than one of its files; where a time is unknown, nobody can tell."""
    if draft.trigger is None:
        return False
    if draft.restart:
        return True
    unit = _unit(host, draft.trigger.target)
    if not isinstance(unit, Known) or unit.value.started_at is None:
        return False
    reread = unit.value.changed_at if reads_again(runtime(draft.about)) == "reload" else None
    since = max(unit.value.started_at, reread or 0.0)
    return any(_changed(host, path) > since for path in draft.present if path in draft.own_files)


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
        is_new = any(change.before != change.after for change in draft.changes) and not draft.product
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
            applier.one(CONFIGURATION, RUNTIME_CONFIG.id, change, draft.how, note)
    except GpunodeError as failure:
        # A drop-in that nothing imports, or an import that leads nowhere: half of it is worse than nothing.
        if applier.take_back(failure) and draft.trigger and owes:
            applier.run.settle(draft.trigger, "put back before any daemon read it")
        raise


def _settle(applier: Applier, draft: Draft, asked: Asked, *, owes: bool) -> tuple[Settled, ...]:
    """The daemon has read the files, where that was asked for; ``owes`` says that no earlier run owes the same."""
    if draft.trigger is None:
        return ()
    if asked.restart:
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


def completed(host: HostView, row: Runtime, wish: Wish, dumps: Sequence[Sequence[str]] = ()) -> Wish:
    """``wish`` with the daemon's version where that matters, and what the first of ``dumps`` that is there prints.

    Raises:
        Refused: none of them is there, or it fails.
    """
    program = dumps[0][0] if dumps else {"docker": "dockerd"}.get(row.id, row.id)
    # What reads no drop-ins is edited in place, whatever its version; docker's says whether it must be told of CDI.
    matters = row.drop_in or (row.id == "docker" and wish.cdi)
    told = host.look(Probe(f"version:{program}", argv=(program, "--version"))).text if matters else ""
    found = _VERSION.search(told)
    version = tuple(int(number) for number in found[1].split(".")) if found else None
    return replace(wish, version=version, source=_dumped(host, dumps) if dumps else None)


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
    if untold := _why_not_asked(host, draft, is_live=is_live):
        return Verdict(untold=untold)
    if draft.trigger and unread(host, draft):
        return Verdict(otherwise="its files were changed after it read them last")
    return _asked(draft, effective)


def _why_not_asked(host: HostView, draft: Draft, *, is_live: bool) -> str:
    if not is_live:
        return "nothing runs in an image"
    if draft.product:
        return f"it is part of {draft.product}, which reads its files when it starts"
    if draft.trigger is None or draft.expectation is None:
        return f"{draft.about} has no daemon"
    if not draft.is_usual:
        return f"it reads {draft.main} only where it is told to"
    return asleep(host, draft)


def asleep(host: HostView, draft: Draft) -> str:
    """Why no daemon has to read the files now; empty where one does, or nobody can tell."""
    unit = _unit(host, draft.trigger.target) if draft.trigger else Unknown("it has none", "units")
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
