"""Container runtimes: configuration bytes in, configuration bytes out. Pure.

A row of ``RUNTIMES`` is all that the rest of gpunode knows of a runtime.
"""

from __future__ import annotations

from gpunode.runtimes import containerd
from gpunode.runtimes.containerd import dump as containerd_dump
from gpunode.runtimes.model import DOCKER_CONFIG, Configured, Runtime, Wish, satisfies

__all__ = ["RUNTIMES", "Configured", "Runtime", "Wish", "containerd_dump", "runtime", "satisfies"]


def _configure_docker(data: bytes | None, wish: Wish) -> bytes:
    # Loaded on use: most nodes have no docker, and the editor of JSON comes with it.
    from gpunode.runtimes import docker

    return docker.configure(data, wish)


def _inspect_docker(data: bytes | None) -> Configured:
    from gpunode.runtimes import docker

    return docker.inspect(data)


RUNTIMES: tuple[Runtime, ...] = (
    Runtime(
        id="containerd",
        unit="containerd.service",
        config=containerd.CONFIG,
        socket="/run/containerd/containerd.sock",
        packages=("containerd", "containerd.io"),
        config_from=frozenset({"containerd", "containerd.io"}),
        configure=containerd.configure,
        inspect=containerd.inspect,
    ),
    Runtime(
        id="docker",
        unit="docker.service",
        config=DOCKER_CONFIG,
        socket="/run/docker.sock",
        packages=("docker.io", "docker-ce"),
        config_from=frozenset(),
        configure=_configure_docker,
        inspect=_inspect_docker,
    ),
)


def runtime(id: str) -> Runtime:  # noqa: A002 - the rows' own word
    """The row named ``id``.

    Raises:
        KeyError: there is none; recipes are checked against the rows before.
    """
    return {row.id: row for row in RUNTIMES}[id]
