"""A fleet: many reports, each diagnosed by itself, then compared with the others of its model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses import rules_by_cause
from gpunode.diagnoses.comparison import (
    Axis,
    Census,
    Difference,
    FeatureKey,
    ModelGroup,
    NodeProfile,
    compare,
    profile_node,
)
from gpunode.diagnoses.model import Confidence, Diagnosis, Layer, Severity, StackLayer
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.diagnoses.stack import State
from gpunode.errors import GpunodeError, Undetermined
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Evidence
from gpunode.host import reports
from gpunode.host.bugs import save_rule_tracebacks
from gpunode.host.capture import CaptureHost
from gpunode.outcome import Blocked, Refusal
from gpunode.recipe import Recipe
from gpunode.redaction.evidence import redact, redact_recursively
from gpunode.workflow import parallel_jobs
from gpunode.workflow.doctor import Examination, diagnose_evidence
from gpunode.workflow.plan import plan

Status: TypeAlias = Literal["healthy", "problem", "unknown", "unreadable"]
# Beyond so many, a node is another node, and a person compares the two.
_MOST_DIFFERENCES: Final = 20


@dataclass(frozen=True, slots=True)
class Outlier:
    """Something that is not as on most nodes of the same model.

    Attributes:
        usual: the value there; None where they are known to have none.
        actual: the value on this node.
        usual_on: how many nodes have what is usual.
    """

    title: str
    name: str
    usual: str | None
    actual: str | None
    why: str
    usual_on: int


@dataclass(frozen=True, slots=True)
class Drift:
    """A step of the recipe that this node is not in line with, and why; ``kind`` says what setup would do there."""

    step: str
    title: str
    kind: Literal["change", "wait", "refusal"]
    reason: str


@dataclass(frozen=True, slots=True)
class FleetRow:
    """The result of one report.

    Attributes:
        report: as it was named, or its path below the folder that was.
        path: where it is.
        node: the host's own name, where the report tells it.
        cause: the root cause; empty where none was found.
        other_causes: further root causes.
        unexplained: the likeliest causes of failures that no root explains.
        advice: what to do next about the root cause, or to find it.
        command: that does it; empty where a person's hand is needed.
        unknown: the questions that the evidence leaves open.
        error: why it could not be read or diagnosed.
        stack: the state of each layer.
        model: of the node; its group in the fleet.
        versions: by axis, what is known of them.
        differences: how it differs from most nodes of its model, the likeliest explanation of a fault first.
        drift: from the given recipe; ``not_compared`` says why it is unknown.
    """

    report: str
    path: str
    status: Status
    node: str = ""
    cause: str = ""
    title: str = ""
    layer: Layer | None = None
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
    differences: tuple[Outlier, ...] = ()
    drift: tuple[Drift, ...] = ()
    not_compared: str = ""


def fleet_rows(
    found: Sequence[reports.FleetReport], census: Census | None = None, recipe: Recipe | None = None, processes: int = 0
) -> Iterator[FleetRow]:
    """Yield a row for each report, in their order, as soon as it is known; not yet compared with the others.

    Args:
        found: the reports.
        census: counts those that could be read.
        recipe: the desired state of the nodes; None to report no drift.
        processes: how many run in parallel; 0 for one per core.
    """
    rules_by_cause()  # loaded once, here, not by every process
    readable = [one for one in found if not one.problem]
    outcomes = parallel_jobs.run_parallel(readable, partial(_read_row, recipe), processes)
    for one in found:
        outcome = parallel_jobs.JobFailure(one.problem) if one.problem else next(outcomes)
        if isinstance(outcome, parallel_jobs.JobFailure):
            yield FleetRow(one.name, one.path, "unreadable", error=outcome.why)
            continue
        row, seen = outcome.answer
        if census is not None:
            census.add(one.name, seen)
        yield row


def _read_row(recipe: Recipe | None, one: reports.FleetReport) -> tuple[FleetRow, NodeProfile]:
    return build_row(one, reports.read_report(one.path), recipe)


def build_row(
    one: reports.FleetReport, evidence: Evidence, recipe: Recipe | None = None
) -> tuple[FleetRow, NodeProfile]:
    """Return the row of a report, and its portrait of the node."""
    examined = diagnose_evidence(evidence)
    save_rule_tracebacks(examined.diagnosis.bugs)
    seen = profile_node(examined.snapshot, examined.stack)
    row = FleetRow(
        one.name, one.path, examined.verdict, _node(examined),
        unknown=tuple(doubt.question for doubt in examined.diagnosis.open_questions),
        stack={layer.id: layer.state for layer in examined.stack},
        model=redact_recursively(seen.model).title,
        versions={axis: redact_recursively(version) for axis, version in seen.versions.items()},
    )  # fmt: skip
    row = _with_drift(row, evidence, recipe) if recipe else row
    if (step := examined.diagnosis.next_step) is not None:
        row = replace(row, advice=step.text, command=step.command or "")
    roots = [finding for finding in examined.diagnosis.roots if finding.severity != "info"]
    if not roots:
        return row, seen
    told = {name: getattr(roots[0], name) for name in ("cause", "title", "layer", "severity", "confidence", "summary")}
    others = tuple(other.cause for other in roots[1:])
    left = tuple(one.cause for one in examined.diagnosis.unexplained)
    return replace(row, **told, other_causes=others, unexplained=left), seen


def _node(examined: Examination) -> str:
    name = examined.snapshot.file("/proc/sys/kernel/hostname")
    return name.text.strip()[:253] if name is not None and name.outcome == "ok" else ""


def _with_drift(row: FleetRow, evidence: Evidence, recipe: Recipe) -> FleetRow:
    try:
        return replace(row, drift=redact_recursively(find_drift(evidence, recipe)))
    except Undetermined as error:
        return replace(row, not_compared=redact_recursively(f"{error.what}: {error.why}" if error.why else error.what))
    except GpunodeError as error:
        refused = Drift("", "recipe", "refusal", f"{error.what}: {error.why}" if error.why else error.what)
        return replace(row, drift=redact_recursively((refused,)))


def find_drift(evidence: Evidence, recipe: Recipe) -> tuple[Drift, ...]:
    """Return the steps that ``gpunode plan`` would take on that node.

    Raises:
        Undetermined: evidence that a step needs is missing.
        Refused: if the recipe cannot be fulfilled there.
    """
    stages = plan(recipe, derive(evidence), CaptureHost(evidence))
    found = []
    for step in (step for stage in stages for step in stage.steps):
        match step.outcome:
            case Refusal(what=what, why=why, exit_code=code):
                if code == Undetermined.exit_code:
                    raise Undetermined(what, why=why)
                found.append(Drift(step.step.id, step.step.title, "refusal", f"{what}: {why}" if why else what))
            case Blocked(reason=reason):
                found.append(Drift(step.step.id, step.step.title, "wait", reason))
            case planned if step.changes:
                found.append(Drift(step.step.id, step.step.title, "change", planned.reason))
            case _:
                pass
    return tuple(found)


def with_outliers(answers: Sequence[FleetRow], groups: Sequence[ModelGroup]) -> tuple[FleetRow, ...]:
    """Return ``answers`` with the differences of outliers, each compared with the most typical node."""
    paths = {row.report: row.path for row in answers}
    pairs = [
        _Pair(node, paths[node], paths[group.reference], {place: group.common_counts[place] for place in places})
        for group in groups
        if group.reference is not None
        for node, places in group.outliers.items()
    ]
    found: dict[str, tuple[Outlier, ...]] = defaultdict(tuple)
    for pair, outcome in zip(pairs, parallel_jobs.run_parallel(pairs, _find_outliers), strict=True):
        if isinstance(outcome, parallel_jobs.JobResult):
            found[pair.node] = outcome.answer
    models = {node: redact_recursively(group.model).title for group in groups for node in group.nodes}
    return tuple(
        replace(row, differences=found[row.report], model=models.get(row.report, row.model)) for row in answers
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """An odd node, the one that it is compared with, and where it is odd, with how many nodes are not."""

    node: str
    path: str
    reference: str
    places: Mapping[FeatureKey, int]


def _find_outliers(pair: _Pair) -> tuple[Outlier, ...]:
    differences = compare(_reference_snapshot(pair.reference), _read_redacted(pair.path), Diagnosis((), ())).differences
    outliers = (_outlier(one, pair) for one in differences if (one.trait, one.name) in pair.places)
    return redact_recursively(tuple(outliers)[:_MOST_DIFFERENCES])


def _outlier(one: Difference, pair: _Pair) -> Outlier:
    return Outlier(one.title, one.name, one.good, one.bad, one.why, pair.places[one.trait, one.name])


@lru_cache(maxsize=1)
def _reference_snapshot(path: str) -> Snapshot:
    return _read_redacted(path)


def _read_redacted(path: str) -> Snapshot:
    return take_snapshot(redact(reports.read_report(path)))
