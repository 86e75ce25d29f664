"""What the driver asks for to recover a GPU: by Xid 154, each of which takes the place of the one before it.

The numbers and names are those of ``nvmlDeviceGpuRecoveryAction_t``; nvidia-smi -q shows them as GPU Recovery Action.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import alive, faults, smi_query
from gpunode.facts.patterns import Pattern

# An empty one is an action that this program does not know.
Action: TypeAlias = Literal["none", "reset", "reboot", "drain-p2p", "drain-and-reset", ""]

_CHANGED: Final = Pattern(
    r"changed (?:from 0x\d \([^)]*\) )?to 0x(?P<action>\d)(?: \((?P<name>[^)]*)\))?", re.IGNORECASE
)
_NUMBERS: Final[Mapping[str, Action]] = {
    "0": "none",
    "1": "reset",
    "2": "reboot",
    "3": "drain-p2p",
    "4": "drain-and-reset",
}
_GRAVE: Final[tuple[Action, ...]] = ("none", "", "drain-p2p", "reset", "drain-and-reset", "reboot")


def asked(fault: faults.Fault) -> Action | None:
    """The action that an Xid 154 asks for; None where the fault is none of these, or does not tell."""
    match = _CHANGED.search(fault.xid.text) if fault.xid and fault.code == 154 else None
    return _NUMBERS.get(match["action"], "") if match else None


def named(fault: faults.Fault) -> str:
    """The action in the driver's words; empty where it does not tell."""
    match = _CHANGED.search(fault.xid.text) if fault.xid and fault.code == 154 else None
    return (match["name"] or f"0x{match['action']}") if match else ""


def by_name(value: str) -> Action:
    """The action that nvidia-smi calls so."""
    plain = value.strip().lower()
    if plain in {"", "none", "n/a", "[n/a]"}:
        return "none"
    if "reboot" in plain:
        return "reboot"
    if "drain" in plain:
        return "drain-and-reset" if "reset" in plain else "drain-p2p"
    return "reset" if "reset" in plain else ""


def wanted(snapshot: Snapshot) -> Mapping[str, Action]:
    """The action that each GPU waits for, by its address: the last Xid 154, else what nvidia-smi shows.

    Where both ask for something, nobody knows which is the later: the graver holds.
    """
    shown = _shown(snapshot)
    found = dict(shown)
    for fault in faults.in_time(fault for fault in snapshot.view(faults.timeline) if fault.code == 154):
        if (action := asked(fault)) is not None:
            found[fault.gpu] = action
    graver = {gpu: max(action, shown.get(gpu, "none"), key=_GRAVE.index) for gpu, action in found.items()}
    return {gpu: graver[gpu] if action != "none" else action for gpu, action in found.items()}


# The weight of what ends one program's work, and asks for no more.
_ENDS_ONE: Final = 2


def recovered(snapshot: Snapshot) -> frozenset[str]:
    """The GPUs, by their addresses, of which the driver wants nothing any more after all their grave faults.

    It says so by another Xid 154, or in an answer of nvidia-smi that was asked for last.
    """
    gpus = {fault.gpu for fault in snapshot.view(faults.timeline) if fault.source == "xid" and fault.gpu}
    return frozenset(gpu for gpu in gpus if _is_recovered(snapshot, gpu))


def _is_recovered(snapshot: Snapshot, gpu: str) -> bool:
    own = faults.in_time(faults.on(snapshot, gpu))
    ill = [fault for fault in own if fault.weight > _ENDS_ONE or asked(fault) not in {None, "none"}]
    if not ill:
        return False
    last = ill[-1]
    if any(asked(fault) == "none" for fault in own[own.index(last) + 1 :]):
        return True
    rows = smi_query.rows(snapshot, "GPU Recovery Action")
    said = (row.citation for query, row in rows if query.bus == gpu and row.value.strip().lower() == "none")
    return any(map(alive.was_asked_last, said))


def _shown(snapshot: Snapshot) -> dict[str, Action]:
    """What nvidia-smi shows: the last answer of each GPU, and the gravest of those that nothing names."""
    rows = smi_query.rows(snapshot, "GPU Recovery Action")
    shown = {gpu.name: by_name(row.value) for gpu, row in rows if gpu.name}
    unnamed = [by_name(row.value) for gpu, row in rows if not gpu.name]
    return shown | ({"": max(unnamed, key=_GRAVE.index)} if unnamed else {})


def gravest(snapshot: Snapshot, gpus: tuple[str, ...]) -> Action:
    """What the most of these GPUs ask for."""
    asked_for = snapshot.view(wanted)
    return max((asked_for[gpu] for gpu in gpus if gpu in asked_for), key=_GRAVE.index, default="none")
