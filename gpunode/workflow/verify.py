"""verify: check that the node works, by querying the node itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from gpunode.check import Check
from gpunode.container_runtimes import explain_missing_client
from gpunode.errors import GpunodeError, Refused, Undetermined, VerifyFailed
from gpunode.facts import nvml as nvml_facts
from gpunode.facts.model import Facts, Known
from gpunode.facts.nvml import Gpu, NvmlInventory
from gpunode.facts.probes import TOOLKIT_PROGRAM
from gpunode.fast_dataclass import dataclass
from gpunode.host import nvml
from gpunode.host.port import HostView
from gpunode.outcome import Blocked, Planned, Step
from gpunode.recipe import Recipe
from gpunode.runtimes import DesiredConfig, ObservedConfig, Runtime, find_runtime
from gpunode.runtimes.file_states import contents_of_states, inspect_from_facts, states_from_facts
from gpunode.runtimes.installations import resolve_runtime_if_possible
from gpunode.steps.cdi import CDI_STEP
from gpunode.steps.kernel import MODULE_LOAD_STEP
from gpunode.steps.mig import MIG_STEP, may_use_mig
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP, enable_cri_command, find_missing_toolkit
from gpunode.workflow.converge import StagePlan, collect_notes, selected_step_ids, state_notes
from gpunode.workflow.driver_checks import await_fabric, check_vector_addition, driver_checks, fabric_checks
from gpunode.workflow.extra_checks import (
    CDI_TITLE,
    CONTAINER_TITLE,
    ReadEffectiveConfig,
    cdi_checks,
    expectation_checks,
    package_file_checks,
)
from gpunode.workflow.plan import plan
from gpunode.workflow.recovery import NO_BACKLOG, Backlog

# As written in the hints of checks; replaced by the setup command for this recipe.
_SETUP_COMMAND = "sudo gpunode setup"
_SETUP_ALONE = re.compile(rf"{_SETUP_COMMAND}(?! -)")
_RECIPE_CHECK_TITLE = "matches the recipe"
_RUNTIME_CHECK_TITLE = "the container runtime reads the runtime nvidia"
_CONFIG_DUMP_HINT = "see what it reads, such as by `containerd config dump`: another imported file may override it"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The results of verify.

    Attributes:
        inventory: NVML's, if it answered.
        undetermined: why checks lacked evidence, such as root's rights.
        notes: on the node's state, beside the checks.
    """

    checks: tuple[Check, ...]
    inventory: NvmlInventory | None = None
    undetermined: tuple[Undetermined, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks which show that the node does not work."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that NVML lists."""
        return self.inventory.gpus if self.inventory else ()

    def failure(self, prefix: str = "") -> GpunodeError | None:
        """Return the error of the first failed check, else of the first undetermined one; None if there is neither."""
        if not self.failed:
            return next(iter(self.undetermined), None)
        first = self.failed[0]
        return VerifyFailed(f"{prefix}{first.title}: {first.detail}", hint=first.hint)


@dataclass(frozen=True, slots=True)
class ExtraChecks:
    """Optional checks that start something on the node or take long.

    Attributes:
        files: whether programs and libraries are compared with the checksums of their packages.
        cuda: whether a vector addition runs on every GPU.
        container: runs a container and compares its GPUs with NVML's; None omits this check.
    """

    files: bool = False
    cuda: bool = False
    container: Callable[[NvmlInventory, Runtime], Check] | None = None


_NO_EXTRA_CHECKS = ExtraChecks()


def verify(
    recipe: Recipe,
    facts: Facts,
    host: HostView,
    read_effective_config: ReadEffectiveConfig,
    extra: ExtraChecks = _NO_EXTRA_CHECKS,
    planned: Sequence[StagePlan] | None = None,
    backlog: Backlog = NO_BACKLOG,
    only: Collection[str] = (),
    setup_command: str = _SETUP_COMMAND,
) -> VerifyReport:
    """Check the node; a check that cannot be made says so and never passes.

    ``planned`` is an existing plan of the whole recipe for the same facts; ``setup_command`` is the command that
    applies the recipe, for hints.
    """
    undetermined: list[Undetermined] = []
    # NVML and the runtime are queried in parallel; each takes about 30 ms.
    with ThreadPoolExecutor(max_workers=1) as pool:
        query = pool.submit(host.run_probe, nvml.make_probe()) if _is_step_selected(only, MODULE_LOAD_STEP) else None
        whole = lambda: [check_configuration(recipe, facts, host, planned, backlog, only)]  # noqa: E731
        checks = [*_checks_or_undetermined(whole, "configuration", _RECIPE_CHECK_TITLE, undetermined)]
        reads = lambda: [*runtime_checks(recipe, facts, read_effective_config)]  # noqa: E731
        of_runtime = (
            _checks_or_undetermined(reads, "runtime", _RUNTIME_CHECK_TITLE, undetermined)
            if _is_step_selected(only, RUNTIME_CONFIG_STEP)
            else ()
        )
        answer = await_fabric(facts, host, nvml_facts.read_nvml_answer(query.result())) if query else None
    inventory = answer if isinstance(answer, NvmlInventory) else None
    checks += check_mig_layout(recipe, facts) if _is_step_selected(only, MIG_STEP) else ()
    checks += [*driver_checks(recipe, facts, answer), *fabric_checks(facts, answer)] if answer is not None else []
    checks += of_runtime
    checks += (
        _checks_or_undetermined(lambda: [*cdi_checks(recipe, facts, host)], "cdi", CDI_TITLE, undetermined)
        if _is_step_selected(only, CDI_STEP)
        else ()
    )
    checks += expectation_checks(recipe.expect, inventory) if answer is not None else ()
    checks += package_file_checks(recipe, facts, host) if extra.files else ()
    checks += [check_vector_addition(host)] if extra.cuda else ()
    if (run := extra.container) is not None:
        checks += _checks_or_undetermined(
            lambda: [_check_container(recipe, facts, inventory, run)], "container", CONTAINER_TITLE, undetermined
        )
    # In a plan without changes, every step has seen the node as it is, so the plan's notes describe the state.
    is_converged = bool(planned) and not any(stage.ordered_changes for stage in planned or ())
    notes = tuple(collect_notes(planned or ())) if is_converged else state_notes(recipe, facts, only)
    checks = [replace(check, hint=_SETUP_ALONE.sub(lambda _: setup_command, check.hint)) for check in checks]
    return VerifyReport(tuple(checks), inventory, tuple(undetermined), notes)


def _is_step_selected(only: Collection[str], step: Step) -> bool:
    return not only or step.id in only


def _checks_or_undetermined(
    make_checks: Callable[[], Sequence[Check]], check_id: str, title: str, undetermined: list[Undetermined]
) -> Sequence[Check]:
    """Return the checks; without evidence, a skipped check, with the reason appended to ``undetermined``."""
    try:
        return make_checks()
    except Undetermined as error:
        undetermined.append(error)
        return [Check(check_id, title, "skipped", error.what_and_why, error.hint)]


def check_configuration(
    recipe: Recipe,
    facts: Facts,
    host: HostView,
    planned: Sequence[StagePlan] | None = None,
    backlog: Backlog = NO_BACKLOG,
    only: Collection[str] = (),
) -> Check:
    """Check that every step, planned again, finds nothing to do; skipped if only a reboot can tell."""
    check = partial(Check, "configuration", f"matches recipe {recipe.name}")
    try:
        plans = plan(recipe, facts, host, only) if planned is None else planned
    except Undetermined:
        raise
    except GpunodeError as error:
        return check("failed", error.what_and_why, error.hint)
    if refusal := next((stage.refusal for stage in plans if stage.refusal), None):
        return check("failed", f"{refusal.what}: {refusal.why}", refusal.hint)
    if todo := [*(step.step.title for stage in plans for step in stage.steps if step.changes), *backlog.descriptions]:
        return check("failed", f"still to do: {', '.join(todo)}", _SETUP_COMMAND)
    if waits := [wait.reason for stage in plans for wait in stage.waits]:
        return check("skipped", f"known after a reboot: {'; '.join(waits)}", "reboot")
    if backlog.unread_reason:
        unknown = "nothing left to do, but gpunode cannot tell whether an earlier run left work undone"
        return check("skipped", f"{unknown}: {backlog.unread_reason}", "run it as root")
    scope = ", ".join(selected_step_ids(recipe, plans)) or "planned again"
    return check("passed", f"{scope}: nothing left to do")


def check_mig_layout(recipe: Recipe, facts: Facts) -> Iterator[Check]:
    """Yield the check that NVML shows the layout of the recipe."""
    if not may_use_mig(recipe) or MIG_STEP.id in recipe.skip:
        return
    check = partial(Check, "mig", "the GPUs have the MIG layout")
    match MIG_STEP.plan(recipe, facts):
        case Planned(changes=(), is_deferred=False) as found:
            yield check("passed", found.reason)
        case Planned(changes=()) as found:
            yield check("skipped", found.reason)
        case Planned() as found:
            todo = ", ".join(change.subject for change in found.changes)
            yield check("failed", f"still to do: {todo}", _SETUP_COMMAND)
        case Blocked() as wait:
            yield check("skipped", wait.reason, "reboot")
        case refusal:
            yield check("failed", f"{refusal.what}: {refusal.why}", refusal.hint)


def runtime_checks(recipe: Recipe, facts: Facts, read_effective_config: ReadEffectiveConfig) -> Iterator[Check]:
    """Yield the check that the runtime itself reads NVIDIA's handler, whatever gpunode wrote."""
    if recipe.runtime.name == "none":
        return
    runtime = resolve_runtime_if_possible(find_runtime(recipe.runtime.name), facts)
    title = f"{runtime.id} reads the runtime nvidia"
    if runtime.product:
        # A Kubernetes distribution's own containerd is not queried.
        yield _check_handler(
            runtime,
            recipe,
            inspect_from_facts(facts, runtime),
            f"{runtime.product} registers the runtime nvidia with its {runtime.id}",
            facts,
        )
        return
    try:
        observed = read_effective_config(runtime.id)
    except Undetermined:
        raise
    except GpunodeError as error:
        hint = f"sudo systemctl status {runtime.unit}"
        if not facts.can_start(runtime.unit):
            hint = f"no systemd runs here: start {runtime.id} the way this system starts it, then verify again"
        yield Check("runtime", title, "failed", error.what_and_why, hint)
        return
    if observed is None:
        unit = facts.unit(runtime.unit)
        reason = explain_missing_client(runtime, has_daemon=isinstance(unit, Known) and unit.value.exists)
        yield Check("runtime", title, "skipped", reason, _SETUP_COMMAND)
        return
    yield _check_handler(runtime, recipe, observed, title, facts)


def _check_handler(runtime: Runtime, recipe: Recipe, observed: ObservedConfig, title: str, facts: Facts) -> Check:
    if not runtime.unit:
        return Check("runtime", f"{runtime.id} starts containers", "passed", f"by {observed.default}")
    binary = observed.handlers.get("nvidia")
    if binary is None or observed.cri_disabled:  # containerd 2 prints the table of a plugin that it does not load
        return Check("runtime", title, "failed", *_explain_missing_handler(runtime, observed, facts))
    if binary == TOOLKIT_PROGRAM and (missing := find_missing_toolkit(facts, runtime)):
        return Check("runtime", title, "failed", f"nvidia runs {binary}, which is not installed", str(missing.install))
    if recipe.runtime.set_as_default and observed.default != "nvidia":
        hint = (
            f"sudo systemctl restart {runtime.unit}\n"
            "if that does not help, `gpunode plan` shows whether the file has it"
        )
        return Check("runtime", title, "failed", f"the default runtime is {observed.default}", hint)
    runs = f"nvidia runs {binary or 'its default'}; default runtime {observed.default or 'runc'}"
    return Check("runtime", title, "passed", runs)


def _explain_missing_handler(runtime: Runtime, observed: ObservedConfig, facts: Facts) -> tuple[str, str]:
    """Return why a runtime does not know NVIDIA's handler, and what to do; setup only if it would change something.

    Its files tell why: they lack the handler, or name it but were not read since, or the CRI plugin, which alone reads
    them, is disabled.
    """
    detail = f"it knows: {', '.join(sorted(observed.handlers)) or 'none'}"
    try:
        files = states_from_facts(facts, runtime, DesiredConfig())
        configured = runtime.inspect(contents_of_states(files), DesiredConfig())
    except (Refused, Undetermined):
        return detail, _SETUP_COMMAND  # setup reports what is wrong with the files
    if configured.cri_disabled:
        return f"its CRI plugin is switched off (disabled_plugins in {runtime.config})", str(
            enable_cri_command(runtime)
        )
    if configured.handlers.get("nvidia") is None and runtime.product:
        again = f"systemctl restart {runtime.unit}"
        return (
            detail,
            f"if {runtime.product} was not started since the toolkit was installed: {again}; else see its log",
        )
    if configured.handlers.get("nvidia") is None:
        return detail, _SETUP_COMMAND
    if configured.handlers["nvidia"] == TOOLKIT_PROGRAM and (missing := find_missing_toolkit(facts, runtime)):
        return f"{detail}: {TOOLKIT_PROGRAM} is not installed, so {runtime.id} leaves nvidia out", missing.hint
    unit, changed = facts.unit(runtime.unit), max((facts.changed_at.get(path, 0.0) for path in files), default=0.0)
    started_at = unit.value.started_at if isinstance(unit, Known) else None
    if changed and started_at is not None and started_at > changed:
        return f"{detail}; its files have nvidia, and {runtime.unit} was started since", _CONFIG_DUMP_HINT
    return f"{detail}; its files have nvidia", f"sudo systemctl restart {runtime.unit}"


def _check_container(
    recipe: Recipe, facts: Facts, inventory: NvmlInventory | None, run: Callable[[NvmlInventory, Runtime], Check]
) -> Check:
    check = partial(Check, "container", CONTAINER_TITLE)
    if recipe.runtime.name == "none":
        return check("skipped", "the recipe has no container runtime", "name one with --runtime")
    if inventory is None:
        return check("skipped", "NVML does not answer on the host", "fix the driver first")
    runtime = resolve_runtime_if_possible(find_runtime(recipe.runtime.name), facts)
    if runtime.product:
        hint = "start a pod with runtimeClassName: nvidia"
        return check("skipped", f"its {runtime.id} is part of {runtime.product}, which manages it", hint)
    try:
        return run(inventory, runtime)
    except Undetermined:
        raise
    except GpunodeError as error:
        return check("failed", error.what_and_why, error.hint)
