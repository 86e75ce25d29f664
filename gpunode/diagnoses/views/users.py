"""Who runs the programs of a report, as ``id`` tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, finds
from gpunode.facts.patterns import Pattern

_ID: Final = Pattern(r"^uid=(?P<uid>\d{1,10})\b[^\n]{0,80}? gid=(?P<groups>[^\n]{1,4000})$", re.MULTILINE)
_NAME: Final = Pattern(r"\((?P<name>[^()\n]{1,64})\)")


@dataclass(frozen=True, slots=True)
class User:
    """A user of the host.

    Attributes:
        groups: the names of all of them.
    """

    is_root: bool
    groups: frozenset[str]
    citation: Citation


def users(snapshot: Snapshot) -> tuple[User, ...]:
    """The users whom ``id`` tells of on the host."""
    return tuple(_users(snapshot))


def _users(snapshot: Snapshot) -> Iterator[User]:
    for item in snapshot.items:
        if item.where != "host" or item.kind == "container-run":
            continue
        for match in finds(item, _ID):
            groups = frozenset(_NAME.findall(match["groups"]))
            yield User(int(match["uid"]) == 0, groups, cite(item, item.number_at(match.start())))
