"""The drawing of GPU faults over time, a lane for each GPU. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from gpunode.catalog import xids
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import faults
from gpunode.diagnoses.views.faults import Fault
from gpunode.page.markup import Markup, element
from gpunode.page.words import count

_WIDTH: Final = 820
_LEFT: Final = 130
_RIGHT: Final = 20
_LANE: Final = 26
_BADGE: Final = 64
_TICKS: Final = 5
_MOST: Final = 400
# Later than any clock; a log that was made to do harm may have it.
_NEVER: Final = 2e11
# Seconds since boot lie below the first, those of syslog, which leaves the year away, between both.
_CLOCKS: Final = (9e8, 1e9)
_CODES: Final = {"xid": "Xid {}", "sxid": "SXid {}", "aer": "PCIe"}


@dataclass(frozen=True, slots=True)
class Event:
    """One fault.

    Attributes:
        gpu: PCI address; empty where nobody named it.
        at: seconds on the clock of its log; None where that has no times.
        code: what the badge says.
        text: what the message says.
        meaning: of its code, by the catalog.
        role: ``first`` of a failure, ``echo`` of an earlier one, or neither.
    """

    gpu: str
    at: float | None
    code: str
    text: str
    meaning: str = ""
    role: str = ""


def events(snapshot: Snapshot) -> tuple[Event, ...]:
    """The faults of GPUs, in the order of time; those without one come last."""
    began = frozenset(incident.root for incident in snapshot.view(faults.incidents))
    found = dict.fromkeys(_event(fault, is_first=fault in began) for fault in snapshot.view(faults.timeline))
    return tuple(sorted(found, key=lambda event: (event.at is None, event.at or 0.0)))


def _event(fault: Fault, *, is_first: bool) -> Event:
    said = fault.xid or fault.sxid
    known = xids.lookup(fault.code) if fault.source == "xid" else None
    role = "first" if is_first else "echo" if fault.is_late else ""
    text = said.text if said else fault.citation.line.strip()
    code = _CODES[fault.source].format(fault.code)
    at = fault.at if fault.at is not None and 0 <= fault.at < _NEVER else None
    return Event(fault.gpu, at, code, text, known.meaning if known else "", role)


@dataclass(slots=True)
class _Badge:
    x: float
    events: list[Event]


def drawings(events: Sequence[Event]) -> tuple[Markup, ...]:
    """A drawing for each clock on which ``events`` were timed: two clocks cannot be put on one line."""
    timed = [event for event in events if event.at is not None][:_MOST]
    clocks = [[event for event in timed if _clock(event.at or 0.0) == clock] for clock in range(3)]
    return tuple(_drawing(number, found) for number, found in enumerate(clocks) if found)


def _clock(at: float) -> int:
    return sum(at >= first for first in _CLOCKS)


def _drawing(number: int, events: Sequence[Event]) -> Markup:
    times = [event.at or 0.0 for event in events]
    first, last = min(times), max(times)
    y = 8
    parts: list[Markup] = []
    for gpu in sorted({event.gpu for event in events}):
        lanes = _lanes([event for event in events if event.gpu == gpu], first, last)
        parts.append(element("text", gpu or "no address", x=8, y=y + 18, class_="lane"))
        parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y + 13, y2=y + 13, class_="axis"))
        for row, lane in enumerate(lanes):
            parts.extend(_badge(badge, y + row * _LANE) for badge in lane)
        y += len(lanes) * _LANE + 6
    title, desc = f"timeline-{number}-title", f"timeline-{number}-desc"
    said = f"{count(len(events), 'fault')} between {moment(first)} and {moment(last)}"
    return element(
        "svg",
        element("title", "GPU faults over time", id=title),
        element("desc", said, id=desc),
        parts,
        _ticks(first, last, y),
        viewBox=f"0 0 {_WIDTH} {y + 26}",
        role="img",
        aria_labelledby=f"{title} {desc}",
        class_="timeline",
    )


def _x(at: float, first: float, last: float) -> float:
    room = _WIDTH - _LEFT - _RIGHT - _BADGE
    return _LEFT + _BADGE / 2 + (room * (at - first) / (last - first) if last > first else 0.0)


def _lanes(events: Sequence[Event], first: float, last: float) -> list[list[_Badge]]:
    """Badges that do not overlap; the same fault again, close by, is counted on its badge."""
    lanes: list[list[_Badge]] = [[]]
    for event in sorted(events, key=lambda event: (event.at or 0.0, event.code)):
        x = round(_x(event.at or 0.0, first, last), 1)
        # What began a failure has a badge of its own.
        alike = (lane[-1] for lane in lanes if lane and _is_alike(lane[-1].events[0], event))
        same = next((badge for badge in alike if x < badge.x + _BADGE), None)
        if same is not None:
            same.events.append(event)
            continue
        lane = next((lane for lane in lanes if not lane or x >= lane[-1].x + _BADGE), None)
        if lane is None:
            lane = []
            lanes.append(lane)
        lane.append(_Badge(x, [event]))
    return lanes


def _is_alike(one: Event, other: Event) -> bool:
    return (one.code, one.role) == (other.code, other.role)


def _badge(badge: _Badge, y: int) -> Markup:
    event = badge.events[0]
    many = f" ×{len(badge.events)}" if len(badge.events) > 1 else ""
    return element(
        "g",
        element("title", f"{moment(event.at or 0.0)}: {event.code}{many} {event.meaning or event.text}"),
        element("rect", x=badge.x - _BADGE / 2 + 1, y=y + 3, width=_BADGE - 2, height=_LANE - 6, rx=4),
        element("text", f"{event.code}{many}", x=badge.x, y=y + 17),
        class_=f"fault {event.role}".strip(),
    )


def _ticks(first: float, last: float, y: int) -> Iterator[Markup]:
    span = last - first
    # A clock of the day has whole seconds: fewer of them than ticks would stand there twice.
    steps = 1 if not span else 2 if _clock(first) and span < _TICKS else _TICKS
    for step in range(steps):
        at = first + span * step / max(steps - 1, 1)
        x = _x(at, first, last)
        yield element("line", x1=x, x2=x, y1=y, y2=y + 5, class_="axis")
        yield element("text", _tick(at, span), x=x, y=y + 19, class_="tick")


def _tick(at: float, span: float) -> str:
    if not _clock(at):
        # As many decimals as tell two ticks apart; the kernel has six.
        decimals = min(6, max(0, math.ceil(-math.log10(span / _TICKS)))) if span else 1
        return f"{at:.{decimals}f} s"
    return _utc(at).strftime("%H:%M:%S" if span < 86_400 else "%b %d %H:%M")


def moment(at: float) -> str:
    """A time as a person reads it."""
    if not _clock(at):
        return f"{at:.3f} s after boot"
    return _utc(at).strftime("%b %d %H:%M:%S" if _clock(at) == 1 else "%Y-%m-%d %H:%M:%S UTC")


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, tz=timezone.utc)
