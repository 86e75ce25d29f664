"""Versions in dpkg's order: Debian Policy 5.6.12, deb-version(7)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import TypeAlias

from gpunode.packages.version import epoch, without_epoch

_Key: TypeAlias = tuple[tuple[tuple[int, ...], int], ...]
_PART = re.compile(r"([^0-9]*)([0-9]*)")
_END, _TILDE = 0, -1


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class DpkgVersion:
    """A version that compares as dpkg compares it; ``1.0`` and ``1.00`` are equal.

    Nothing is refused: names of kernels, which are no package versions, are ordered by the same rule.
    """

    text: str

    @property
    def key(self) -> tuple[int, _Key, _Key]:
        """Return what is compared, in this order: epoch, upstream version, Debian revision."""
        upstream, hyphen, revision = without_epoch(self.text).rpartition("-")
        parts = (upstream, revision) if hyphen else (revision, "")
        return epoch(self.text), _key(parts[0]), _key(parts[1])

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, DpkgVersion) else NotImplemented

    def __lt__(self, other: DpkgVersion) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.text


def _key(part: str) -> _Key:
    """Text and numbers in turn, then an end; no number is 0, so ``1.0-0`` is ``1.0``."""
    pieces = [(text, number) for text, number in _PART.findall(part) if text or number] or [("", "0")]
    key = [((*(_weight(char) for char in text), _END), int(number or 0)) for text, number in pieces]
    return (*key, ((_END,), 0))


def _weight(char: str) -> int:
    """Tilde, then the end, then letters, then everything else."""
    if char == "~":
        return _TILDE
    return ord(char) if char.isascii() and char.isalpha() else ord(char) + 0x110000


def is_older(version: str, other: str) -> bool:
    """Return whether ``version`` comes before ``other`` in dpkg's order."""
    return DpkgVersion(version) < DpkgVersion(other)
