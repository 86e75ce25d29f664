"""Container runtimes: configuration bytes in, configuration bytes out. Pure.

A row of ``RUNTIMES`` is all that the rest of gpunode knows of a runtime.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.runtimes import containerd, crio, podman
from gpunode.runtimes.containerd import dump as containerd_dump
from gpunode.runtimes.model import (
    DOCKER_CONFIG,
    Configured,
    Edit,
    Edited,
    Files,
    Former,
    Runtime,
    Wish,
    after_edits,
    gathered,
    satisfies,
)

__all__ = [
    "RUNTIMES",
    "Configured",
    "Edit",
    "Edited",
    "Files",
    "Former",
    "Runtime",
    "Wish",
    "after_edits",
    "containerd_dump",
    "gathered",
    "located",
    "runtime",
    "satisfies",
]


def _docker_reads(files: Files, wish: Wish) -> tuple[str, ...]:
    from gpunode.runtimes import docker_nodes

    return docker_nodes.reads(files, wish)


def _configure_docker(files: Files, wish: Wish) -> Edited:
    # Loaded on use: most nodes have no docker, and the editor of JSON comes with it.
    from gpunode.runtimes import docker

    return docker.configure(files, wish)


def _unconfigure_docker(files: Files, wish: Wish, former: Mapping[str, Former]) -> Edited:
    from gpunode.runtimes import docker_undoing

    return docker_undoing.unconfigure(files, wish, former)


def _inspect_docker(files: Files, wish: Wish) -> Configured:
    from gpunode.runtimes import docker

    return docker.inspect(files, wish)


RUNTIMES: tuple[Runtime, ...] = (
    Runtime(
        id="containerd",
        unit="containerd.service",
        config=containerd.CONFIG,
        drop_in=containerd.DROP_IN,
        socket="/run/containerd/containerd.sock",
        packages=("containerd", "containerd.io"),
        config_from=frozenset({"containerd", "containerd.io"}),
        reads=containerd.reads,
        configure=containerd.configure,
        unconfigure=containerd.unconfigure,
        inspect=containerd.inspect,
    ),
    Runtime(
        id="docker",
        unit="docker.service",
        config=DOCKER_CONFIG,
        drop_in="",
        socket="/run/docker.sock",
        packages=("docker.io", "docker-ce"),
        config_from=frozenset(),
        reads=_docker_reads,
        configure=_configure_docker,
        unconfigure=_unconfigure_docker,
        inspect=_inspect_docker,
    ),
    Runtime(
        id="crio",
        unit="crio.service",
        config=crio.CONFIG,
        drop_in=crio.DROP_IN,
        socket="/run/crio/crio.sock",
        packages=("cri-o",),
        config_from=frozenset(),
        reads=crio.reads,
        configure=crio.configure,
        unconfigure=crio.unconfigure,
        inspect=crio.inspect,
        from_elsewhere="the CRI-O project's own repository, see https://github.com/cri-o/packaging",
    ),
    Runtime(
        id="podman",
        unit="",
        config="",
        drop_in="",
        socket="",
        packages=("podman",),
        config_from=frozenset(),
        reads=podman.reads,
        configure=podman.configure,
        unconfigure=podman.unconfigure,
        inspect=podman.inspect,
    ),
)


def located(row: Runtime, files: Files, wish: Wish) -> Runtime:
    """``row`` as this node has it: docker may be a snap, or told to read another file."""
    if row.id != "docker":
        return row
    from gpunode.runtimes import docker

    return docker.located(row, files, wish)


def runtime(id: str) -> Runtime:  # noqa: A002 - the rows' own word
    """The row named ``id``.

    Raises:
        KeyError: there is none; recipes are checked against the rows before.
    """
    return {row.id: row for row in RUNTIMES}[id]
