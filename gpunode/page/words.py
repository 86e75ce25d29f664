"""The words for states, layers and disruptions, on the page, on the screen and in the documentation. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gpunode.diagnoses.model import Disruption
from gpunode.diagnoses.stack import State

if TYPE_CHECKING:
    from gpunode.workflow.fleet import Odd, Row

# How a node of a fleet is, the worst first.
Condition: TypeAlias = Literal["broken", "at risk", "undetermined", "unread", "healthy"]
CONDITIONS: Final[tuple[Condition, ...]] = ("broken", "at risk", "undetermined", "unread", "healthy")

DISRUPTIONS: Final[Mapping[Disruption, str]] = {
    "none": "no disruption",
    "restart-container": "restarts containers",
    "restart-service": "restarts a service",
    "reset-gpu": "resets the GPU: its work stops",
    "reboot": "reboots the node",
    "power-cycle": "powers the node off and on",
    "RMA": "replaces the part",
}
# A mark that tells without colour, and the word; none where nothing is wrong: ✓ was seen to work, ○ was seen.
STATES: Final[Mapping[State, tuple[str, str]]] = {
    "broken": ("✗", "broken"),
    "warned": ("!", "at risk"),
    "affected": ("!", "suffers"),
    "works": ("✓", ""),
    "seen": ("○", ""),
    "unseen": ("?", "not seen"),
    "absent": ("–", ""),
}


_NUMBERED: Final = re.compile(r"(?P<head>.*?)(?P<digits>[0-9]{1,18})(?P<rest>[^0-9]*)", re.DOTALL)
_LAST_PART: Final = re.compile(r"[A-Za-z]*[0-9]+[^0-9]*\Z")


def grouped(number: int) -> str:
    """``5 000``."""
    return f"{number:,}".replace(",", " ")


def count(number: int, noun: str) -> str:
    """``1 line``, ``2 lines``, ``5 000 lines``."""
    return f"{grouped(number)} {noun}" if number == 1 else f"{grouped(number)} {noun}s"


def called(report: str) -> str:
    """A report as people call its node."""
    return report.removesuffix(".tar.gz")


def ranges(names: Iterable[str]) -> Iterator[str]:
    """``names`` in their order, three or more that count up as one: ``rack7-n01 … n09``."""
    run: list[str] = []
    for name in names:
        if run and not _follows(run[-1], name):
            yield from _range(run)
            run = []
        run.append(name)
    yield from _range(run)


def _follows(one: str, other: str) -> bool:
    before, after = _NUMBERED.fullmatch(one), _NUMBERED.fullmatch(other)
    if not (before and after) or before["head"] != after["head"] or before["rest"] != after["rest"]:
        return False
    return str(int(before["digits"]) + 1).zfill(len(before["digits"])) == after["digits"]


def _range(run: list[str]) -> list[str]:
    last = _LAST_PART.search(run[-1]) if len(run) > 2 else None
    return [f"{run[0]} … {last[0]}"] if last else run


def condition(when: str) -> str:
    """When a fix is made, as it stands behind it: ``(if it comes back)``; empty where it always is."""
    return f" (if {when})" if when else ""


def condition_of(row: Row) -> Condition:
    """How the node of ``row`` is, in one word."""
    match row.status:
        case "problem":
            return "broken" if row.severity == "error" else "at risk"
        case "unknown":
            return "undetermined"
        case "unreadable":
            return "unread"
        case "healthy":
            return "healthy"


def odd_words(odd: Odd) -> str:
    """``VBIOS 96.00.89 among 511 nodes with 96.00.A5``."""
    here, usual = odd.here or "not there", odd.usual or "none"
    return f"{odd.name} {here} among {count(odd.among, 'node')} with {usual}"
