"""Package ids from the names that tests write: ``libcuda1``, ``libcuda1:i386``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from gpunode.package_id import PackageId

T = TypeVar("T")


def by_id(values: Mapping[str, T]) -> dict[PackageId, T]:
    """Return ``values`` with package ids in place of the names."""
    return {PackageId.of(name): value for name, value in values.items()}


def by_name(values: Mapping[PackageId, T]) -> dict[str, T]:
    """Return the inverse of ``by_id``."""
    return {str(package): value for package, value in values.items()}


def ids(*names: str) -> frozenset[PackageId]:
    """Return the package ids with these names."""
    return frozenset(map(PackageId.of, names))


def names(packages: Iterable[PackageId]) -> set[str]:
    """Return the names of ``packages``."""
    return {str(package) for package in packages}
