"""How a bad node differs from a good one, the difference that is most likely to explain its fault first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Diagnosis, StoreyId
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.traits import TRAITS, Reading, Trait, Weight

# What most faults of GPU nodes lie in. Two that show less of themselves than most of it are alike for want of a look.
_CORE: Final = ("devices", "driver", "kernel", "modules", "packages")
_WEIGHTS: Final[tuple[Weight, ...]] = ("likely", "possible", "background")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as on the good node.

    Attributes:
        trait: the id of what was compared.
        good: the value on the good node; None where it has none.
        bad: likewise on the bad one.
        why: one sentence: why it matters.
        near: whether it lies where doctor found the bad node's root cause.
    """

    trait: str
    title: str
    name: str
    good: str | None
    bad: str | None
    weight: Weight
    why: str
    near: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two nodes, compared.

    Attributes:
        unseen: titles of what could not be compared, since one of the two does not show it.
        missing: of what most faults lie in, titles of what was not compared, be it that neither shows it.
    """

    differences: tuple[Difference, ...]
    unseen: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def matters(self) -> bool:
        """Whether any difference can explain a fault."""
        return any(one.weight != "background" for one in self.differences)

    @property
    def tells(self) -> bool:
        """Whether so much was compared that finding no difference says something."""
        return len(self.missing) * 2 < len(_CORE)


def compare(good: Snapshot, bad: Snapshot, diagnosis: Diagnosis) -> Comparison:
    """How ``bad`` differs from ``good``; ``diagnosis`` is that of the bad one."""
    storeys = frozenset(finding.storey for finding in diagnosis.roots if finding.severity != "info")
    found: list[Difference] = []
    unseen: list[str] = []
    missing: list[str] = []
    for trait in TRAITS:
        before, after = trait.read(good), trait.read(bad)
        if trait.id in _CORE and (before is None or after is None):
            missing.append(trait.title)
        if before is None and after is None:
            continue
        if before is None or after is None:
            unseen.append(trait.title)
        else:
            found += _differences(trait, before, after, storeys)
    return Comparison(tuple(sorted(found, key=_rank)), tuple(unseen), tuple(missing))


def _differences(trait: Trait, good: Reading, bad: Reading, storeys: frozenset[StoreyId]) -> Iterator[Difference]:
    before, after = dict(good or {}), dict(bad or {})
    for name in sorted(before.keys() | after.keys()):
        values = before.get(name), after.get(name)
        if values[0] != values[1] and not (trait.is_partial and None in values):
            weight, why = trait.judge(name, "\n".join(filter(None, values)))
            near = weight != "background" and not storeys.isdisjoint(trait.storeys)
            yield Difference(trait.id, trait.title, name, *values, weight, why, near)


def _rank(one: Difference) -> tuple[object, ...]:
    places = {trait.id: place for place, trait in enumerate(TRAITS)}
    return _WEIGHTS.index(one.weight), not one.near, places[one.trait], one.why, one.name
