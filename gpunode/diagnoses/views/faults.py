"""View GPU faults over time: the first fault of each GPU and its consequences.

One error is followed by errors of engines, channels, links and programs. Only the first requires action. The catalog's
kinds tell which codes can be consequences; so does the driver if it names an earlier Xid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias

from gpunode.catalog import xids
from gpunode.catalog.xids import XidKind
from gpunode.diagnoses.model import Citation, Confidence, Proof
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import kernel, pci
from gpunode.facts import xid
from gpunode.facts.patterns import Pattern
from gpunode.facts.xid import SxidMessage, XidMessage
from gpunode.fast_dataclass import dataclass

FaultSource: TypeAlias = Literal["xid", "sxid"]

# Faults of one GPU that are further apart do not belong together.
_EPISODE_GAP_S: Final = 300.0
_DAY_S: Final = 86_400.0
# Seconds since boot are below the first bound; syslog times, which lack the year, are between the two.
SYSLOG_TIME_BOUNDS_S: Final = (9e8, 1e9)
PROGRAM_FAULT_WEIGHT: Final = 2
"""The weight of a fault that ends one program."""
_FAULT_WORDS: Final = Pattern("Xid|off the bus")
# Codes for an action that was taken or is required; beside another error they are never the cause.
_FOLLOW_UP_XIDS: Final = frozenset({43, 45, 143, 154, 174})
# Negligible beside another error.
_MILD_XIDS: Final = frozenset({63, 92, 93, 121, 156, 160, 162, 163, 164, 176})
_SEVERE_XID_KINDS: Final[frozenset[XidKind]] = frozenset(
    {"bus", "memory", "firmware", "link", "board", "security", "virtual"}
)
# Programs cannot cause these, whichever line came first.
_HARDWARE_XID_KINDS: Final[frozenset[XidKind]] = frozenset({"bus", "memory", "board"})
# A command stream failed for an unspecified reason; the accompanying error tells why.
_VAGUE_XIDS: Final = frozenset({8, 11, 25, 32, 80})


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of a GPU or an NVSwitch.

    Attributes:
        gpu: PCI address; empty if the message names none. For an SXid this is the switch.
        at: seconds on the clock of its log; None without a time stamp.
        order: its position in the evidence.
        is_past: whether it is known to come from a boot before the running one.
    """

    source: FaultSource
    gpu: str
    code: int
    kind: XidKind
    citation: Citation
    at: float | None
    order: int
    xid: XidMessage | None = None
    sxid: SxidMessage | None = None
    is_past: bool = False

    @property
    def name(self) -> str:
        """The fault's name in a sentence."""
        return f"SXid {self.code}" if self.source == "sxid" else f"Xid {self.code}"

    @property
    def is_follow_up(self) -> bool:
        """True if it reports the consequence of an earlier error, and never its beginning."""
        return self.source == "xid" and (self.code in _FOLLOW_UP_XIDS or bool(self.xid and self.xid.caused_by))

    @property
    def weight(self) -> int:
        """3 for a fault that requires action, 2 if one program's work ended, 1 for a mild fault, 0 for an echo."""
        if self.is_follow_up:
            return 0
        if self.source == "sxid":
            return 3 if self.sxid and self.sxid.fatal else 1
        if self.code in _MILD_XIDS:
            return 1
        # Xid 94 was contained.
        if self.code == 94 or (self.code in xids.NVLINK5_XIDS and not self.is_fatal):
            return PROGRAM_FAULT_WEIGHT
        return 3 if self.kind in _SEVERE_XID_KINDS or self.code in {46, 158} else PROGRAM_FAULT_WEIGHT

    @property
    def is_fatal(self) -> bool:
        """True if an NVLink 5 error or an SXid is marked fatal; other errors count as fatal."""
        if self.sxid is not None:
            return bool(self.sxid.fatal)
        body = xid.parse_link_error(self.xid.text) if self.xid and self.code in xids.NVLINK5_XIDS else None
        return body is None or body.fatal


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault and its consequences.

    Attributes:
        gpu: the GPU on which it began; empty if unknown.
        later_faults: the later faults of the same GPU, in order.
    """

    gpu: str
    root: Fault
    later_faults: tuple[Fault, ...]

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The lines of the first fault, of the first fault of each later code, and of the last requested action."""
        first = {fault.code: fault.citation for fault in reversed((self.root, *self.later_faults))}
        asked = [fault.citation for fault in self.later_faults if fault.code == 154]
        return tuple(dict.fromkeys((self.root.citation, *reversed(first.values()), *asked[-1:])))


def is_incident_past(snapshot: Snapshot, incident: Incident) -> bool:
    """Return whether the log continued for at least a day without another fault of this code."""
    times = [fault.at for fault in (incident.root, *incident.later_faults) if fault.code == incident.root.code]
    known = [at for at in times if at is not None]
    if len(known) < len(times):
        return False
    later = (at for at in kernel.last_times(snapshot) if _clock_kind_of(at) == _clock_kind_of(known[0]))
    return max(later, default=known[0]) - max(known) > _DAY_S


def gpu_label(gpu: str) -> str:
    """Return the GPU's name in a sentence."""
    return (gpu if gpu.startswith("GPU-") else f"GPU {gpu}") if gpu else "A GPU"


def incident_proof(incident: Incident, **more: Any) -> Proof:
    """Return the proof of ``incident``, with the catalog's meaning."""
    root = incident.root
    entry = xids.lookup(root.code)
    clause = entry.meaning if entry else "an error that no list explains"
    whose = f" for {_describe_program(root.xid)}" if root.xid and (root.xid.process or root.xid.pid) else ""
    later = dict.fromkeys(str(fault.code) for fault in incident.later_faults if fault.code != root.code)
    then = f"; Xid {', '.join(later)} followed" if later else ""
    # Old drivers report the loss of a GPU without a number.
    is_numbered = "xid" in root.citation.line.lower()
    what = f"reported Xid {root.code}{whose}: {clause}" if is_numbered else "has fallen off the bus"
    summary = f"{gpu_label(incident.gpu)} {what}{then}"
    return Proof(summary, incident.citations, gpu=incident.gpu, at=root.at, **more)


def _describe_program(xid: XidMessage) -> str:
    return f"{xid.process} (pid {xid.pid})" if xid.process and xid.pid else xid.process or f"pid {xid.pid}"


def incident_check(
    *codes: int, confidence: Confidence = "certain", is_of_programs: bool = False
) -> Callable[[Snapshot], Iterator[Proof]]:
    """Return the check for a cause whose incidents begin with one of these Xids.

    A program's own fault counts for a day; after that the node is healthy again.
    """

    def check(snapshot: Snapshot) -> Iterator[Proof]:
        for incident in incidents_with(snapshot, *codes):
            is_over = is_of_programs and is_incident_past(snapshot, incident)
            yield incident_proof(incident, confidence=confidence, severity="info" if is_over else None)

    return check


def fault_timeline(snapshot: Snapshot) -> tuple[Fault, ...]:
    """Return every fault, in the order of the evidence."""
    is_past = snapshot.is_of_earlier_boot if snapshot.current_items is not None else lambda _: False
    found = [
        replace(fault, order=order, is_past=is_past(fault.citation))
        for order, fault in enumerate(_kernel_faults(snapshot))
    ]
    gpus = {fault.gpu for fault in found if fault.source == "xid"} - {""}
    only = gpus.pop() if len(gpus) == 1 else ""
    return tuple(replace(fault, gpu=only) if fault.source == "xid" and not fault.gpu else fault for fault in found)


def find_incidents(snapshot: Snapshot) -> tuple[Incident, ...]:
    """Return the first fault of each GPU and switch, without consequences of another GPU's fault.

    Faults of earlier boots form their own incidents, since a boot resets every GPU.
    """
    found = snapshot.view(fault_timeline)
    return (
        *_incidents_of_boot(fault for fault in found if fault.is_past),
        *_incidents_of_boot(f for f in found if not f.is_past),
    )


def _incidents_of_boot(faults: Iterable[Fault]) -> Iterator[Incident]:
    found = tuple(_gpu_incidents(tuple(faults)))
    return (one for one in found if not any(by is not one and _is_caused_by_other_device(one, by) for by in found))


def incidents_with(snapshot: Snapshot, *codes: int) -> tuple[Incident, ...]:
    """Return the incidents that began with an Xid of one of these codes."""
    return tuple(one for one in snapshot.view(find_incidents) if one.root.source == "xid" and one.root.code in codes)


def serious_fault_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the first faults that require action; any of them may explain other errors."""
    return tuple(one.root.citation for one in snapshot.view(find_incidents) if one.root.weight > PROGRAM_FAULT_WEIGHT)


def xids_of_gpu(snapshot: Snapshot, gpu: str) -> tuple[Fault, ...]:
    """Return the Xids of this GPU; those without a GPU if the address is empty."""
    return tuple(fault for fault in snapshot.view(fault_timeline) if fault.source == "xid" and fault.gpu == gpu)


def _kernel_faults(snapshot: Snapshot) -> Iterator[Fault]:
    for message in kernel.matching_messages(snapshot, _FAULT_WORDS):
        said = xid.parse_xid(message.text)
        if isinstance(said, XidMessage):
            yield from _xid_faults(said, message.citation, message.at)
        elif isinstance(said, SxidMessage):
            switch = pci.normalize_address(said.pci_address)
            yield Fault("sxid", switch, said.code, "link", message.citation, message.at, 0, sxid=said)


def _xid_faults(message: XidMessage, citation: Citation, at: float | None) -> Iterator[Fault]:
    gpu = pci.normalize_address(message.pci_address) if message.pci_address else ""
    if message.caused_by:
        cause = replace(message, code=message.caused_by, caused_by=0, text="")
        yield Fault("xid", gpu, message.caused_by, _xid_kind(message.caused_by), citation, at, 0, xid=cause)
    yield Fault("xid", gpu, message.code, _xid_kind(message.code), citation, at, 0, xid=message)


def _xid_kind(code: int) -> XidKind:
    entry = xids.lookup(code)
    return entry.kind if entry else "unused"


def _gpu_incidents(faults: tuple[Fault, ...]) -> Iterator[Incident]:
    for gpu in dict.fromkeys(fault.gpu for fault in faults):
        own = sort_by_time(fault for fault in faults if fault.gpu == gpu)
        roots = [_root_fault(episode) for episode in _split_episodes(own)]
        root = max(roots, key=lambda one: one.weight)
        yield Incident(gpu, root, tuple(own[own.index(root) + 1 :]))


def sort_by_time(faults: Iterable[Fault]) -> list[Fault]:
    """Sort faults by time if all have the same clock, else by their order in the evidence."""
    found = sorted(faults, key=lambda fault: fault.order)
    clocks = {clock_kind(fault) for fault in found}
    return found if -1 in clocks or len(clocks) > 1 else sorted(found, key=lambda fault: fault.at or 0.0)


def clock_kind(fault: Fault) -> int:
    """Return the kind of clock, since boot or since an epoch; -1 without a time."""
    return -1 if fault.at is None else _clock_kind_of(fault.at)


def _clock_kind_of(at: float) -> int:
    return sum(at > first for first in SYSLOG_TIME_BOUNDS_S)


def _split_episodes(faults: list[Fault]) -> list[list[Fault]]:
    """Split the faults into episodes at long gaps."""
    episodes: list[list[Fault]] = []
    for fault in faults:
        if episodes and not _are_separate_episodes(episodes[-1][-1], fault):
            episodes[-1].append(fault)
        else:
            episodes.append([fault])
    return episodes


def _are_separate_episodes(before: Fault, after: Fault) -> bool:
    is_timed = before.at is not None and after.at is not None and clock_kind(before) == clock_kind(after)
    return is_timed and abs((after.at or 0.0) - (before.at or 0.0)) > _EPISODE_GAP_S


def _root_fault(episode: list[Fault]) -> Fault:
    """Return the first fault that is no follow-up, or the first serious one that programs cannot cause."""
    candidates = [fault for fault in episode if fault.weight > 1] or [f for f in episode if f.weight] or episode
    grave = [fault for fault in candidates if fault.source == "xid" and fault.weight > PROGRAM_FAULT_WEIGHT]
    if any(fault.kind in _HARDWARE_XID_KINDS for fault in grave) and candidates[0].kind in {"application", "engine"}:
        return grave[0]
    plain = [fault for fault in candidates if fault.kind == "application" and fault.code not in _VAGUE_XIDS]
    return plain[0] if plain and candidates[0].code in _VAGUE_XIDS else candidates[0]


def _is_caused_by_other_device(one: Incident, by: Incident) -> bool:
    """Return whether ``by``, on another GPU or a switch, caused ``one`` through links or programs."""
    first, second = by.root, one.root
    if first.weight < 2 or _are_separate_episodes(first, second) or not is_earlier(first, second):
        return False
    if second.is_follow_up or second.kind in {"application", "information", "consequence"}:
        return first.kind not in {"application", "information", "consequence"}
    if second.kind == "link":
        return first.kind in {"bus", "firmware", "memory"} or (first.source == "sxid" and second.source == "xid")
    return False


def is_earlier(one: Fault, other: Fault) -> bool:
    """Return whether ``one`` came first: by time on a common clock, else by order in one log; False if unknown."""
    if one.at is not None and other.at is not None and clock_kind(one) == clock_kind(other):
        return (one.at, one.order) < (other.at, other.order)
    return one.citation.key == other.citation.key and one.order < other.order


def first_bus_falls(snapshot: Snapshot) -> dict[str, int]:
    """Return for each log the line that first reports a GPU off the bus."""
    first_lines: dict[str, int] = {}
    for fault in snapshot.view(fault_timeline):
        if fault.code == xid.FALLEN_OFF_THE_BUS_XID:
            first_lines.setdefault(fault.citation.key, fault.citation.line_number or 0)
    return first_lines


def is_after_fall(citation: Citation, first: dict[str, int]) -> bool:
    """Return whether the line follows the report of a GPU off the bus, and so is a consequence."""
    at = first.get(citation.key)
    return at is not None and (citation.line_number or 0) > at
