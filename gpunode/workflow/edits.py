"""Edits of a configuration as they are meant: found by looking, shown and carried out by others; nothing is written."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from gpunode.change import FileChange, FileState, RuntimeExpectation, ServiceChange, Trigger
from gpunode.command import Command
from gpunode.errors import Refused
from gpunode.facts.derive import about_kubelet
from gpunode.facts.evidence import Probe
from gpunode.facts.model import known
from gpunode.facts.probes import kubelet_probes
from gpunode.host.port import HostView
from gpunode.journal.footprint import FileTrail
from gpunode.outcome import Planned
from gpunode.recipe import Driver, Recipe
from gpunode.recipe import Runtime as RecipeRuntime
from gpunode.runtimes import Edit, Edited, Files, Former, Runtime, Wish, after_edits
from gpunode.runtimes.found import States, by_looking, contents, file_changes
from gpunode.runtimes.installations import chosen, has_products, kubelet_using, with_kubelets_driver
from gpunode.runtimes.keys import about, entries_changed, taken_back, took_out
from gpunode.runtimes.model import RUNC_FAMILY
from gpunode.steps import cdi
from gpunode.steps.runtime_config import cri_notes, disrupts, packaged_version, reads_again, reread_by
from gpunode.workflow import present
from gpunode.workflow.converge import look_at_kubelet, managed, survey

_DUMP_BYTES = 16 << 20
_DUMP_S = 30.0
# ``containerd github.com/containerd/containerd/v2 2.1.9~ds1 …``, ``crio version 1.30.0``.
_VERSION = re.compile(r"\sv?(\d+(?:\.\d+)+)")


@dataclass(frozen=True, slots=True)
class Draft:
    """Files to write; nothing is written yet.

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
        missing: the program that the handler is to run, where it is not installed; ``install`` brings it.
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
    missing: str = ""
    install: Command | None = None

    @property
    def after(self) -> Files:
        """The files as they will be."""
        changed = {change.path: _bytes(change.after) for change in self.changes}
        merged = {**contents(self.present), **changed}
        return {path: content for path, content in merged.items() if content is not None}


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
    if has_products(row) and not wish.config:
        found = _kubelets(host, row, wish, image=image)
    if found.row.product and dumps:
        ignored = f"--config-source=command is ignored: the files of {found.row.product} are read"
        dumps, found = (), replace(found, notes=(*found.notes, ignored))
    version = None if found.row.product else _version(host, row, wish, dumps, image=image)
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


def _version(
    host: HostView, row: Runtime, wish: Wish, dumps: Sequence[Sequence[str]], *, image: bool
) -> tuple[int, ...] | None:
    """What the program says of itself; of an image, whose programs are not run to look at it, what its packages say."""
    if image:
        return packaged_version(row, known(survey(host, image=True).packages, {}))
    program = dumps[0][0] if dumps else row.program
    # What reads no drop-ins is edited in place, whatever its version; that also says whether it must be told of CDI.
    matters = row.drop_in or (row.cdi == "switch" and wish.cdi)
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
        hint="fix that, or omit --config-source to read the file instead",
    )


def configuring(
    host: HostView, row: Runtime, wish: Wish, trails: Mapping[str, FileTrail] = MappingProxyType({})
) -> Draft:
    """What has the runtime run containers by NVIDIA's binary, as ``wish`` says.

    Args:
        host: the node.
        row: the runtime.
        wish: what is asked for.
        trails: what gpunode's recorded runs have made of each file: that is made anew from what the others say now.

    Raises:
        Refused: its files cannot be edited so.
        Undetermined: they cannot be read.
    """
    there = by_looking(host.look, row, wish)
    row = row.located(row, contents(there), wish)
    wish = replace(wish, others=_others_in(wish.drop_in or row.drop_in, contents(there), trails))
    edited = row.configure(contents(there), wish)
    after = row.inspect(after_edits(contents(there), edited), wish)
    binary = after.handlers.get(wish.handler, wish.binary)
    default = wish.handler if wish.default else None
    meant = RuntimeExpectation(row.id, _main(row, wish), frozenset({(wish.handler, binary)}), default)
    draft = _draft(row, wish, there, edited, meant)
    switched_off = cri_notes(replace(row, config=_main(row, wish)), after)
    return replace(draft, notes=(*draft.notes, *(f"{note}; --enable-cri switches it on" for note in switched_off)))


def _others_in(path: str, files: Files, trails: Mapping[str, FileTrail]) -> bytes | None:
    """What others than gpunode have in the file; None where nobody can tell, or gpunode has no part in it."""
    trail, now = trails.get(path), files.get(path)
    if trail is None or trail.forgotten or now is None:
        return None
    left: bytes | None = now
    for former in _recorded(trail):
        left = None if left is None else taken_back(former.before, former.after, left, path)
    return left


def specifying(host: HostView, row: Runtime, *, image: bool) -> Draft:
    """What gives containers the GPUs of a runtime that takes no handler: a CDI specification, present and fresh.

    Raises:
        Undetermined: it cannot be told what there is.
    """
    facts = survey(host, image=image)
    outcome = cdi.plan(by_cdi(row), facts)
    assert isinstance(outcome, Planned), "the step refuses nothing"
    files = tuple(change for change in outcome.changes if isinstance(change, FileChange))
    trigger = next((trigger for change in files for trigger in change.triggers), None)
    path = cdi.output(facts)
    # A file is what this command writes; the units are setup's to enable, or the user's.
    idle = [change.unit for change in outcome.changes if isinstance(change, ServiceChange)]
    notes = outcome.notes
    if idle:
        enable = f"sudo systemctl enable --now {' '.join(idle)}"
        notes = (*notes, f"nothing regenerates the specification when the driver changes: {enable}")
    return Draft(row.id, path, {}, outcome.reason.removesuffix(cdi.KEPT), files, trigger=trigger, notes=notes)


def by_cdi(row: Runtime) -> Recipe:
    """A recipe that asks for no more than that."""
    return Recipe(row.id, driver=Driver(version="none"), runtime=RecipeRuntime(row.id))


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
    row = row.located(row, contents(there), wish)
    files, rounds = contents(there), list[Edited]()
    copied = _from_before(row, wish, files, trails) - {wish.handler}
    others = _others(row, wish, files, trails) - copied
    for former in _formers(trails, wish.handler):
        concerned = _concerned(former, wish.handler, others, copied)
        if concerned:
            rounds.append(row.unconfigure(files, wish, concerned))
            files = after_edits(files, rounds[-1])
    if not any(_joined(edit for one in rounds for edit in one.edits)):
        # Nothing on record is left to be taken back: what is there goes by its name.
        files = contents(there)
        _refuse_somebody_elses(row, wish, files)
        rounds = [row.unconfigure(files, wish, {})]
        files = after_edits(files, rounds[0])
    if dangling := _dangling(row, wish, contents(there), files):
        rounds.append(row.unconfigure(files, replace(wish, handler=dangling), {}))
    edits = tuple(_joined(edit for one in rounds for edit in one.edits))
    said = [note for one in rounds for note in one.notes]
    if edits and wish.handler in row.inspect(files, wish).handlers and not row.product:
        said.append(
            f"{row.id} still has a runtime {wish.handler}: an entry that gpunode has on no record stays; the same "
            "command, run again, takes it out by its name"
        )
    edited = Edited(edits, rounds[0].how, tuple(dict.fromkeys(said)))
    draft = _draft(row, wish, there, edited, RuntimeExpectation(row.id, _main(row, wish)))
    return replace(draft, changes=tuple(_with_folders(change, trails) for change in draft.changes))


def _dangling(row: Runtime, wish: Wish, before: Files, after: Files) -> str:
    """The former default that came back, where it is the name of a handler that has gone meanwhile; else empty."""
    was, now = (row.inspect(files, wish) for files in (before, after))
    name = now.default or ""
    is_there = name in {*now.handlers, *RUNC_FAMILY} or name.startswith("io.containerd.")  # a shim, which docker takes
    return "" if is_there or name == was.default else name


def _others(row: Runtime, wish: Wish, files: Files, trails: Mapping[str, FileTrail]) -> frozenset[str]:
    """The other handlers that gpunode added and that are still there."""
    known = {path: trail for path, trail in trails.items() if not trail.forgotten}
    made = (entries_changed(each, path) for path, trail in known.items() for each in _recorded(trail))
    return frozenset().union(*made) & row.inspect(files, wish).handlers.keys() - {wish.handler, *RUNC_FAMILY}


def _from_before(row: Runtime, wish: Wish, files: Files, trails: Mapping[str, FileTrail]) -> frozenset[str]:
    """The handlers that were there before gpunode and run what they ran then; a drop-in may repeat them."""
    first = {path: _bytes(trail.spans[0].before) for path, trail in trails.items() if not trail.forgotten}
    known = {path: content for path, content in {**files, **first}.items() if content is not None and path in files}
    was, now = (row.inspect(each, wish).handlers for each in (known, files))
    return frozenset(name for name in now if was.get(name) == now[name])


def _concerned(
    former: Mapping[str, Former], handler: str, others: Collection[str], copied: Collection[str]
) -> dict[str, Former]:
    """What is about ``handler``; what is about none, such as an import, only when no other needs it."""
    cut = ((path, about(each, handler, path, copied)) for path, each in former.items())
    return {path: one for path, one in cut if one is not None and (not others or entries_changed(one, path))}


def _refuse_somebody_elses(row: Runtime, wish: Wish, files: Files) -> None:
    """Nothing, unless the handler is one that neither gpunode nor nvidia-ctk can have added.

    Raises:
        Refused: it is, and nobody has on record that gpunode did.
    """
    binary = row.inspect(files, wish).handlers.get(wish.handler)
    if binary is None or binary == wish.binary or posixpath.basename(binary).startswith("nvidia-container-runtime"):
        return
    raise Refused(
        f"the runtime {wish.handler} of {row.id} was not added by configure",
        why=f"it runs {binary or 'the default of its shim'}, and gpunode has no record of it",
        hint=f"remove it from {_main(row, wish)} by hand; if it is NVIDIA's all the same, name its program: "
        f"--nvidia-runtime-path={binary or 'FILE'}",
    )


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


def _formers(trails: Mapping[str, FileTrail], handler: str) -> Iterator[Mapping[str, Former]]:
    """What gpunode did, newest first: a file that somebody wrote between two of its changes goes back through both."""
    known = {path: list(_since_out(path, trail, handler)) for path, trail in trails.items() if not trail.forgotten}
    for depth in range(max(map(len, known.values()), default=0)):
        yield {path: each[depth] for path, each in known.items() if depth < len(each)}


def _since_out(path: str, trail: FileTrail, handler: str) -> Iterator[Former]:
    """What gpunode did to a file, newest first, since it took the handler out last: that took back all before it."""
    for former in _recorded(trail):
        if took_out(former, handler, path):
            return
        yield former


def _recorded(trail: FileTrail) -> Iterator[Former]:
    return (Former(_bytes(span.before), _bytes(span.after)) for span in reversed(trail.spans))


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
    is_usual = not wish.config or wish.config == row.located(row, before, replace(wish, config="")).config
    changes = file_changes(edited, there, frozenset({trigger}) if trigger else frozenset(), is_roots=is_usual)
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
        is_usual=is_usual,
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
