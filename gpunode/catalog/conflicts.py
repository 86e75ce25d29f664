"""Which packages belong to an NVIDIA driver. Source: driver_packages.csv."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gpunode.catalog import tables


def driver_packages(names: Iterable[str]) -> frozenset[str]:
    """Those of ``names`` that belong to a driver, whoever packaged it; ``name:arch`` is judged by its name.

    Never among them: the CUDA and container toolkits, DCGM, GPUDirect, nouveau's firmware and X driver, repository keys
    and pinning packages.
    """
    return frozenset(name for name in names if _is_drivers(name))


@lru_cache(maxsize=1 << 14)
def _is_drivers(name: str) -> bool:
    # Remembered: a plan asks a dozen times for every package of the node.
    bare = name.partition(":")[0]
    return _matches(bare, "purge") and not _matches(bare, "keep")


def _matches(name: str, action: str) -> bool:
    names, beginnings = _patterns(action)
    return name in names or name.startswith(beginnings)


@lru_cache(maxsize=4)
def pinned_names(branch: int) -> tuple[str, ...]:
    """Names of packages that come at the driver's own version, in order. Source: pinned_names.csv."""
    return tuple(sorted({row["name"].format(branch=branch) for row in tables.rows("pinned_names.csv")}))


@lru_cache(maxsize=2)
def _patterns(action: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Whole names, and beginnings of names; compiled to one regular expression they would take 5 ms at each start."""
    patterns = [row["pattern"] for row in tables.rows("driver_packages.csv") if row["action"] == action]
    beginnings = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return frozenset(pattern for pattern in patterns if not pattern.endswith("*")), beginnings
