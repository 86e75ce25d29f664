"""docker's configuration if there is only daemon.json: bytes in, bytes out."""

from __future__ import annotations

from gpunode.runtimes import DesiredConfig, ObservedConfig, apply_edits, docker
from gpunode.runtimes.model import DOCKER_CONFIG


def configure(data: bytes | None, desired: DesiredConfig) -> bytes:
    """Return the file after configuring it."""
    files = {} if data is None else {DOCKER_CONFIG: data}
    return apply_edits(files, docker.configure(files, desired)).get(DOCKER_CONFIG, b"")


def inspect(data: bytes | None, desired: DesiredConfig = DesiredConfig()) -> ObservedConfig:  # noqa: B008 - frozen
    """Return the state that the file describes."""
    return docker.inspect({} if data is None else {DOCKER_CONFIG: data}, desired)
