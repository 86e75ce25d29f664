"""The package manager of a node: the one adapter that its package system has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpunode.change import PackageChange
from gpunode.host import apt, image_apt
from gpunode.host.port import OnProgress, PackageManager
from gpunode.host.process import Runner
from gpunode.packages.simulation import Simulation

UNATTENDED: Final[Mapping[str, str]] = apt.UNATTENDED
"""The environment in which nothing that changes packages asks anybody anything, or restarts services."""


def package_manager(runner: Runner, on_progress: OnProgress, lock_timeout_s: float) -> PackageManager:
    """The package manager of the system that ``runner`` runs programs of."""
    return apt.Apt(runner, on_progress, lock_timeout_s)


def simulate_in(root: str, changes: Sequence[PackageChange]) -> Simulation:
    """What this machine's package manager would do with the state of the image at ``root``; no program of it is run."""
    return image_apt.simulate(root, changes)


def sweep(root: Path) -> None:
    """Remove the temporary folders that a killed run left."""
    apt.sweep(root)
