"""What a trait is, and what one node shows of it: a value, that there is none, or that it was not shown, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import StoreyId
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.facts.items import Item
from gpunode.facts.model import Unknown
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Kind

# likely: it breaks GPU nodes by itself, often. possible: it can. background: it differs, and explains little.
Weight: TypeAlias = Literal["likely", "possible", "background"]
Judgement: TypeAlias = tuple[Weight, str]
# Why a node does not show something.
Reason: TypeAlias = Literal["not asked", "denied", "failed", "timeout"]
# Empty where it is known that there is none.
Lack: TypeAlias = Literal["", "not asked", "denied", "failed", "timeout"]


@dataclass(frozen=True, slots=True)
class State:
    """One thing on one node: its value; or, without one, that there is none; or why it is not shown."""

    value: str | None
    lack: Lack = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a node shows of a trait.

    Attributes:
        values: what is there, by name.
        lack: why a name that is not among them is not; of the empty name, why the whole is not.
    """

    values: Mapping[str, str]
    lack: Callable[[str], Lack]

    def at(self, name: str) -> State:
        """What is shown of ``name``."""
        return State(self.values[name]) if name in self.values else State(None, self.lack(name))

    @property
    def hidden(self) -> Lack:
        """Why nothing at all is shown; empty where something is, were it that there is nothing."""
        return "" if self.values else self.lack("")


Pair: TypeAlias = tuple[Reading, Reading]


@dataclass(frozen=True, slots=True)
class Trait:
    """Something about a node that is compared.

    Attributes:
        id: of its row in JSON.
        storeys: those in which a fault that it explains would lie, its own one first.
        read: what the good node shows of it, and what the bad one does.
        judge: how much a difference in the value of that name weighs, and why it matters.
        shown_by: words in the lines, or in the names of files and commands, that tell of it.
        alone: the values of one node by itself, where ``read`` says of two only in what they differ.
    """

    id: str
    title: str
    storeys: tuple[StoreyId, ...]
    read: Callable[[Snapshot, Snapshot], Pair]
    judge: Callable[[str, str], Judgement]
    shown_by: tuple[str, ...] = ()
    alone: Callable[[Snapshot], Mapping[str, str]] | None = None

    def values(self, snapshot: Snapshot) -> Mapping[str, str]:
        """What is there of the trait on one node, by name."""
        return self.alone(snapshot) if self.alone else self.read(snapshot, snapshot)[0].values


def each(read: Callable[[Snapshot], Reading]) -> Callable[[Snapshot, Snapshot], Pair]:
    """A trait that is read from each node by itself."""
    return lambda good, bad: (read(good), read(bad))


def whole(values: Mapping[str, str]) -> Reading:
    """All of it was shown: what is not among ``values`` is not there."""
    return Reading(values, lambda _name: "")


def part(values: Mapping[str, str], lack: Lack = "not asked") -> Reading:
    """Some of it was shown: of what is not among ``values`` nobody knows."""
    return Reading(values, lambda _name: lack)


def hidden(lack: Lack = "not asked") -> Reading:
    """Nothing of it was shown."""
    return part({}, lack)


def named(lacks: Mapping[str, Lack], values: Mapping[str, str]) -> Reading:
    """Some of it was shown, and each name that may be missing has its own reason."""
    return Reading(values, lambda name: lacks.get(name, "not asked") if name else _least(lacks.values()))


def _least(lacks: Iterable[Lack]) -> Lack:
    """Of several one that says the most: that somebody looked and there is none, or what was in the way."""
    found = [*lacks]
    order: tuple[Lack, ...] = ("", "denied", "failed", "timeout")
    return next((lack for lack in order if lack in found), "not asked")


# What a shell's tools say, and nothing else, of a file that they could not show.
_REFUSED: Final = Pattern(
    r"^(?:\S*/)?[\w.-]{2,20}: [^\n]{0,300}?(?:(?P<denied>Permission denied|Operation not permitted)|Input/output error"
    r"|Is a directory|Stale file handle|Too many levels of symbolic links)\.?$"
)


def lack_of(item: Item | None) -> Lack:
    """Why ``item`` has nothing to be read; empty where it has, or where it is known not to be there."""
    if item is None:
        return "not asked"
    if item.outcome != "ok":
        return "" if item.outcome == "absent" else item.outcome
    lines = [line.strip() for line in item.text.strip().splitlines()[:3]]
    if len(lines) == 1 and (match := _REFUSED.match(lines[0])):
        return "denied" if match["denied"] else "failed"
    return ""


def lack_of_any(items: Iterable[Item]) -> Reason:
    """What was in the way of those who asked; that nobody did where nothing was."""
    found = (lack_of(item) for item in items)
    return next((lack for lack in found if lack), "not asked")


def asked(snapshot: Snapshot, *kinds: Kind) -> tuple[Item, ...]:
    """All who asked for one of these kinds, answered or not."""
    return tuple(item for item in snapshot.items if item.kind in kinds)


def lack_of_answer(items: Iterable[Item]) -> Reason:
    """Why nothing was learnt from ``items``; an answer of which nothing is understood is a failure."""
    found = tuple(items)
    lack = lack_of_any(found)
    return "failed" if found and lack == "not asked" else lack


def lack_of_keys(snapshot: Snapshot, *keys: str) -> Reason:
    """What was in the way of the probes of these keys."""
    return lack_of_any(item for item in snapshot.items if item.key in keys)


def lack_of_fact(snapshot: Snapshot, fact: object) -> Lack:
    """Why a fact is not known; empty where it is."""
    return lack_of_keys(snapshot, fact.probe) if isinstance(fact, Unknown) else ""


def lack_of_command(items: Iterable[Item]) -> Lack:
    """Why a program gave no answer; empty where it is known not to be on the node."""
    found = tuple(items)
    return "" if any(item.outcome == "absent" for item in found) else lack_of_answer(found)


def always(weight: Weight, why: str) -> Callable[[str, str], Judgement]:
    """The same judgement of every difference."""
    return lambda _name, _values: (weight, why)


def by_name(*rules: tuple[str, Weight, str]) -> Callable[[str, str], Judgement]:
    """The judgement of the first pattern that the name, or a value, fits; the last rule takes what is left."""
    compiled = [(Pattern(pattern, re.IGNORECASE), weight, why) for pattern, weight, why in rules]

    def judge(name: str, values: str) -> Judgement:
        found = ((weight, why) for pattern, weight, why in compiled if pattern.search(f"{name}\n{values}"))
        return next(found, ("background", "it differs"))

    return judge
