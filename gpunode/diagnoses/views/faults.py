"""GPU faults over time: of each GPU the fault that came first and what came of it.

A GPU that fails fails loudly: one error is followed by those of the engines, channels, links and programs that it took
along. Only the first is worth acting on. What a code can be the consequence of stands in the catalog's kinds, and in
the driver's own words where it names an earlier Xid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from gpunode.catalog import xids
from gpunode.catalog.xids import XidKind
from gpunode.diagnoses.model import Citation, Confidence, Proof
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import kernel, pci
from gpunode.facts import xid
from gpunode.facts.patterns import Pattern
from gpunode.facts.xid import SxidMessage, XidMessage

Source: TypeAlias = Literal["xid", "sxid"]

# Faults of one GPU that lie further apart are not of one making.
_GAP_S: Final = 300.0
_DAY_S: Final = 86_400.0
# Seconds since boot lie below the first, those of syslog, which leaves the year away, between both.
_CLOCKS: Final = (9e8, 1e9)
ENDS_ONE: Final = 2
"""The weight of what ends one program's work."""
_ABOUT_FAULTS: Final = Pattern("Xid|off the bus")
# Codes that say what was done or is to be done: none is what went wrong while another error is there.
_LATE: Final = frozenset({43, 45, 143, 154, 174})
# Hardly worth a word of their own beside another error.
_MILD: Final = frozenset({63, 92, 93, 121, 156, 160, 162, 163, 164, 176})
_SEVERE_KINDS: Final[frozenset[XidKind]] = frozenset(
    {"bus", "memory", "firmware", "link", "board", "security", "virtual"}
)
# Programs cannot do this to a GPU, whichever line came first.
_NOT_BY_PROGRAMS: Final[frozenset[XidKind]] = frozenset({"bus", "memory", "board"})
# A command stream broke, by what they do not say; the error that comes with them does.
_VAGUE: Final = frozenset({8, 11, 25, 32, 80})


@dataclass(frozen=True, slots=True)
class Fault:
    """One error of a GPU or an NVSwitch.

    Attributes:
        gpu: PCI address; empty where the message names none. Of an SXid it is the switch.
        at: seconds, on the clock of its log; None where no time stands there.
        order: its place in the evidence.
        is_past: whether it is known to be of a boot before the running one.
    """

    source: Source
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
        """As a sentence calls it."""
        return f"SXid {self.code}" if self.source == "sxid" else f"Xid {self.code}"

    @property
    def is_late(self) -> bool:
        """Whether it tells of what an earlier error brought with it, and never of an error's beginning."""
        return self.source == "xid" and (self.code in _LATE or bool(self.xid and self.xid.caused_by))

    @property
    def weight(self) -> int:
        """3 for what a person has to act on, 2 for what ends one program's work, 1 for what can wait, 0 for echoes."""
        if self.is_late:
            return 0
        if self.source == "sxid":
            return 3 if self.sxid and self.sxid.fatal else 1
        if self.code in _MILD:
            return 1
        # 94 was contained.
        if self.code == 94 or (self.code in xids.NVLINK5 and not self.is_fatal):
            return ENDS_ONE
        return 3 if self.kind in _SEVERE_KINDS or self.code in {46, 158} else ENDS_ONE

    @property
    def is_fatal(self) -> bool:
        """Whether an NVLink 5 error or an SXid calls itself fatal; other errors are taken to be."""
        if self.sxid is not None:
            return bool(self.sxid.fatal)
        body = xid.link_error(self.xid.text) if self.xid and self.code in xids.NVLINK5 else None
        return body is None or body.fatal


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault, and those that it brought with it.

    Attributes:
        gpu: where it began; empty where nothing tells.
        followed: the later faults of the same GPU, in order; those that belong to it, and those that came after.
    """

    gpu: str
    root: Fault
    followed: tuple[Fault, ...]

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The line of the first fault, of the first of each kind that followed, and of what was asked for last."""
        first = {fault.code: fault.citation for fault in reversed((self.root, *self.followed))}
        asked = [fault.citation for fault in self.followed if fault.code == 154]
        return tuple(dict.fromkeys((self.root.citation, *reversed(first.values()), *asked[-1:])))


def is_past(snapshot: Snapshot, incident: Incident) -> bool:
    """Whether the log went on for a day or more after the incident, and nothing of its kind was told again."""
    times = [fault.at for fault in (incident.root, *incident.followed) if fault.code == incident.root.code]
    known = [at for at in times if at is not None]
    if len(known) < len(times):
        return False
    later = (
        m.at for m in snapshot.view(kernel.messages) if m.at is not None and _clock_of(m.at) == _clock_of(known[0])
    )
    return max(later, default=known[0]) - max(known) > _DAY_S


def label(gpu: str) -> str:
    """The GPU, as a sentence names it."""
    return (gpu if gpu.startswith("GPU-") else f"GPU {gpu}") if gpu else "A GPU"


def proof(incident: Incident, happened: str = "", **more: Any) -> Proof:
    """The proof that ``incident`` is; ``happened`` is a clause about what did, without one the catalog's words."""
    root = incident.root
    entry = xids.lookup(root.code)
    clause = happened or (entry.meaning if entry else "an error that no list explains")
    whose = f" for {_program(root.xid)}" if root.xid and (root.xid.process or root.xid.pid) else ""
    later = dict.fromkeys(str(fault.code) for fault in incident.followed if fault.code != root.code)
    then = f"; Xid {', '.join(later)} followed" if later else ""
    summary = f"{label(incident.gpu)} reported Xid {root.code}{whose}: {clause}{then}"
    return Proof(summary, incident.citations, gpu=incident.gpu, at=root.at, **more)


def _program(said: XidMessage) -> str:
    return f"{said.process} (pid {said.pid})" if said.process and said.pid else said.process or f"pid {said.pid}"


def began(
    *codes: int, confidence: Confidence = "certain", is_of_programs: bool = False
) -> Callable[[Snapshot], Iterator[Proof]]:
    """The check of a cause that is there where an incident began with an Xid of one of these codes.

    What a program did to itself is news for a day; after that it is history, and the node is well.
    """

    def check(snapshot: Snapshot) -> Iterator[Proof]:
        for incident in of(snapshot, *codes):
            is_over = is_of_programs and is_past(snapshot, incident)
            yield proof(incident, confidence=confidence, severity="info" if is_over else None)

    return check


def timeline(snapshot: Snapshot) -> tuple[Fault, ...]:
    """Every fault in the evidence, in its order."""
    is_past = snapshot.is_of_earlier_boot if snapshot.now is not None else lambda _: False
    found = [
        replace(fault, order=order, is_past=is_past(fault.citation)) for order, fault in enumerate(_of_kernel(snapshot))
    ]
    gpus = {fault.gpu for fault in found if fault.source == "xid"} - {""}
    only = gpus.pop() if len(gpus) == 1 else ""
    return tuple(replace(one, gpu=only) if one.source == "xid" and not one.gpu else one for one in found)


def incidents(snapshot: Snapshot) -> tuple[Incident, ...]:
    """What went wrong first: at most one incident for each GPU and switch, none for one that another dragged along.

    Faults of earlier boots, where they are told of, have incidents of their own: a boot begins every GPU's work anew.
    """
    found = snapshot.view(timeline)
    return (*_of_boot(fault for fault in found if fault.is_past), *_of_boot(f for f in found if not f.is_past))


def _of_boot(faults: Iterable[Fault]) -> Iterator[Incident]:
    found = tuple(_first_of_each(tuple(faults)))
    return (one for one in found if not any(by is not one and _dragged_along(one, by) for by in found))


def of(snapshot: Snapshot, *codes: int) -> tuple[Incident, ...]:
    """The incidents that began with an Xid of one of these codes."""
    return tuple(one for one in snapshot.view(incidents) if one.root.source == "xid" and one.root.code in codes)


def grave(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The first faults that a person has to act on, each of which may be the reason of whatever else is told."""
    return tuple(one.root.citation for one in snapshot.view(incidents) if one.root.weight > ENDS_ONE)


def on(snapshot: Snapshot, gpu: str) -> tuple[Fault, ...]:
    """The Xids of this GPU; with an empty address all whose GPU nobody named."""
    return tuple(fault for fault in snapshot.view(timeline) if fault.source == "xid" and fault.gpu == gpu)


def _of_kernel(snapshot: Snapshot) -> Iterator[Fault]:
    for message in snapshot.view(kernel.messages):
        said = xid.parse(message.text) if _ABOUT_FAULTS.search(message.text) else None
        if isinstance(said, XidMessage):
            yield from _xids(said, message.citation, message.at)
        elif isinstance(said, SxidMessage):
            switch = pci.address(said.bus)
            yield Fault("sxid", switch, said.code, "link", message.citation, message.at, 0, sxid=said)


def _xids(said: XidMessage, citation: Citation, at: float | None) -> Iterator[Fault]:
    gpu = pci.address(said.bus) if said.bus else ""
    if said.caused_by:
        cause = replace(said, code=said.caused_by, caused_by=0, text="")
        yield Fault("xid", gpu, said.caused_by, _kind(said.caused_by), citation, at, 0, xid=cause)
    yield Fault("xid", gpu, said.code, _kind(said.code), citation, at, 0, xid=said)


def _kind(code: int) -> XidKind:
    entry = xids.lookup(code)
    return entry.kind if entry else "unused"


def _first_of_each(faults: tuple[Fault, ...]) -> Iterator[Incident]:
    for gpu in dict.fromkeys(fault.gpu for fault in faults):
        own = in_time(fault for fault in faults if fault.gpu == gpu)
        roots = [_root(episode) for episode in _episodes(own)]
        root = max(roots, key=lambda one: one.weight)
        yield Incident(gpu, root, tuple(own[own.index(root) + 1 :]))


def in_time(faults: Iterable[Fault]) -> list[Fault]:
    """By their clock where all have the same, as in a log that was printed newest first; else as they stand."""
    found = sorted(faults, key=lambda fault: fault.order)
    clocks = {clock(fault) for fault in found}
    return found if -1 in clocks or len(clocks) > 1 else sorted(found, key=lambda fault: fault.at or 0.0)


def clock(fault: Fault) -> int:
    """Which kind of clock the fault's time is of, since boot or since an epoch; -1 without one."""
    return -1 if fault.at is None else _clock_of(fault.at)


def _clock_of(at: float) -> int:
    return sum(at > first for first in _CLOCKS)


def _episodes(faults: list[Fault]) -> list[list[Fault]]:
    """The faults, parted where nothing happened for a while."""
    episodes: list[list[Fault]] = []
    for fault in faults:
        if episodes and not _apart(episodes[-1][-1], fault):
            episodes[-1].append(fault)
        else:
            episodes.append([fault])
    return episodes


def _apart(before: Fault, after: Fault) -> bool:
    is_timed = before.at is not None and after.at is not None and clock(before) == clock(after)
    return is_timed and abs((after.at or 0.0) - (before.at or 0.0)) > _GAP_S


def _root(episode: list[Fault]) -> Fault:
    """The first that is no echo; where something is there that programs cannot have done, the first that is grave."""
    candidates = [fault for fault in episode if fault.weight > 1] or [f for f in episode if f.weight] or episode
    grave = [fault for fault in candidates if fault.source == "xid" and fault.weight > ENDS_ONE]
    if any(fault.kind in _NOT_BY_PROGRAMS for fault in grave) and candidates[0].kind in {"application", "engine"}:
        return grave[0]
    plain = [fault for fault in candidates if fault.kind == "application" and fault.code not in _VAGUE]
    return plain[0] if plain and candidates[0].code in _VAGUE else candidates[0]


def _dragged_along(one: Incident, by: Incident) -> bool:
    """Whether ``one`` is what the fault of another GPU or of a switch did to this one's links and programs."""
    first, second = by.root, one.root
    if first.weight < 2 or _apart(first, second) or is_earlier(second, first):
        return False
    if second.is_late or second.kind in {"application", "information", "consequence"}:
        return first.kind not in {"application", "information", "consequence"}
    if second.kind == "link":
        return first.kind in {"bus", "firmware", "memory"} or (first.source == "sxid" and second.source == "xid")
    return False


def is_earlier(one: Fault, other: Fault) -> bool:
    """Whether ``one`` came first: by their clock where both have the same, else as they stand in the evidence."""
    if one.at is not None and other.at is not None and clock(one) == clock(other):
        return (one.at, one.order) < (other.at, other.order)
    return one.order < other.order


def first_fall(snapshot: Snapshot) -> dict[str, int]:
    """The line of each log at which a GPU is first said to have fallen off the bus."""
    found: dict[str, int] = {}
    for fault in snapshot.view(timeline):
        if fault.code == xid.FALLEN_OFF_THE_BUS:
            found.setdefault(fault.citation.key, fault.citation.line_number or 0)
    return found


def is_behind(citation: Citation, first: dict[str, int]) -> bool:
    """Whether a line stands behind the first that tells of a fallen GPU: then it is a consequence."""
    at = first.get(citation.key)
    return at is not None and (citation.line_number or 0) > at
