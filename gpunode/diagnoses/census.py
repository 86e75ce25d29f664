"""Which nodes of a fleet are not like the others of their model, and in what. Pure.

What nodes have in common is kept once: five thousand nodes with a hundred features each take some megabytes.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gpunode.diagnoses.portrait import Feature, Model, Portrait

# Of two that differ nobody can say which is the odd one.
_LEAST: Final = 3
# Where more than a fifth differ, they are no odd ones: that is a spread.
_FEW: Final = 5

Place: TypeAlias = tuple[str, str]
_Kept: TypeAlias = frozenset[int]


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes of one model.

    Attributes:
        reference: the node that is most like the others; None where nobody can say.
        odd: what is unlike the others, by node.
        usual: how many nodes have what is usual at each place where one has not.
    """

    model: Model
    nodes: tuple[str, ...]
    reference: str | None = None
    odd: Mapping[str, frozenset[Place]] = field(default_factory=dict)
    usual: Mapping[Place, int] = field(default_factory=dict)


class Census:
    """What many nodes are like."""

    def __init__(self) -> None:
        self._numbers: dict[Feature, int] = {}
        self._nodes: dict[str, tuple[Model, bytes]] = {}

    def add(self, node: str, seen: Portrait) -> None:
        """``node`` is counted; its name is not that of another."""
        numbers = sorted(self._numbers.setdefault(one, len(self._numbers)) for one in set(seen.features))
        self._nodes[node] = (seen.model, array("I", numbers).tobytes())

    def groups(self) -> tuple[Group, ...]:
        """The nodes by their model, the largest group first; one whose GPUs are all gone is of its machine's."""
        by_model: dict[Model, list[str]] = defaultdict(list)
        for node, (model, _) in self._nodes.items():
            by_model[model].append(node)
        for model in [one for one in by_model if not one.gpus and one.machine]:
            like = [one for one in by_model if one.machine == model.machine and one.gpus]
            if like:
                by_model[max(like, key=lambda one: len(by_model[one]))] += by_model.pop(model)
        ordered = sorted(by_model.items(), key=lambda row: (-len(row[1]), row[0].title))
        features = tuple(self._numbers)
        return tuple(self._group(model, nodes, features) for model, nodes in ordered)

    def _group(self, model: Model, nodes: Sequence[str], features: Sequence[Feature]) -> Group:
        if len(nodes) < _LEAST:
            return Group(model, tuple(nodes))
        alike: dict[bytes, list[str]] = defaultdict(list)
        for node in nodes:
            alike[self._nodes[node][1]].append(node)
        kept = {packed: frozenset(array("I", packed)) for packed in alike}
        usual = _usual(((kept[packed], len(some)) for packed, some in alike.items()), features, len(nodes))
        unlike = {packed: _unlike(one, usual, features) for packed, one in kept.items()}
        like_most = min(alike, key=lambda packed: (len(unlike[packed]), -len(alike[packed])))
        odd = {node: unlike[packed] for packed, some in alike.items() if unlike[packed] for node in some}
        places = {place for some in odd.values() for place in some}
        return Group(model, tuple(nodes), alike[like_most][0], odd, {place: usual.nodes[place] for place in places})


@dataclass(frozen=True, slots=True)
class _Usual:
    """What most nodes of a group have at each place; None where most have nothing there."""

    values: Mapping[Place, int | None]
    nodes: Mapping[Place, int]


def _usual(kept: Iterable[tuple[_Kept, int]], features: Sequence[Feature], size: int) -> _Usual:
    """Of ``size`` nodes, given as sets of features and how many nodes have each."""
    counted: Counter[int] = Counter()
    for numbers, nodes in kept:
        for number in numbers:
            counted[number] += nodes
    most = size - max(1, size // _FEW)
    at: dict[Place, list[int]] = defaultdict(list)
    for number in counted:
        at[features[number][:2]].append(number)
    values: dict[Place, int | None] = {}
    having: dict[Place, int] = {}
    for place, found in at.items():
        commonest = max(found, key=lambda one: counted[one])
        without = size - sum(counted[one] for one in found)
        if counted[commonest] >= most:
            values[place], having[place] = commonest, counted[commonest]
        elif without >= most:
            values[place], having[place] = None, without
    return _Usual(values, having)


def _unlike(kept: _Kept, usual: _Usual, features: Sequence[Feature]) -> frozenset[Place]:
    """Where the node has another value than is usual, one where none is usual, or none where one is."""
    missing = (place for place, number in usual.values.items() if number is not None and number not in kept)
    extra = (features[number][:2] for number in kept if usual.values.get(features[number][:2], number) is None)
    return frozenset((*missing, *extra))
