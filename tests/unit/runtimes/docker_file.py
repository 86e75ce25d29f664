"""docker's configuration where nothing but daemon.json says anything: bytes in, bytes out."""

from __future__ import annotations

from gpunode.runtimes import Configured, Wish, after_edits, docker
from gpunode.runtimes.model import DOCKER_CONFIG


def configure(data: bytes | None, wish: Wish) -> bytes:
    """The file as wished."""
    files = {} if data is None else {DOCKER_CONFIG: data}
    return after_edits(files, docker.configure(files, wish)).get(DOCKER_CONFIG, b"")


def inspect(data: bytes | None, wish: Wish = Wish()) -> Configured:  # noqa: B008 - frozen
    """What the file says."""
    return docker.inspect({} if data is None else {DOCKER_CONFIG: data}, wish)
