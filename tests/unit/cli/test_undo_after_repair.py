"""A whole undo on a node whose packages are not all configured: what is planned before a repair."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpunode.cli import undo
from gpunode.errors import Conflict, DrainRequired, GpunodeError, JournalDamaged
from gpunode.facts.model import Facts
from gpunode.package_id import PackageId
from gpunode.workflow.rollback import NothingToUndo
from tests.unit.steps.machines import machine

NODE: Any = SimpleNamespace(host=SimpleNamespace(root="/"), notify=lambda _: None)


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: Facts = replace(machine(), unconfigured=frozenset({PackageId("nvidia-kernel-dkms")}))
    monkeypatch.setattr(undo, "survey", lambda *_, **__: facts)


def refusing(error: type[GpunodeError]) -> Any:
    def make_plan(_: object) -> None:
        raise error("what", why="why", hint="hint")

    return make_plan


@pytest.mark.parametrize("error", [Conflict, DrainRequired])
def test_refusal_that_no_repair_changes_is_told_before_one(error: type[GpunodeError]) -> None:
    with pytest.raises(error):
        undo._plan_without_repair("rollback", refusing(error), NODE)


def test_refusal_that_broken_packages_may_cause_has_them_repaired_first() -> None:
    assert undo._plan_without_repair("rollback", refusing(JournalDamaged), NODE) is None


def test_nothing_to_undo_needs_no_repair() -> None:
    nothing: Any = NothingToUndo.__new__(NothingToUndo)
    assert undo._plan_without_repair("rollback", lambda _: nothing, NODE) is nothing
