"""The walk that plan, setup, verify and rehearse share: steps in their stages, and an advance between stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from gpunode.catalog.managers import find_manager_claim
from gpunode.change import Change, FileChange, PackageChange, Trigger, sort_changes, sort_triggers, triggers_of
from gpunode.command import command
from gpunode.errors import GpunodeError, Undetermined
from gpunode.facts.derive import derive, derive_devices, derive_kubelet_facts
from gpunode.facts.evidence import Capture, Evidence, Probe
from gpunode.facts.machine import MELLANOX_VENDOR_ID, read_secure_boot
from gpunode.facts.model import Facts, Known, PciDevice, Unknown, value_or
from gpunode.facts.probes import LSPCI_PROBE, list_probes, standalone_kubelet_probe
from gpunode.facts.project import PLAN_PROBE_KEY, project_changes
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import HostView
from gpunode.outcome import Blocked, Planned, Refusal, Stage, Step, StepOutcome
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.packages.simulation import NOT_SIMULATED_PREFIX
from gpunode.recipe import Recipe
from gpunode.redaction.secrets import redact_text as redact
from gpunode.runtimes import RUNTIMES, DesiredConfig, Runtime
from gpunode.runtimes.file_states import probe_states
from gpunode.runtimes.installations import resolve_runtime_if_possible
from gpunode.steps import mig
from gpunode.steps.daemons import GPU_SERVICES_STEP, SERVICES_STOP_FIRST_REASON, plan_service_stops
from gpunode.steps.detect import DETECT_STEP
from gpunode.steps.gpus import GPU_OPTION
from gpunode.steps.packages import merge_hold_refusals
from gpunode.steps.table import STAGES, STEPS
from gpunode.steps.toolkit import CONFIG_PACKAGE, TOOLKIT_CONFIG_FILE

# Larger than the usual number of commands, so that a hanging one does not delay the others.
_MAX_PARALLEL_PROBES = 64
_MAX_MANAGER_QUOTE_LENGTH = 120
# The step id of packages that the package manager adds as dependencies.
DEPENDENCIES_STEP_ID = "dependencies"
RESUME_STEP_ID = "reboot"  # what setup --reboot leaves for the next boot


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of one step.

    Attributes:
        changes: as they will be made; packages have the index's versions once there is an index.
    """

    step: Step
    outcome: StepOutcome
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The plan of one stage.

    Attributes:
        dependencies: packages that the package manager adds or removes along with those that steps name.
        unresolved: the package manager's message if it would refuse the package changes; else empty.
    """

    stage: Stage
    steps: tuple[StepPlan, ...]
    dependencies: tuple[PackageChange, ...] = ()
    unresolved: str = ""

    @property
    def ordered_changes(self) -> tuple[Change, ...]:
        """Every change of the stage, in the order in which the changes are made."""
        return sort_changes((*(change for plan in self.steps for change in plan.changes), *self.dependencies))

    @property
    def packages(self) -> tuple[PackageChange, ...]:
        """The package changes: one transaction."""
        return PackageChange.of_kind(self.ordered_changes)

    @property
    def index_note(self) -> str:
        """The reason why it is ``unresolved``, for the screen; empty if it is resolved."""
        if not self.unresolved or self.unresolved.startswith(NOT_SIMULATED_PREFIX):
            return self.unresolved
        reason = "the node's package index does not allow this; setup refreshes it before it decides"
        return f"{reason}:\n{self.unresolved}"

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The triggers of the changes."""
        return triggers_of(self.ordered_changes)

    @property
    def refusal(self) -> Refusal | None:
        """The first refusal among the steps."""
        return next((plan.outcome for plan in self.steps if isinstance(plan.outcome, Refusal)), None)

    @property
    def waits(self) -> tuple[Blocked, ...]:
        """The steps of this stage that wait for something."""
        return tuple(plan.outcome for plan in self.steps if isinstance(plan.outcome, Blocked))

    def step_of(self, change: Change) -> StepPlan | None:
        """Return the step whose change this is; None for a dependency."""
        return next((plan for plan in self.steps if change in plan.changes), None)


ResolveVersions: TypeAlias = Callable[[Facts, StagePlan], StagePlan]
AdvanceFacts: TypeAlias = Callable[[Facts, StagePlan], Facts]


def run_probes(host: HostView, probes: Sequence[Probe]) -> Evidence:
    """Return what ``probes`` find; commands run in parallel, so the slowest one determines the time."""
    with ThreadPoolExecutor(max_workers=_MAX_PARALLEL_PROBES) as pool:
        running = {probe.key: pool.submit(_run_probe, host, probe) for probe in probes if probe.argv}
        read = {probe.key: _run_probe(host, probe) for probe in probes if not probe.argv}
        return {p.key: running[p.key].result() if p.argv else read[p.key] for p in probes}


def _run_probe(host: HostView, probe: Probe) -> Capture:
    return replace(host.run_probe(probe), content_kind=probe.content_kind)


def probe_with_kubelet(host: HostView, probes: Sequence[Probe]) -> Evidence:
    """Return what ``probes`` find, and the command line of the kubelet that systemd runs."""
    evidence = run_probes(host, probes)
    command = standalone_kubelet_probe(evidence.get("units"))
    return {**evidence, command.key: _run_probe(host, command)} if command else evidence


def probe_with_runtimes(host: HostView, probes: Sequence[Probe], *, image: bool = False) -> Evidence:
    """Return what ``probes`` find, and the files that runtimes read beside their root file.

    lspci runs if sysfs does not show which PCI devices there are. With Secure Boot on, the modules' key is read.
    """
    evidence = dict(probe_with_kubelet(host, probes))

    def ask(probe: Probe) -> Capture:
        if probe.key not in evidence:
            evidence[probe.key] = _run_probe(host, probe)
        return evidence[probe.key]

    devices = derive_devices(evidence)
    if not image and not isinstance(devices, Known):
        ask(LSPCI_PROBE)
        devices = derive_devices(evidence)
    listed: tuple[PciDevice, ...] = () if image else value_or(devices, ())
    if any(device.vendor == MELLANOX_VENDOR_ID for device in listed):
        from gpunode.facts.bridges import bridge_probe

        if probe := bridge_probe(listed):
            ask(probe)
    if not image and value_or(read_secure_boot(evidence), False):
        from gpunode.facts.module_key import probe_module_key

        probe_module_key(evidence, ask)
    for runtime in _runtimes_to_read(evidence, image=image):
        with suppress(GpunodeError):  # the step that needs the file reports it
            probe_states(ask, runtime, DesiredConfig())
    return evidence


def _runtimes_to_read(evidence: Evidence, *, image: bool) -> Iterator[Runtime]:
    """Yield the runtimes, and the containerd of a Kubernetes distribution that the kubelet uses."""
    facts = derive_kubelet_facts(evidence, image=image)
    for runtime in RUNTIMES:
        yield runtime
        if (place := resolve_runtime_if_possible(runtime, facts)) is not runtime:
            yield place


def collect_evidence(host: HostView, recipe: Recipe | None, *, image: bool = False) -> Evidence:
    """Return the evidence for every fact, including those that only ``recipe`` needs."""
    evidence = probe_with_runtimes(host, list_probes(image=image), image=image)
    return {**evidence, **run_probes(host, tuple(_mig_probes(recipe, evidence)))} if recipe else evidence


def _mig_probes(recipe: Recipe, evidence: Evidence) -> Iterator[Probe]:
    """Yield the additional probes of a recipe that partitions GPUs."""
    if not mig.may_use_mig(recipe):
        return
    if path := recipe.mig.file:
        yield Probe(f"file:{path}", path=path)
    loaded = evidence.get("nvidia-version")
    if loaded is not None and loaded.outcome == "ok":  # else NVML would load the driver
        from gpunode.host import nvml

        yield nvml.make_probe()


def survey(
    host: HostView, *, image: bool = False, gpus: Sequence[PciDevice] = (), recipe: Recipe | None = None
) -> Facts:
    """Return the facts of the node as it is now.

    ``gpus`` are those of the machine that an image is built for; they replace this machine's devices.
    """
    facts = derive(collect_evidence(host, recipe, image=image), image=image, distribution=host.read_live_distribution())
    return replace(facts, devices=Known(tuple(gpus), GPU_OPTION)) if gpus else facts


def plan_stage(recipe: Recipe, facts: Facts, stage: Stage, only: Collection[str] = ()) -> StagePlan:
    """Return the plans of a stage's steps; each step sees what the steps before it will have changed."""
    plans: list[StepPlan] = []
    recipe = without_unneeded_driver(recipe, only)
    # Treat a step that ``only`` leaves out as skipped: other steps may have to do part of its work.
    recipe = replace(recipe, skip=(*recipe.skip, *(step.id for step in STEPS if only and step.id not in only)))
    steps = iter(_selected_steps(recipe, stage, only))
    for step in steps:
        outcome = _plan_step(step, recipe, facts)
        if isinstance(outcome, Refusal):
            # Name all holds at once, so that the user does not release them one by one.
            more = (_find_hold_refusal(later, recipe, facts) for later in steps) if outcome.held else ()
            plans.append(StepPlan(step, merge_hold_refusals((outcome, *filter(None, more)))))
            break
        outcome = with_file_manager_notes(outcome) if isinstance(outcome, Planned) else outcome
        changes = outcome.changes if isinstance(outcome, Planned) else ()
        plans.append(StepPlan(step, outcome, changes))
        facts = project_changes(facts, changes)
    return StagePlan(stage, tuple(plans))


def _plan_step(step: Step, recipe: Recipe, facts: Facts) -> StepOutcome:
    """Return the outcome of ``step``, with notes on what an earlier recipe left of it if this one asks for nothing."""
    outcome = step.plan(recipe, facts)
    if isinstance(outcome, Planned) and not outcome.is_requested:
        return replace(outcome, notes=(*outcome.notes, *_note_left_files(step, facts)))
    return outcome


def _note_left_files(step: Step, facts: Facts) -> Iterator[str]:
    """Yield a note for each gpunode file that is still in effect, with the commands that remove it and its packages."""
    for path in (*step.files, *step.folder_files):
        name = path.rpartition("/")[2]
        if not name.startswith("gpunode-") or value_or(facts.file(path), None) is None:
            continue
        stop = command("sudo", "rm", path)
        if name.endswith(".service"):
            unit = facts.unit(name)
            if not isinstance(unit, Known) or not (unit.value.state.enabled or unit.value.state.active):
                continue
            stop = command("sudo", "systemctl", "disable", "--now", name)
        packages = _list_installed_packages(step, facts)
        purge = f"; if nothing else needs its packages: `sudo {deb.purge_command(packages)}`" if packages else ""
        yield f"{path}, of an earlier recipe, is still in effect; this recipe asks for no {step.title}: `{stop}`{purge}"


def _list_installed_packages(step: Step, facts: Facts) -> tuple[str, ...]:
    """Return the names of the installed packages of ``step``, without mere dependencies."""
    if step.packages is None:
        return ()
    installed = value_or(facts.packages, {}).items()
    requested = (package for package, state in installed if not (state.auto or state.config_files_only))
    return tuple(sorted(map(str, filter(step.packages.is_owned, requested))))


def _find_hold_refusal(step: Step, recipe: Recipe, facts: Facts) -> Refusal | None:
    """Return the step's refusal because of a package on hold; None if it does not refuse for that reason."""
    with suppress(Undetermined):
        outcome = step.plan(recipe, facts)
        return outcome if isinstance(outcome, Refusal) and outcome.held else None
    return None


def with_file_manager_notes(planned: Planned) -> Planned:
    """Return ``planned`` with a note for every changed file that a comment claims for a program."""
    files = (change for change in FileChange.of_kind(planned.changes) if not change.only_triggers_reread)
    notes = tuple(note for change in files if (note := _file_manager_note(change)))
    return replace(planned, change_notes=(*planned.change_notes, *notes)) if notes else planned


def _file_manager_note(change: FileChange) -> str:
    """Return a note that quotes the comment that claims the file for a program; empty if none does."""
    if change.before is None or (claim := find_manager_claim(change.before.content)) is None:
        return ""
    number, text = claim
    words = redact(text)[:_MAX_MANAGER_QUOTE_LENGTH]
    return (
        f"{change.path}:{number} says {words!r}; if a tool writes this file, make the change there, too, or it will "
        "undo this one"
    )


def _selected_steps(recipe: Recipe, stage: Stage, only: Collection[str]) -> Iterator[Step]:
    """Yield the selected steps of ``stage``; always detection, since every other step depends on it."""
    for step in STEPS:
        is_requested = step.id not in recipe.skip and (not only or step.id in only)
        if step.stage == stage and (is_requested or step.id == DETECT_STEP.id):
            yield step


def without_unneeded_driver(recipe: Recipe, only: Collection[str]) -> Recipe:
    """Return ``recipe``, without its driver if no selected step needs one."""
    selected = [step for step in STEPS if step.id not in recipe.skip and (not only or step.id in only)]
    # Without ``--only``, a step that uses the driver may be all that a recipe keeps of the driver's steps.
    if any(step.for_driver or (step.uses_driver and only) for step in selected):
        return recipe
    return replace(recipe, driver=replace(recipe.driver, version="none"))


def walk_stages(
    recipe: Recipe, facts: Facts, resolve_versions: ResolveVersions, advance: AdvanceFacts, only: Collection[str] = ()
) -> Iterator[StagePlan]:
    """Yield the plan of every stage, in order; stop after a refusal.

    ``resolve_versions`` gives a stage's package changes the versions of the package index, as far as it can.
    ``advance`` returns the facts that the next stage sees: plan projects them, setup applies and probes.
    """
    for stage in STAGES:
        plan = with_gpu_services_stopped(resolve_versions(facts, plan_stage(recipe, facts, stage, only)), facts)
        yield plan
        if plan.refusal:
            return
        facts = advance(facts, plan)


def with_gpu_services_stopped(plan: StagePlan, facts: Facts) -> StagePlan:
    """Return ``plan`` with NVIDIA's services stopped first if its changes take the GPUs from them."""
    stops = plan_service_stops(plan.ordered_changes, facts)
    steps = (StepPlan(GPU_SERVICES_STEP, Planned(stops, SERVICES_STOP_FIRST_REASON), stops),) if stops else ()
    return replace(plan, steps=(*steps, *plan.steps))


def project_stage(facts: Facts, plan: StagePlan) -> Facts:
    """Return the facts after ``plan`` without applying it: the advance of plan and rehearse."""
    after = project_changes(facts, plan.ordered_changes)
    unseen = {
        path: Unknown(f"known after {name} is installed", PLAN_PROBE_KEY)
        for path, name in _config_paths_of_new_packages(after, plan)
    }
    return replace(after, files={**after.files, **unseen}) if unseen else after


def _config_paths_of_new_packages(facts: Facts, plan: StagePlan) -> Iterator[tuple[str, str]]:
    """Yield the configuration files that a runtime's or the toolkit's new package will ship, each with the package."""
    new = {change.id for change in plan.packages if change.exists_after and not change.exists_before}
    shipped = [
        (runtime.config, name)
        for runtime in RUNTIMES
        for name in sorted(runtime.config_packages)
        if PackageId(name) in new
    ]
    shipped += [(TOOLKIT_CONFIG_FILE, str(CONFIG_PACKAGE))] if CONFIG_PACKAGE in new else []
    for path, name in shipped:
        if isinstance(fact := facts.file(path), Known) and fact.value is None:
            yield path, name


def step_ids_by_change(plans: Sequence[StagePlan]) -> dict[Change, str]:
    """Return the id of the requesting step for each change."""
    step_ids = {change: step.step.id for plan in plans for step in plan.steps for change in step.changes}
    return {**{change: DEPENDENCIES_STEP_ID for plan in plans for change in plan.dependencies}, **step_ids}


def triggers_of_plans(
    plans: Sequence[StagePlan], *, image: bool, pending: Sequence[Trigger] = ()
) -> tuple[Trigger, ...]:
    """Return the triggers of ``plans`` and ``pending``; in an image, without those that need services."""
    every = sort_triggers({*pending, *(trigger for plan in plans for trigger in plan.triggers)})
    return tuple(trigger for trigger in every if not (image and trigger.needs_services))


def selected_step_ids(recipe: Recipe, plans: Sequence[StagePlan]) -> tuple[str, ...]:
    """Return the ids of the planned steps if ``--only`` left out any of the recipe's steps; else none."""
    planned = {step.step.id for plan in plans for step in plan.steps}
    if planned.issuperset(step.id for step in STEPS if step.id not in recipe.skip):
        return ()
    return tuple(step.id for step in STEPS if step.id in planned - {DETECT_STEP.id}) or (DETECT_STEP.id,)


def collect_notes(plans: Sequence[StagePlan]) -> list[str]:
    """Return the distinct notes on the changes and on the node's state."""
    outcomes = (step.outcome for plan in plans for step in plan.steps)
    notes = (note for outcome in outcomes if isinstance(outcome, Planned) for note in outcome.all_notes)
    return list(dict.fromkeys(notes))


def state_notes(
    recipe: Recipe, facts: Facts, only: Collection[str] = (), *, is_users_recipe: bool = True
) -> tuple[str, ...]:
    """Return the distinct notes on the node's present state, whether or not anything has to change.

    They cover hazards of the next boot, keys without effect, and other things that no step changes. Plan, setup, verify
    and status show the same notes. A step that refuses or lacks evidence has none: plan says why. Leftovers of
    an earlier recipe are only noted if ``recipe`` is the user's.
    """
    unique_notes: dict[str, None] = {}
    recipe = without_unneeded_driver(recipe, only)
    for step in (step for stage in STAGES for step in _selected_steps(recipe, stage, only)):
        with suppress(GpunodeError):
            outcome = _plan_step(step, recipe, facts) if is_users_recipe else step.plan(recipe, facts)
            unique_notes.update(dict.fromkeys(outcome.notes if isinstance(outcome, Planned) else ()))
    return tuple(unique_notes)


def raise_refusal(plans: Sequence[StagePlan]) -> None:
    """Raise the first refusal among ``plans``; return if there is none."""
    for plan in plans:
        if refusal := plan.refusal:
            raise refusal.as_error()
