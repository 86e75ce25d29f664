"""A fleet as a whole: what is wrong with it, on how many nodes, and how its versions are spread. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpunode.diagnoses import generic_remedy, rules_by_cause
from gpunode.diagnoses.comparison import AXES, Axis
from gpunode.diagnoses.model import STACK, Disruption, StackLayer, choose_next_step
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.stack import State
from gpunode.workflow.doctor import Verdict
from gpunode.workflow.fleet import Drift, FleetRow, Outlier

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class CauseTally:
    """A cause, and the reports whose root it is, be it one of several.

    Attributes:
        advice: the first thing to be done about it, on any of these nodes.
        command: that does it; empty where a person's hand is needed.
        disruption: what the repair stops.
    """

    cause: str
    title: str
    reports: tuple[str, ...]
    advice: str
    command: str
    disruption: Disruption


@dataclass(frozen=True, slots=True)
class OutlierGroup:
    """Nodes that differ in the same from most of their model.

    Attributes:
        other_differences: how much else differs on all of them.
    """

    difference: Outlier
    reports: tuple[str, ...]
    other_differences: int


@dataclass(frozen=True, slots=True)
class DriftGroup:
    """A step of the recipe, and the reports that are not in line with it for that reason."""

    drift: Drift
    reports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SkippedNodes:
    """Reports of which something is not known for the same reason."""

    why: str
    reports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """A fleet.

    Attributes:
        causes: the root causes, most frequent first; the other groups in the same order.
        layers: how many nodes have each layer in which state.
        spread: how many nodes have each version, the most frequent first.
        models: how many nodes are of each model.
        not_compared: what keeps reports from being held against the recipe.
    """

    rows: tuple[FleetRow, ...]
    causes: tuple[CauseTally, ...]
    differences: tuple[OutlierGroup, ...]
    drift: tuple[DriftGroup, ...]
    not_compared: tuple[SkippedNodes, ...]
    unreadable: tuple[SkippedNodes, ...]
    unknown: tuple[SkippedNodes, ...]
    layers: Mapping[StackLayer, Mapping[State, int]]
    spread: Mapping[Axis, Mapping[str, int]]
    models: Mapping[str, int]


def summarize_fleet(rows: Sequence[FleetRow]) -> FleetSummary:
    """Return the summary of the fleet with these ``rows``."""
    return FleetSummary(
        rows=tuple(rows),
        causes=tally_causes(rows),
        differences=tuple(_group_outliers(rows)),
        drift=tuple(
            DriftGroup(one, names) for one, names in _group_reports((one, row) for row in rows for one in row.drift)
        ),
        not_compared=_skipped_nodes((row.not_compared, row) for row in rows if row.not_compared),
        unreadable=_skipped_nodes((row.error.replace(row.path, "it"), row) for row in rows if row.error),
        unknown=_skipped_nodes((row.unknown[0] if row.unknown else "", row) for row in rows if row.status == "unknown"),
        layers={id_: counted for id_ in STACK if (counted := Counter(r.stack[id_] for r in rows if id_ in r.stack))},
        spread={axis: found for axis in AXES if (found := _count_values(row.versions.get(axis, "") for row in rows))},
        models=_count_values(row.model for row in rows),
    )


def tally_causes(rows: Iterable[FleetRow]) -> tuple[CauseTally, ...]:
    """Return the root causes across the fleet, most frequent first."""
    causes = [(cause, row) for row in rows for cause in ((row.cause, *row.other_causes) if row.cause else ())]
    steps: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for cause, row in causes:
        if cause == row.cause:
            steps[cause].add((row.advice, row.command))
    return tuple(_tally_cause(cause, names, steps[cause]) for cause, names in _group_reports(causes))


def _tally_cause(cause: str, names: tuple[str, ...], steps: Collection[tuple[str, str]]) -> CauseTally:
    rule = rules_by_cause()[cause]
    # What names this node's GPU or package does not do for another.
    if len(steps) == 1:
        advice, command = next(iter(steps))
    else:
        step = choose_next_step(cause, rule.title, generic_remedy(cause, take_snapshot({})), ())
        advice, command = step.text, step.command or ""
    return CauseTally(cause, rule.title, names, advice, command, rule.disruption)


def _group_outliers(rows: Sequence[FleetRow]) -> Iterator[OutlierGroup]:
    """Yield the outliers by their most telling difference; broken nodes have their cause, and are left out."""
    odd = [row for row in rows if row.differences and row.status != "problem"]
    more = {row.report: len(row.differences) - 1 for row in odd}
    for one, names in _group_reports((row.differences[0], row) for row in odd):
        yield OutlierGroup(one, names, min(more[name] for name in names))


def _skipped_nodes(reasons: Iterable[tuple[str, FleetRow]]) -> tuple[SkippedNodes, ...]:
    return tuple(SkippedNodes(why, names) for why, names in _group_reports(reasons))


def _group_reports(pairs: Iterable[tuple[K, FleetRow]]) -> list[tuple[K, tuple[str, ...]]]:
    """Return the names of the reports with the same key, the largest group first."""
    found: dict[K, list[str]] = defaultdict(list)
    for key, row in pairs:
        found[key].append(row.report)
    by_size: Callable[[tuple[K, list[str]]], tuple[int, str]] = lambda each: (-len(each[1]), str(each[0]))  # noqa: E731
    return [(key, tuple(names)) for key, names in sorted(found.items(), key=by_size)]


def _count_values(values: Iterable[str]) -> Mapping[str, int]:
    counted = Counter(value for value in values if value)
    return dict(sorted(counted.items(), key=lambda each: (-each[1], each[0])))


def overall_verdict(answers: Iterable[FleetRow]) -> Verdict:
    """Return ``problem`` if any node has one, else ``unknown`` if anything is unknown or unreadable."""
    statuses = {row.status for row in answers}
    if "problem" in statuses:
        return "problem"
    return "unknown" if statuses & {"unknown", "unreadable"} else "healthy"
