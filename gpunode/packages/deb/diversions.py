"""dpkg-divert(1): the files of packages that stand under another name on this node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

PATH: Final = "/var/lib/dpkg/diversions"
_BY_HAND = ":"


def by_hand(text: str) -> Iterator[tuple[str, str]]:
    """Each path that a person, and no package, has diverted, and where to; three lines an entry."""
    lines = text.split("\n")
    for path, target, package in zip(lines[0::3], lines[1::3], lines[2::3], strict=False):
        if package == _BY_HAND:
            yield path, target
