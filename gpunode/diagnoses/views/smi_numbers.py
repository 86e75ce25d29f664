"""Which GPU is meant by an index or a UUID: what the answers of a node show side by side.

An index is that of the moment: once a GPU is lost, those behind it move up. So it is followed to an address only where
all that was shown agrees, and no GPU was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import pci
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_BUS: Final = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_UUID: Final = Pattern(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_INDEX: Final = Pattern(r"\d{1,3}")
_ADDRESS: Final = Pattern(_BUS)
_ROW: Final = Pattern(rf"^\|\s+(?P<index>\d{{1,3}})\s+\S[^|]{{2,60}}\|\s*(?P<bus>{_BUS})\s")
_LISTED: Final = Pattern(r"^GPU (?P<index>\d{1,3}): [^(\n]{2,60}\(UUID: (?P<uuid>GPU-[0-9a-fA-F-]{36})\)")
_LOST: Final = Pattern(
    r"fallen off the bus|\bXid\b[^\n]{0,80}\): 79\b|GPU is lost|Unable to determine the device handle"
)


# Index, UUID and address of one GPU in one answer; empty what it does not say.
Names: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The address of each GPU by its index and by its UUID, where only one is told."""

    by_index: Mapping[str, str]
    by_uuid: Mapping[str, str]

    def address(self, name: str) -> str:
        """The address of the GPU that nvidia-smi takes ``name`` for; empty where nothing tells."""
        if is_address(name):
            return pci.address(name)
        return self.by_index.get(name.lstrip("0") or name[:1], "") or self.by_uuid.get(name.lower(), "")


def is_address(name: str) -> bool:
    """Whether this is a PCI address."""
    return _ADDRESS.fullmatch(name) is not None


def is_uuid(name: str) -> bool:
    """Whether this is the UUID of a GPU, whole."""
    return _UUID.fullmatch(name) is not None


def is_index(name: str) -> bool:
    """Whether this is an index."""
    return _INDEX.fullmatch(name) is not None


def is_any_lost(snapshot: Snapshot) -> bool:
    """Whether a GPU went from the bus, so that an index may be another GPU's than it was."""
    return snapshot.says(_LOST)


def numbers(snapshot: Snapshot, told: Iterable[Names]) -> Numbers:
    """What tables, lists and ``told`` show side by side."""
    shown = [*told, *(one for item in snapshot.of("nvidia-smi", "text") if item.where == "host" for one in _of(item))]
    by_uuid = _only((uuid.lower(), bus) for _, uuid, bus in shown)
    with_bus = ((index, bus or by_uuid.get(uuid.lower(), "")) for index, uuid, bus in shown)
    by_index = {} if snapshot.view(is_any_lost) else _only(with_bus)
    return Numbers(by_index, by_uuid)


def _only(pairs: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """The second of each pair by the first, where both are told and no other pair says otherwise."""
    found: dict[str, set[str]] = {}
    for one, other in pairs:
        if one and other:
            found.setdefault(one, set()).add(other)
    return {one: others.pop() for one, others in found.items() if len(others) == 1}


def _of(item: Item) -> Iterable[Names]:
    for line in item.lines:
        if match := _ROW.match(line):
            yield match["index"], "", pci.address(match["bus"])
        elif match := _LISTED.match(line):
            yield match["index"], match["uuid"], ""
