"""Container runtimes: configuration bytes in, configuration bytes out. Pure.

A row of ``RUNTIMES`` is all that the rest of gpunode knows of a runtime: what ``container_runtimes`` says of it, and
the rules of its module.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any

from gpunode.container_runtimes import CONTAINER_RUNTIMES, ContainerRuntime
from gpunode.runtimes.model import ConfigEdit as ConfigEdit
from gpunode.runtimes.model import DesiredConfig as DesiredConfig
from gpunode.runtimes.model import Edit as Edit
from gpunode.runtimes.model import Files as Files
from gpunode.runtimes.model import ObservedConfig as ObservedConfig
from gpunode.runtimes.model import Removal as Removal
from gpunode.runtimes.model import Runtime as Runtime
from gpunode.runtimes.model import apply_edits as apply_edits
from gpunode.runtimes.model import gather_files as gather_files
from gpunode.runtimes.model import satisfies as satisfies

# The functions of a runtime's module ``gpunode/runtimes/<id>.py``, which ``Runtime`` describes. The last two need only
# be there if its daemon reloads, or its containers stop with it.
_RULE_NAMES = (
    "reads",
    "locate_row",
    "configure",
    "layers",
    "complete_removal",
    "inspect",
    "applies_on_reload",
    "keeps_containers",
)
# Where a runtime's files are is asked on every node; these modules say it without the runtime's editor.
_LIGHT_RULES = frozenset({"reads", "locate_row"})
_LIGHT_MODULE_BY_RUNTIME = {"docker": "docker_nodes", "crio": "crio_files"}


def _load_on_use(id: str, rule: str) -> Any:  # noqa: A002 - the rows' own word
    """Return a rule whose module is loaded on its first use: most nodes have one runtime, most commands need none."""
    module = _LIGHT_MODULE_BY_RUNTIME.get(id, id) if rule in _LIGHT_RULES else id
    return lambda *arguments: getattr(import_module(f"{__name__}.{module}"), rule)(*arguments)


def _row(known: ContainerRuntime) -> Runtime:
    rules = {rule: _load_on_use(known.id, rule) for rule in _RULE_NAMES}
    return Runtime(**{one.name: getattr(known, one.name) for one in fields(known)}, **rules)


RUNTIMES: tuple[Runtime, ...] = tuple(_row(known) for known in CONTAINER_RUNTIMES.values())


def runtime(id: str) -> Runtime:  # noqa: A002 - the rows' own word
    """The row named ``id``.

    Raises:
        KeyError: there is none; recipes are checked against the rows before.
    """
    return {row.id: row for row in RUNTIMES}[id]
