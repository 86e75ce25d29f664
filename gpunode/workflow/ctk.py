"""ctk: edit only a runtime's configuration (check, journal, reload on request), or compare it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

from gpunode.change import RuntimeExpectation
from gpunode.container_runtimes import explain_missing_client
from gpunode.errors import ChangeFailed
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Unit
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import Host, HostView, TriggerResult
from gpunode.host.runtime import list_differences
from gpunode.journal.store import Store
from gpunode.runtimes import ObservedConfig, Runtime, find_runtime
from gpunode.steps.runtime import plan_reread
from gpunode.workflow.apply import Applier, recording_failure
from gpunode.workflow.converge import StagePlan, StepPlan, survey
from gpunode.workflow.ctk_plan import CtkPlan, cdi_only_recipe
from gpunode.workflow.disruption import DOCKER_UNREACHABLE_ERROR, refuse_running_containers
from gpunode.workflow.events import Observer

CtkVerb: TypeAlias = Literal["configure", "unconfigure"]
ReadEffectiveConfig: TypeAlias = Callable[[str], ObservedConfig | None]
_SYSTEMD_RUN_FOLDER = "/run/systemd/system"
_NO_RESTART_NOTE = "not restarted: --restart was not given"


@dataclass(frozen=True, slots=True)
class EditResult:
    """The result of an edit: the run's id, and what the runtime's own parser said before it."""

    run: str
    trigger_results: tuple[TriggerResult, ...] = ()
    validation: str = ""


def with_restart_choice(plan: CtkPlan, *, restart: bool) -> CtkPlan:
    """Return ``plan`` with a restart if ``restart`` requests it, else without changes that only cause one.

    A daemon that has failed, or may still fail during its start, is restarted as well.
    """
    if not restart:
        return plan.with_changes(plan.changed_files)
    unit = _daemon_unit(plan)
    if plan.planned.changes or plan.target is None or unit is None or not (daemon_has_failed(plan) or unit.starting):
        return plan
    again = plan_reread(plan.target, (plan.main_file,), plan.planned.reason)
    return replace(
        plan, planned=replace(plan.planned, changes=again.changes, stopped_workloads=again.stopped_workloads)
    )


def daemon_has_failed(plan: CtkPlan) -> bool:
    """Return whether the daemon failed to run."""
    unit = _daemon_unit(plan)
    return unit is not None and unit.failed and not unit.masked


def _daemon_unit(plan: CtkPlan) -> Unit | None:
    """Return the unit of the daemon that reads the files; None if no daemon has to, or it is unknown."""
    return plan.target.unit if plan.target and plan.target.trigger else None


def has_systemd(host: HostView) -> bool:
    """Return whether systemd runs here (sd_booted(3))."""
    return bool(host.run_probe(Probe("systemd-booted", glob=_SYSTEMD_RUN_FOLDER, contents=False)).data)


def reload_was_skipped(host: HostView, plan: CtkPlan, result: EditResult) -> bool:
    """Return whether the daemon was not reloaded although it may run, as its socket exists."""
    return (
        any(trigger_result.skipped for trigger_result in result.trigger_results)
        and not has_systemd(host)
        and has_socket(host, plan)
    )


def has_socket(host: HostView, plan: CtkPlan) -> bool:
    """Return whether the runtime's socket exists, so that its daemon may run."""
    socket = plan.target.runtime.socket if plan.target else ""
    return bool(socket) and bool(host.run_probe(Probe("runtime-socket", glob=socket, contents=False)).data)


def refuse_disruption(host: HostView, plan: CtkPlan) -> None:
    """Refuse if rereading the files would stop running containers.

    Raises:
        DrainRequired: names the containers.
        Undetermined: the daemon does not report what runs.
    """
    if plan.planned.stopped_workloads and plan.target:
        refuse_running_containers(plan.target.facts.unit(plan.target.runtime.unit), host)


def apply_edit(
    plan: CtkPlan,
    host: Host,
    store: Store,
    verb: CtkVerb,
    on_event: Observer,
    *,
    restart: bool = False,
    check_interrupt: Callable[[], None] = lambda: None,
) -> EditResult:
    """Write all planned files or none; with ``restart``, restart the daemon and check that it read the files.

    ``check_interrupt`` is called before anything is written; it raises Interrupted after a signal.

    Raises:
        Refused: the runtime's own parser rejects the files; nothing was written.
        ChangeFailed: a file could not be written, or the daemon did not come back; says what was restored.
        Conflict: somebody edited a file meanwhile; the other files are unchanged.
    """
    host.refuse_unsafe_changes(plan.files)
    check_interrupt()
    stage = StagePlan(plan.step.stage, (StepPlan(plan.step, plan.planned, plan.files),))
    earlier = store.find_pending_triggers()
    untriggered_changes = store.find_untriggered_changes(stage.triggers)
    run = store.begin(verb)
    applier = Applier(host, run, on_event, lambda: None, untriggered_changes, earlier)
    with recording_failure(applier):
        applier.apply_stage(stage)
        due = tuple(trigger for trigger in stage.triggers if restart or trigger.kind == "cdi")
        trigger_results = applier.run_triggers(due)
        # Otherwise the next setup would take these triggers for leftovers of an interrupted run.
        applier.cancel_triggers((trigger for trigger in stage.triggers if trigger not in due), _NO_RESTART_NOTE)
    run.commit("done")
    return EditResult(run.id, trigger_results, applier.parser_answers.get(plan.step.id, ""))


def conclude_interrupted_edit(store: Store) -> None:
    """Record an interrupted edit as finished if nothing is left to do."""
    cut = store.find_interrupted_run()
    if cut is not None and cut.verb in {"configure", "unconfigure"}:
        store.close_interrupted_run(cut.id)


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """The state of a runtime compared with the requested configuration.

    Attributes:
        differs_from_request: whether its files differ from the requested ones.
        difference: how the running daemon differs from its files; empty if it does not.
        unverified: why the daemon was not queried; empty if it was.
        failed: whether that is because its service has failed.
    """

    differs_from_request: bool = False
    difference: str = ""
    unverified: str = ""
    failed: bool = False


def check_cdi_devices(host: HostView, runtime: Runtime, *, image: bool) -> ConfigStatus:
    """Compare the CDI specification with what containers request.

    Raises:
        Undetermined: the evidence does not show which devices exist.
    """
    from gpunode.workflow.extra_checks import cdi_checks

    if image:
        return ConfigStatus(unverified="nothing runs in an image")
    checks = tuple(cdi_checks(cdi_only_recipe(runtime), survey(host), host))
    wrong = "; ".join(check.detail for check in checks if check.status == "failed")
    if wrong or any(check.status == "passed" for check in checks):
        return ConfigStatus(difference=wrong)
    return ConfigStatus(unverified="; ".join(check.detail for check in checks if check.id == "cdi"))


def compare_with_plan(plan: CtkPlan, read_effective_config: ReadEffectiveConfig, *, is_live: bool) -> ConfigStatus:
    """Compare the files and, if ``is_live``, the daemon with what ``plan`` would leave.

    Raises:
        Undetermined: the daemon answers only root.
    """
    if plan.changed_files:
        return ConfigStatus(differs_from_request=True)
    if not is_live:
        return ConfigStatus(unverified="nothing runs in an image")
    if plan.target and not plan.target.is_default_config:
        return ConfigStatus(unverified=f"it reads {plan.main_file} only if its command line names it")
    if unverified := explain_no_reload(plan):
        return ConfigStatus(unverified=unverified)
    if daemon_has_failed(plan):
        return ConfigStatus(difference="it has failed; no process is running that could read its files", failed=True)
    if (unit := _daemon_unit(plan)) and unit.starting:
        return ConfigStatus(unverified="it is still starting; try again in a moment")
    if plan.files:
        return ConfigStatus(difference=plan.planned.reason)
    if plan.planned.expectation is None:
        return ConfigStatus(
            unverified="its configuration is generated when it starts, and it has no command that shows it"
        )
    return _compare_effective(plan, plan.planned.expectation, read_effective_config)


def explain_no_reload(plan: CtkPlan) -> str:
    """Return why no daemon has to read the files again; empty if one has to, or if that is unknown."""
    if plan.target is None:
        return f"{plan.target_name} has no daemon"
    if plan.target.trigger is None:
        return "it notices changed files by itself"
    unit = plan.target.unit
    if unit is None or unit.state.active or daemon_has_failed(plan):
        return ""
    return "it is not running; it reads its files when it starts" if unit.exists else "it is not installed"


def _compare_effective(
    plan: CtkPlan, expectation: RuntimeExpectation, read_effective_config: ReadEffectiveConfig
) -> ConfigStatus:
    try:
        observed = read_effective_config(plan.target_name)
    except ChangeFailed as error:
        if DOCKER_UNREACHABLE_ERROR.search(error.why):
            return ConfigStatus(unverified="it is not running")
        return ConfigStatus(difference=error.what_and_why)
    if observed is None:
        reason = explain_missing_client(find_runtime(plan.target_name), has_daemon=_daemon_unit(plan) is not None)
        return ConfigStatus(unverified=reason)
    return ConfigStatus(difference="\n".join(list_differences(expectation, observed)))
