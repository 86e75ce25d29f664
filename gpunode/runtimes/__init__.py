"""Container runtimes: configuration bytes in, configuration bytes out. Pure.

A row of ``RUNTIMES`` is all that the rest of gpunode knows of a runtime.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.errors import Refused
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
    "runtime",
    "satisfies",
]


def _docker_reads(_: Files, wish: Wish) -> tuple[str, ...]:
    return (wish.config or DOCKER_CONFIG,)


def _configure_docker(files: Files, wish: Wish) -> Edited:
    # Loaded on use: most nodes have no docker, and the editor of JSON comes with it.
    from gpunode.runtimes import docker

    path = wish.config or DOCKER_CONFIG
    before = files.get(path)
    after = docker.configure(before, wish, path)
    return Edited((Edit(path, before, after),) if after != before else (), f"in place: {path} is the only file")


def _unconfigure_docker(files: Files, wish: Wish, former: Mapping[str, Former]) -> Edited:
    path = wish.config or DOCKER_CONFIG
    now, was = files.get(path), former.get(path)
    if was is None or now != was.after:
        raise Refused(
            f"{path} was edited since gpunode wrote it",
            why="its entries cannot be told from the rest",
            hint="gpunode rollback shows the three versions",
        )
    return Edited((Edit(path, now, was.before),) if now != was.before else ())


def _inspect_docker(files: Files, wish: Wish) -> Configured:
    from gpunode.runtimes import docker

    path = wish.config or DOCKER_CONFIG
    return docker.inspect(files.get(path), path)


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


def runtime(id: str) -> Runtime:  # noqa: A002 - the rows' own word
    """The row named ``id``.

    Raises:
        KeyError: there is none; recipes are checked against the rows before.
    """
    return {row.id: row for row in RUNTIMES}[id]
