"""A row of nvidia-smi's long answer, and to which GPU's part of it a row belongs where no line says so.

``nvidia-smi -q | grep -E "Bus Id|Pending"`` leaves the lines away with which each GPU begins. What is left is still in
order: nvidia-smi tells of one GPU after another, and of each in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from gpunode.diagnoses.model import Citation

# Names that branches, the XML and the CSV have for one thing, each by the one that -q has today.
_SAME: Final = {
    "clocks throttle reasons": "clocks event reasons",
    "remapping failure occured": "remapping failure occurred",
    "remapped row corr": "correctable error",
    "remapped row unc": "uncorrectable error",
    "remapped row pending": "pending",
    "remapped row failure": "remapping failure occurred",
    "failure": "remapping failure occurred",
    "pending blacklist": "pending page blacklist",
    "pending retirement": "pending page blacklist",
    "gpu bus id": "bus id",
    "pci bus id": "bus id",
    "uuid": "gpu uuid",
    "power readings": "gpu power readings",
}
# What nvidia-smi -q tells of each GPU once: before its bus id, and after it.
_BEFORE: Final = ("product name", "serial number", "gpu uuid", "reset required", "drain and reset recommended",
                  "gpu recovery action", "bus id")  # fmt: skip
_AFTER: Final = ("performance state", "sw power cap", "hw slowdown", "hw thermal slowdown", "hw power brake slowdown",
                 "sw thermal slowdown", "sram threshold exceeded", "single bit ecc", "double bit ecc",
                 "pending page blacklist", "pending", "remapping failure occurred", "gpu current temp")  # fmt: skip
_PLACES: Final = {name: place for place, name in enumerate((*_BEFORE, *_AFTER))}
_HEADINGS: Final = {
    "pending": "Remapped Rows", "remapping failure occurred": "Remapped Rows", "correctable error": "Remapped Rows",
    "uncorrectable error": "Remapped Rows", "single bit ecc": "Retired Pages", "double bit ecc": "Retired Pages",
    "pending page blacklist": "Retired Pages",
}  # fmt: skip


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """A name as all branches, the XML and the CSV have it."""
    words = " ".join(name.replace("_", " ").lower().split())
    return _SAME.get(words, words)


@dataclass(frozen=True, slots=True)
class Row:
    """A value and the names on the way to it, outermost first, its own last."""

    path: tuple[str, ...]
    value: str
    citation: Citation


def parted(rows: Sequence[Row]) -> tuple[tuple[tuple[Row, ...], ...], bool]:
    """The rows GPU by GPU, and whether they follow each other as nvidia-smi writes them.

    A GPU's part is over where a row comes that stands no later than the last. Where that makes more parts than any row
    is there, the rows were put into another order, or cut off in the midst of a GPU: then nobody can say which of them
    are of one GPU.
    """
    parts: list[list[Row]] = [[]]
    last, counted = -1, Counter[int]()
    for row in rows:
        if (place := _place(row)) is not None:
            if place <= last:
                parts.append([])
            last = place
            counted[place] += 1
        parts[-1].append(row)
    return tuple(map(tuple, parts)), len(parts) <= max(counted.values(), default=1)


def at_home(row: Row, before: Sequence[Row]) -> Row:
    """The row under its heading, where that was not pasted and is the only one that it can have had."""
    name = plain(row.path[-1])
    if len(row.path) > 1 or name not in _HEADINGS or _is_of_mode(name, row.value):
        return row
    # Old drivers call the blacklist so.
    is_of_pages = name == "pending" and before and plain(before[-1].path[-1]) == "double bit ecc"
    return replace(row, path=("Retired Pages" if is_of_pages else _HEADINGS[name], *row.path))


def _is_of_mode(name: str, value: str) -> bool:
    """Whether it is a mode that is pending; of memory, the row says whether."""
    return name == "pending" and value.lower() not in {"yes", "no"}


def _place(row: Row) -> int | None:
    """Where the row stands in a GPU's part; None where that tells nothing, as of counters in microseconds."""
    name, top = plain(row.path[-1]), plain(row.path[0])
    if _is_of_mode(name, row.value) or row.value.endswith(" us") or (name == "pending" and top != "remapped rows"):
        return None
    return _PLACES.get(name)
