"""Plan the edits of ctk in the same way as setup's step; nothing is written."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import TypeAlias

from gpunode.change import (
    FileChange,
    FileState,
    RuntimeExpectation,
    ServiceChange,
    Trigger,
    restrict_writes_to_root,
    triggers_of,
)
from gpunode.container_runtimes import takes_only_cdi
from gpunode.errors import Refused
from gpunode.facts import machine
from gpunode.facts.derive import derive_kubelet_facts, derive_runtime_facts
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Facts, value_or
from gpunode.facts.probes import TOOLKIT_FILE_LIST, TOOLKIT_PROGRAM, kubelet_probes, unit_probe
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import HostView
from gpunode.journal.footprint import FileTrail, NetChange
from gpunode.outcome import Planned, Step
from gpunode.recipe import Driver, Recipe, RuntimeSettings
from gpunode.runtimes import DesiredConfig, Removal, Runtime, toolkit
from gpunode.runtimes.file_states import States, contents_of_states, packaged_version, probe_state, probe_states
from gpunode.runtimes.installations import (
    is_shipped_by_products,
    kubelet_using,
    resolve_runtime,
    with_kubelet_cgroup_driver,
)
from gpunode.runtimes.removal import find_other_own_handlers, former_files, remove_handler
from gpunode.runtimes.reversal import changed_handlers, removes_handler
from gpunode.runtimes.toolkit import Setting, ToolkitHost
from gpunode.steps import cdi, runtime
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP, MissingProgram, RuntimeTarget, missing_program, plan_edits
from gpunode.workflow import live_state
from gpunode.workflow.converge import probe_with_kubelet, survey, with_file_manager_notes
from gpunode.workflow.undo import RestoredFile, recorded_edit, restore_file, revert_change

# What gpunode's recorded runs have changed in each file.
Trails: TypeAlias = Mapping[str, FileTrail]

_MAX_DUMP_BYTES = 16 << 20
_DUMP_TIMEOUT_S = 30.0
# ``containerd github.com/containerd/containerd/v2 2.1.9~ds1 …``, ``crio version 1.30.0``.
_PROGRAM_VERSION = re.compile(r"\sv?(\d+(?:\.\d+)+)")
# systemd's PATH for services, in which dockerd looks up a bare name (systemd.exec(5)).
_PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_NO_TRAILS: Trails = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CtkPlan:
    """The plan of a ctk command.

    Attributes:
        target_name: the runtime, or what else is written.
        main_file: the root configuration file, whether it changes or not.
        step: the step of setup that makes the same plan.
        present: the present files that the runtime reads.
        target: the runtime that is edited; None if the file does not belong to a runtime.
        missing_program: the program that the handler runs, if it is not installed.
        registers_itself: whether the runtime registers the handler at its start without a file that says so.
    """

    target_name: str
    main_file: str
    planned: Planned
    step: Step = RUNTIME_CONFIG_STEP
    present: States = field(default_factory=dict)
    target: RuntimeTarget | None = None
    missing_program: MissingProgram | None = None
    registers_itself: bool = False

    @property
    def files(self) -> tuple[FileChange, ...]:
        """The files that are written or only have to be read again."""
        return FileChange.of_kind(self.planned.changes)

    @property
    def changed_files(self) -> tuple[FileChange, ...]:
        """The changes that modify a file."""
        return tuple(change for change in self.files if change.before != change.after)

    @property
    def trigger(self) -> Trigger | None:
        """The trigger that makes the daemon read its files again; None if no daemon needs one."""
        if self.target is None:
            return None
        return next(iter(triggers_of(self.files)), self.target.trigger)

    def with_notes(self, *notes: str) -> CtkPlan:
        """Return the plan with more notes."""
        return replace(self, planned=replace(self.planned, notes=(*self.planned.notes, *notes)))

    def with_changes(self, changes: Sequence[FileChange]) -> CtkPlan:
        """Return the plan with these changes."""
        return replace(self, planned=replace(self.planned, changes=tuple(changes)))


def find_target(
    host: HostView,
    runtime: Runtime,
    desired: DesiredConfig,
    dumps: Sequence[Sequence[str]] = (),
    *,
    image: bool = False,
) -> RuntimeTarget:
    """Find the runtime to edit: among several containerds the kubelet's, unless a file is named.

    Args:
        host: the node.
        runtime: the requested runtime.
        desired: the desired configuration.
        dumps: commands that print the configuration to copy options from; the first installed one is used.
        image: whether the node is a root folder without a running kernel of its own.

    Raises:
        Refused: it is unknown what the kubelet's containerd reads, or none of ``dumps`` is installed.
        Undetermined: the files cannot be read.
    """
    facts, notes = derive_runtime_facts({}), tuple[str, ...]()
    if is_shipped_by_products(runtime) and not desired.config:
        facts = derive_kubelet_facts(probe_with_kubelet(host, kubelet_probes(image=image)), image=image)
        choice = resolve_runtime(runtime, facts)
        runtime, notes = choice.runtime, choice.notes
        desired = replace(desired, enable_cri=desired.enable_cri or kubelet_using(runtime, facts) is not None)
    if runtime.product and dumps:
        notes = (*notes, f"--config-source=command is ignored: the files of {runtime.product} are read")
        dumps = ()
    version = None if runtime.product else _find_version(host, runtime, desired, dumps, image=image)
    source = _dump_config(host, dumps) if dumps else None
    return inspect_target(host, runtime, replace(desired, version=version, source=source), facts, notes, image=image)


def inspect_target(
    host: HostView,
    runtime: Runtime,
    desired: DesiredConfig,
    facts: Facts,
    notes: tuple[str, ...] = (),
    *,
    image: bool = False,
) -> RuntimeTarget:
    """Inspect ``runtime``: its files, its unit, and when each was changed and started.

    Raises:
        Refused, Undetermined: the files cannot be read.
    """
    files = probe_states(host.run_probe, runtime, desired)
    runtime = runtime.adapt_to_node(runtime, contents_of_states(files), desired)
    desired = with_kubelet_cgroup_driver(runtime, facts, desired, contents_of_states(files))
    target = RuntimeTarget(runtime, desired, files, replace(facts, changed_at={}), notes)
    if image or target.trigger is None:
        return target
    paths = sorted({*target.own, runtime.config, TOOLKIT_FILE_LIST})
    probes = (unit_probe(runtime.unit), *(Probe(f"file:{path}", path=path) for path in paths))
    now = derive_runtime_facts({probe.key: host.run_probe(probe) for probe in probes})
    changed_at = dict(now.changed_at)
    if TOOLKIT_FILE_LIST not in changed_at and runtime.config not in target.own:
        # It is unknown whether a distribution has looked for the toolkit since the toolkit was installed.
        changed_at.pop(runtime.config, None)
    return replace(target, facts=replace(facts, units=now.units, changed_at=changed_at))


def _find_version(
    host: HostView, runtime: Runtime, desired: DesiredConfig, dumps: Sequence[Sequence[str]], *, image: bool
) -> tuple[int, ...] | None:
    """Return the version that the program reports; for an image, whose programs are not run, the package's version."""
    if image:
        return packaged_version(runtime, value_or(survey(host, image=True).packages, {}))
    program = dumps[0][0] if dumps else runtime.program
    # A runtime without drop-ins is edited in place at any version; the version also tells whether CDI must be enabled.
    matters = runtime.drop_in or (runtime.cdi_support == "switch" and desired.enable_cdi)
    output = host.run_probe(Probe(f"version:{program}", argv=(program, "--version"))).text if matters else ""
    match = _PROGRAM_VERSION.search(output)
    return tuple(int(number) for number in match[1].split(".")) if match else None


def _dump_config(host: HostView, dumps: Sequence[Sequence[str]]) -> bytes:
    for argv in dumps:
        capture = host.run_probe(
            Probe(" ".join(argv), argv=tuple(argv), timeout_s=_DUMP_TIMEOUT_S, limit_bytes=_MAX_DUMP_BYTES)
        )
        if capture.outcome != "absent":
            break
    if capture.outcome == "ok":
        return capture.data
    raise Refused(
        f"`{capture.source}` does not print the configuration",
        why=capture.error.strip()[-500:] or capture.outcome,
        hint="fix that, or omit --config-source to read the file instead",
    )


def find_missing_program(host: HostView, binaries: Iterable[str]) -> str:
    """Return the first of ``binaries`` that is not installed; empty if all are."""

    def is_missing(binary: str) -> bool:
        places = (binary,) if "/" in binary else tuple(f"{folder}/{binary}" for folder in _PROGRAM_FOLDERS)
        # One byte shows that the file exists; a file that cannot be read does not count as missing.
        probes = (Probe(f"program:{folder}", path=folder, limit_bytes=1) for folder in places)
        return all(host.run_probe(probe).outcome == "absent" for probe in probes)

    return next((binary for binary in binaries if is_missing(binary)), "")


def plan_configure_edit(host: HostView, target: RuntimeTarget, trails: Trails = _NO_TRAILS, root: str = "/") -> CtkPlan:
    """Plan the edits that make the runtime run containers with NVIDIA's binary, as desired.

    Args:
        host: the node.
        target: the runtime, and its desired configuration.
        trails: what gpunode has changed in its files; this is rebuilt from what the other files say now.
        root: the node's root folder, for the commands that are named.

    Raises:
        Refused: the runtime's files cannot be edited this way.
    """
    target_runtime, desired = target.runtime, target.desired
    drop_in = desired.drop_in or target_runtime.drop_in
    trail, now = trails.get(drop_in), target.present.get(drop_in)
    if trail and now is not None:
        restored = restore_file(trail, now, partial(_revert_span, None)).state
        target = replace(target, desired=replace(desired, others=restored.content if restored else b""))
    planned = with_file_manager_notes(runtime.plan_configuration(target))
    registers_itself = bool(target_runtime.configure(contents_of_states(target.present), target.desired).restart_reason)
    binaries = (binary for _, binary in planned.expectation.handlers) if planned.expectation else ()
    absent = find_missing_program(host, filter(None, binaries))
    plan = CtkPlan(
        target_runtime.id,
        target.main,
        planned,
        present=target.present,
        target=target,
        registers_itself=registers_itself,
    )
    if not absent:
        return plan
    program = missing_program(absent, target_runtime.id, *(() if root == "/" else (f"--root={root}",)))
    return replace(plan, missing_program=program).with_notes(program.note)


def plan_cdi_specification(host: HostView, runtime: Runtime, notes: Sequence[str] = (), *, image: bool) -> CtkPlan:
    """Plan a CDI specification, kept up to date, for a runtime that takes no handler.

    Raises:
        Undetermined: the evidence does not show which devices exist.
    """
    facts = survey(host, image=image)
    planned = cdi.plan(cdi_only_recipe(runtime), facts)
    assert isinstance(planned, Planned), "the step refuses nothing"
    plan = CtkPlan(
        runtime.id,
        cdi.output_path(facts),
        replace(planned, reason=planned.reason.removesuffix(cdi.KEPT_FRESH_PHRASE)),
        cdi.CDI_STEP,
    )
    # This command writes only the file; enabling units is up to setup or the user.
    idle = [change.unit for change in ServiceChange.of_kind(planned.changes)]
    if idle:
        enable = f"sudo systemctl enable --now {' '.join(idle)}"
        plan = plan.with_notes(f"nothing regenerates the specification when the driver changes: {enable}")
    planned = replace(plan.planned, notes=(*notes, *plan.planned.notes))
    plan = replace(plan, planned=planned).with_changes(plan.files)
    if image or not plan.files or not (absent := find_missing_program(host, ("nvidia-ctk",))):
        return plan
    return replace(plan, missing_program=replace(missing_program(TOOLKIT_PROGRAM, runtime.id), program=absent))


def refuse_missing_specification_writer(plan: CtkPlan) -> None:
    """Refuse a CDI specification that no program can write.

    Raises:
        Refused: the runtime takes GPUs by CDI alone, and nvidia-ctk is not installed.
    """
    if plan.missing_program is not None and takes_only_cdi(plan.target_name):
        raise Refused(
            f"{plan.main_file} cannot be written: {plan.missing_program.program} is not installed",
            why="only this program can list the GPUs and libraries of the driver",
            hint=f"{plan.missing_program.hint}\nthen run the same command again",
        )


def cdi_only_recipe(runtime: Runtime) -> Recipe:
    """Return a recipe that requests only CDI devices."""
    return Recipe(runtime.id, driver=Driver(version="none"), runtime=RuntimeSettings(runtime.id))


def plan_unconfigure_edit(host: HostView, target: RuntimeTarget, trails: Trails) -> CtkPlan:
    """Plan the removal of what configure added to the runtime's files; a file as its package shipped it stays.

    Args:
        host: the node.
        target: the runtime, and the handler to remove.
        trails: what gpunode has changed, in these and other files.

    Raises:
        Refused: the runtime's files cannot be edited this way.
        Undetermined: it is unknown which of the files belong to packages.
    """
    runtime, desired, files = target.runtime, target.desired, contents_of_states(target.present)
    # Removing runc's table is safe: complete_removal restores it if the runtime needs it.
    entries = {
        layer.path: ((*layer.runtimes, desired.handler), (*layer.runtimes, "runc"))
        for layer in runtime.layers(files, desired)
    }
    trails = {path: trail for path, trail in trails.items() if trail and path in {*entries, *target.own}}
    last_contents = {path: _known_content(trail[-1].change.after) for path, trail in trails.items()}
    differing = {
        path: now for path in trails if (now := target.present.get(path)) and now.content != last_contents[path]
    }
    packaged = live_state.find_packaged_files(host, differing)
    trails = {path: trail for path, trail in trails.items() if path not in packaged}
    recorded = [recorded_edit(span.change) for trail in trails.values() for span in trail]
    recent_trails = {path: _trail_since_removal(trail, desired.handler) for path, trail in trails.items()}
    # For each file the first edit that is about the handler, or about no handler, such as an edit of the default alone.
    edits = ((path, recorded_edit(span.change)) for path, trail in recent_trails.items() for span in reversed(trail))
    about = ((path, edit) for path, edit in edits if desired.handler in (changed_handlers(edit) or {desired.handler}))
    contents_before = {path: edit.before for path, edit in about}
    restored: dict[str, RestoredFile] = {}
    if contents_before and not find_other_own_handlers(runtime, desired, files, recorded):
        # No other handler needs the rest of what gpunode wrote, such as an import.
        restored = {
            path: restore_file(trail, target.present.get(path), partial(_revert_span, entries.get(path)))
            for path, trail in recent_trails.items()
        }
        contents_before = {path: None for path, file in restored.items() if file.is_unclear}
    contents_now = {**files, **{path: _known_content(file.state) for path, file in restored.items()}}
    reverted_files = {path: content for path, content in contents_now.items() if content is not None}
    notes = tuple(note for file in restored.values() for note in file.notes)
    removal = Removal(files, former_files(files, recorded), reverted_files, notes)
    edited = remove_handler(runtime, desired, removal, contents_before)
    planned = with_file_manager_notes(
        plan_edits(target, edited, edited.how, RuntimeExpectation(runtime.id, target.main))
    )
    plan = CtkPlan(runtime.id, target.main, planned, present=target.present, target=target)
    # Removing a file also removes the folders that were made for it, if they are empty then.
    made = {path: dict.fromkeys(folder for span in trail for folder in span.folders) for path, trail in trails.items()}
    return plan.with_changes(
        [
            replace(file, folders=(*made[file.path],)) if file.after is None and file.path in made else file
            for file in plan.files
        ]
    )


def _trail_since_removal(trail: FileTrail, handler: str) -> FileTrail:
    """Return the trail since the handler was last removed: that removal undid everything before it."""
    spans = takewhile(lambda span: not removes_handler(recorded_edit(span.change), handler), reversed(trail))
    return tuple(reversed(tuple(spans)))


def _revert_span(
    entries: Collection[tuple[str, ...]] | None, span: NetChange[FileChange], now: FileState | None
) -> RestoredFile | None:
    """Undo a span in a file that was edited since; keep others' changes to gpunode's values."""
    if now is None:
        return None
    restored = revert_change(span.change, now, entries, keeps_changed=True)
    return restored or RestoredFile(now, is_unclear=True)


def _known_content(state: object) -> bytes | None:
    return state.content if isinstance(state, FileState) else None


def preview_contents(plan: CtkPlan) -> tuple[bytes, ...]:
    """Return the changed files as they would be, the main file last."""
    changed = {change.path: _known_content(change.after) for change in plan.files}
    after = {**contents_of_states(plan.present), **changed}
    paths = dict.fromkeys((*(path for path in changed if path != plan.main_file), plan.main_file))
    return tuple(content for path in paths if (content := after.get(path)) is not None)


_TOOLKIT_TARGET_NAME = "toolkit configuration"
_REAL_LDCONFIG = "/sbin/ldconfig.real"


def plan_toolkit_config(host: HostView, path: str, desired: Sequence[Setting], target: str = "") -> CtkPlan:
    """Plan ``target`` (or ``path`` itself) with the content of ``path`` and all ``desired`` settings.

    Raises:
        Refused: the file cannot be read or edited; see ``toolkit.configure``.
        Undetermined: only root may read it.
    """
    present = probe_state(host.run_probe, path).get(path)
    content = toolkit.configure(present.content if present else None, desired, inspect_toolkit_host(host), path)
    how = "in place" if target in {"", path} else f"generated from {path}"
    return _plan_toolkit_file(host, target or path, content, present, how)


def plan_new_toolkit_config(host: HostView, target: str) -> CtkPlan:
    """Plan ``target`` with the content that a new installation would have.

    Raises:
        Refused, Undetermined: the present file cannot be read.
    """
    return _plan_toolkit_file(
        host, target, toolkit.render_default_config(inspect_toolkit_host(host)).encode(), None, "generated again"
    )


def _plan_toolkit_file(host: HostView, path: str, content: bytes, source: FileState | None, reason: str) -> CtkPlan:
    """Plan a file; root owns a new one, and it is no more readable than its source, which may hold secrets."""
    present = probe_state(host.run_probe, path)
    before = present.get(path)
    after = replace(before or restrict_writes_to_root(source or FileState(b"")), content=content)
    changes = () if before == after else (FileChange(path, before, after),)
    reason = f"{reason}; every container start reads it, so nothing has to be restarted"
    return CtkPlan(_TOOLKIT_TARGET_NAME, path, Planned(changes, reason), present=present)


def inspect_toolkit_host(host: HostView) -> ToolkitHost:
    """Return what the default values depend on."""
    captures = (host.run_probe(Probe(path, path=path)) for path in machine.OS_RELEASE_FILES)
    text = next((capture.text for capture in captures if capture.outcome == "ok"), "")
    like = machine.parse_variables(text).get("ID_LIKE", "").split()
    real = host.run_probe(Probe(_REAL_LDCONFIG, glob=_REAL_LDCONFIG, contents=False))
    return ToolkitHost(suse=not {"suse", "opensuse"}.isdisjoint(like), real_ldconfig=bool(real.data))
