"""Which of several findings is the root of which, and which comes first. Pure.

A fault explains what a rule says follows from it: on the same GPU, and not what was there before it. Faults of two
boots explain each other never, and those of the running one stand first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from gpunode.diagnoses.model import STACK, Finding, Severity

WEIGHT: Final[tuple[Severity, ...]] = ("error", "warning", "info")
# So long does the driver wait for a dead GSP before it says so; what follows may be told before.
_TOLD_LATE_S: Final = 45.0
# As a warning these speak of the next boot.
_TO_COME: Final = frozenset({"module-built-for-other-kernel"})


def ranked(findings: tuple[Finding, ...], explains: Mapping[str, frozenset[str]]) -> tuple[Finding, ...]:
    """Roots first, the most certain, earliest and deepest of them at the top, then what they explain.

    Args:
        findings: one for each cause, in any order.
        explains: of each cause those that are its consequences when both are found.
    """
    in_order = {finding.cause: finding for finding in _sorted(findings)}
    above = {cause: _explainers(finding, in_order, explains) for cause, finding in in_order.items()}
    roots: dict[str, str] = {}
    for cause in in_order:
        _find_root(cause, above, in_order, roots)
    placed = (replace(finding, explained_by=roots[cause]) for cause, finding in in_order.items())
    return tuple(sorted(placed, key=lambda finding: bool(finding.explained_by)))


def _sorted(findings: tuple[Finding, ...]) -> Iterator[Finding]:
    """Errors first, what is certain first; among equals the earlier first where their clocks compare, else the deeper.

    Not every two times compare, so the next is always the deepest of those before which none of its equals came.
    """
    is_told_now = any(_is_of_this_boot(finding) and finding.severity != "info" for finding in findings)

    def standing(finding: Finding) -> tuple[object, ...]:
        is_info = finding.severity == "info"
        return is_info, finding.is_past and is_told_now, WEIGHT.index(finding.severity), finding.confidence != "certain"

    left = sorted(findings, key=lambda finding: (*standing(finding), STACK.index(finding.stack_layer), finding.cause))
    while left:
        equals = [finding for finding in left if standing(finding) == standing(left[0])]
        first = next((one for one in equals if not any(_began_before(other, one) for other in equals)), equals[0])
        left.remove(first)
        yield first


def _is_of_this_boot(finding: Finding) -> bool:
    """Whether the log of the running boot tells of it, with its time."""
    return bool(finding.events) and not finding.is_past


def _began_before(one: Finding, other: Finding) -> bool:
    ahead = _ahead(one, other)
    return bool(ahead) and min(ahead) > 0


def _ahead(one: Finding, other: Finding, gpu: str = "") -> list[float]:
    """By how many seconds ``one`` began before ``other`` on that GPU, on each clock that tells of both."""
    starts, others = _starts(one, gpu), _starts(other, gpu)
    return [others[clock] - at for clock, at in starts.items() if clock in others]


def _starts(finding: Finding, gpu: str) -> dict[str, float]:
    """When it began by each clock; without a GPU on any."""
    found: dict[str, float] = {}
    for event in finding.events:
        if event.clock and (not gpu or event.gpu in {"", gpu}):
            found[event.clock] = min(event.at, found.get(event.clock, event.at))
    return found


def _find_root(
    cause: str, above: Mapping[str, tuple[str, ...]], present: Mapping[str, Finding], roots: dict[str, str]
) -> str:
    """The root that explains ``cause``, written into ``roots``; empty where it is one itself.

    What explains it may have a root of its own, and that is its root only if it may concern it, too: by way of a fault
    whose time or GPU nobody knows, nothing comes before its reason, and nothing is another GPU's.
    """
    if cause not in roots:
        found = (_find_root(one, above, present, roots) or one for one in above[cause])
        roots[cause] = next((root for root in found if _explained(present[cause], present[root])), "")
    return roots[cause]


def _explainers(
    finding: Finding, present: Mapping[str, Finding], explains: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """The causes that explain ``finding``, the first of them first; none where they leave one of its GPUs out."""
    able = (one for one in present.values() if finding.cause in explains[one.cause])
    found = {one.cause: where for one in able if (where := _explained(finding, one))}
    return tuple(found) if frozenset().union(*found.values()) >= _places(finding) else ()


def _places(finding: Finding) -> frozenset[str]:
    """The GPUs that are concerned; an empty one where that is not told."""
    return frozenset(finding.gpus or ("",))


def _explained(finding: Finding, root: Finding) -> frozenset[str]:
    """On which of its GPUs ``root`` may be the reason of ``finding``: not on others than its own, nor before itself.

    What is no fault is nobody's reason.
    """
    if root.severity == "info" and finding.severity != "info":
        return frozenset()
    # What is to come brings nothing about today.
    if root.severity == "warning" and root.cause in _TO_COME:
        return frozenset()
    # Whoever may run a pod must not turn eyes away from what the node itself shows.
    if root.heard_from and not finding.heard_from and finding.confidence == "certain":
        return frozenset()
    # A boot begins every GPU's work anew.
    if root.is_past != finding.is_past and root.events and finding.events:
        return frozenset()
    shared = (gpu for gpu in _places(finding) if not gpu or not root.gpus or gpu in root.gpus)
    return frozenset(gpu for gpu in shared if min(_ahead(finding, root, gpu), default=0.0) <= _TOLD_LATE_S)
