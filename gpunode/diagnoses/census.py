"""Which nodes of a fleet are not like the others of their model, and in what. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar, cast

from gpunode.diagnoses.portrait import Feature, Model, Portrait

# Of two that differ nobody can say which is the odd one.
_LEAST: Final = 3
# Where more than a fifth differ, they are no odd ones: that is a spread.
_FEW: Final = 5

Place: TypeAlias = tuple[str, str]
_T = TypeVar("_T")


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
    """What many nodes are like; what they have in common is kept once."""

    def __init__(self) -> None:
        self._kept: dict[object, object] = {}
        self._nodes: dict[str, tuple[Model, frozenset[Feature]]] = {}

    def add(self, node: str, seen: Portrait) -> None:
        """``node`` is counted; its name is not that of another."""
        features = frozenset(self._once(one) for one in seen.features)
        self._nodes[node] = seen.model, self._once(features)

    def _once(self, value: _T) -> _T:
        return cast("_T", self._kept.setdefault(value, value))

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
        return tuple(self._group(model, nodes) for model, nodes in ordered)

    def _group(self, model: Model, nodes: Sequence[str]) -> Group:
        if len(nodes) < _LEAST:
            return Group(model, tuple(nodes))
        usual = _usual(Counter(self._nodes[node][1] for node in nodes))
        unlike = {kept: _unlike(kept, usual) for kept in {self._nodes[node][1] for node in nodes}}
        by_node = {node: unlike[self._nodes[node][1]] for node in nodes}
        odd = {node: places for node, places in by_node.items() if places}
        reference = min(nodes, key=lambda node: len(by_node[node]))
        return Group(
            model, tuple(nodes), reference, odd, {at: usual[at][1] for places in odd.values() for at in places}
        )


def _usual(nodes: Counter[frozenset[Feature]]) -> Mapping[Place, tuple[str | None, int]]:
    """What most nodes have at each place, None where most have nothing there, and how many they are."""
    counted: dict[Place, Counter[str | None]] = defaultdict(Counter)
    for features, number in nodes.items():
        for trait, name, value in features:
            counted[trait, name][value] += number
    size = nodes.total()
    for values in counted.values():
        values[None] = size - values.total()
    most = {place: values.most_common(1)[0] for place, values in counted.items()}
    return {place: row for place, row in most.items() if row[1] >= size - max(1, size // _FEW)}


def _unlike(features: frozenset[Feature], usual: Mapping[Place, tuple[str | None, int]]) -> frozenset[Place]:
    """Where the node has another value than is usual, one where none is usual, or none where one is."""
    own = {(trait, name): value for trait, name, value in features}
    return frozenset(place for place, (value, _) in usual.items() if own.get(place) != value)
