"""The control daemon of CUDA's Multi-Process Service, for programs that share a GPU outside of Kubernetes."""

from __future__ import annotations

from typing import Final

from gpunode.change import Change, FileChange, FileState, ServiceChange, ServiceState, Trigger
from gpunode.facts.model import Facts, Unknown, known, need
from gpunode.facts.probes import MPS_UNIT
from gpunode.outcome import Outcome, Planned, Refusal, Step, Waits
from gpunode.recipe import Recipe
from gpunode.steps.module import plan_load

UNIT: Final = MPS_UNIT.rpartition("/")[2]
# Source: NVIDIA, "Multi-Process Service": "Considerations", "Environment Variables", "Common Tasks".
# The default /tmp/nvidia-mps can be taken by any user before the daemon makes it, hence the folder in /run.
PIPES: Final = "/run/nvidia-mps"
_JOIN: Final = (
    f"MPS: a program takes part only with CUDA_MPS_PIPE_DIRECTORY={PIPES} in its environment; a container needs that "
    "folder mounted, and --ipc=host"
)
_NOT_ISOLATED: Final = (
    "MPS isolates neither faults nor memory by size: a fatal fault of one program can end all that share its GPU, and "
    "each may allocate all memory unless CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is set"
)


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """The daemon's unit is there, enabled and runs, once the driver is loaded."""
    if not recipe.mps.enabled:
        return Planned((), "not requested", asked=False)
    if recipe.kubernetes is not None and recipe.kubernetes.stack != "none":
        return Refusal(
            "[mps] is for hosts outside of Kubernetes",
            "the device plugin runs an MPS daemon of its own; two on one GPU end each other's clients "
            "(NVIDIA/k8s-device-plugin issues 712 and 762)",
            'leave [mps] out, and set mode = "mps" in [kubernetes.sharing] where pods are to share GPUs',
        )
    fact = facts.unit(UNIT)
    if isinstance(fact, Unknown) and not facts.is_image:
        return Planned((), f"systemd does not say whether {UNIT} runs ({fact.reason})", later=True)
    content = FileState(unit(exclusive=recipe.mps.exclusive))
    before = need(facts.file(MPS_UNIT), f"what {MPS_UNIT} holds")
    state = ServiceState(False, False) if isinstance(fact, Unknown) else fact.value.state
    owes = {Trigger("daemon-reload"), *([Trigger("restart", UNIT)] if state.active else [])}
    changes: list[Change] = [] if before == content else [FileChange(MPS_UNIT, before, content, frozenset(owes))]
    wanted = ServiceState(enabled=True, active=state.active or _can_run(recipe, facts))
    if state != wanted:
        changes.append(ServiceChange(UNIT, state, wanted))
    running = "runs" if wanted.active else "starts with the next boot"
    notes = (_JOIN, _NOT_ISOLATED) if changes else ()
    return Planned(tuple(changes), f"the MPS control daemon {running}", change_notes=notes)


def _can_run(recipe: Recipe, facts: Facts) -> bool:
    """Return whether the driver answers and systemd can start the daemon."""
    loaded = known(facts.loaded_driver, None)
    return (
        loaded is not None
        and not facts.is_image
        and facts.can_start(UNIT)
        and not isinstance(plan_load(recipe, facts), Waits)
    )


# nvidia-smi prints `0, Exclusive_Process` and takes `-i 0 -c EXCLUSIVE_PROCESS`; systemd reads $$ as $.
_MODES: Final = f"{PIPES}/compute-modes"
_EXCLUSIVE: Final = (
    f"ExecStartPre=/bin/sh -c '/usr/bin/nvidia-smi --query-gpu=index,compute_mode --format=csv,noheader > {_MODES}'\n"
    "ExecStartPre=/usr/bin/nvidia-smi -c EXCLUSIVE_PROCESS\n"
)
_AS_BEFORE: Final = (
    f'ExecStopPost=/bin/sh -c \'tr "a-z," "A-Z " < {_MODES} | '
    'while read -r gpu mode; do /usr/bin/nvidia-smi -i "$$gpu" -c "$$mode"; done\'\n'
)


def unit(*, exclusive: bool) -> bytes:
    """The daemon's unit; ``exclusive`` keeps processes that know nothing of MPS off the GPUs while it runs."""
    mode, after = (_EXCLUSIVE, _AS_BEFORE) if exclusive else ("", "")
    return f"""# Written by gpunode: programs share the GPUs through CUDA's Multi-Process Service.
[Unit]
Description=NVIDIA CUDA MPS control daemon
After=nvidia-persistenced.service nvidia-fabricmanager.service gpunode-mig.service

[Service]
Type=forking
Environment=CUDA_MPS_PIPE_DIRECTORY={PIPES} CUDA_MPS_LOG_DIRECTORY=/var/log/nvidia-mps
RuntimeDirectory=nvidia-mps
LogsDirectory=nvidia-mps
{mode}ExecStart=/usr/bin/nvidia-cuda-mps-control -d
ExecStop=/bin/sh -c 'echo quit | /usr/bin/nvidia-cuda-mps-control'
{after}
[Install]
WantedBy=multi-user.target
""".encode()


MPS = Step("mps", "MPS daemon", "kernel", plan, needs=("driver",), files=(MPS_UNIT,))
