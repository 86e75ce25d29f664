"""Versions in dpkg's order: Debian Policy 5.6.12, deb-version(7)."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

from gpunode.facts.kernels import version_key
from gpunode.packages.version import version_epoch, without_epoch

_Key: TypeAlias = tuple[tuple[tuple[int, ...], int], ...]


@lru_cache(maxsize=1 << 12)
def version_order_key(version: str) -> tuple[int, _Key, _Key]:
    """Return the parts of a version that dpkg compares, in this order: epoch, upstream version, Debian revision.

    ``1.0`` and ``1.00`` are equal. Any text is accepted: names of kernels, which are no package versions, are ordered
    by the same rule.
    """
    upstream, hyphen, revision = without_epoch(version).rpartition("-")
    parts = (upstream, revision) if hyphen else (revision, "")
    return version_epoch(version), version_key(parts[0] or "0"), version_key(parts[1] or "0")


def is_older(version: str, other: str) -> bool:
    """Return whether ``version`` comes before ``other`` in dpkg's order."""
    return version_order_key(version) < version_order_key(other)
