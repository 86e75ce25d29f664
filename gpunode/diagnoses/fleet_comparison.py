"""Find the nodes of a fleet that differ from the others of their model. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar, cast

from gpunode.diagnoses.node_profile import Feature, NodeModel, NodeProfile

# Of two nodes that differ, either may be the outlier.
_MIN_NODES: Final = 3
# If more than a fifth differ, that is a spread and not a set of outliers.
_OUTLIER_DIVISOR: Final = 5

FeatureKey: TypeAlias = tuple[str, str]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ModelGroup:
    """The nodes of one model.

    Attributes:
        reference: the most typical node; None in a small group.
        outliers: the deviating features, by node.
        common_counts: number of nodes with the common value of each deviating feature.
    """

    model: NodeModel
    nodes: tuple[str, ...]
    reference: str | None = None
    outliers: Mapping[str, frozenset[FeatureKey]] = field(default_factory=dict)
    common_counts: Mapping[FeatureKey, int] = field(default_factory=dict)


class Census:
    """The profiles of many nodes; equal features are stored once."""

    def __init__(self) -> None:
        self._interned: dict[object, object] = {}
        self._nodes: dict[str, tuple[NodeModel, frozenset[Feature]]] = {}

    def add(self, node: str, profile: NodeProfile) -> None:
        """Add the profile of ``node``, whose name is unique."""
        features = frozenset(self._intern(one) for one in profile.features)
        self._nodes[node] = profile.model, self._intern(features)

    def _intern(self, value: _T) -> _T:
        return cast("_T", self._interned.setdefault(value, value))

    def group_by_model(self) -> tuple[ModelGroup, ...]:
        """Group nodes by model, the largest group first; a node without GPUs joins the same machines."""
        by_model: dict[NodeModel, list[str]] = defaultdict(list)
        for node, (model, _) in self._nodes.items():
            by_model[model].append(node)
        for model in [one for one in by_model if not one.gpus and one.machine]:
            like = [one for one in by_model if one.machine == model.machine and one.gpus]
            if like:
                by_model[max(like, key=lambda one: len(by_model[one]))] += by_model.pop(model)
        ordered = sorted(by_model.items(), key=lambda row: (-len(row[1]), row[0].title))
        return tuple(self._compare_group(model, nodes) for model, nodes in ordered)

    def _compare_group(self, model: NodeModel, nodes: Sequence[str]) -> ModelGroup:
        if len(nodes) < _MIN_NODES:
            return ModelGroup(model, tuple(nodes))
        usual = _common_values(Counter(self._nodes[node][1] for node in nodes))
        unlike = {kept: _deviating_features(kept, usual) for kept in {self._nodes[node][1] for node in nodes}}
        by_node = {node: unlike[self._nodes[node][1]] for node in nodes}
        odd = {node: places for node, places in by_node.items() if places}
        reference = min(nodes, key=lambda node: len(by_node[node]))
        return ModelGroup(
            model, tuple(nodes), reference, odd, {at: usual[at][1] for places in odd.values() for at in places}
        )


def _common_values(nodes: Counter[frozenset[Feature]]) -> Mapping[FeatureKey, tuple[str | None, int]]:
    """Return the most frequent value by feature, None for absence, and its number of nodes."""
    counted: dict[FeatureKey, Counter[str | None]] = defaultdict(Counter)
    for features, number in nodes.items():
        for trait, name, value in features:
            counted[trait, name][value] += number
    size = nodes.total()
    for values in counted.values():
        values[None] = size - values.total()
    most = {place: values.most_common(1)[0] for place, values in counted.items()}
    return {place: row for place, row in most.items() if row[1] >= size - max(1, size // _OUTLIER_DIVISOR)}


def _deviating_features(
    features: frozenset[Feature], usual: Mapping[FeatureKey, tuple[str | None, int]]
) -> frozenset[FeatureKey]:
    """Return the features whose value is not the common one."""
    own = {(trait, name): value for trait, name, value in features}
    return frozenset(place for place, (value, _) in usual.items() if own.get(place) != value)
