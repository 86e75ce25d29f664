"""Compare a broken node with a working one; rank differences by how likely they explain the fault. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Diagnosis, Finding
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.traits import GPU_COUNT, TRAITS, Reason, Trait, TraitSource, Weight, gpu_slots

# Traits behind most faults. Two nodes that show less than half of them cannot be called equal.
_CORE: Final = ("devices", "driver", "kernel", "modules", "packages")
_WEIGHTS: Final[tuple[Weight, ...]] = ("likely", "possible", "background")
# Distance of a trait to the root cause: 0 cited by it, 1 in the trait's own layer, 2 in a related one, 3 elsewhere.
_ELSEWHERE: Final = 3

Side: TypeAlias = Literal["good", "bad"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that is not as on the good node.

    Attributes:
        trait: the id of what was compared.
        good: the value on the good node; None if it is known to have none.
        bad: the same for the bad node.
        why: one sentence: why it matters.
        near_root_cause: it lies near the bad node's root cause.
    """

    trait: str
    title: str
    name: str
    good: str | None
    bad: str | None
    weight: Weight
    why: str
    near_root_cause: bool = False


@dataclass(frozen=True, slots=True)
class Uncompared:
    """A trait that could not be compared, since one of the nodes does not show it.

    Attributes:
        names: the parts of the trait; empty for all of it.
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
        return any(one.weight != "background" for one in self.differences)

    @property
    def is_conclusive(self) -> bool:
        """True if enough was compared for equality to mean something."""
        return len(self.missing) * 2 < len(_CORE)


def compare(good: Snapshot, bad: Snapshot, diagnosis: Diagnosis) -> Comparison:
    """Return how ``bad``, which has ``diagnosis``, differs from ``good``."""
    roots = [finding for finding in diagnosis.roots if finding.severity != "info"]
    found: list[tuple[tuple[object, ...], Difference]] = []
    not_compared: list[Uncompared] = []
    missing: list[str] = []
    for trait in TRAITS:
        pairs = [pair for part in trait.parts for pair in _pair_values(part, good, bad)]
        distance = _distance_to_root(trait, roots, bad)
        rows = [(one.name, one.good, one.bad) for one in pairs if not one.missing and one.good != one.bad]
        rows += _missing_slots(good, bad) if trait.id == "devices" else ()
        found += (_rank_difference(trait, distance, *row) for row in rows)
        not_compared += _list_uncompared(trait, pairs)
        if trait.id in _CORE and all(pair.missing for pair in pairs):
            missing.append(trait.title)
    return Comparison(
        tuple(one for _, one in sorted(found, key=lambda each: each[0])), tuple(not_compared), tuple(missing)
    )


def _rank_difference(
    trait: Trait, distance: int, name: str, good: str | None, bad: str | None
) -> tuple[tuple[object, ...], Difference]:
    weight = trait.weigh(name, f"{good}\n{bad}")
    near_root_cause = weight != "background" and distance < _ELSEWHERE
    # Which GPUs there are is what anybody wants to know first.
    is_count = trait.id == "devices" or name == GPU_COUNT
    rank = _WEIGHTS.index(weight), not is_count, distance, TRAITS.index(trait), name
    return rank, Difference(trait.id, trait.title, name, good, bad, weight, trait.why, near_root_cause)


def _missing_slots(good: Snapshot, bad: Snapshot) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield the slots without a GPU on one of two machines that use the same ones."""
    there, here = gpu_slots(good), gpu_slots(bad)
    if there and here and (there < here or here < there):
        for slot in sorted(there ^ here):
            yield f"GPU at {slot}", "one" if slot in there else None, "one" if slot in here else None


def _distance_to_root(trait: Trait, roots: list[Finding], bad: Snapshot) -> int:
    keys = {citation.key for one in roots for citation in one.citations}
    if any(part.reads_from(item) for item in bad.items if item.key in keys for part in trait.parts):
        return 0
    layers = {one.stack_layer for one in roots}
    return 1 if trait.layers[0] in layers else _ELSEWHERE if layers.isdisjoint(trait.layers) else 2


@dataclass(frozen=True, slots=True)
class _ValuePair:
    """A name with its value on each node; ``missing`` says which node does not show it, and why."""

    name: str
    good: str | None
    bad: str | None
    missing: tuple[Side, Reason] | None
    is_whole: bool


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
    """Yield what would matter if it differed; without names if that is the whole trait."""
    hidden: dict[tuple[Side, Reason], list[str]] = {}
    for pair in pairs:
        if pair.missing and trait.weigh(pair.name, f"{pair.good}\n{pair.bad}") != "background":
            hidden.setdefault(pair.missing, []).append(pair.name)
    for (side, reason), names in hidden.items():
        is_whole = all(pair.is_whole for pair in pairs)
        yield Uncompared(trait.id, trait.title, side, reason, () if is_whole else tuple(names))
