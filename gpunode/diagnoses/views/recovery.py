"""View the recovery action that the driver requests for each GPU, by Xid 154 or nvidia-smi.

The numbers and names are those of ``nvmlDeviceGpuRecoveryAction_t``; nvidia-smi -q shows them as GPU Recovery Action.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults, resolved_faults, smi_query
from gpunode.facts.patterns import Pattern

# An empty one is an action that this program does not know.
Action: TypeAlias = Literal["none", "reset", "reboot", "drain-p2p", "drain-and-reset", ""]

_CHANGED: Final = Pattern(r"changed (?:from [^)]*\) )?to 0x(?P<action>\d)", re.IGNORECASE)
# By their numbers, as NVML has them.
_ACTIONS: Final[tuple[Action, ...]] = ("none", "reset", "reboot", "drain-p2p", "drain-and-reset")
_GRAVE: Final[tuple[Action, ...]] = ("none", "", "drain-p2p", "reset", "drain-and-reset", "reboot")


def action_of(fault: faults.Fault) -> Action | None:
    """Return the action that an Xid 154 asks for; None where the fault is none of these, or does not tell."""
    match = _CHANGED.search(fault.xid.text) if fault.xid and fault.code == 154 else None
    number = int(match["action"]) if match else 0
    return None if match is None else _ACTIONS[number] if number < len(_ACTIONS) else ""


def action_by_name(value: str) -> Action:
    """Return the action that nvidia-smi calls so."""
    words = value.lower()
    if "drain" in words:
        return "drain-and-reset" if "reset" in words else "drain-p2p"
    named: tuple[Action, ...] = ("reboot", "reset")
    return next((one for one in named if one in words), "none" if words.strip(" []") in {"", "none", "n/a"} else "")


def pending_actions(snapshot: Snapshot) -> Mapping[str, Action]:
    """Return the requested action by GPU address: the last Xid 154, else nvidia-smi's answer.

    If both request one, their order is unknown and the more disruptive one counts.
    """
    shown = _smi_actions(snapshot)
    found = dict(shown)
    for fault in faults.sort_by_time(fault for fault in snapshot.view(faults.fault_timeline) if fault.code == 154):
        action = action_of(fault)
        if action == "none":
            found[fault.gpu] = action
        elif action is not None:
            found[fault.gpu] = max(action, shown.get(fault.gpu, "none"), key=_GRAVE.index)
    return found


def recovered_gpus(snapshot: Snapshot) -> frozenset[str]:
    """Return the addresses of GPUs for which the driver requests nothing after all serious faults.

    Another Xid 154 or the last nvidia-smi query shows that.
    """
    rows = smi_query.find_rows(snapshot, "GPU Recovery Action")
    quiet = {
        gpu.bus for gpu, row in rows if resolved_faults.is_from_last_query(row.citation) and row.value.lower() == "none"
    }
    ill: set[str] = set()
    over: set[str] = set()
    for fault in faults.sort_by_time(fault for fault in snapshot.view(faults.fault_timeline) if fault.source == "xid"):
        action = action_of(fault)
        if action == "none":
            over.add(fault.gpu)
        elif action is not None or fault.weight > faults.PROGRAM_WEIGHT:
            ill.add(fault.gpu)
            over.discard(fault.gpu)
    return frozenset(ill & (over | quiet))


def _smi_actions(snapshot: Snapshot) -> dict[str, Action]:
    """Return the last action that nvidia-smi shows for each GPU."""
    shown: dict[str, Action] = {}
    for gpu, row in smi_query.find_rows(snapshot, "GPU Recovery Action"):
        action = action_by_name(row.value)
        shown[gpu.name] = action if gpu.name else max(action, shown.get("", "none"), key=_GRAVE.index)
    return shown


def gravest_action(snapshot: Snapshot, gpus: tuple[str, ...]) -> Action:
    """Return the most disruptive action requested for these GPUs."""
    actions = snapshot.view(pending_actions)
    return max((actions[gpu] for gpu in gpus if gpu in actions), key=_GRAVE.index, default="none")
