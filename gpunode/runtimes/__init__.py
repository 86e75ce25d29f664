"""Container runtimes: configuration bytes in, configuration bytes out. Pure.

A row of ``RUNTIMES`` is all that the rest of gpunode knows of a runtime: what ``container_runtimes`` says of it, and
the rules of its module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Protocol, cast

from gpunode.container_runtimes import CONTAINER_RUNTIMES, ContainerRuntime
from gpunode.runtimes.model import (
    ConfigEdit,
    DesiredConfig,
    Edit,
    Files,
    Layer,
    ObservedConfig,
    RecordedEdit,
    Removal,
    Runtime,
    after_edits,
    gather_files,
    satisfies,
)

__all__ = [
    "RUNTIMES",
    "ConfigEdit",
    "DesiredConfig",
    "Edit",
    "Files",
    "Layer",
    "ObservedConfig",
    "RecordedEdit",
    "Removal",
    "Runtime",
    "after_edits",
    "gather_files",
    "runtime",
    "satisfies",
]


class _Rules(Protocol):
    """The functions of a runtime's module ``gpunode/runtimes/<id>.py`` for its row."""

    def reads(self, files: Files, desired: DesiredConfig) -> tuple[str, ...]: ...
    def located(self, row: Runtime, files: Files, desired: DesiredConfig) -> Runtime: ...
    def configure(self, files: Files, desired: DesiredConfig) -> ConfigEdit: ...
    def layers(self, files: Files, desired: DesiredConfig) -> tuple[Layer, ...]: ...
    def mend(self, removal: Removal, desired: DesiredConfig) -> Removal: ...
    def inspect(self, files: Files, desired: DesiredConfig) -> ObservedConfig: ...


class _Reloading(_Rules, Protocol):
    """And if its daemon reloads, or its containers stop with it."""

    def takes_on_reload(self, before: Files, after: Files, desired: DesiredConfig) -> bool: ...
    def keeps_containers(self, files: Files, desired: DesiredConfig) -> bool: ...


# Where a runtime's files are is asked on every node; these say it without the runtime's editor.
_LIGHT: Mapping[str, str] = {"docker": "docker_nodes", "crio": "crio_files"}


@dataclass(frozen=True, slots=True)
class _OnUse:
    """The rules of a module that is loaded on its first use: most nodes have one runtime, most commands need none."""

    id: str

    def _rules(self) -> _Reloading:
        return cast("_Reloading", import_module(f"{__name__}.{self.id}"))

    def _files(self) -> _Rules:
        return cast("_Rules", import_module(f"{__name__}.{_LIGHT.get(self.id, self.id)}"))

    def reads(self, files: Files, desired: DesiredConfig) -> tuple[str, ...]:
        return self._files().reads(files, desired)

    def located(self, row: Runtime, files: Files, desired: DesiredConfig) -> Runtime:
        return self._files().located(row, files, desired)

    def configure(self, files: Files, desired: DesiredConfig) -> ConfigEdit:
        return self._rules().configure(files, desired)

    def layers(self, files: Files, desired: DesiredConfig) -> tuple[Layer, ...]:
        return self._rules().layers(files, desired)

    def mend(self, removal: Removal, desired: DesiredConfig) -> Removal:
        return self._rules().mend(removal, desired)

    def inspect(self, files: Files, desired: DesiredConfig) -> ObservedConfig:
        return self._rules().inspect(files, desired)

    def takes_on_reload(self, before: Files, after: Files, desired: DesiredConfig) -> bool:
        return self._rules().takes_on_reload(before, after, desired)

    def keeps_containers(self, files: Files, desired: DesiredConfig) -> bool:
        return self._rules().keeps_containers(files, desired)


def _row(known: ContainerRuntime) -> Runtime:
    rules = _OnUse(known.id)
    return Runtime(
        **{one.name: getattr(known, one.name) for one in fields(known)},
        reads=rules.reads,
        located=rules.located,
        configure=rules.configure,
        layers=rules.layers,
        mend=rules.mend,
        inspect=rules.inspect,
        takes_on_reload=rules.takes_on_reload,
        keeps_containers=rules.keeps_containers,
    )


RUNTIMES: tuple[Runtime, ...] = tuple(_row(known) for known in CONTAINER_RUNTIMES.values())


def runtime(id: str) -> Runtime:  # noqa: A002 - the rows' own word
    """The row named ``id``.

    Raises:
        KeyError: there is none; recipes are checked against the rows before.
    """
    return {row.id: row for row in RUNTIMES}[id]
