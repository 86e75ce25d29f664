"""Container runtimes: configuration bytes in, configuration bytes out. Pure.

A row of ``RUNTIMES`` is all that the rest of gpunode knows of a runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpunode.runtimes.containerd_files import CONFIG as CONTAINERD_CONFIG
from gpunode.runtimes.containerd_files import DROP_IN as CONTAINERD_DROP_IN
from gpunode.runtimes.model import (
    CRIO_CONFIG,
    CRIO_DROP_IN,
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
    "gathered",
    "located",
    "runtime",
    "satisfies",
]


class _Rules(Protocol):
    """What a runtime's module has for its row."""

    def reads(self, files: Files, wish: Wish) -> tuple[str, ...]: ...
    def configure(self, files: Files, wish: Wish) -> Edited: ...
    def unconfigure(self, files: Files, wish: Wish, former: Mapping[str, Former]) -> Edited: ...
    def inspect(self, files: Files, wish: Wish) -> Configured: ...


@dataclass(frozen=True, slots=True)
class _OnUse:
    """The same from a module that is loaded on its first use: most nodes have one runtime, most commands need none."""

    rules: Callable[[], _Rules]

    def reads(self, files: Files, wish: Wish) -> tuple[str, ...]:
        return self.rules().reads(files, wish)

    def configure(self, files: Files, wish: Wish) -> Edited:
        return self.rules().configure(files, wish)

    def unconfigure(self, files: Files, wish: Wish, former: Mapping[str, Former]) -> Edited:
        return self.rules().unconfigure(files, wish, former)

    def inspect(self, files: Files, wish: Wish) -> Configured:
        return self.rules().inspect(files, wish)


def _containerd() -> _Rules:
    from gpunode.runtimes import containerd

    return containerd


def _docker() -> _Rules:
    from gpunode.runtimes import docker

    return docker


def _crio() -> _Rules:
    from gpunode.runtimes import crio

    return crio


def _podman() -> _Rules:
    from gpunode.runtimes import podman

    return podman


def _docker_reads(files: Files, wish: Wish) -> tuple[str, ...]:
    # What is read is asked on every node; the editor of JSON comes with the rest.
    from gpunode.runtimes import docker_nodes

    return docker_nodes.reads(files, wish)


def _crio_reads(files: Files, wish: Wish) -> tuple[str, ...]:
    from gpunode.runtimes import crio_files

    return crio_files.reads(files, wish)


_CONTAINERD, _DOCKER, _CRIO, _PODMAN = _OnUse(_containerd), _OnUse(_docker), _OnUse(_crio), _OnUse(_podman)


RUNTIMES: tuple[Runtime, ...] = (
    Runtime(
        id="containerd",
        unit="containerd.service",
        config=CONTAINERD_CONFIG,
        drop_in=CONTAINERD_DROP_IN,
        socket="/run/containerd/containerd.sock",
        packages=("containerd", "containerd.io"),
        config_from=frozenset({"containerd", "containerd.io"}),
        reads=_CONTAINERD.reads,
        configure=_CONTAINERD.configure,
        unconfigure=_CONTAINERD.unconfigure,
        inspect=_CONTAINERD.inspect,
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
        configure=_DOCKER.configure,
        unconfigure=_DOCKER.unconfigure,
        inspect=_DOCKER.inspect,
    ),
    Runtime(
        id="crio",
        unit="crio.service",
        config=CRIO_CONFIG,
        drop_in=CRIO_DROP_IN,
        socket="/run/crio/crio.sock",
        packages=("cri-o",),
        config_from=frozenset(),
        reads=_crio_reads,
        configure=_CRIO.configure,
        unconfigure=_CRIO.unconfigure,
        inspect=_CRIO.inspect,
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
        reads=_PODMAN.reads,
        configure=_PODMAN.configure,
        unconfigure=_PODMAN.unconfigure,
        inspect=_PODMAN.inspect,
    ),
)


def located(row: Runtime, files: Files, wish: Wish) -> Runtime:
    """``row`` as on this node: docker may be a snap, and it or containerd may read another file."""
    if row.id == "docker":
        from gpunode.runtimes import docker_nodes

        return docker_nodes.located(row, files, wish)
    if row.id == "containerd" and not row.product:
        from gpunode.runtimes import containerd

        return containerd.located(row, files, wish)
    return row


def runtime(id: str) -> Runtime:  # noqa: A002 - the rows' own word
    """The row named ``id``.

    Raises:
        KeyError: there is none; recipes are checked against the rows before.
    """
    return {row.id: row for row in RUNTIMES}[id]
