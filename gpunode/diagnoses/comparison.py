"""Compare a broken node with a working one, and each node of a fleet with the others of its model. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final, Literal, TypeAlias, TypeVar, cast, get_args

from gpunode.diagnoses.model import Diagnosis, Finding
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.stack import LayerState
from gpunode.diagnoses.traits import GPU_COUNT_TRAIT_NAME, TRAITS, Reason, Trait, TraitSource, TraitWeight, gpu_slots
from gpunode.diagnoses.views import pci
from gpunode.fast_dataclass import dataclass

# Traits behind most faults. Two nodes that show less than half of them cannot be called equal.
_CORE_TRAIT_KINDS: Final = ("devices", "driver", "kernel", "modules", "packages")
_WEIGHTS_DESCENDING: Final[tuple[TraitWeight, ...]] = ("likely", "possible", "background")
# Distance of a trait to the root cause: 0 cited by it, 1 in the trait's own layer, 2 in a related one, 3 elsewhere.
_UNRELATED_LAYER_DISTANCE: Final = 3

Side: TypeAlias = Literal["good", "bad"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs from the good node's.

    Attributes:
        trait: the id of the compared trait.
        good: the value on the good node; None if it is known to have none.
        bad: the same for the bad node.
        why: one sentence on why the difference matters.
        near_root_cause: whether the trait lies near the bad node's root cause.
    """

    trait: str
    title: str
    name: str
    good: str | None
    bad: str | None
    weight: TraitWeight
    why: str
    near_root_cause: bool = False


@dataclass(frozen=True, slots=True)
class Uncompared:
    """A trait that could not be compared because one of the nodes does not show it.

    Attributes:
        names: the parts of the trait; empty for the whole trait.
        side: the node that does not show it.
    """

    trait: str
    title: str
    side: Side
    reason: Reason
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of two nodes.

    Attributes:
        missing: titles of the core traits that were not compared.
    """

    differences: tuple[Difference, ...]
    not_compared: tuple[Uncompared, ...]
    missing: tuple[str, ...] = ()

    @property
    def has_explanation(self) -> bool:
        """True if any difference can explain a fault."""
        return any(difference.weight != "background" for difference in self.differences)

    @property
    def is_conclusive(self) -> bool:
        """True if enough was compared for equality to mean something."""
        return len(self.missing) * 2 < len(_CORE_TRAIT_KINDS)


def compare(good: Snapshot, bad: Snapshot, diagnosis: Diagnosis) -> Comparison:
    """Return how ``bad``, which has ``diagnosis``, differs from ``good``."""
    roots = [finding for finding in diagnosis.roots if finding.severity != "info"]
    ranked: list[tuple[tuple[object, ...], Difference]] = []
    not_compared: list[Uncompared] = []
    missing: list[str] = []
    for trait in TRAITS:
        pairs = [pair for part in trait.parts for pair in _pair_values(part, good, bad)]
        distance = _distance_to_root(trait, roots, bad)
        rows = [(pair.name, pair.good, pair.bad) for pair in pairs if not pair.missing and pair.good != pair.bad]
        rows += _slots_missing_gpu(good, bad) if trait.id == "devices" else ()
        ranked += (_rank_difference(trait, distance, *row) for row in rows)
        not_compared += _list_uncompared(trait, pairs)
        if trait.id in _CORE_TRAIT_KINDS and all(pair.missing for pair in pairs):
            missing.append(trait.title)
    return Comparison(
        tuple(one for _, one in sorted(ranked, key=lambda each: each[0])), tuple(not_compared), tuple(missing)
    )


def _rank_difference(
    trait: Trait, distance: int, name: str, good: str | None, bad: str | None
) -> tuple[tuple[object, ...], Difference]:
    weight = trait.weigh(name, f"{good}\n{bad}")
    near_root_cause = weight != "background" and distance < _UNRELATED_LAYER_DISTANCE
    # The set of GPUs is what everybody wants to see first.
    is_count = trait.id == "devices" or name == GPU_COUNT_TRAIT_NAME
    rank = _WEIGHTS_DESCENDING.index(weight), not is_count, distance, TRAITS.index(trait), name
    return rank, Difference(trait.id, trait.title, name, good, bad, weight, trait.why, near_root_cause)


def _slots_missing_gpu(good: Snapshot, bad: Snapshot) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield the empty GPU slots, if the slots in use on one machine are a subset of the other's."""
    there, here = gpu_slots(good), gpu_slots(bad)
    if there and here and (there < here or here < there):
        for slot in sorted(there ^ here):
            yield f"GPU at {slot}", "one" if slot in there else None, "one" if slot in here else None


def _distance_to_root(trait: Trait, roots: list[Finding], bad: Snapshot) -> int:
    keys = {citation.key for root in roots for citation in root.citations}
    if any(part.reads_from(item) for item in bad.items if item.key in keys for part in trait.parts):
        return 0
    layers = {root.layer for root in roots}
    return 1 if trait.layers[0] in layers else _UNRELATED_LAYER_DISTANCE if layers.isdisjoint(trait.layers) else 2


@dataclass(frozen=True, slots=True)
class _ValuePair:
    """A name with its value on each node; ``missing`` tells which node does not show it, and why."""

    name: str
    good: str | None
    bad: str | None
    missing: tuple[Side, Reason] | None
    is_complete: bool


def _pair_values(part: TraitSource, good: Snapshot, bad: Snapshot) -> Iterator[_ValuePair]:
    """Yield the values of both nodes by name."""
    before, after = part.read(good), part.read(bad)
    for name in sorted({*before, *after}):
        missing: tuple[Side, Reason] | None = None
        if name not in before and (reason := part.missing_reason(good, before, name)):
            missing = "good", reason
        elif name not in after and (reason := part.missing_reason(bad, after, name)):
            missing = "bad", reason
        elif part.common_only and not (name in before and name in after):
            continue
        yield _ValuePair(name, before.get(name), after.get(name), missing, not (before and after))


def _list_uncompared(trait: Trait, pairs: list[_ValuePair]) -> Iterator[Uncompared]:
    """Yield the missing values that would matter if they differed; without names if the whole trait is missing."""
    hidden: dict[tuple[Side, Reason], list[str]] = {}
    for pair in pairs:
        if pair.missing and trait.weigh(pair.name, f"{pair.good}\n{pair.bad}") != "background":
            hidden.setdefault(pair.missing, []).append(pair.name)
    for (side, reason), names in hidden.items():
        is_whole = all(pair.is_complete for pair in pairs)
        yield Uncompared(trait.id, trait.title, side, reason, () if is_whole else tuple(names))


Axis: TypeAlias = Literal[
    "machine", "GPUs", "VBIOS", "BIOS", "distribution", "kernel", "driver", "CUDA", "toolkit", "runtime"
]
AXES: Final[tuple[Axis, ...]] = get_args(Axis)
# Trait, name and value.
Feature: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class NodeModel:
    """The hardware by which nodes are grouped.

    Attributes:
        machine: the firmware's name for it; empty if unknown.
        gpus: the models of its GPUs without their number, so that a node that lost a GPU stays in its group.
    """

    machine: str
    gpus: tuple[str, ...]

    @property
    def title(self) -> str:
        """The model in readable form."""
        return " with ".join(part for part in (self.machine, " and ".join(self.gpus)) if part) or "unknown model"


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """The properties of a node that are compared across its fleet.

    Attributes:
        versions: the known versions by axis.
        features: the values of all traits that can explain a fault.
    """

    model: NodeModel
    versions: Mapping[Axis, str]
    features: tuple[Feature, ...]


# Traits and names for each version, in order of preference.
_TRAITS_BY_AXIS: Final[Mapping[Axis, tuple[tuple[str, str], ...]]] = {
    "VBIOS": (("firmware", "VBIOS of the GPUs"),),
    "BIOS": (("firmware", "BIOS version"),),
    "distribution": (("system", "distribution"),),
    "kernel": (("kernel", "running kernel"),),
    "driver": (("driver", "loaded module"), ("driver", "nvidia-smi")),
    "CUDA": (("driver", "CUDA"),),
    "toolkit": (("packages", "nvidia-container-toolkit"),),
}


def profile_node(snapshot: Snapshot, layers: tuple[LayerState, ...]) -> NodeProfile:
    """Return the profile of the node that ``snapshot`` shows."""
    seen = [(trait, *row) for trait in TRAITS for row in trait.values(snapshot)]
    values = {(trait.id, name): value for trait, name, value in seen}
    kinds = {pci_gpu.model.name if pci_gpu.model else pci_gpu.name for pci_gpu in snapshot.view(pci.pci_gpus)}
    model = NodeModel(" ".join(filter(None, (values.get(place) for place in _MACHINE_TRAITS))), tuple(sorted(kinds)))
    state = {layer.id: layer.summary for layer in layers}
    versions = {
        axis: next((values[one] for one in places if one in values), "") for axis, places in _TRAITS_BY_AXIS.items()
    }
    versions |= {"machine": model.machine, "GPUs": state["pci"], "runtime": state["runtime"]}
    if state["driver"] == "not loaded":
        versions["driver"] = versions["driver"] or "not loaded"
    features = ((trait.id, name, value) for trait, name, value in seen if trait.weigh(name, value) != "background")
    return NodeProfile(model, {axis: versions[axis] for axis in AXES if versions[axis]}, tuple(features))


_MACHINE_TRAITS: Final = (("firmware", "vendor"), ("firmware", "model"))


# With only two nodes that differ, either may be the outlier.
_MIN_NODES_TO_COMPARE: Final = 3
# Above a fifth, the deviating nodes are a spread and not outliers.
_OUTLIER_DIVISOR: Final = 5

FeatureKey: TypeAlias = tuple[str, str]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ModelGroup:
    """The nodes of one model.

    Attributes:
        reference: the most typical node; None in a small group.
        outliers: the deviating features, by node.
        common_counts: number of nodes with the common value, for each deviating feature.
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
        features = frozenset(self._intern(feature) for feature in profile.features)
        self._nodes[node] = profile.model, self._intern(features)

    def _intern(self, value: _T) -> _T:
        return cast("_T", self._interned.setdefault(value, value))

    def group_by_model(self) -> tuple[ModelGroup, ...]:
        """Group nodes by model, largest group first; a node without GPUs joins the nodes of the same machine model."""
        by_model: dict[NodeModel, list[str]] = defaultdict(list)
        for node, (model, _) in self._nodes.items():
            by_model[model].append(node)
        for model in [node_model for node_model in by_model if not node_model.gpus and node_model.machine]:
            like = [node_model for node_model in by_model if node_model.machine == model.machine and node_model.gpus]
            if like:
                by_model[max(like, key=lambda one: len(by_model[one]))] += by_model.pop(model)
        ordered = sorted(by_model.items(), key=lambda row: (-len(row[1]), row[0].title))
        return tuple(self._compare_group(model, nodes) for model, nodes in ordered)

    def _compare_group(self, model: NodeModel, nodes: Sequence[str]) -> ModelGroup:
        if len(nodes) < _MIN_NODES_TO_COMPARE:
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
    """Return by feature the most frequent value (None: absent) and the number of nodes with it."""
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
