"""NVIDIA's daemons: the one that keeps the driver loaded, and the one with which programs share a GPU (MPS)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from gpunode.catalog.conflicts import STANDALONE_TOOL_PACKAGES, purge_reason
from gpunode.catalog.driver import DriverChoice
from gpunode.change import (
    GPU_SERVICES,
    Change,
    FileChange,
    FileState,
    MigChange,
    ModuleChange,
    PackageChange,
    ServiceChange,
    ServiceState,
    Trigger,
    triggers_of,
)
from gpunode.distros.family import Family
from gpunode.facts.model import Facts, Known, Unknown, require, value_or
from gpunode.facts.probes import MPS_UNIT_FILE
from gpunode.facts.project import PLAN_PROBE_KEY, UNINSTALL_RUN_DRIVER
from gpunode.outcome import Blocked, Planned, Refusal, Step, StepOutcome
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import family_of, preexisting_driver, wants_driver
from gpunode.steps.kernel import is_chosen_driver_loaded, plan_module_load
from gpunode.steps.secure_boot import AWAITS_ENROLMENT_REASON, driver_awaits_enrolment
from gpunode.steps.selection import choose_driver_for_node

PERSISTENCED_UNIT = "nvidia-persistenced.service"


def plan_persistence(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan to enable the daemon, and to run it once the driver is loaded."""
    if not wants_driver(recipe, facts) or not recipe.driver.persistence:
        return Planned((), "not requested", is_requested=False)
    if driver_awaits_enrolment(recipe, facts) and not preexisting_driver(recipe, facts):
        return Planned((), AWAITS_ENROLMENT_REASON, is_deferred=True)
    fact = facts.unit(PERSISTENCED_UNIT)
    if isinstance(fact, Unknown):
        return Planned(
            (),
            f"systemd did not report the unit's state ({fact.reason}); the package enables it for the next boot",
            is_deferred=True,
        )
    unit = fact.value
    if unit.masked:
        return Planned(
            (),
            f"{PERSISTENCED_UNIT} is masked",
            (f"{PERSISTENCED_UNIT} is masked, so the first CUDA call after idle is slow",),
        )
    if not unit.exists and preexisting_driver(recipe, facts):
        return Planned((), f"the installed driver, which stays, has no {PERSISTENCED_UNIT}")
    chosen = choose_driver_for_node(recipe, facts)
    # The daemon does not work with a module of another version.
    can_run = isinstance(chosen, DriverChoice) and is_chosen_driver_loaded(value_or(facts.loaded_driver, None), chosen)
    wanted = ServiceState(enabled=True, active=unit.state.active or (can_run and facts.can_start(PERSISTENCED_UNIT)))
    if unit.exists and unit.state == wanted:
        state = "enabled" + (" and running" if unit.state.active else "; it starts with the driver")
        return Planned((), state, is_deferred=fact.probe == PLAN_PROBE_KEY)
    reason = "keeps the GPU initialised while nothing uses it"
    if isinstance(family := family_of(facts), Family) and family.has_signed_modules(recipe.driver.source):
        reason = f"enabled; {family.name}'s unit starts it with --no-persistence-mode"
    return Planned((ServiceChange(PERSISTENCED_UNIT, unit.state, wanted),), reason)


PERSISTENCE_STEP = Step(
    "persistence",
    "persistence daemon",
    "kernel",
    plan_persistence,
    serves=("driver",),
    needs=("driver",),
    for_driver=True,
)


MPS_SERVICE: Final = MPS_UNIT_FILE.rpartition("/")[2]
# Source: NVIDIA, "Multi-Process Service": "Considerations", "Environment Variables", "Common Tasks".
# Any user can take the default /tmp/nvidia-mps before the daemon makes it, hence the folder in /run.
MPS_PIPE_DIRECTORY: Final = "/run/nvidia-mps"
_MPS_PIPE_DIRECTORY_NOTE: Final = (
    f"MPS: a program takes part only with CUDA_MPS_PIPE_DIRECTORY={MPS_PIPE_DIRECTORY} in its environment; a container "
    "needs that folder mounted, and --ipc=host"
)
_MPS_ISOLATION_NOTE: Final = (
    "MPS isolates neither faults nor memory by size: a fatal fault of one program can end all that share its GPU, and "
    "each may allocate all memory unless CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is set"
)


def plan_mps(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the daemon's unit; enable it, and run it once the driver is loaded."""
    if not recipe.mps.enabled:
        return Planned((), "not requested", is_requested=False)
    if refused := find_mps_conflict_refusal(recipe) or _find_divided_gpus_refusal(recipe, facts):
        return refused
    fact = facts.unit(MPS_SERVICE)
    if isinstance(fact, Unknown) and not facts.is_image:
        return Planned((), f"systemd did not report whether {MPS_SERVICE} runs ({fact.reason})", is_deferred=True)
    content = FileState(render_mps_unit(exclusive=recipe.mps.exclusive))
    before = require(facts.file(MPS_UNIT_FILE), f"what {MPS_UNIT_FILE} holds")
    state = ServiceState(False, False) if isinstance(fact, Unknown) else fact.value.state
    due_triggers = {Trigger("daemon-reload"), *([Trigger("restart", MPS_SERVICE)] if state.active else [])}
    changes: list[Change] = (
        [] if before == content else [FileChange(MPS_UNIT_FILE, before, content, frozenset(due_triggers))]
    )
    wanted = ServiceState(enabled=True, active=state.active or _can_run_mps(recipe, facts))
    if state != wanted:
        changes.append(ServiceChange(MPS_SERVICE, state, wanted))
    running = "runs" if wanted.active else "starts with the next boot"
    notes = (_MPS_PIPE_DIRECTORY_NOTE, _MPS_ISOLATION_NOTE) if changes else ()
    return Planned(tuple(changes), f"the MPS control daemon {running}", change_notes=notes)


def find_mps_conflict_refusal(recipe: Recipe) -> Refusal | None:
    """Return the refusal of [mps] in a recipe that also shares the GPUs in another way; None if it does not."""
    if not recipe.mps.enabled:
        return None
    if recipe.kubernetes is not None and recipe.kubernetes.stack != "none":
        return Refusal(
            "[mps] is for hosts outside of Kubernetes",
            "the device plugin runs an MPS daemon of its own; two on one GPU end each other's clients "
            "(NVIDIA/k8s-device-plugin issues 712 and 762)",
            'leave [mps] out, and set mode = "mps" in [kubernetes.sharing] where pods are to share GPUs',
        )
    from gpunode.catalog.mig import ALL_DISABLED_LAYOUT  # loaded on use: few recipes ask for the daemon

    if recipe.mig.layout not in {"", ALL_DISABLED_LAYOUT}:
        return Refusal(
            "[mps] and MIG exclude each other",
            "one MPS daemon serves whole GPUs; on MIG instances each would need one of its own",
            "leave one of them out of the recipe",
        )
    return None


def _find_divided_gpus_refusal(recipe: Recipe, facts: Facts) -> Refusal | None:
    """Return the refusal of [mps] on GPUs that somebody other than this recipe shares; None if nobody does."""
    layout, kubelet = value_or(facts.layout, None), value_or(facts.kubelet, None)
    if layout is not None and layout.mig_capabilities and not recipe.mig.layout:
        return Refusal(
            "[mps] needs whole GPUs, but this node has MIG instances that gpunode did not create",
            "one MPS daemon serves whole GPUs; each MIG instance would need one of its own",
            'leave [mps] out, or have gpunode switch MIG off: layout = "all-disabled" in [mig]',
        )
    unit = facts.unit(kubelet.unit) if kubelet is not None and recipe.mps.exclusive else None
    if kubelet is not None and isinstance(unit, Known) and (unit.value.state.active or unit.value.state.enabled):
        return Refusal(
            f"[mps] would keep the CUDA programs of pods off the GPUs, and this host runs a kubelet ({kubelet.unit})",
            "while the daemon runs, the GPUs are in compute mode EXCLUSIVE_PROCESS, also for pods to which somebody's "
            "device plugin gives a GPU or a slice of its time",
            "leave [mps] out, or set exclusive = false in it",
        )
    return None


def _can_run_mps(recipe: Recipe, facts: Facts) -> bool:
    """Return whether the driver answers and systemd can start the daemon."""
    loaded = value_or(facts.loaded_driver, None)
    return (
        loaded is not None
        and not facts.is_image
        and facts.can_start(MPS_SERVICE)
        and not isinstance(plan_module_load(recipe, facts), Blocked)
    )


# nvidia-smi prints `0, Exclusive_Process` and takes `-i 0 -c EXCLUSIVE_PROCESS`; systemd reads $$ as $.
_SAVED_MODES_FILE: Final = f"{MPS_PIPE_DIRECTORY}/compute-modes"
_EXCLUSIVE_MODE_UNIT_LINES: Final = (
    f"ExecStartPre=/bin/sh -c '/usr/bin/nvidia-smi --query-gpu=index,compute_mode --format=csv,noheader "
    f"> {_SAVED_MODES_FILE}'\n"
    "ExecStartPre=/usr/bin/nvidia-smi -c EXCLUSIVE_PROCESS\n"
)
_RESTORE_COMPUTE_MODES_LINE: Final = (
    f'ExecStopPost=/bin/sh -c \'tr "a-z," "A-Z " < {_SAVED_MODES_FILE} | '
    'while read -r gpu mode; do /usr/bin/nvidia-smi -i "$$gpu" -c "$$mode"; done\'\n'
)


def render_mps_unit(*, exclusive: bool) -> bytes:
    """Return the daemon's unit; ``exclusive`` keeps processes without MPS off the GPUs while it runs."""
    mode, after = (_EXCLUSIVE_MODE_UNIT_LINES, _RESTORE_COMPUTE_MODES_LINE) if exclusive else ("", "")
    return f"""# Written by gpunode: programs share the GPUs through CUDA's Multi-Process Service.
[Unit]
Description=NVIDIA CUDA MPS control daemon
After=nvidia-persistenced.service nvidia-fabricmanager.service gpunode-mig.service

[Service]
Type=forking
Environment=CUDA_MPS_PIPE_DIRECTORY={MPS_PIPE_DIRECTORY} CUDA_MPS_LOG_DIRECTORY=/var/log/nvidia-mps
RuntimeDirectory=nvidia-mps
LogsDirectory=nvidia-mps
{mode}ExecStart=/usr/bin/nvidia-cuda-mps-control -d
ExecStop=/bin/sh -c 'echo quit | /usr/bin/nvidia-cuda-mps-control'
{after}
[Install]
WantedBy=multi-user.target
""".encode()


MPS_STEP = Step("mps", "MPS daemon", "kernel", plan_mps, serves=("driver",), needs=("driver",), files=(MPS_UNIT_FILE,))


GpuLoss: TypeAlias = Literal["driver", "layout", "mps"]
# Only DCGM holds MIG instances open (NVIDIA/DCGM issue 276; NVIDIA's MIG guide stops it before MIG is switched on). The
# fabric manager must run for the GPU's reset.
_SERVICES_HOLDING_MIG_LAYOUTS: Final = frozenset({"nvidia-dcgm.service"})
SERVICES_STOP_FIRST_REASON: Final = "stopped first and started again at the end; setup refuses while programs use a GPU"


def find_worst_gpu_loss(changes: Collection[Change], pending_triggers: Collection[Trigger] = ()) -> GpuLoss | None:
    """Return the most severe loss that ``changes`` and ``pending_triggers`` cause for users of GPUs; else None.

    A driver's packages count as soon as one of its version is replaced or removed: programs that start meanwhile find
    no GPU, and stopping the fabric manager aborts those that run (ABORT_CUDA_JOBS_ON_FM_EXIT in its user guide).
    """
    unloads = any(change.module.startswith("nvidia") and not change.after for change in ModuleChange.of_kind(changes))
    uninstalls = any(change.runs_command(*UNINSTALL_RUN_DRIVER) for change in changes)
    if unloads or uninstalls or any(_removes_or_replaces_driver(change) for change in PackageChange.of_kind(changes)):
        return "driver"
    if MigChange.of_kind(changes):
        return "layout"
    stops = any(change.unit == MPS_SERVICE and not change.after.active for change in ServiceChange.of_kind(changes))
    return "mps" if stops or Trigger("restart", MPS_SERVICE) in {*triggers_of(changes), *pending_triggers} else None


def _removes_or_replaces_driver(change: PackageChange) -> bool:
    name, before = change.id.name, change.before
    is_part = before is not None and purge_reason(name, before.version) not in {None, "relation"}
    return is_part and name not in STANDALONE_TOOL_PACKAGES and change.removes_or_replaces


def plan_service_stops(changes: Collection[Change], facts: Facts) -> tuple[ServiceChange, ...]:
    """Return the stop of each running service that uses what ``changes`` take away; a trigger starts it again."""
    loss = find_worst_gpu_loss(changes)
    if loss not in ("driver", "layout"):
        return ()
    others = {change.unit for change in ServiceChange.of_kind(changes)}
    units = (unit for unit in reversed(GPU_SERVICES) if loss == "driver" or unit in _SERVICES_HOLDING_MIG_LAYOUTS)
    candidates = ((unit, facts.units.get(unit)) for unit in units if unit not in others)
    return tuple(
        ServiceChange(unit, state, replace(state, active=False), frozenset({Trigger("start", unit)}))
        for unit, fact in candidates
        if isinstance(fact, Known) and fact.value.exists and (state := fact.value.state).active
    )


# Not in the table of steps: its changes follow from those of the other steps of a stage.
GPU_SERVICES_STEP: Final = Step(
    "gpu-services",
    "GPU services",
    "packages",
    lambda _, __: Planned((), SERVICES_STOP_FIRST_REASON, is_requested=False),
    serves=(),
)
