"""GPUs that were there once and are not now: the last answer that lists the others leaves them away."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import boards, faults, pci
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_Program: TypeAlias = Literal["nvidia-smi", "lspci"]
_BUS: Final = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
# The head of a GPU's part in -q, and a cell of a query.
_NAMED: Final = Pattern(rf"(?:^GPU |^|,)\s*(?P<bus>{_BUS})\s*(?:,|$)")
_ALL: Final = Pattern(r"nvidia|10de|vga|3d|display", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Call:
    """One answer that lists every GPU that is there.

    Attributes:
        gpus: their addresses, each with its line; fewer than ``count`` where the answer does not tell them.
    """

    program: _Program
    count: int
    gpus: Mapping[str, Citation]
    citation: Citation


@dataclass(frozen=True, slots=True)
class Gone:
    """GPUs that were there.

    Attributes:
        gpus: their addresses; none where only their number tells.
        citations: what showed them, and the answer that does not.
    """

    gpus: tuple[str, ...]
    program: _Program
    citations: tuple[Citation, ...]


def gone(snapshot: Snapshot) -> Gone | None:
    """The GPUs that the last answer leaves away, though it lists others; None where none is missing."""
    calls = snapshot.view(_calls)
    for last in _last(calls):
        told = {**_in_faults(snapshot), **{gpu: place for one in calls for gpu, place in one.gpus.items()}}
        missing = {gpu: place for gpu, place in told.items() if gpu not in last.gpus and _is_drivers(snapshot, gpu)}
        fuller = [one for one in calls if one.program == last.program and one.count > last.count]
        if missing and len(last.gpus) == last.count:
            return Gone(tuple(sorted(missing)), last.program, (*missing.values(), last.citation))
        if fuller:
            return Gone((), last.program, (fuller[-1].citation, last.citation))
    return None


def _last(calls: tuple[Call, ...]) -> Iterator[Call]:
    """The last answer of nvidia-smi, and that of lspci where it was asked for later."""
    by_driver = [place for place, one in enumerate(calls) if one.program == "nvidia-smi"]
    yield from (calls[place] for place in by_driver[-1:])
    if calls and calls[-1].program == "lspci":
        yield calls[-1]


def _is_drivers(snapshot: Snapshot, gpu: str) -> bool:
    """Whether nobody else has the GPU: what vfio-pci lends to a virtual machine is there all the same."""
    return all(one.driver in {None, "nvidia"} for one in snapshot.view(pci.gpus) if one.address == gpu)


def _in_faults(snapshot: Snapshot) -> Mapping[str, Citation]:
    """The GPUs that the kernel tells a fault of, be it in an earlier boot."""
    every = snapshot.with_history or snapshot
    own = {(item.key, item.written) for item in every.of("kernel-log", "journal") if item.where == "host"}
    told = (fault for fault in every.view(faults.timeline) if fault.source == "xid" and fault.gpu)
    return {one.gpu: one.citation for one in told if (one.citation.key, one.citation.source) in own}


def _calls(snapshot: Snapshot) -> tuple[Call, ...]:
    """The answers that list every GPU, in the order of the evidence."""
    whole = {(one.citation.key, one.citation.source): one for one in snapshot.view(boards.inventories)}
    items = (item for item in snapshot.of("nvidia-smi", "nvidia-smi-q", "text", "lspci") if item.where == "host")
    found = (_call(item, whole.get((item.key, item.written))) for item in items)
    return tuple(one for one in found if one is not None and one.count)


def _call(item: Item, shown: boards.Inventory | None) -> Call | None:
    if item.source.is_part or item.source.is_mixed or {"-i", "--id", "-s"} & set(item.source.words):
        return None
    if item.kind == "lspci":
        return _of_bus(item)
    gpus = {board.bus: board.citation for board in shown.boards if board.bus} if shown else {}
    gpus = gpus or {
        pci.address(match["bus"]): cite(item, number)
        for number, line in enumerate(item.lines, 1)
        if item.kind != "text" and (match := _NAMED.search(line))
    }
    count = shown.count if shown else (len(gpus) if not item.source.only else None)
    rows = (*gpus.values(), *((shown.citation, *(board.citation for board in shown.boards)) if shown else ()))
    place = rows[-1] if rows else None
    return Call("nvidia-smi", count, gpus, place) if count and place else None


def _of_bus(item: Item) -> Call | None:
    if item.source.only and not _ALL.search(item.source.only):
        return None
    gpus = {one.address: one.citation for one in pci.listed(item) if one.is_gpu and pci.is_nvidias(one)}
    return Call("lspci", len(gpus), gpus, next(iter(gpus.values()))) if gpus else None
