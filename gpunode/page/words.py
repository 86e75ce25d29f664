"""Name states, layers and disruptions for the page, the screen and the documentation. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gpunode.diagnoses.model import Disruption, Finding, lacks_gpu
from gpunode.diagnoses.stack import State
from gpunode.wording import count_noun

if TYPE_CHECKING:
    from gpunode.workflow.fleet import Deviation, FleetRow

# The conditions of a fleet's nodes, worst first.
NodeCondition: TypeAlias = Literal["broken", "at risk", "undetermined", "unread", "healthy"]
NODE_CONDITIONS: Final[tuple[NodeCondition, ...]] = ("broken", "at risk", "undetermined", "unread", "healthy")

TEXT_BY_DISRUPTION: Final[Mapping[Disruption, str]] = {
    "none": "no disruption",
    "restart-container": "restarts containers",
    "restart-service": "restarts a service",
    "reset-gpu": "resets the GPU: its work stops",
    "reboot": "reboots the node",
    "power-cycle": "powers the node off and on",
    "RMA": "replaces the part",
}
# A mark that does not rely on colour, and a word for problems: ✓ means seen to work, ○ only seen, ↳ a consequence.
LAYER_MARKS: Final[Mapping[State, tuple[str, str]]] = {
    "broken": ("✗", "broken"),
    "warning": ("!", "at risk"),
    "affected": ("↳", "affected"),
    "works": ("✓", ""),
    "no-fault": ("○", ""),
    "unknown": ("?", "not seen"),
    "absent": ("–", ""),
}


_NUMBERED_NAME: Final = re.compile(r"(?P<head>.*?)(?P<digits>[0-9]{1,18})(?P<rest>[^0-9]*)", re.DOTALL)
_LAST_NUMBERED_PART: Final = re.compile(r"[A-Za-z]*[0-9]+[^0-9]*\Z")


def node_name(report: str) -> str:
    """Return the name of the node that a report is about."""
    return report.removesuffix(".tar.gz")


def checks_heading(finding: Finding) -> str:
    """Return what the commands in ``look_at`` are for."""
    if finding.confidence == "likely":
        return "to be sure, look at"
    if lacks_gpu(finding.remedy):
        return "to find the GPU, look at"
    return "this text may be from another machine or time; first run"


def collapse_ranges(names: Iterable[str]) -> Iterator[str]:
    """Yield ``names`` with three or more consecutive ones as a range: ``rack7-n01 … n09``."""
    run: list[str] = []
    for name in names:
        if run and not _is_successor(run[-1], name):
            yield from _collapse_run(run)
            run = []
        run.append(name)
    yield from _collapse_run(run)


def _is_successor(one: str, other: str) -> bool:
    before, after = _NUMBERED_NAME.fullmatch(one), _NUMBERED_NAME.fullmatch(other)
    if not (before and after) or before["head"] != after["head"] or before["rest"] != after["rest"]:
        return False
    return str(int(before["digits"]) + 1).zfill(len(before["digits"])) == after["digits"]


def _collapse_run(run: list[str]) -> list[str]:
    last = _LAST_NUMBERED_PART.search(run[-1]) if len(run) > 2 else None
    return [f"{run[0]} … {last[0]}"] if last else run


def when_suffix(when: str) -> str:
    """Return the condition of a fix as a suffix: ``(if it comes back)``; or empty."""
    return f" (if {when})" if when else ""


def condition_of(row: FleetRow) -> NodeCondition:
    """Return the condition of a row's node."""
    match row.status:
        case "problem":
            return "broken" if row.severity == "error" else "at risk"
        case "unknown":
            return "undetermined"
        case "unreadable":
            return "unread"
        case "healthy":
            return "healthy"


def describe_deviation(odd: Deviation) -> str:
    """Return ``VBIOS 96.00.89 among 511 nodes with 96.00.A5``."""
    here, usual = odd.actual or "missing", odd.usual or "none"
    return f"{odd.name} {here} among {count_noun(odd.usual_on, 'node')} with {usual}"
