"""What the driver asks for to recover a GPU: by Xid 154, each of which takes the place of the one before it.

The numbers and names are those of ``nvmlDeviceGpuRecoveryAction_t``; nvidia-smi -q shows them as GPU Recovery Action.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults, resolved, smi_query
from gpunode.facts.patterns import Pattern

# An empty one is an action that this program does not know.
Action: TypeAlias = Literal["none", "reset", "reboot", "drain-p2p", "drain-and-reset", ""]

_CHANGED: Final = Pattern(r"changed (?:from [^)]*\) )?to 0x(?P<action>\d)", re.IGNORECASE)
# By their numbers, as NVML has them.
_ACTIONS: Final[tuple[Action, ...]] = ("none", "reset", "reboot", "drain-p2p", "drain-and-reset")
_GRAVE: Final[tuple[Action, ...]] = ("none", "", "drain-p2p", "reset", "drain-and-reset", "reboot")


def action_of(fault: faults.Fault) -> Action | None:
    """The action that an Xid 154 asks for; None where the fault is none of these, or does not tell."""
    match = _CHANGED.search(fault.xid.text) if fault.xid and fault.code == 154 else None
    number = int(match["action"]) if match else 0
    return None if match is None else _ACTIONS[number] if number < len(_ACTIONS) else ""


def by_name(value: str) -> Action:
    """The action that nvidia-smi calls so."""
    words = value.lower()
    if "drain" in words:
        return "drain-and-reset" if "reset" in words else "drain-p2p"
    named: tuple[Action, ...] = ("reboot", "reset")
    return next((one for one in named if one in words), "none" if words.strip(" []") in {"", "none", "n/a"} else "")


def pending_actions(snapshot: Snapshot) -> Mapping[str, Action]:
    """The action that each GPU waits for, by its address: the last Xid 154, else what nvidia-smi shows.

    Where both ask for something, nobody knows which is the later: the graver holds.
    """
    shown = _shown(snapshot)
    found = dict(shown)
    for fault in faults.in_time(fault for fault in snapshot.view(faults.timeline) if fault.code == 154):
        action = action_of(fault)
        if action == "none":
            found[fault.gpu] = action
        elif action is not None:
            found[fault.gpu] = max(action, shown.get(fault.gpu, "none"), key=_GRAVE.index)
    return found


def recovered(snapshot: Snapshot) -> frozenset[str]:
    """The GPUs, by their addresses, of which the driver wants nothing any more after all their grave faults.

    It says so by another Xid 154, or in an answer of nvidia-smi that was asked for last.
    """
    rows = smi_query.rows(snapshot, "GPU Recovery Action")
    quiet = {gpu.bus for gpu, row in rows if resolved.was_asked_last(row.citation) and row.value.lower() == "none"}
    ill: set[str] = set()
    over: set[str] = set()
    for fault in faults.in_time(fault for fault in snapshot.view(faults.timeline) if fault.source == "xid"):
        action = action_of(fault)
        if action == "none":
            over.add(fault.gpu)
        elif action is not None or fault.weight > faults.ENDS_ONE:
            ill.add(fault.gpu)
            over.discard(fault.gpu)
    return frozenset(ill & (over | quiet))


def _shown(snapshot: Snapshot) -> dict[str, Action]:
    """What nvidia-smi shows: the last answer of each GPU, and the gravest of those that nothing names."""
    shown: dict[str, Action] = {}
    for gpu, row in smi_query.rows(snapshot, "GPU Recovery Action"):
        action = by_name(row.value)
        shown[gpu.name] = action if gpu.name else max(action, shown.get("", "none"), key=_GRAVE.index)
    return shown


def gravest(snapshot: Snapshot, gpus: tuple[str, ...]) -> Action:
    """What the most of these GPUs ask for."""
    actions = snapshot.view(pending_actions)
    return max((actions[gpu] for gpu in gpus if gpu in actions), key=_GRAVE.index, default="none")
