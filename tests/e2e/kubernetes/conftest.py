"""A control plane without nodes, which a session's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.kubernetes.control_plane import API_PROGRAMS, SCHEDULING_PROGRAMS, ControlPlane
from tests.needs import lacking_assets

NODES = ("gpu-1", "gpu-2")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With scheduling and with credentials for the nodes of NODES, none of which has joined."""
    if reason := lacking_assets(*API_PROGRAMS, *SCHEDULING_PROGRAMS):
        pytest.skip(reason)
    with ControlPlane(tmp_path_factory.mktemp("kubernetes") / "plane", nodes=NODES) as plane:
        yield plane
