"""Container runtimes: configuration bytes in, configuration bytes out. Pure.

A row of ``RUNTIMES`` is all that the rest of gpunode knows about a runtime: its entry in ``container_runtimes``, and
the functions of its module.
"""

from __future__ import annotations

import posixpath
from dataclasses import fields
from functools import partial
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
from gpunode.runtimes.model import satisfies as satisfies

# The functions of a runtime's module ``gpunode/runtimes/<id>.py``, as ``Runtime`` describes them. The last two are only
# required if its daemon reloads, or its containers stop with it; the two before if it has handlers.
_RUNTIME_RULE_NAMES = (
    "list_read_paths",
    "adapt_to_node",
    "configure",
    "inspect",
    "layers",
    "complete_removal",
    "applies_on_reload",
    "keeps_containers",
)
# The paths of a runtime's files are needed on every node; this module has them without docker's editor.
_MODULE_BY_RULE = {("docker", "list_read_paths"): "docker_nodes", ("docker", "adapt_to_node"): "docker_nodes"}


def _load_on_use(id: str, rule: str) -> Any:  # noqa: A002 - the rows' own word
    """Return a function that loads the rule's module on first use: most nodes have one runtime, most commands none."""
    module = _MODULE_BY_RULE.get((id, rule), id)
    return lambda *arguments: getattr(import_module(f"{__name__}.{module}"), rule)(*arguments)


def _make_row(entry: ContainerRuntime) -> Runtime:
    rules = {rule: _load_on_use(entry.id, rule) for rule in _RUNTIME_RULE_NAMES}
    if not entry.config:
        rules |= {"layers": lambda *_: (), "complete_removal": lambda removal, _: removal}
    if entry.other_config_paths:
        rules |= {"list_read_paths": partial(_list_known_places, entry), "adapt_to_node": lambda runtime, *_: runtime}
    return Runtime(**{field.name: getattr(entry, field.name) for field in fields(entry)}, **rules)


def _list_known_places(entry: ContainerRuntime, _: Files, desired: DesiredConfig) -> tuple[str, ...]:
    drop_in = (desired.drop_in, f"{posixpath.dirname(desired.drop_in)}/*") if desired.drop_in else ()
    places = (desired.config or entry.config, *entry.other_config_paths, *drop_in)
    return tuple(dict.fromkeys(path for path in places if path))


RUNTIMES: tuple[Runtime, ...] = tuple(_make_row(known) for known in CONTAINER_RUNTIMES.values())


def find_runtime(id: str) -> Runtime:  # noqa: A002 - the rows' own word
    """Return the runtime named ``id``.

    Raises:
        KeyError: there is none; recipes are checked against the rows first.
    """
    return {runtime.id: runtime for runtime in RUNTIMES}[id]


def find_reader(path: str) -> Runtime | None:
    """Return the runtime that reads ``path`` if nobody moves its files; None if none does."""
    return next((runtime for runtime in RUNTIMES if path in {runtime.config, runtime.drop_in}), None)
