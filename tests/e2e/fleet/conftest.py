"""Fixtures of the scenarios on fleets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.conftest import _unavailable
from tests.e2e.fleet.layers import provide_controller, provide_host
from tests.e2e.fleet.scenario import Fleets
from tests.e2e.lab.archive import NoArchive
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.code import Mounts
from tests.e2e.lab.repositories import Repositories
from tests.e2e.lab.tree import Base


@pytest.fixture(scope="session")
def fleets(lab: Path, bases: Mapping[str, Bases], repositories: Repositories, code: Mounts) -> Fleets:
    """Make fleets that a whole module shares."""

    @cache
    def host(codename: str) -> Base:
        try:
            return provide_host(bases[codename].runtime, lab / f"fleet-host-{codename}")
        except NoArchive as error:
            _unavailable(f"no fleet without the Debian archive: {error}")

    @cache
    def controller(codename: str) -> Base:
        return provide_controller(host(codename), lab / f"fleet-controller-{codename}")

    return Fleets(lab, host, controller, repositories, code)
