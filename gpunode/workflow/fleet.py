"""A fleet: many reports, each diagnosed on its own, then compared with the others of its model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache, partial
from typing import Final, Literal, TypeAlias, TypeVar

from gpunode.diagnoses import generic_remedy, rules_by_cause
from gpunode.diagnoses.comparison import AXES, Axis, Census, FeatureKey, ModelGroup, NodeProfile, compare, profile_node
from gpunode.diagnoses.model import (
    STACK_LAYERS,
    Confidence,
    Diagnosis,
    Disruption,
    Severity,
    StackLayer,
    choose_next_step,
    lacks_gpu,
)
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.diagnoses.stack import State
from gpunode.errors import GpunodeError, Undetermined
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Evidence
from gpunode.fast_dataclass import dataclass
from gpunode.host import reports
from gpunode.host.bugs import save_rule_tracebacks
from gpunode.host.capture import CaptureHost
from gpunode.outcome import Blocked, Refusal
from gpunode.recipe import Recipe
from gpunode.redaction.evidence import redact, redact_recursively
from gpunode.workflow import parallel_jobs
from gpunode.workflow.doctor import Examination, Verdict, diagnose_evidence
from gpunode.workflow.plan import plan

FleetRowStatus: TypeAlias = Literal["healthy", "problem", "unknown", "unreadable"]
# With more differences than this, the node is simply different, and a person should compare the two.
_MAX_OUTLIER_DIFFERENCES: Final = 20


@dataclass(frozen=True, slots=True)
class Deviation:
    """A value that differs from that of most nodes of the same model.

    Attributes:
        usual: the value on most nodes; None if they are known to have none.
        actual: the value on this node.
        usual_on: how many nodes have the usual value.
    """

    title: str
    name: str
    usual: str | None
    actual: str | None
    why: str
    usual_on: int


@dataclass(frozen=True, slots=True)
class Drift:
    """A recipe step that this node does not comply with, and why; ``kind`` says what setup would do about it."""

    step: str
    title: str
    kind: Literal["change", "wait", "refusal"]
    reason: str


@dataclass(frozen=True, slots=True)
class FleetRow:
    """The result of one report.

    Attributes:
        report: its name as given, or its path relative to the folder that was given.
        path: the report's path.
        node: the hostname, if the report tells it.
        cause: the root cause; empty if none was found.
        other_causes: further root causes.
        unexplained: the likeliest causes of failures that no root cause explains.
        advice: what to do next about the root cause, or to find it.
        command: the command for that; empty if it takes manual work.
        unknown: what the evidence leaves open: its questions, else the verdict of an undetermined node.
        error: why it could not be read or diagnosed.
        stack: the state of each layer.
        model: the node's model; its group in the fleet.
        versions: the known versions, by axis.
        differences: how it differs from most nodes of its model, the likeliest explanation of a fault first.
        drift: from the given recipe; ``not_compared`` says why it is unknown.
    """

    report: str
    path: str
    status: FleetRowStatus
    node: str = ""
    cause: str = ""
    title: str = ""
    layer: StackLayer | None = None
    severity: Severity | None = None
    confidence: Confidence | None = None
    summary: str = ""
    other_causes: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    advice: str = ""
    command: str = ""
    unknown: tuple[str, ...] = ()
    error: str = ""
    stack: Mapping[StackLayer, State] = field(default_factory=dict)
    model: str = ""
    versions: Mapping[Axis, str] = field(default_factory=dict)
    differences: tuple[Deviation, ...] = ()
    drift: tuple[Drift, ...] = ()
    not_compared: str = ""


def fleet_rows(
    reports: Sequence[reports.FleetReport], census: Census | None = None, recipe: Recipe | None = None
) -> Iterator[FleetRow]:
    """Yield a row for each report, in order, as soon as it is known; rows are not compared with each other yet.

    ``census`` counts the readable reports. Without a ``recipe`` no drift is reported.
    """
    rules_by_cause()  # loaded once here instead of by every process
    readable = [report for report in reports if not report.problem]
    outcomes = parallel_jobs.run_parallel(readable, partial(_read_row, recipe))
    for report in reports:
        outcome = parallel_jobs.JobFailure(report.problem) if report.problem else next(outcomes)
        if isinstance(outcome, parallel_jobs.JobFailure):
            yield FleetRow(report.name, report.path, "unreadable", error=outcome.why)
            continue
        row, profile = outcome
        if census is not None:
            census.add(report.name, profile)
        yield row


def _read_row(recipe: Recipe | None, report: reports.FleetReport) -> tuple[FleetRow, NodeProfile]:
    return build_row(report, reports.read_report(report.path), recipe)


def build_row(
    report: reports.FleetReport, evidence: Evidence, recipe: Recipe | None = None
) -> tuple[FleetRow, NodeProfile]:
    """Return the row of a report, and its profile of the node."""
    examined = diagnose_evidence(evidence)
    save_rule_tracebacks(examined.diagnosis.bugs)
    profile = profile_node(examined.snapshot, examined.stack)
    undetermined = (examined.faultless_verdict,) if examined.verdict == "unknown" else ()
    row = FleetRow(
        report.name, report.path, examined.verdict, _host_name(examined),
        unknown=tuple(doubt.question for doubt in examined.diagnosis.open_questions) or undetermined,
        stack={layer.id: layer.state for layer in examined.stack},
        model=redact_recursively(profile.model).title,
        versions={axis: redact_recursively(version) for axis, version in profile.versions.items()},
    )  # fmt: skip
    row = _with_drift(row, evidence, recipe) if recipe else row
    if (step := examined.diagnosis.next_step) is not None:
        row = replace(row, advice=step.text, command=step.command or "")
    roots = [finding for finding in examined.diagnosis.roots if finding.severity != "info"]
    if not roots:
        return row, profile
    main, *others = roots
    values = {name: getattr(main, name) for name in ("cause", "title", "layer", "severity", "confidence", "summary")}
    other_causes = tuple(other.cause for other in others)
    unexplained = tuple(suspect.cause for suspect in examined.diagnosis.unexplained)
    return replace(row, **values, other_causes=other_causes, unexplained=unexplained), profile


def _host_name(examined: Examination) -> str:
    name = examined.snapshot.file("/proc/sys/kernel/hostname")
    return name.text.strip()[:253] if name is not None and name.outcome == "ok" else ""


def _with_drift(row: FleetRow, evidence: Evidence, recipe: Recipe) -> FleetRow:
    try:
        return replace(row, drift=redact_recursively(find_drift(evidence, recipe)))
    except Undetermined as error:
        return replace(row, not_compared=redact_recursively(error.what_and_why))
    except GpunodeError as error:
        refused = Drift("", "recipe", "refusal", error.what_and_why)
        return replace(row, drift=redact_recursively((refused,)))


def find_drift(evidence: Evidence, recipe: Recipe) -> tuple[Drift, ...]:
    """Return the steps that ``gpunode plan`` would take on that node.

    Raises:
        Undetermined: evidence that a step needs is missing.
        Refused: the recipe cannot be fulfilled there.
    """
    stages = plan(recipe, derive(evidence), CaptureHost(evidence))
    drift = []
    for step in (step for stage in stages for step in stage.steps):
        match step.outcome:
            case Refusal(what=what, why=why):
                drift.append(Drift(step.step.id, step.step.title, "refusal", f"{what}: {why}" if why else what))
            case Blocked(reason=reason):
                drift.append(Drift(step.step.id, step.step.title, "wait", reason))
            case planned if step.changes:
                drift.append(Drift(step.step.id, step.step.title, "change", planned.reason))
            case _:
                pass
    return tuple(drift)


def with_outliers(rows: Sequence[FleetRow], groups: Sequence[ModelGroup]) -> tuple[FleetRow, ...]:
    """Return ``rows`` with the differences of outliers, each compared with the most typical node."""
    paths = {row.report: row.path for row in rows}
    pairs = [
        _OutlierComparison(
            node, paths[node], paths[group.reference], {place: group.common_counts[place] for place in places}
        )
        for group in groups
        if group.reference is not None
        for node, places in group.outliers.items()
    ]
    deviations: dict[str, tuple[Deviation, ...]] = defaultdict(tuple)
    for pair, outcome in zip(pairs, parallel_jobs.run_parallel(pairs, _find_deviations), strict=True):
        if not isinstance(outcome, parallel_jobs.JobFailure):
            deviations[pair.node] = outcome
    models = {node: redact_recursively(group.model).title for group in groups for node in group.nodes}
    return tuple(
        replace(row, differences=deviations[row.report], model=models.get(row.report, row.model)) for row in rows
    )


@dataclass(frozen=True, slots=True)
class _OutlierComparison:
    """An outlier, its reference node, and the features that differ, each with the number of nodes that do not."""

    node: str
    path: str
    reference: str
    places: Mapping[FeatureKey, int]


def _find_deviations(pair: _OutlierComparison) -> tuple[Deviation, ...]:
    differences = compare(
        _reference_snapshot(pair.reference), _read_redacted_snapshot(pair.path), Diagnosis((), ())
    ).differences
    outliers = (
        Deviation(
            difference.title,
            difference.name,
            difference.good,
            difference.bad,
            difference.why,
            pair.places[difference.trait, difference.name],
        )
        for difference in differences
        if (difference.trait, difference.name) in pair.places
    )
    return redact_recursively(tuple(outliers)[:_MAX_OUTLIER_DIFFERENCES])


@lru_cache(maxsize=1)
def _reference_snapshot(path: str) -> Snapshot:
    return _read_redacted_snapshot(path)


def _read_redacted_snapshot(path: str) -> Snapshot:
    return take_snapshot(redact(reports.read_report(path)))


K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class CauseTally:
    """A cause, and the reports of which it is a root cause.

    Attributes:
        advice: the first thing to do about it, on any of these nodes.
        command: the command for that; empty if it takes manual work.
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
    """Nodes that share the same difference from most nodes of their model.

    Attributes:
        other_differences: the least number of other differences that any of them has.
    """

    difference: Deviation
    reports: tuple[str, ...]
    other_differences: int


@dataclass(frozen=True, slots=True)
class DriftGroup:
    """A recipe step, and the reports that do not comply with it for the same reason."""

    drift: Drift
    reports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SkippedNodes:
    """Reports for which something is unknown for the same reason."""

    why: str
    reports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """A fleet.

    Attributes:
        causes: the root causes, most frequent first; the other groups in the same order.
        layers: how many nodes have each layer in which state.
        spread: how many nodes have each version, the most frequent first.
        models: how many nodes there are of each model.
        not_compared: why reports could not be compared with the recipe.
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
            DriftGroup(drift_entry, names)
            for drift_entry, names in _group_reports((drift, row) for row in rows for drift in row.drift)
        ),
        not_compared=_skipped_nodes((row.not_compared, row) for row in rows if row.not_compared),
        unreadable=_skipped_nodes((row.error.replace(row.path, "it"), row) for row in rows if row.error),
        unknown=_skipped_nodes((row.unknown[0], row) for row in rows if row.status == "unknown"),
        layers={
            id_: counted for id_ in STACK_LAYERS if (counted := Counter(r.stack[id_] for r in rows if id_ in r.stack))
        },
        spread={
            axis: count_by_version
            for axis in AXES
            if (count_by_version := _count_values(row.versions.get(axis, "") for row in rows))
        },
        models=_count_values(row.model for row in rows),
    )


def tally_causes(rows: Iterable[FleetRow]) -> tuple[CauseTally, ...]:
    """Return the root causes across the fleet, most frequent first."""
    causes = [(cause, row) for row in rows for cause in ((row.cause, *row.other_causes) if row.cause else ())]
    of_cause: dict[str, list[FleetRow]] = defaultdict(list)
    for cause, row in causes:
        if cause == row.cause:
            of_cause[cause].append(row)
    return tuple(_tally_cause(cause, names, of_cause[cause]) for cause, names in _group_reports(causes))


def _tally_cause(cause: str, names: tuple[str, ...], rows: Collection[FleetRow]) -> CauseTally:
    rule = rules_by_cause()[cause]
    steps = {(row.advice, row.command) for row in rows}
    # Advice that names one node's GPU or package does not fit the others.
    if len(steps) == 1:
        advice, command = next(iter(steps))
    else:
        remedy = generic_remedy(cause, take_snapshot({}))
        is_decided = bool(rows) and all(row.confidence == "certain" for row in rows) and not lacks_gpu(remedy)
        step = choose_next_step(cause, rule.title, remedy, () if is_decided else rule.look_at)
        advice, command = step.text, step.command or ""
    return CauseTally(cause, rule.title, names, advice, command, rule.disruption)


def _group_outliers(rows: Sequence[FleetRow]) -> Iterator[OutlierGroup]:
    """Yield the outliers by their most telling difference; omit broken nodes, since their cause explains them."""
    odd = [row for row in rows if row.differences and row.status != "problem"]
    more = {row.report: len(row.differences) - 1 for row in odd}
    for deviation, names in _group_reports((row.differences[0], row) for row in odd):
        yield OutlierGroup(deviation, names, min(more[name] for name in names))


def _skipped_nodes(reasons: Iterable[tuple[str, FleetRow]]) -> tuple[SkippedNodes, ...]:
    return tuple(SkippedNodes(why, names) for why, names in _group_reports(reasons))


def _group_reports(pairs: Iterable[tuple[K, FleetRow]]) -> list[tuple[K, tuple[str, ...]]]:
    """Return the names of the reports with the same key, the largest group first."""
    reports_by_key: dict[K, list[str]] = defaultdict(list)
    for key, row in pairs:
        reports_by_key[key].append(row.report)
    by_size: Callable[[tuple[K, list[str]]], tuple[int, str]] = lambda each: (-len(each[1]), str(each[0]))  # noqa: E731
    return [(key, tuple(names)) for key, names in sorted(reports_by_key.items(), key=by_size)]


def _count_values(values: Iterable[str]) -> Mapping[str, int]:
    counted = Counter(value for value in values if value)
    return dict(sorted(counted.items(), key=lambda each: (-each[1], each[0])))


def overall_verdict(rows: Iterable[FleetRow]) -> Verdict:
    """Return ``problem`` if any node has one, else ``unknown`` if anything is unknown or unreadable."""
    statuses = {row.status for row in rows}
    if "problem" in statuses:
        return "problem"
    return "unknown" if statuses & {"unknown", "unreadable"} else "healthy"
