"""Functions that must know every kind of change and cannot be checked by types."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import gpunode.steps
from gpunode.change import BaseChange, Change, CommandChange, ObjectChange, PackageChange
from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.journal import record
from gpunode.journal.footprint import StatefulT
from gpunode.outcome import Step
from gpunode.runtimes import containerd
from gpunode.steps.daemons import GPU_SERVICES_STEP
from gpunode.steps.table import STEPS

KINDS = get_args(Change)
# The rules that each runtime with a configuration has in its own module.
RULES = ("layers", "configure", "complete_removal", "inspect")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_has_a_rank_and_a_journal_name(kind: type[BaseChange]) -> None:
    assert [one.rank for one in KINDS].count(kind.rank) == 1
    assert record._TYPES_BY_NAME[kind.kind_name] is kind
    assert record._stored_fields(kind.kind_name).keys() == {field.name for field in fields(kind)} - {"id"} | (
        {"name"} if kind is PackageChange else set()
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_is_described_in_the_json_reference(kind: type[BaseChange]) -> None:
    page = Path(__file__).parents[2].joinpath("docs/reference/json-output.md").read_text()
    assert f"| `{kind.kind_name}` |" in page


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_is_undone_or_says_that_it_is_not(kind: type[BaseChange]) -> None:
    # Changes of a cluster have their own undo, and no undo reverts a command's effect on a node.
    undone = {*StatefulT.__constraints__, ObjectChange, CommandChange}
    assert kind in undone or kind.is_undoable is not BaseChange.is_undoable, (
        "sum up its changes in journal/footprint.py and plan what takes them back in workflow/undo_plan.py, "
        "or have `is_undoable` be False"
    )


def test_every_step_is_in_the_table() -> None:
    modules = (
        importlib.import_module(f"gpunode.steps.{one.name}") for one in pkgutil.iter_modules(gpunode.steps.__path__)
    )
    written = {value.id for module in modules for value in vars(module).values() if isinstance(value, Step)}
    # The pauses of GPU services depend on the changes of other steps, wherever those are.
    assert written == {step.id for step in (*STEPS, GPU_SERVICES_STEP)}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *((row.id, rule) for row in CONTAINER_RUNTIMES.values() if row.config for rule in RULES),
        *(("docker_nodes", rule) for rule in ("list_read_paths", "adapt_to_node")),
    ],
)
def test_runtime_rules_have_equal_parameters(module: str, name: str) -> None:
    rule = getattr(importlib.import_module(f"gpunode.runtimes.{module}"), name)
    assert [*inspect.signature(rule).parameters] == [*inspect.signature(getattr(containerd, name)).parameters]
