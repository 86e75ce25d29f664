"""A cluster in memory, and a user who runs gpunode on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.api_server import ApiServer
from tests.fakes.clusters import User, node, run_daemon_sets


@pytest.fixture
def server() -> ApiServer:
    """Return a cluster with the Node gpu-1, whose DaemonSets run."""
    server = ApiServer()
    server.add(node(), "kubelet")
    server.controllers.append(run_daemon_sets)
    return server


@pytest.fixture
def user(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> User:
    """Return a user with all rights in that cluster."""
    return User(server, tmp_path, monkeypatch, capsys)
