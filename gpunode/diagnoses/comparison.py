"""How a bad node differs from a good one, the difference that is most likely to explain its fault first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Diagnosis, Finding
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.traits import FOREMOST, TRAITS, Lack, Pair, Reason, Trait, Weight

# What most faults of GPU nodes lie in. Two that show less of themselves than most of it are alike for want of a look.
_CORE: Final = ("devices", "driver", "kernel", "modules", "packages")
_WEIGHTS: Final[tuple[Weight, ...]] = ("likely", "possible", "background")
# How near a trait is to the root cause: the lines that prove it show the trait; it lies in the trait's own layer, or in
# one that the trait reaches into; it lies elsewhere.
_ELSEWHERE: Final = 3

Side: TypeAlias = Literal["good", "bad"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as on the good node.

    Attributes:
        trait: the id of what was compared.
        good: the value on the good node; None where it is known to have none.
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
class Unseen:
    """What could not be compared, since one of the two does not show it.

    Attributes:
        names: what of the trait; none where it is all of it.
        side: which of the two does not show it.
        reason: why not: nobody asked, or what came in the way.
    """

    trait: str
    title: str
    side: Side
    reason: Reason
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two nodes, compared.

    Attributes:
        missing: of what most faults lie in, titles of what was not compared, be it that neither shows it.
    """

    differences: tuple[Difference, ...]
    unseen: tuple[Unseen, ...]
    missing: tuple[str, ...] = ()

    @property
    def matters(self) -> bool:
        """Whether any difference can explain a fault."""
        return any(one.weight != "background" for one in self.differences)

    @property
    def tells(self) -> bool:
        """Whether so much was compared that finding no difference says something."""
        return len(self.missing) * 2 < len(_CORE)


@dataclass(frozen=True, slots=True)
class _Compared:
    """What came of one trait: its differences, what one of the two hides, and whether anything was compared at all."""

    differences: tuple[Difference, ...]
    unseen: tuple[Unseen, ...]
    is_any: bool


def compare(good: Snapshot, bad: Snapshot, diagnosis: Diagnosis) -> Comparison:
    """How ``bad`` differs from ``good``; ``diagnosis`` is that of the bad one."""
    roots = [finding for finding in diagnosis.roots if finding.severity != "info"]
    distance = {trait.id: _distance(trait, roots) for trait in TRAITS}
    found = {trait: _compared(trait, trait.read(good, bad), distance[trait.id]) for trait in TRAITS}
    places = {trait.id: place for place, trait in enumerate(TRAITS)}

    def rank(one: Difference) -> tuple[object, ...]:
        foremost = one.why in FOREMOST
        return _WEIGHTS.index(one.weight), not foremost, distance[one.trait], places[one.trait], one.why, one.name

    differences = sorted((one for each in found.values() for one in each.differences), key=rank)
    unseen = tuple(one for each in found.values() for one in each.unseen)
    missing = tuple(trait.title for trait, each in found.items() if trait.id in _CORE and not each.is_any)
    return Comparison(tuple(differences), unseen, missing)


def _distance(trait: Trait, roots: list[Finding]) -> int:
    if any(word in citation.words for one in roots for citation in one.citations for word in trait.shown_by):
        return 0
    storeys = {one.storey for one in roots}
    return 1 if trait.storeys[0] in storeys else _ELSEWHERE if storeys.isdisjoint(trait.storeys) else 2


def _compared(trait: Trait, pair: Pair, distance: int) -> _Compared:
    good, bad = pair
    differences: list[Difference] = []
    hidden: dict[tuple[Side, Reason], list[str]] = {}
    is_any = not (good.values or bad.values or good.hidden or bad.hidden)
    for name in sorted(good.values.keys() | bad.values.keys()):
        before, after = good.at(name), bad.at(name)
        if before.lack or after.lack:
            # What would explain little if it differed is not missed.
            if trait.judge(name, before.value or after.value or "")[0] != "background":
                hidden.setdefault(_first_lack(before.lack, after.lack), []).append(name)
            continue
        is_any = True
        if before.value != after.value:
            weight, why = trait.judge(name, "\n".join(filter(None, (before.value, after.value))))
            near = weight != "background" and distance < _ELSEWHERE
            differences.append(Difference(trait.id, trait.title, name, before.value, after.value, weight, why, near))
    return _Compared(tuple(differences), tuple(_unseen(trait, pair, hidden)), is_any)


def _first_lack(good: Lack, bad: Lack) -> tuple[Side, Reason]:
    return ("good", good) if good else ("bad", bad or "not asked")


def _unseen(trait: Trait, pair: Pair, hidden: Mapping[tuple[Side, Reason], list[str]]) -> Iterator[Unseen]:
    """All of the trait where one of the two shows nothing of it, else what is missing of it."""
    good, bad = (reading.hidden for reading in pair)
    if good and bad:
        return
    if good or bad:
        yield Unseen(trait.id, trait.title, *_first_lack(good, bad))
        return
    for (side, reason), names in hidden.items():
        yield Unseen(trait.id, trait.title, side, reason, tuple(names))
