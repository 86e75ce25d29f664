"""The adapter for a node's package manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpunode.change import PackageChange
from gpunode.host import apt, image_apt
from gpunode.host.port import OnProgress, PackageManager
from gpunode.host.process import Runner
from gpunode.packages.simulation import Simulation

UNATTENDED_ENVIRONMENT: Final[Mapping[str, str]] = apt.UNATTENDED_APT_ENVIRONMENT
"""The environment in which package operations ask no questions and restart no services."""


def make_package_manager(runner: Runner, on_progress: OnProgress, lock_timeout_s: float) -> PackageManager:
    """Return the package manager of the runner's system."""
    return apt.Apt(runner, on_progress, lock_timeout_s)


def simulate_in_root(root: str, changes: Sequence[PackageChange]) -> Simulation:
    """Simulate ``changes`` with this machine's package manager on the image's state, running none of its programs."""
    return image_apt.simulate_image(root, changes)


def enter_image_in_hint(hint: str, root: str) -> str:
    """Return the hint with package commands that run in the image, not on the machine that builds it."""
    return image_apt.enter_image_in_hint(hint, root)


def remove_temporary_folders(root: str) -> None:
    """Remove the temporary folders that a killed run left."""
    apt.remove_temporary_folders(root)
