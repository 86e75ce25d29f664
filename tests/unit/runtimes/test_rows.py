"""Required contents of every row of the container runtimes, so that a new row cannot be incomplete."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

import gpunode
from gpunode.builtin import shipped_recipe_names
from gpunode.container_runtimes import (
    CONTAINER_RUNTIMES,
    CdiSupport,
    ConfigValidatorKind,
    ContainerClientKind,
    LiveConfigSource,
)
from gpunode.facts import probes
from gpunode.recipe import RuntimeName
from gpunode.recipe.keys import known_keys
from gpunode.runtimes import RUNTIMES, DesiredConfig, Runtime, apply_edits, satisfies

ROWS = pytest.mark.parametrize("row", RUNTIMES, ids=lambda row: row.id)
_PACKAGE = Path(gpunode.__file__).parent


@ROWS
def test_row_is_complete(row: Runtime) -> None:
    assert CONTAINER_RUNTIMES[row.id].id == row.id
    assert row.program
    assert row.packages
    assert row.config_packages <= {*row.packages}
    assert row.cdi_support in get_args(CdiSupport)
    assert row.config_validator in get_args(ConfigValidatorKind)
    assert row.live_config_source in get_args(LiveConfigSource)
    assert row.container_client in get_args(ContainerClientKind)
    # A runtime that is registered in no file has no daemon to read it.
    assert bool(row.config) == bool(row.unit) == bool(row.socket) == (row.cdi_support != "only")
    assert not row.drop_in or row.config


@ROWS
def test_row_has_a_rules_module_of_its_name(row: Runtime) -> None:
    rules = import_module(f"gpunode.runtimes.{row.id}")

    for name in ("configure", "inspect", *(("layers", "complete_removal") if row.unit else ())):
        assert callable(getattr(rules, name))
    if row.reloads:
        assert row.applies_on_reload({}, {}, DesiredConfig()) in {True, False}
    if row.stopped_by_restart:
        assert row.keeps_containers({}, DesiredConfig()) in {True, False}
    assert row.adapt_to_node(row, {}, DesiredConfig()) == row
    assert all(place.startswith("/") for place in row.list_read_paths({}, DesiredConfig()))


@ROWS
def test_row_finds_what_it_configured(row: Runtime) -> None:
    edited = row.configure({}, DesiredConfig())

    assert row.cdi_support == "only" or satisfies(
        row.inspect(apply_edits({}, edited), DesiredConfig()), DesiredConfig()
    )
    assert not row.configure(apply_edits({}, edited), DesiredConfig()).edits


@ROWS
def test_row_has_a_recipe_and_is_allowed_in_recipes(row: Runtime) -> None:
    assert row.id in shipped_recipe_names()
    assert row.id in get_args(RuntimeName)
    key = next(key for key in known_keys() if (key.section, key.name) == ("runtime", "name"))
    assert row.id in key.choices


@ROWS
def test_unit_and_file_of_a_row_are_probed(row: Runtime) -> None:
    assert not row.unit or row.unit in probes.PROBED_UNITS
    assert not row.config or row.config in probes.FILES


def test_no_code_compares_runtime_names() -> None:
    """Exceptions: the rules of a runtime, and doctor, whose causes concern one runtime each."""
    found = [
        f"{path.relative_to(_PACKAGE)}:{node.lineno}"
        for path in sorted(_PACKAGE.rglob("*.py"))
        if path.relative_to(_PACKAGE).parts[0] not in {"diagnoses", "facts", "page", "runtimes", "redaction"}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare) and _names_a_runtime(node)
    ]

    assert not found


def _names_a_runtime(node: ast.Compare) -> bool:
    said = [one.value for part in node.comparators for one in ast.walk(part) if isinstance(one, ast.Constant)]
    return any(isinstance(one, str) and one in CONTAINER_RUNTIMES for one in said)
