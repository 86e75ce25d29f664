"""The drawing of GPU faults over time, a lane for each GPU. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import kernel, pci
from gpunode.page.markup import Markup, element
from gpunode.page.words import count

_WIDTH: Final = 820
_LEFT: Final = 130
_RIGHT: Final = 20
_LANE: Final = 26
_BADGE: Final = 64
_TICKS: Final = 5
_MOST: Final = 400
# Seconds since boot are less than this; since the epoch, more.
_EPOCH: Final = 4e8


@dataclass(frozen=True, slots=True)
class Event:
    """One fault.

    Attributes:
        gpu: its PCI address, or what else names it.
        at: seconds since boot or since the epoch; None where the log has no times.
        code: what the badge says.
        text: what the message says.
    """

    gpu: str
    at: float | None
    code: str
    text: str


_XID: Final = re.compile(r"\bXid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)[^)]*\): (?P<code>\d{1,3}),?\s*(?P<text>.*)")


def events(snapshot: Snapshot) -> tuple[Event, ...]:
    """The faults of GPUs, in the order of time; those without one come last."""
    found = (_event(message) for message in kernel.said(snapshot, _XID))
    return tuple(sorted((event for event in dict.fromkeys(found) if event), key=_order))


def _event(message: kernel.Message) -> Event | None:
    match = _XID.search(message.text)
    return Event(pci.address(match["bus"]), message.at, f"Xid {match['code']}", match["text"]) if match else None


def _order(event: Event) -> tuple[bool, float]:
    return event.at is None, event.at or 0.0


@dataclass(slots=True)
class _Badge:
    x: float
    events: list[Event]


def drawings(events: Sequence[Event]) -> tuple[Markup, ...]:
    """A drawing for each clock on which ``events`` were timed; the two cannot be put on one line."""
    timed = [event for event in events if event.at is not None][:_MOST]
    clocks = ([e for e in timed if (e.at or 0) < _EPOCH], [e for e in timed if (e.at or 0) >= _EPOCH])
    return tuple(_drawing(number, found) for number, found in enumerate(clocks) if found)


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
        same = next((lane[-1] for lane in lanes if lane and lane[-1].events[0].code == event.code), None)
        if same is not None and x < same.x + _BADGE:
            same.events.append(event)
            continue
        lane = next((lane for lane in lanes if not lane or x >= lane[-1].x + _BADGE), None)
        if lane is None:
            lane = []
            lanes.append(lane)
        lane.append(_Badge(x, [event]))
    return lanes


def _badge(badge: _Badge, y: int) -> Markup:
    event = badge.events[0]
    many = f" ×{len(badge.events)}" if len(badge.events) > 1 else ""
    return element(
        "g",
        element("title", f"{moment(event.at or 0.0)}: {event.code} {event.text}{many}"),
        element("rect", x=badge.x - _BADGE / 2 + 1, y=y + 3, width=_BADGE - 2, height=_LANE - 6, rx=4),
        element("text", f"{event.code}{many}", x=badge.x, y=y + 17),
        class_="fault",
    )


def _ticks(first: float, last: float, y: int) -> Iterator[Markup]:
    steps = _TICKS if last > first else 1
    for step in range(steps):
        at = first + (last - first) * step / max(steps - 1, 1)
        x = _x(at, first, last)
        yield element("line", x1=x, x2=x, y1=y, y2=y + 5, class_="axis")
        yield element("text", _tick(at, last - first), x=x, y=y + 19, class_="tick")


def _tick(at: float, span: float) -> str:
    if at < _EPOCH:
        return f"{at:.1f} s" if span < 600 else f"{at:.0f} s"
    when = datetime.fromtimestamp(at, tz=timezone.utc)
    return when.strftime("%H:%M:%S" if span < 86_400 else "%b %d %H:%M")


def moment(at: float) -> str:
    """A time as a person reads it; syslog's have no year, so none has."""
    if at < _EPOCH:
        return f"{at:.3f} s after boot"
    return datetime.fromtimestamp(at, tz=timezone.utc).strftime("%b %d %H:%M:%S")
