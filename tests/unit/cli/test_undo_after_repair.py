"""A whole undo on a node whose packages are not all configured: what is planned before a repair."""

from __future__ import annotations

from contextlib import nullcontext
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

EMPTY = SimpleNamespace(steps=(), pending_triggers=(), is_incomplete=False, remarks=())
NODE: Any = SimpleNamespace(host=SimpleNamespace(root="/"), notify=lambda _: None)


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: Facts = replace(machine(), unconfigured=frozenset({PackageId("nvidia-kernel-dkms")}))
    monkeypatch.setattr(undo, "survey", lambda *_, **__: facts)


def refusing(error: type[GpunodeError]) -> Any:
    def make_plan() -> None:
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
    assert undo._plan_without_repair("rollback", lambda: nothing, NODE) is nothing


def test_run_is_chosen_once_though_it_is_planned_again_after_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is asked about an older run than the newest is told once why."""
    events: list[str] = []
    nothing: Any = NothingToUndo(SimpleNamespace(run="000001-x"), "undone")  # type: ignore[arg-type]

    def choose(*_: object) -> Any:
        events.append("chosen")
        return nothing.run

    def plan(*_: object, **__: object) -> None:
        events.append("planned")
        raise JournalDamaged("what", why="why", hint="hint")

    def repair(*_: object, **__: object) -> None:
        events.append("repaired")
        monkeypatch.setattr(undo, "plan_rollback", lambda *_, **__: EMPTY)

    screen = SimpleNamespace(ask_for_consent=lambda *_, **__: None, put=lambda *_: None, show_event=None)
    node = SimpleNamespace(**vars(NODE), store=None, screen=screen, signals=SimpleNamespace(raise_if_received=None))
    node.clean_up_after_interruption = lambda: None
    monkeypatch.setattr(undo, "exclusive_session", lambda *_, **__: nullcontext(node))
    monkeypatch.setattr(undo, "require_root", lambda *_: None)
    monkeypatch.setattr(undo, "find_repair", lambda _: SimpleNamespace(purpose="finish"))
    monkeypatch.setattr(undo, "run_repair", repair)
    monkeypatch.setattr(undo, "_choose_newest_run", choose)
    monkeypatch.setattr(undo, "plan_rollback", plan)
    monkeypatch.setattr(undo, "mark_undone", lambda *_, **__: None)
    monkeypatch.setattr(undo, "explain_undone", lambda *_, **__: nothing)
    monkeypatch.setattr(undo, "already_undone_lines", lambda _: ())
    undo.rollback("", SimpleNamespace(emit=lambda _: None), "/", undo.UndoPermissions(yes=True, with_packages=True))  # type: ignore[arg-type]
    assert events == ["chosen", "planned", "repaired"]
