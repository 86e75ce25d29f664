"""How a package came: one that the recipe asks for must not count as a dependency that may be removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpunode.change import PackageChange, PackageState
from gpunode.facts.model import Facts
from gpunode.package_id import PackageId
from gpunode.packages import system
from gpunode.steps.installed_driver import matches


def set_manual(packages: Mapping[PackageId, PackageState], asked: Iterable[PackageId]) -> tuple[PackageChange, ...]:
    """Marks as manually installed those of ``asked`` that are installed and marked as automatic."""
    states = ((package, packages.get(package)) for package in asked)
    return tuple(
        PackageChange(package, state, replace(state, auto=False))
        for package, state in states
        if state is not None and state.auto and matches(state, "")
    )


def why_manual(marked: Iterable[PackageChange], facts: Facts) -> str:
    """Why marks change."""
    names = ", ".join(str(change.id) for change in marked)
    return f"{system(facts).autoremove} may remove {names}, marked as automatically installed"
