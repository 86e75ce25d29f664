"""What the driver asks to be done about a GPU, where no error of the log is the reason: Xid 154, nvidia-smi's word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Disruption, Fix, Proof, Severity, Verdict
from gpunode.diagnoses.remedies import by_hand, drain, reboot, reset_gpu, run
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults, recovery, smi_query
from gpunode.diagnoses.views.recovery import Action
from gpunode.diagnoses.views.smi_rows import Row
from gpunode.facts.patterns import Pattern

# NVML's word (NVML_ERROR_RESET_REQUIRED) and DCGM's (DCGM_FR_GPU_RECOVERY_…).
_RESET_REQUIRED: Final = Pattern(
    r"GPU requires (?:a )?reset|GPU_REQUIRES_RESET|NVML_ERROR_RESET_REQUIRED|"
    r"requires a (?:reset|reboot) to recover from a fault"
)


def actions(snapshot: Snapshot) -> Iterator[Verdict]:
    """An action that the driver wants, where no error is there that it wants it for."""
    for incident in faults.of(snapshot, 154):
        yield _wanted(snapshot, incident)
    yield from _state(snapshot)


def _state(snapshot: Snapshot) -> Iterator[Verdict]:
    """The action that nvidia-smi or NVML shows of a GPU, where nobody pasted what led to it."""
    faulty = {incident.gpu for incident in snapshot.view(faults.incidents)}
    for gpu, row in _untold(snapshot, faulty, "GPU Recovery Action"):
        action = recovery.by_name(row.value)
        summary = f"{faults.label(gpu.name)} asks to be recovered: {row.value}; why, no line here says"
        yield _to_recover(action, Proof(summary, (row.citation,), "likely", gpu=gpu.name))
    for name in ("Reset Required", "Drain and Reset Recommended"):
        for gpu, row in _untold(snapshot, faulty, name):
            summary = f"{faults.label(gpu.name)} has to be reset; why, no line here says"
            yield _to_recover("reset", Proof(summary, (row.citation,), "likely", gpu=gpu.name))
    if not faulty and (said := snapshot.said(_RESET_REQUIRED)):
        yield Proof("A GPU has to be reset before it can be used; why, no line here says", said, "likely")


def _untold(snapshot: Snapshot, faulty: set[str], name: str) -> Iterator[tuple[smi_query.Gpu, Row]]:
    """The rows of that name that ask for something, and of whose GPU no fault stands in the log.

    Any fault without an address may be its own. Of GPUs that nothing names no more are told of than have a fault.
    """
    if "" in faulty:
        return
    for answer in snapshot.view(smi_query.answers):
        asking = [(gpu, row) for gpu in answer for row in gpu.every(name) if _asks(name, row.value)]
        unnamed = sum(not gpu.name for gpu, _ in asking)
        yield from (one for one in asking if (one[0].name not in faulty if one[0].name else unnamed > len(faulty)))


def _asks(name: str, value: str) -> bool:
    if name == "GPU Recovery Action":
        return recovery.by_name(value) != "none"
    return smi_query.is_yes(value)


def _before(snapshot: Snapshot, incident: faults.Incident) -> faults.Fault | None:
    """The last fault of that GPU above the driver's wish in its log: of those that it got over nothing else tells."""
    wish = incident.root.citation
    own = (fault for fault in faults.on(snapshot.as_told or snapshot, incident.gpu) if fault.code != 154)
    above = (fault for fault in own if fault.citation.key == wish.key)
    told = [fault for fault in above if (fault.citation.number or 0) < (wish.number or 0)]
    return told[-1] if told else None


def _wanted(snapshot: Snapshot, incident: faults.Incident) -> Proof:
    """The last action wins: it is raised as more goes wrong, and taken back when it was done."""
    found = [fault for fault in (incident.root, *incident.followed) if recovery.asked(fault) is not None]
    before = _before(snapshot, incident)
    why = f"{before.name} came before it" if before else "the Xid that made it ask is not in this log"
    told = (before.citation,) if before else ()
    if not found:
        summary = f"{faults.label(incident.gpu)} asks to be recovered; {why}"
        return Proof(summary, (*told, *incident.citations), gpu=incident.gpu, at=incident.root.at)
    last = found[-1]
    action = recovery.asked(last) or ""
    citations = tuple(dict.fromkeys((*told, *incident.citations, last.citation)))
    if action == "none":
        summary = f"{faults.label(incident.gpu)} asked to be recovered and does so no more: it was"
    else:
        summary = f"{faults.label(incident.gpu)} asks to be recovered ({recovery.named(last)}); {why}"
    return _to_recover(action, Proof(summary, citations, gpu=incident.gpu, at=incident.root.at))


LEAVE_PEERS: Final = by_hand(
    "drain", "end the programs that reach this GPU from another one (peer to peer): no more is asked"
)
_DISTURBS: Final[Mapping[Action, Disruption]] = {
    "none": "none",
    "drain-p2p": "restart-container",
    "reset": "reset-gpu",
    "drain-and-reset": "reset-gpu",
    "reboot": "reboot",
}


def _to_recover(action: Action, proof: Proof) -> Proof:
    """The proof with that to be done which the driver asks for, and no more."""
    severity: Severity | None = "info" if action == "none" else None
    fixes = tuple(steps(action))
    return replace(proof, remedy=fixes, disruption=_DISTURBS.get(action), severity=severity)


def steps(action: Action) -> Iterator[Fix]:
    """What is to be done for the action, and no more."""
    yield run(
        "inspect",
        "find the Xid before it on the same GPU: that is the cause",
        Shell("sudo dmesg --ctime | grep -i xid"),
    )
    if action == "drain-p2p":
        yield LEAVE_PEERS
    elif action == "reboot":
        yield drain()
        yield reboot("reboot the node: the driver asks for that, and a reset of the GPU is not enough")
    elif action in {"reset", "drain-and-reset"}:
        yield drain()
        yield reset_gpu()
        yield reboot(when="the reset is refused")
    elif not action:
        yield drain()
        yield reset_gpu(when="it asks for a reset")
        yield reboot(when="it asks for a reboot of the node, or the reset is refused")
