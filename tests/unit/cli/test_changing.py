"""What a program is told of a run that stopped in its middle, or that waits."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from gpunode.change import FileChange, FileState
from gpunode.cli.changing import stopped
from gpunode.cli.setup import Options, waiting
from gpunode.errors import ChangeFailed
from gpunode.journal.store import Store
from gpunode.outcome import WaitFor, Waits, reboot_suffices
from gpunode.workflow.setup import SetupResult
from tests.unit.steps.machines import machine


def change(path: str) -> FileChange:
    return FileChange(path, None, FileState(b"x", 0o644, 0, 0))


def test_what_was_changed_before_the_failure_is_told(tmp_path: Path) -> None:
    """Ansible takes ``changed`` for the truth, and runs its handlers by it."""
    store = Store(tmp_path)
    store.begin("setup", version="0").commit("done")
    before = store.ids()
    run = store.begin("setup", version="0")
    run.done(run.intend("sources", "pin", change("/etc/made")))
    run.failed(run.intend("sources", "pin", change("/etc/failed")), "no room")
    run.commit("failed", "no room")

    answer = stopped("setup", ChangeFailed("no room"), store, before)

    assert (answer.changed, answer.exit_code, answer.result) == (True, 6, {"run": run.id})
    assert answer.changes == (change("/etc/made"),)


def test_a_run_that_never_began_changed_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin("setup", version="0").commit("done")
    answer = stopped("setup", ChangeFailed("no room"), store, store.ids())
    assert (answer.changed, answer.changes, answer.result) == (False, (), {})


EXITS: dict[WaitFor, int] = {"reboot": 10, "console": 10, "drain": 11}


def waits(*kinds: WaitFor) -> SetupResult:
    return SetupResult((), (), (), tuple(Waits(kind, f"why {kind}") for kind in kinds), "1", 0.0, machine())


@pytest.mark.parametrize("kind", get_args(WaitFor))
def test_a_wait_never_ends_as_done(kind: WaitFor) -> None:
    ended = waiting(waits(kind), Options(reboot=True))
    assert ended.exit_code == EXITS[kind]
    assert f"why {kind}" in ended.why
    assert ended.hint


def test_what_has_to_come_first_decides_how_a_run_ends_and_no_reason_is_lost() -> None:
    ended = waiting(waits("reboot", "drain"), Options())
    assert (ended.exit_code, ended.why) == (11, "why reboot\nwhy drain")


@pytest.mark.parametrize(("kinds", "suffices"), [((), False), (("reboot",), True), (("reboot", "drain"), False),
                                                 (("console",), False)])  # fmt: skip
def test_a_node_reboots_by_itself_only_where_nothing_else_has_to_happen(
    kinds: tuple[WaitFor, ...], suffices: bool
) -> None:
    assert reboot_suffices(waits(*kinds).waits) is suffices
