"""View the recovery action that the driver requests for each GPU, in Xid 154 or nvidia-smi.

Numbers and names are those of ``nvmlDeviceGpuRecoveryAction_t``; nvidia-smi -q shows them as GPU Recovery Action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults, kernel, pci, smi_query
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern

# An empty string is an action that this program does not know.
RecoveryAction: TypeAlias = Literal["none", "reset", "reboot", "drain-p2p", "drain-and-reset", ""]

_RECOVERY_ACTION_CHANGE: Final = Pattern(r"(?i)changed (?:from [^)]*\) )?to 0x(?P<action>\d)")
# Indexed by NVML's numbers.
_ACTIONS_BY_CODE: Final[tuple[RecoveryAction, ...]] = ("none", "reset", "reboot", "drain-p2p", "drain-and-reset")
_ACTIONS_BY_GRAVITY: Final[tuple[RecoveryAction, ...]] = ("none", "", "drain-p2p", "reset", "drain-and-reset", "reboot")


def action_of(fault: faults.Fault) -> RecoveryAction | None:
    """Return the action that an Xid 154 requests; None for another fault, or if the message names none."""
    match = _RECOVERY_ACTION_CHANGE.search(fault.xid.text) if fault.xid and fault.code == 154 else None
    number = int(match["action"]) if match else 0
    return None if match is None else _ACTIONS_BY_CODE[number] if number < len(_ACTIONS_BY_CODE) else ""


def action_by_name(value: str) -> RecoveryAction:
    """Return the action with this name in nvidia-smi."""
    words = value.lower()
    if "drain" in words:
        return "drain-and-reset" if "reset" in words else "drain-p2p"
    named: tuple[RecoveryAction, ...] = ("reboot", "reset")
    return next((one for one in named if one in words), "none" if words.strip(" []") in {"", "none", "n/a"} else "")


def pending_actions(snapshot: Snapshot) -> Mapping[str, RecoveryAction]:
    """Return the requested action by GPU address: the last Xid 154, else nvidia-smi's answer.

    If both request one, their order is unknown and the more disruptive one counts.
    """
    shown = _smi_actions(snapshot)
    actions = dict(shown)
    for fault in faults.sort_by_time(fault for fault in snapshot.view(faults.fault_timeline) if fault.code == 154):
        action = action_of(fault)
        if action == "none":
            actions[fault.gpu] = action
        elif action is not None:
            actions[fault.gpu] = max(action, shown.get(fault.gpu, "none"), key=_ACTIONS_BY_GRAVITY.index)
    return actions


def recovered_gpus(snapshot: Snapshot) -> frozenset[str]:
    """Return the addresses of GPUs with serious faults after which the driver no longer requests an action.

    A later Xid 154 or the last nvidia-smi query shows this.
    """
    rows = smi_query.find_rows(snapshot, "GPU Recovery Action")
    quiet = {gpu.pci_address for gpu, row in rows if is_from_last_query(row.citation) and row.value.lower() == "none"}
    ill: set[str] = set()
    over: set[str] = set()
    for fault in faults.sort_by_time(fault for fault in snapshot.view(faults.fault_timeline) if fault.source == "xid"):
        action = action_of(fault)
        if action == "none":
            over.add(fault.gpu)
        elif action is not None or fault.weight > faults.PROGRAM_FAULT_WEIGHT:
            ill.add(fault.gpu)
            over.discard(fault.gpu)
    return frozenset(ill & (over | quiet))


def _smi_actions(snapshot: Snapshot) -> dict[str, RecoveryAction]:
    """Return the last action that nvidia-smi shows for each GPU."""
    shown: dict[str, RecoveryAction] = {}
    for gpu, row in smi_query.find_rows(snapshot, "GPU Recovery Action"):
        action = action_by_name(row.value)
        shown[gpu.name] = action if gpu.name else max(action, shown.get("", "none"), key=_ACTIONS_BY_GRAVITY.index)
    return shown


def gravest_action(snapshot: Snapshot, gpus: tuple[str, ...]) -> RecoveryAction:
    """Return the most disruptive action requested for these GPUs."""
    actions = snapshot.view(pending_actions)
    return max((actions[gpu] for gpu in gpus if gpu in actions), key=_ACTIONS_BY_GRAVITY.index, default="none")


_PCI_ADDRESS: Final = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_GPU_TABLE_ROW: Final = Pattern(rf"^\|\s+\d{{1,3}}\s+\S[^|]{{2,60}}\|\s*(?P<bus>{_PCI_ADDRESS})\s")
# The row below: fan, temperature, performance state. The temperature is read from the GPU itself.
_TEMPERATURE_ROW: Final = Pattern(r"^\|\s*(?:N/A|\d{1,3}%)\s+\d{1,3}C\s")
_SMI_GPU_ERROR: Final = Pattern(r"(?i)ERR!|Unknown Error|GPU is lost")
_GPU_HEADING: Final = Pattern(rf"^GPU (?P<bus>{_PCI_ADDRESS})\s*$")
_GPU_TEMPERATURE_LINE: Final = Pattern(r"^\s+GPU Current Temp\s*:\s*\d{1,3} C\b")
# Keys of queries that gpunode makes after reading the logs; the order of a paste is unknown.
_LAST_QUERY_EVIDENCE_KEYS: Final = frozenset({"smi", "smi-query"})


def is_from_last_query(citation: Citation) -> bool:
    """Return whether the line is from an nvidia-smi query made after every log was read."""
    return citation.key in _LAST_QUERY_EVIDENCE_KEYS


def _gpus_working_at_end(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(
        slot for item in _smi_items(snapshot) if item.key in _LAST_QUERY_EVIDENCE_KEYS for slot in _working_slots(item)
    )


def ever_working_gpus(snapshot: Snapshot) -> frozenset[str]:
    """Return the slots of the GPUs whose temperature nvidia-smi read in any query."""
    return frozenset(slot for item in _smi_items(snapshot) for slot in _working_slots(item))


def _smi_items(snapshot: Snapshot) -> Iterator[EvidenceItem]:
    return (item for item in snapshot.items_of("nvidia-smi", "nvidia-smi-q", "text") if item.where == "host")


# Faults that end all work of a GPU until it is reset, removed and rediscovered, or the node is rebooted.
_FATAL_GPU_MESSAGE: Final = Pattern(
    r"\bXid\b[^:\n]{0,40}(?::[^:\n]{0,40}){0,3}\): (?:46|62|79|119|120|143)\b|(?:fallen|fell) off the (?:PCIe? )?bus"
    r"|\bGPU is lost\b|RmInitAdapter failed|rm_init_adapter failed|(?:_kgsp|kgsp|GSP)\w*[^\n]{0,60}"
    r"(?:[Tt]imeout|failed|exception|crash|unresponsive)|RPC (?:timeout|response from GPU)"
    r"|(?P<sleeps>power state from D3|Refused to change power state|not ready \d+ms after .{1,40}; giving up)"
)
_ANY_PCI_ADDRESS: Final = Pattern(r"(?i)\b(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)(?![0-9a-f:])")


def drop_resolved_faults(snapshot: Snapshot) -> Snapshot:
    """Return the node without messages of faults after which the same GPU worked again."""
    if not snapshot.view(ever_working_gpus):
        return snapshot
    over: dict[tuple[str, str], set[int]] = {}
    for message in kernel.matching_messages(snapshot, _FATAL_GPU_MESSAGE):
        first = message.citation.line_number
        if first and _is_resolved(snapshot, message.text):
            place = message.citation.key, message.citation.source
            over.setdefault(place, set()).update(range(first, first + message.lines))
    every = {id(item): item for item in (*snapshot.items, *snapshot.all_items)}
    made = {number: _blank_out_lines(item, over.get((item.key, item.written), set())) for number, item in every.items()}
    items, whole = (tuple(made[id(item)] for item in items) for items in (snapshot.items, snapshot.all_items))
    return snapshot.with_items(items, whole, None) if over else snapshot


def _blank_out_lines(item: EvidenceItem, numbers: set[int]) -> EvidenceItem:
    if not numbers:
        return item
    return replace(item, text="\n".join("" if n in numbers else line for n, line in enumerate(item.lines, 1)))


def _is_resolved(snapshot: Snapshot, message: str) -> bool:
    """Return whether every GPU that the message may concern works now."""
    ending = _FATAL_GPU_MESSAGE.search(message)
    if ending is None:
        return False
    named = _ANY_PCI_ADDRESS.search(message)
    # A GPU that never wakes up answers no query at all; a notebook's GPU wakes up at a later attempt.
    working_gpus = snapshot.view(ever_working_gpus if ending["sleeps"] and named else _gpus_working_at_end)
    known = {_strip_pci_function(function.address) for function in snapshot.view(pci.pci_gpus)} | working_gpus
    gpus = {_strip_pci_function(pci.normalize_address(named["bus"]))} if named else known
    return bool(gpus) and gpus <= working_gpus


def _strip_pci_function(address: str) -> str:
    return address.rpartition(".")[0] or address


def _working_slots(item: EvidenceItem) -> Iterator[str]:
    bus = ""
    for line in item.lines:
        if match := _GPU_TABLE_ROW.match(line) or _GPU_HEADING.match(line):
            bus = "" if _SMI_GPU_ERROR.search(line) else pci.normalize_address(match["bus"])
        elif bus and (_TEMPERATURE_ROW.match(line) or _GPU_TEMPERATURE_LINE.match(line)):
            if not _SMI_GPU_ERROR.search(line):
                yield _strip_pci_function(bus)
            bus = ""
