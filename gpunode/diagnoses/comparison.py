"""How a bad node differs from a good one, the difference that is most likely to explain its fault first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Diagnosis, Finding
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.traits import FOREMOST, TRAITS, Lack, Part, Reason, Trait, Value, Values, Weight, least, shown
from gpunode.facts.patterns import Pattern

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
        good: the value on the good node; None where it is known to have none;
            None for slots, which are compared beside the number of their GPUs.
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
    for place, trait in enumerate(TRAITS):
        parts = [_compared(trait, part, good, bad) for part in trait.parts]
        distance = _distance(trait, roots)
        found += (_ranked(trait, distance, place, *row) for each in parts for row in each.differences)
        unseen += _unseen(trait, parts)
        if trait.id in _CORE and not any(each.is_any for each in parts):
            missing.append(trait.title)
    differences = (one for _, one in sorted(found, key=lambda each: each[0]))
    return Comparison(tuple(differences), tuple(unseen), tuple(missing))


def _ranked(
    trait: Trait, distance: int, place: int, name: str, good: str | None, bad: str | None
) -> tuple[tuple[object, ...], Difference]:
    weight, why = trait.judge(name, "\n".join(filter(None, (good, bad))))
    near = weight != "background" and distance < _ELSEWHERE
    rank = _WEIGHTS.index(weight), why not in FOREMOST, distance, place, why, name
    return rank, Difference(trait.id, trait.title, name, good, bad, weight, why, near)


def _distance(trait: Trait, roots: list[Finding]) -> int:
    if any(word in citation.words for one in roots for citation in one.citations for word in trait.shown_by):
        return 0
    layers = {one.stack_layer for one in roots}
    return 1 if trait.layers[0] in layers else _ELSEWHERE if layers.isdisjoint(trait.layers) else 2


@dataclass(frozen=True, slots=True)
class _Compared:
    """What came of one part of a trait.

    Attributes:
        differences: names with the values on the good node and on the bad one.
        hidden: names that one of the two does not show.
        lacks: why each of the two shows no value at all; empty where it does, or where it is known to have none.
        is_any: whether anything was compared.
    """

    differences: tuple[tuple[str, str | None, str | None], ...]
    hidden: Mapping[tuple[Side, Reason], tuple[str, ...]]
    lacks: tuple[Lack, Lack] | None
    is_any: bool


def _compared(trait: Trait, part: Part, good: Snapshot, bad: Snapshot) -> _Compared:
    before, after = _same_names(part.read(good), part.read(bad))
    differences: list[tuple[str, str | None, str | None]] = []
    hidden: dict[tuple[Side, Reason], list[str]] = {}
    names = _names(part, before, after)
    lacks = "" if before else part.lack(good, before), "" if after else part.lack(bad, after)
    is_any = not (before or after or any(lacks)) and part.only != "nested"
    for name in names:
        one, other = before.get(name), after.get(name)
        lack = _first("" if name in before else part.lack(good, before, name),
                      "" if name in after else part.lack(bad, after, name))  # fmt: skip
        if lack is None:
            is_any = True
            if not _alike(one, other):
                differences.append((name, None if one is None else shown(one), None if other is None else shown(other)))
        # What would explain little if it differed is not missed.
        elif trait.judge(name, shown(one or other or ""))[0] != "background":
            hidden.setdefault(lack, []).append(name)
    seen = {key: tuple(some) for key, some in hidden.items()}
    return _Compared(tuple(differences), seen, None if part.only == "nested" else lacks, is_any)


def _first(good: Lack, bad: Lack) -> tuple[Side, Reason] | None:
    return ("good", good) if good else ("bad", bad) if bad else None


def _names(part: Part, before: Values, after: Values) -> list[str]:
    """The names to be compared."""
    there, here = set(before), set(after)
    match part.only:
        case "all":
            return sorted(there | here)
        case "shared":
            return sorted(there & here)
        case "nested":
            return sorted(there ^ here) if there & here and (there < here or here < there) else []


def _alike(one: Value | None, other: Value | None) -> bool:
    """Whether the two are the same; that there are fewer GPUs is no difference in what each of them is like."""
    if isinstance(one, Counter) and isinstance(other, Counter):
        return one.keys() == other.keys() and (one <= other or other <= one)
    return one == other


_ID: Final = Pattern(r" \[(?P<id>[0-9a-f]{4}:[0-9a-f]{4})\]$")


def _same_names(good: Values, bad: Values) -> tuple[Values, Values]:
    """Both with one name for each kind of device, be it that only one of the two shows its id, or its name."""
    apart = ((name, other) for name in good.keys() - bad.keys() for other in bad.keys() - good.keys())
    for name, other in sorted(apart) if any(map(_ID.search, (*good, *bad))) else ():
        own, its = _ID.search(name), _ID.search(other)
        is_one = own["id"] == its["id"] if own and its else bool(own or its) and _bare(name) == _bare(other)
        if is_one and name in good and other in bad:
            full = max(name, other, key=lambda each: (len(each), each))
            good = {full if each == name else each: value for each, value in good.items()}
            bad = {full if each == other else each: value for each, value in bad.items()}
    return good, bad


def _bare(name: str) -> str:
    return _ID.sub("", name)


def _unseen(trait: Trait, parts: Sequence[_Compared]) -> Iterator[Unseen]:
    """All of it where one of the two shows nothing of it, else what is missing of it."""
    lacks = [least(each.lacks[side] for each in parts if each.lacks is not None) for side in (0, 1)]
    if bool(lacks[0]) != bool(lacks[1]) and (whole := _first(*lacks)):
        yield Unseen(trait.id, trait.title, *whole)
        return
    hidden: dict[tuple[Side, Reason], list[str]] = {}
    for each in parts:
        for key, names in each.hidden.items():
            hidden.setdefault(key, []).extend(names)
    for (side, reason), some in hidden.items():
        yield Unseen(trait.id, trait.title, side, reason, tuple(some))
