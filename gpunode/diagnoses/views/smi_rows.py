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
    "failure": "remapping failure occurred",
    "remapped row corr": "correctable error",
    "remapped row unc": "uncorrectable error",
    "remapped row pending": "pending",
    "remapped row failure": "remapping failure occurred",
    "pending blacklist": "pending page blacklist",
    "pending retirement": "pending page blacklist",
    "gpu bus id": "bus id",
    "pci bus id": "bus id",
    "uuid": "gpu uuid",
    "power readings": "gpu power readings",
}
# What nvidia-smi -q tells of each GPU once, in its order (branches 450 to 580), with rows of its sections; those whose
# place changed from branch to branch are left out.
_ORDER: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("product name", ()),
    ("product brand", ()),
    ("persistence mode", ()),
    ("mig mode", ("current", "pending")),
    ("serial number", ()),
    ("gpu uuid", ()),
    ("minor number", ()),
    ("vbios version", ()),
    ("gpu part number", ()),
    ("inforom version", ()),
    ("gpu virtualization mode", ("virtualization mode",)),
    ("gpu reset status", ("reset required", "drain and reset recommended")),
    ("gpu recovery action", ()),
    ("gsp firmware version", ()),
    ("pci", ("bus id", "sub system id")),
    ("performance state", ()),
    (
        "clocks event reasons",
        ("sw power cap", "hw slowdown", "hw thermal slowdown", "hw power brake slowdown", "sw thermal slowdown"),
    ),
    ("compute mode", ()),
    ("ecc mode", ("current", "pending")),
    ("ecc errors", ("sram threshold exceeded", "channel repair pending", "tpc repair pending", "unrepairable memory")),
    ("retired pages", ("single bit ecc", "double bit ecc", "pending page blacklist")),
    ("remapped rows", ("correctable error", "uncorrectable error", "pending", "remapping failure occurred")),
    ("temperature", ("gpu current temp",)),
    ("fabric", ("state", "status")),
)
_INSIDE: Final = {
    (top, name): (at, place) for at, (top, names) in enumerate(_ORDER) for place, name in enumerate(names or (top,))
}
_TITLED: Final = frozenset(top for top, names in _ORDER if names)
# Several sections have such rows; where the heading was left away, these tell of none.
_ANYWHERE: Final = frozenset({"current", "pending", "state", "status"})
_ALONE: Final = {name: place for (_, name), place in _INSIDE.items() if name not in _ANYWHERE}
_HEADINGS: Final = {name: title for title in ("Retired Pages", "Remapped Rows") for name in dict(_ORDER)[title.lower()]}
# Modes have such a row, too, and say which; of memory it says whether.
_PENDING: Final = "pending"
_WHETHER: Final = frozenset({"yes", "no"})


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

    A GPU's part is over where a row comes again that each GPU has once, or one that stands before the last. Where that
    makes more parts than any row is there, the rows were put into another order, or cut off in the midst of a GPU: then
    nobody can say which of them are of one GPU.
    """
    parts: list[list[Row]] = [[]]
    seen: set[tuple[int, int]] = set()
    counted: Counter[tuple[int, int]] = Counter()
    for row in rows:
        if (place := _place(row)) is not None:
            if place in seen or place < max(seen, default=place):
                parts.append([])
                seen.clear()
            seen |= {place}
            counted[place] += 1
        parts[-1].append(row)
    return tuple(map(tuple, parts)), len(parts) <= max(counted.values(), default=1)


def at_home(row: Row, before: Sequence[Row]) -> Row:
    """The row under its heading, where that was not pasted and is the only one that it can have had."""
    name = plain(row.path[-1])
    if len(row.path) > 1 or (name == _PENDING and row.value.lower() not in _WHETHER):
        return row
    # Old drivers call the blacklist so.
    is_of_pages = name == _PENDING and before and plain(before[-1].path[-1]) == "double bit ecc"
    heading = "Retired Pages" if is_of_pages else _HEADINGS.get(name, "")
    return replace(row, path=(heading, *row.path)) if heading else row


def _place(row: Row) -> tuple[int, int] | None:
    """Where the row stands in a GPU's part; None where that tells nothing.

    Counters, in microseconds, are called as the reasons that they count. Instances have sections of their own. A
    heading may be another section's, where a search left the right one away.
    """
    top, name = plain(row.path[0]), plain(row.path[-1])
    is_of_mode = name == _PENDING and top == "remapped rows" and row.value.lower() not in _WHETHER
    if is_of_mode or row.value.endswith(" us"):
        return None
    alone = _ALONE.get(name) if len(row.path) <= _UNDER_ONE else None
    return (_INSIDE.get((top, name)) if top in _TITLED else None) or alone


_UNDER_ONE: Final = 2
