"""Nodes with the container runtimes of a suite and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.tree import Base

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def make_node(runtime_bases: Callable[[str], Base], lab: Path) -> Callable[[str], Chroot]:
    """Make a node: ``with make_node("sid") as node``."""
    return lambda suite: Chroot(runtime_bases(suite), lab / f"daemons-{next(_NUMBERS)}")
