"""verify's check of GPUs that NVSwitches join: each has registered with the fabric, without which CUDA answers 802."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from gpunode.catalog.fabric import MANAGER_UNIT
from gpunode.check import Check
from gpunode.facts import nvml as nvml_facts
from gpunode.facts.model import Facts, Known
from gpunode.facts.nvml import NvmlAnswer, NvmlInventory, NvmlUnread
from gpunode.host import nvml
from gpunode.host.port import HostView
from gpunode.steps.fabric import find_fabric

_TITLE = "the GPUs are registered with the NVSwitches"
# NVIDIA's own scripts give up after about two minutes.
_PATIENCE_S, _POLL_INTERVAL_S = 120.0, 3.0
_ON_THE_WAY = frozenset({"not started", "in progress"})


def await_fabric(
    facts: Facts,
    host: HostView,
    answer: NvmlAnswer,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> NvmlAnswer:
    """Return NVML's answer once no GPU is on the way to the fabric; after two minutes as it is then.

    Only where the fabric manager runs: without it nothing will change.
    """
    until = clock() + _PATIENCE_S
    while _is_manager_active(facts) and _has_gpu_on_the_way(answer) and clock() < until:
        sleep(_POLL_INTERVAL_S)
        answer = nvml_facts.read_nvml_answer(host.look(nvml.make_probe()))
    return answer


def fabric_checks(facts: Facts, answer: NvmlAnswer) -> Iterator[Check]:
    """Yield the check of a machine with NVSwitches; none elsewhere, and none where NVML does not answer."""
    fabric = find_fabric(facts)
    if fabric is None or fabric.kind == "rack" or not isinstance(answer, NvmlInventory) or not answer.gpus:
        return
    hint = f"look at it: systemctl status {MANAGER_UNIT}; journalctl -b -u {MANAGER_UNIT}"
    # In a container the service is the host's; there the GPUs' own states are all that tells.
    is_host = isinstance(facts.platform, Known) and facts.platform.value.owns_kernel
    if is_host and not facts.can_start(MANAGER_UNIT):
        yield Check("fabric", _TITLE, "skipped", f"systemd does not say whether {MANAGER_UNIT} runs")
        return
    if is_host and not _is_manager_active(facts):
        yield Check("fabric", _TITLE, "failed", f"{fabric.seen}, and {MANAGER_UNIT} does not run", hint)
        return
    states = [str(gpu.fabric) for gpu in answer.gpus if isinstance(gpu.fabric, str)]
    known = [state for state in states if state != "not supported"]
    unread = [gpu.fabric for gpu in answer.gpus if isinstance(gpu.fabric, NvmlUnread) and gpu.fabric.supported]
    if unfinished := sorted({state for state in known if state != "completed"}):
        behind = ", ".join(f"{known.count(state)} of {len(answer.gpus)} {state}" for state in unfinished)
        yield Check("fabric", _TITLE, "failed", behind, hint)
    elif unread:
        yield Check("fabric", _TITLE, "skipped", f"{len(unread)} of {len(answer.gpus)} do not say: {unread[0]}", hint)
    elif not known and not is_host:
        yield Check("fabric", _TITLE, "skipped", f"these GPUs report no state, and {MANAGER_UNIT} runs on the host")
    elif known:
        yield Check("fabric", _TITLE, "passed", f"{len(known)} of {len(answer.gpus)} completed")
    else:
        # Up to Ampere a GPU has no such state: the service has programmed the switches, or has ended.
        yield Check("fabric", _TITLE, "passed", f"{MANAGER_UNIT} runs; these GPUs report no state of their own")


def _has_gpu_on_the_way(answer: NvmlAnswer) -> bool:
    return isinstance(answer, NvmlInventory) and any(gpu.fabric in _ON_THE_WAY for gpu in answer.gpus)


def _is_manager_active(facts: Facts) -> bool:
    unit = facts.unit(MANAGER_UNIT)
    return isinstance(unit, Known) and unit.value.exists and unit.value.state.active
