"""Diagnose GPUs that the driver wants recovered for no logged reason: Xid 154, nvidia-smi's recovery action."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Disruption, Fix, Proof, Severity
from gpunode.diagnoses.remedies import drain, manual_step, reboot, reset_gpu, run_step
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults, recovery, smi_query
from gpunode.diagnoses.views.recovery import Action
from gpunode.diagnoses.views.smi_query import SmiRow
from gpunode.facts.patterns import Pattern

# As NVML (NVML_ERROR_RESET_REQUIRED) and DCGM (DCGM_FR_GPU_RECOVERY_…) report it.
_RESET_REQUIRED: Final = Pattern(
    r"GPU requires (?:a )?reset|GPU_REQUIRES_RESET|NVML_ERROR_RESET_REQUIRED"
    r"|requires a (?:reset|reboot) to recover from a fault"
)
_STATES: Final = ("GPU Recovery Action", "Reset Required", "Drain and Reset Recommended")
LEAVE_PEERS: Final = manual_step(
    "drain", "stop the programs that access this GPU from another one (peer to peer): nothing else is needed"
)
_DISRUPTIONS: Final[Mapping[Action, Disruption]] = {
    "none": "none",
    "drain-p2p": "restart-container",
    "reset": "reset-gpu",
    "drain-and-reset": "reset-gpu",
    "reboot": "reboot",
}


def find_pending_actions(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the recovery actions that the driver requests without a logged error."""
    yield from (_prove_xid_154(incident) for incident in faults.incidents_with(snapshot, 154))
    faulty = {incident.gpu for incident in snapshot.view(faults.find_incidents)}
    for gpu, row in (one for name in _STATES for one in smi_query.find_rows(snapshot, name)):
        is_explained = gpu.name in faulty if gpu.name else bool(faulty)
        if _action_of_row(row) != "none" and not is_explained:
            summary = f"{faults.gpu_label(gpu.name)} needs recovery ({row.path[-1]}: {row.value}); no line shows why"
            yield _with_recovery(_action_of_row(row), Proof(summary, (row.citation,), "likely", gpu=gpu.name))
    if not faulty and (lines := snapshot.matching_lines(_RESET_REQUIRED)):
        yield Proof("A GPU must be reset before it can be used; no line shows why", lines, "likely")


def _action_of_row(row: SmiRow) -> Action:
    is_named = row.path[-1] == _STATES[0]
    return recovery.action_by_name(row.value) if is_named else "reset" if smi_query.is_yes(row.value) else "none"


def _prove_xid_154(incident: faults.Incident) -> Proof:
    """Return the proof for the last action: it is raised as more goes wrong, and cleared when done."""
    asking = [fault for fault in (incident.root, *incident.later_faults) if recovery.action_of(fault) is not None]
    last = asking[-1] if asking else incident.root
    action = recovery.action_of(last) or ""
    summary = f"{faults.gpu_label(incident.gpu)} needs recovery ({action or 'it does not say how'})"
    if action == "none":
        summary = f"{faults.gpu_label(incident.gpu)} was recovered: the driver no longer asks for it"
    lines = tuple(dict.fromkeys((*incident.citations, last.citation)))
    return _with_recovery(action, Proof(summary, lines, gpu=incident.gpu, at=incident.root.at))


def _with_recovery(action: Action, proof: Proof) -> Proof:
    """Return the proof with the remedy for ``action``."""
    severity: Severity | None = "info" if action == "none" else None
    return replace(proof, remedy=tuple(recovery_steps(action)), disruption=_DISRUPTIONS.get(action), severity=severity)


def recovery_steps(action: Action) -> Iterator[Fix]:
    """Yield the steps for ``action``."""
    find = Shell("sudo dmesg --ctime | grep -i xid")
    yield run_step("inspect", "find the Xid before it on the same GPU: that is the cause", find)
    if action == "drain-p2p":
        yield LEAVE_PEERS
    elif action != "none":
        yield drain()
        if action != "reboot":
            yield reset_gpu(when="" if action else "the driver asks for a reset")
        when = {"reboot": "", "": "the driver asks for a reboot of the node, or the reset is refused"}
        text = "reboot the node: the driver asks for that, and a reset of the GPU is not enough"
        yield reboot(text if action == "reboot" else "reboot the node", when.get(action, "the reset is refused"))
