"""MIG layouts of a live node: looked up, put back, and never taken from under a process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from gpunode.change import Change, MigChange, MigLayout
from gpunode.errors import Conflict
from gpunode.facts import nvml as nvml_facts
from gpunode.facts.evidence import Probe
from gpunode.facts.model import MigGpu
from gpunode.host import nvml
from gpunode.host.port import HostView
from gpunode.journal.footprint import ChangeSpan
from gpunode.workflow.undo import UndoStep

_LOADED = Probe("nvidia-version", path="/proc/driver/nvidia/version", content_kind="table")


def _gpus_by_uuid(host: HostView) -> dict[str, MigGpu]:
    """Return the GPUs as NVML shows them now, by UUID.

    Raises:
        ValueError: if NVML does not say.
    """
    if host.look(_LOADED).outcome != "ok":
        raise ValueError("the driver is not loaded")
    return {
        gpu.uuid: gpu for gpu in nvml_facts.list_mig_gpus(nvml_facts.read_nvml_answer(host.look(nvml.make_probe())))
    }


def plan_restore(
    host: HostView, spans: Mapping[str, ChangeSpan[MigChange]], *, force: bool
) -> tuple[tuple[UndoStep, ...], tuple[str, ...]]:
    """Return what restores the former layouts of GPUs, by UUID, and a note for each that cannot be restored.

    Raises:
        Conflict: somebody has changed the layout of one since.
    """
    if not spans:
        return (), ()
    try:
        present = _gpus_by_uuid(host)
    except ValueError as error:
        return (), tuple(f"the MIG layout of {gpu} is not restored: {error}" for gpu in spans)
    found: list[UndoStep] = []
    notes: list[str] = []
    for uuid, span in reversed(tuple(spans.items())):
        gpu, back = present.get(uuid), span.change.inverse()
        if gpu is None or gpu.layout is None:
            notes.append(f"the MIG layout of {uuid} is not restored: NVML does not list the GPU")
        elif (gpu.layout, gpu.pending) != (back.after, back.after.enabled):
            is_ours = span.left(gpu.layout) or gpu.layout == back.after or _is_cut_short(span, gpu.layout)
            # The driver forgets instances at each boot: a GPU without any was divided by nobody.
            if gpu.layout.instances and not is_ours and not force:
                raise _changed_since(uuid, back, gpu)
            found.append(UndoStep(span.stage, span.step, replace(back, before=gpu.layout)))
    return tuple(found), tuple(notes)


def _is_cut_short(span: ChangeSpan[MigChange], layout: MigLayout) -> bool:
    """Return whether ``layout`` is what a kill leaves of a change: a part of the old layout, or of the new one."""
    return not span.is_known and any(layout.is_part_of(one) for one in (span.change.before, span.change.after))


def _changed_since(uuid: str, change: MigChange, gpu: MigGpu) -> Conflict:
    return Conflict(
        f"{uuid} no longer has the MIG layout that gpunode set",
        why=f"gpunode left it with {change.before}; now it has {gpu.layout}",
        hint="add --force to restore its former layout anyway",
    )


def find_gpu_users(host: HostView, gpus: Collection[str] = ()) -> tuple[frozenset[int], tuple[str, ...]]:
    """Return the processes that NVML shows on ``gpus``, by number, and a phrase for each pod that holds one of them.

    Without ``gpus``, of all. None where NVML does not answer: whoever makes the change hears of it from the driver.
    """
    try:
        present = _gpus_by_uuid(host)
    except ValueError:
        return frozenset(), ()
    from gpunode.workflow.pod_devices import find_gpu_pods  # loaded on use: few runs take a GPU away

    pids = (pid for uuid, gpu in present.items() if not gpus or uuid in gpus for pid in gpu.clients)
    return frozenset(pids), find_gpu_pods(host, gpus or present)


def pending_mig_switch(host: HostView, changes: Collection[Change]) -> str:
    """Return why a reboot is needed after ``changes``; empty if it is not."""
    switched = {change.gpu: change.after.enabled for change in MigChange.among(changes)}
    if not switched:
        return ""
    try:
        present = _gpus_by_uuid(host)
    except ValueError:
        return ""
    late = [uuid for uuid, on in switched.items() if uuid in present and _is_late(present[uuid], on)]
    switch = "on" if late and switched[late[0]] else "off"
    return f"MIG is switched {switch} on {', '.join(late)} at the next boot" if late else ""


def _is_late(gpu: MigGpu, on: bool) -> bool:
    return gpu.layout is not None and gpu.layout.enabled != on
