"""Bare systems to install a release into."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.distribution.roots import System, provide
from tests.e2e.lab.archive import NoArchive

ROOT = Path(__file__).parents[3]
MakeSystem = Callable[[str], System]


@pytest.fixture(scope="session")
def trees(lab: Path) -> Callable[[str], Path]:
    """Return the file tree of a suite, made once."""

    @cache
    def tree(suite: str) -> Path:
        try:
            return provide(suite, lab / f"distribution-{suite}")
        except NoArchive as error:
            if os.environ.get("GPUNODE_E2E") == "require":
                pytest.fail(f"no bare system without the Debian archive: {error}")
            pytest.skip(f"no bare system without the Debian archive: {error}")

    return tree


@pytest.fixture
def make_system(trees: Callable[[str], Path], node_folder: Callable[[], Path]) -> MakeSystem:
    """Make bare systems: ``with make_system("trixie") as system``."""
    return lambda suite: System(trees(suite), node_folder())
