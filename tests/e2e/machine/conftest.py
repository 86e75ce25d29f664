"""Fixtures of the scenarios on booted machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.lab.code import Mounts
from tests.e2e.lab.repositories import Repositories
from tests.e2e.machine.scenario import Machines


@pytest.fixture(scope="session")
def machines(lab: Path, repositories: Repositories, code: Mounts) -> Machines:
    """Make machines that a whole module shares."""
    return Machines(lab, repositories, code)
