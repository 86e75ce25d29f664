"""What is known of each GPU's memory: its Xids, what nvidia-smi counts, and whether a reset has mended it since."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards, faults, resolved, smi_query
from gpunode.diagnoses.views.smi_rows import Row
from gpunode.facts.patterns import Pattern

XIDS: Final = frozenset({48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 171, 172})
# Xids that follow where the memory fails: programs are told, and the driver asks for a reset.
OF_PROGRAMS: Final = frozenset({13, 31, 43, 45, 69, 109, 154})
_PAGE: Final = Pattern(r"\bpage\b|retire|blacklist", re.IGNORECASE)
_ROW: Final = Pattern(r"\brow\b|remap", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of one GPU's memory.

    Attributes:
        gpu: its address, else its UUID or the index by which somebody asked for it; empty where nothing tells.
        xids: its memory errors, in order.
        incident: the one that began with a memory error; None where there is none.
        queries: nvidia-smi's answers about it.
        strays: those about GPUs that nobody can tell from it.
    """

    gpu: str
    xids: tuple[faults.Fault, ...]
    incident: faults.Incident | None
    queries: tuple[smi_query.Gpu, ...]
    strays: tuple[smi_query.Gpu, ...] = ()

    def of(self, *codes: int) -> tuple[faults.Fault, ...]:
        """Its errors of these codes."""
        return tuple(fault for fault in self.xids if fault.code in codes)

    def pages_of(self, *codes: int) -> tuple[faults.Fault, ...]:
        """Those of them that are about a page."""
        return tuple(fault for fault in self.of(*codes) if is_of_pages(fault))

    def rows_of(self, *codes: int) -> tuple[faults.Fault, ...]:
        """Those of them that are about a row."""
        return tuple(fault for fault in self.of(*codes) if not is_of_pages(fault))

    def every_row(self) -> Iterator[Row]:
        """All that nvidia-smi says of it."""
        return (row for query in self.queries for row in query.rows)

    def rows(self, *names: str) -> tuple[Row, ...]:
        """The rows of that name."""
        return tuple(row for query in self.queries for row in query.every(*names))

    def says(self, *names: str) -> tuple[Citation, ...]:
        """The rows of that name whose value says yes."""
        return tuple(row.citation for row in self.rows(*names) if smi_query.is_yes(row.value))

    def denies(self, *names: str) -> tuple[Citation, ...]:
        """The rows in which nvidia-smi says no: of this GPU, else of each that it may be."""
        own = list(self.rows(*names))
        if not own:
            own = [row for query in self.strays for row in query.every(*names)]
            own = own if all(row.value.lower() == "no" for row in own) else []
        return tuple(row.citation for row in own if row.value.lower() == "no")

    def counted(self, *names: str) -> int:
        """The highest count under that name."""
        found = (row.value for row in self.rows(*names))
        return max((int(value) for value in found if re.fullmatch(r"[0-9]{1,9}", value)), default=0)


def memories(snapshot: Snapshot) -> tuple[Memory, ...]:
    """Each GPU whose memory somebody spoke of; what is said of one that nothing names belongs to none of the others."""
    incidents = {one.gpu: one for one in snapshot.view(faults.incidents) if one.root.code in XIDS}
    queries = snapshot.view(smi_query.gpus)
    ill = {one.gpu for one in snapshot.view(faults.incidents) if one.root.code not in XIDS | OF_PROGRAMS}
    gpus = tuple(dict.fromkeys((*incidents, *(query.name for query in queries if query.name))))
    unnamed = tuple(query for query in queries if not query.name)
    is_of_one = len(gpus) < 2 and not _are_several(snapshot)
    strays = () if is_of_one else unnamed
    known = tuple(
        Memory(
            gpu,
            tuple(f for f in faults.on(snapshot, gpu) if f.code in XIDS and not _is_of_compute(f)),
            incidents.get(gpu),
            tuple(query for query in queries if query.name == gpu or (is_of_one and not query.name)),
            strays,
        )
        for gpu in gpus or (("",) if is_of_one and unnamed else ())
        if gpu not in ill
    )
    return (*known, *(Memory("", (), None, (query,)) for query in strays))


def _are_several(snapshot: Snapshot) -> bool:
    """Whether an answer is about more than one GPU that nothing names, or the node is known to have more than one."""
    if any(sum(not gpu.name for gpu in answer) > 1 for answer in snapshot.view(smi_query.answers)):
        return True
    counts = [one.count for one in snapshot.view(boards.inventories)]
    return any(count is not None and count > 1 for count in counts)


def _is_of_compute(fault: faults.Fault) -> bool:
    """Whether what was retired is no memory but a part of the compute engine."""
    return bool(fault.xid and re.search(r"\bTPC\b", fault.xid.text))


def is_of_pages(fault: faults.Fault) -> bool:
    """Whether what was marked or could not be is a page, and no row."""
    text = fault.xid.text if fault.xid else ""
    return bool(_PAGE.search(text)) and not _ROW.search(text)


def was_reset(memory: Memory) -> bool:
    """Whether a row was marked, and nothing waited for a reset any more when nvidia-smi was asked last."""
    if not any(not is_of_pages(fault) for fault in memory.of(63, 156, 160)):
        return False
    return any(map(resolved.was_asked_last, memory.denies("Remapped Rows", "Pending")))
