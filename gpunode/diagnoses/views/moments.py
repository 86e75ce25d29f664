"""Moments that files and tools name, to tell which of two things came first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import cite, finds
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

DATE: Final = r"(?P<date>\d{4}-\d\d-\d\d[ T]+\d\d:\d\d:\d\d)"


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happened.

    Attributes:
        at: in seconds.
        is_fact: whether it is since the epoch, as a probe told; else it is by the node's own clock, whatever its zone.
    """

    at: float
    citation: Citation
    is_fact: bool = False


def precedes(one: Moment | None, other: Moment | None) -> bool | None:
    """Whether ``one`` came before ``other``; None where that cannot be told."""
    if one is None or other is None or one.is_fact != other.is_fact:
        return None
    return one.at < other.at


def told(item: Item, *patterns: Pattern) -> Iterator[Moment]:
    """The moments in the group ``date`` of the ``patterns``."""
    for pattern in patterns:
        for match in finds(item, pattern):
            try:
                moment = datetime.fromisoformat(" ".join(match["date"].replace("T", " ").split()))
            except ValueError:
                continue
            number = item.number_at(match.start("date"))
            yield Moment(moment.replace(tzinfo=timezone.utc).timestamp(), cite(item, number))


_STAMP: Final = Pattern(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,](?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)")


def of_line(line: str) -> float | None:
    """When a line of a journal was written, since the epoch; None where it does not begin with a moment and a zone."""
    if (match := _STAMP.match(line)) is None:
        return None
    zone = "+0000" if match["zone"] == "Z" else match["zone"].replace(":", "")
    try:
        moment = datetime.strptime(f"{line[:19]}{zone}", "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (ValueError, OverflowError):
        return None
    return moment + float(f"0.{match['fraction'] or 0}")


def written(at: float) -> str:
    """A moment since the epoch, to be shown."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")
