"""How a bad node differs from a good one, the difference that is most likely to explain its fault first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Diagnosis, Finding
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.traits import GPU_COUNT, TRAITS, Part, Reason, Trait, Weight, slots

# What most faults of GPU nodes lie in. Two that show less of themselves than most of it are alike for want of a look.
_CORE: Final = ("devices", "driver", "kernel", "modules", "packages")
_WEIGHTS: Final[tuple[Weight, ...]] = ("likely", "possible", "background")
# How near a trait is to the root cause: the evidence that proves it shows the trait; it lies in the trait's own layer,
# or in one that the trait reaches into; it lies elsewhere.
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


def compare(good: Snapshot, bad: Snapshot, diagnosis: Diagnosis) -> Comparison:
    """How ``bad`` differs from ``good``; ``diagnosis`` is that of the bad one."""
    roots = [finding for finding in diagnosis.roots if finding.severity != "info"]
    found: list[tuple[tuple[object, ...], Difference]] = []
    unseen: list[Unseen] = []
    missing: list[str] = []
    for trait in TRAITS:
        pairs = [pair for part in trait.parts for pair in _pairs(part, good, bad)]
        distance = _distance(trait, roots, bad)
        rows = [(one.name, one.good, one.bad) for one in pairs if not one.lack and one.good != one.bad]
        rows += _slots(good, bad) if trait.id == "devices" else ()
        found += (_ranked(trait, distance, *row) for row in rows)
        unseen += _unseen(trait, pairs)
        if trait.id in _CORE and all(pair.lack for pair in pairs):
            missing.append(trait.title)
    return Comparison(tuple(one for _, one in sorted(found, key=lambda each: each[0])), tuple(unseen), tuple(missing))


def _ranked(
    trait: Trait, distance: int, name: str, good: str | None, bad: str | None
) -> tuple[tuple[object, ...], Difference]:
    weight = trait.weight(name, f"{good}\n{bad}")
    near = weight != "background" and distance < _ELSEWHERE
    # Which GPUs there are is what anybody wants to know first.
    is_count = trait.id == "devices" or name == GPU_COUNT
    rank = _WEIGHTS.index(weight), not is_count, distance, TRAITS.index(trait), name
    return rank, Difference(trait.id, trait.title, name, good, bad, weight, trait.why, near)


def _slots(good: Snapshot, bad: Snapshot) -> Iterator[tuple[str, str | None, str | None]]:
    """The slots in which one of two machines that use the same ones has no GPU."""
    there, here = slots(good), slots(bad)
    if there and here and (there < here or here < there):
        for slot in sorted(there ^ here):
            yield f"GPU at {slot}", "one" if slot in there else None, "one" if slot in here else None


def _distance(trait: Trait, roots: list[Finding], bad: Snapshot) -> int:
    keys = {citation.key for one in roots for citation in one.citations}
    if any(part.shows(item) for item in bad.items if item.key in keys for part in trait.parts):
        return 0
    layers = {one.stack_layer for one in roots}
    return 1 if trait.layers[0] in layers else _ELSEWHERE if layers.isdisjoint(trait.layers) else 2


@dataclass(frozen=True, slots=True)
class _Pair:
    """A name with its value on each node; ``lack`` says which of them does not show it, and why."""

    name: str
    good: str | None
    bad: str | None
    lack: tuple[Side, Reason] | None
    is_whole: bool


def _pairs(part: Part, good: Snapshot, bad: Snapshot) -> Iterator[_Pair]:
    """What the part shows of the two, by name."""
    before, after = part.read(good), part.read(bad)
    for name in sorted({*before, *after}):
        lack: tuple[Side, Reason] | None = None
        if name not in before and (reason := part.lack(good, before, name)):
            lack = "good", reason
        elif name not in after and (reason := part.lack(bad, after, name)):
            lack = "bad", reason
        elif part.is_shared and not (name in before and name in after):
            continue
        yield _Pair(name, before.get(name), after.get(name), lack, not (before and after))


def _unseen(trait: Trait, pairs: list[_Pair]) -> Iterator[Unseen]:
    """What would matter if it differed and was not shown; without names where that is all of the trait."""
    hidden: dict[tuple[Side, Reason], list[str]] = {}
    for pair in pairs:
        if pair.lack and trait.weight(pair.name, f"{pair.good}\n{pair.bad}") != "background":
            hidden.setdefault(pair.lack, []).append(pair.name)
    for (side, reason), names in hidden.items():
        is_whole = all(pair.is_whole for pair in pairs)
        yield Unseen(trait.id, trait.title, side, reason, () if is_whole else tuple(names))
