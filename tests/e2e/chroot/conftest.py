"""Fixtures of the scenarios in chroots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.chroot.scenario import Lab
from tests.e2e.lab.code import Mounts
from tests.e2e.lab.repositories import Repositories


@pytest.fixture(scope="session")
def chroots(lab: Path, repositories: Repositories, code: Mounts) -> Lab:
    """Make nodes that a whole module shares."""
    return Lab(lab, repositories, code)
