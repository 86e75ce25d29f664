"""Order findings: choose root causes and attach their consequences. Pure.

A fault explains the consequences that its rule names, on the same GPU, unless they came first. Faults of different
boots do not explain each other; those of the running boot come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from gpunode.diagnoses.model import STACK_LAYERS, Finding, Severity

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
# The driver waits this long before it reports a dead GSP; consequences may be logged earlier.
_MAX_REPORT_DELAY_S: Final = 45.0
# As warnings, these only concern the next boot.
_NEXT_BOOT_CAUSES: Final = frozenset({"module-built-for-other-kernel"})


def rank_findings(findings: tuple[Finding, ...], explains: Mapping[str, frozenset[str]]) -> tuple[Finding, ...]:
    """Return root causes, most certain, earliest and deepest first, then their consequences.

    Args:
        findings: one per cause, in any order.
        explains: by cause, its consequences if both are found.
    """
    by_cause = {finding.cause: finding for finding in _sort_findings(findings)}
    explainers = {cause: _find_explainers(finding, by_cause, explains) for cause, finding in by_cause.items()}
    roots: dict[str, str] = {}
    for cause in by_cause:
        _find_root(cause, explainers, by_cause, roots)
    explained = (replace(finding, explained_by=roots[cause]) for cause, finding in by_cause.items())
    return tuple(sorted(explained, key=lambda finding: bool(finding.explained_by)))


def _sort_findings(findings: tuple[Finding, ...]) -> Iterator[Finding]:
    """Yield errors first, then certain findings, then earlier ones if their clocks compare, else deeper ones.

    Not all times compare, so the deepest finding that none of its equals preceded is picked.
    """
    has_current_fault = any(
        finding.onsets and not finding.is_past and finding.severity != "info" for finding in findings
    )

    def rank(finding: Finding) -> tuple[object, ...]:
        is_info = finding.severity == "info"
        return (
            is_info,
            finding.is_past and has_current_fault,
            SEVERITIES.index(finding.severity),
            finding.confidence != "certain",
        )

    remaining = sorted(findings, key=lambda finding: (*rank(finding), STACK_LAYERS.index(finding.layer), finding.cause))
    while remaining:
        equals = [finding for finding in remaining if rank(finding) == rank(remaining[0])]
        first = next((equal for equal in equals if not any(_began_before(other, equal) for other in equals)), equals[0])
        remaining.remove(first)
        yield first


def _began_before(one: Finding, other: Finding) -> bool:
    ahead = _seconds_ahead(one, other)
    return bool(ahead) and min(ahead) > 0


def _seconds_ahead(one: Finding, other: Finding, gpu: str = "") -> list[float]:
    """Return, for each common clock, by how many seconds ``one`` began before ``other`` on that GPU."""
    starts, others = _first_onset_by_clock(one, gpu), _first_onset_by_clock(other, gpu)
    return [others[clock] - at for clock, at in starts.items() if clock in others]


def _first_onset_by_clock(finding: Finding, gpu: str) -> dict[str, float]:
    """Return the earliest onset by clock, on ``gpu`` or, if empty, on any GPU."""
    onsets: dict[str, float] = {}
    for event in finding.onsets:
        if event.clock and (not gpu or event.gpu in {"", gpu}):
            onsets[event.clock] = min(event.at, onsets.get(event.clock, event.at))
    return onsets


def _find_root(
    cause: str, explainers: Mapping[str, tuple[str, ...]], by_cause: Mapping[str, Finding], roots: dict[str, str]
) -> str:
    """Return the root cause of ``cause``, stored in ``roots``; empty if it is a root itself.

    The root of an explainer must itself be able to explain ``cause``: a fault without time or GPU must not link faults
    of different GPUs, or a fault to a later one.
    """
    if cause not in roots:
        found = (_find_root(explainer, explainers, by_cause, roots) or explainer for explainer in explainers[cause])
        roots[cause] = next((root for root in found if _gpus_explained(by_cause[cause], by_cause[root])), "")
    return roots[cause]


def _find_explainers(
    finding: Finding, by_cause: Mapping[str, Finding], explains: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """Return the causes that explain ``finding``, in order; none unless together they cover all its GPUs."""
    candidates = (one for one in by_cause.values() if finding.cause in explains[one.cause])
    found = {candidate.cause: where for candidate in candidates if (where := _gpus_explained(finding, candidate))}
    return tuple(found) if frozenset().union(*found.values()) >= _affected_gpus(finding) else ()


def _affected_gpus(finding: Finding) -> frozenset[str]:
    """Return the affected GPUs; one empty name if unknown."""
    return frozenset(finding.gpus or ("",))


def _gpus_explained(finding: Finding, root: Finding) -> frozenset[str]:
    """Return the GPUs of ``finding`` on which ``root`` may be its cause.

    An info finding explains no fault.
    """
    if root.severity == "info" and finding.severity != "info":
        return frozenset()
    # A fault of the next boot causes nothing today.
    if root.severity == "warning" and root.cause in _NEXT_BOOT_CAUSES:
        return frozenset()
    # A pod's log must not hide evidence from the node itself.
    if root.container_log and not finding.container_log and finding.confidence == "certain":
        return frozenset()
    # A boot resets every GPU.
    if root.is_past != finding.is_past and root.onsets and finding.onsets:
        return frozenset()
    shared = (gpu for gpu in _affected_gpus(finding) if not gpu or not root.gpus or gpu in root.gpus)
    return frozenset(
        gpu for gpu in shared if min(_seconds_ahead(finding, root, gpu), default=0.0) <= _MAX_REPORT_DELAY_S
    )
