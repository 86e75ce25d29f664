"""A complete undo on a node with unconfigured packages, planned again after the repair."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpunode.change import Change, CommandChange, FileChange, FileState, PackageChange, PackageState
from gpunode.cli import undo
from gpunode.errors import (
    ChangeFailed,
    Conflict,
    DrainRequired,
    GpunodeError,
    Interrupted,
    JournalDamaged,
    UsageError,
)
from gpunode.facts.model import Facts
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.workflow.rollback import NothingToUndo
from tests.fakes.dpkg import STATUS, Packages
from tests.fakes.memory_node import MemoryNode, command
from tests.unit.steps.machines import CONTAINERD, machine

EMPTY = SimpleNamespace(steps=(), pending_triggers=(), is_incomplete=False, remarks=(), reboot_reason="")
NODE: Any = SimpleNamespace(store=None, host=SimpleNamespace(root="/"), notify=lambda _: None, adapt_hint=str)


@pytest.fixture
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: Facts = replace(machine(), unconfigured=frozenset({PackageId("nvidia-kernel-dkms")}))
    monkeypatch.setattr(undo, "survey", lambda *_, **__: facts)
    monkeypatch.setattr(undo, "find_broken_packages", lambda *_: (frozenset({"nvidia-kernel-dkms"}), False))


def refusing(error: type[GpunodeError]) -> Any:
    def make_plan() -> None:
        raise error("what", why="why", hint="hint")

    return make_plan


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("error", [Conflict, DrainRequired, UsageError, Interrupted])
def test_refusal_that_no_repair_changes_is_told_before_one(error: type[GpunodeError]) -> None:
    with pytest.raises(error):
        undo._plan_without_repair("rollback", refusing(error), NODE)


@pytest.mark.usefixtures("unconfigured")
def test_refusal_that_broken_packages_may_cause_has_them_repaired_first() -> None:
    assert undo._plan_without_repair("rollback", refusing(JournalDamaged), NODE) is None


STATUS_ROW = "Status: install ok installed"


@pytest.mark.parametrize(
    ("broken", "cut", "is_mended"),
    [
        ("somebodys", False, False),
        ("somebodys", True, True),
        ("libcuda1", False, True),
    ],
)
def test_undo_with_nothing_to_do_mends_only_what_gpunode_may_have_broken(
    broken: str, cut: bool, is_mended: bool, tmp_path: Path
) -> None:
    versions = {PackageId(name): PackageState("1") for name in (broken, "other")}
    node = MemoryNode(tmp_path, Packages(versions, {}), {})
    for is_last in (False, True):
        made = [PackageChange(PackageId("libcuda1"), None, PackageState("1"))]
        run = Store(tmp_path).begin("rollback" if is_last else "setup")
        seqs = run.record_intents(
            "packages", "driver", made if not is_last else [back for one in made if (back := one.inverse())]
        )
        if is_last and cut:
            run.close()
        else:
            run.record_done(*seqs)
            run.commit("done")
    status = node.files[STATUS]
    assert status is not None
    before, _, after = status.content.decode().partition(f"Package: {broken}\n")
    half = after.replace(STATUS_ROW, "Status: install ok half-configured", 1)
    node.files[STATUS] = FileState(f"{before}Package: {broken}\n{half}".encode())
    mended: list[object] = []
    node.apply = lambda changes: mended.extend(changes)  # type: ignore[method-assign]

    answer = command(node, "remove")

    assert bool(CommandChange.of_kind(mended)) is is_mended
    note = f"half-installed or not configured: {broken}; no run of gpunode left that"
    finish = "dpkg --configure -a` finishes it"
    assert (note in answer.text and finish in answer.text) is not is_mended
    assert f"`sudo {finish}" not in answer.text, "it would be this machine's dpkg"
    assert (answer.exit_code, answer.envelope["changed"]) == (0, is_mended)


@pytest.mark.parametrize(("state", "is_removed"), [("ok half-configured", True), ("reinstreq half-installed", False)])
def test_removal_needs_no_package_of_others_that_cannot_be_mended(state: str, is_removed: bool, tmp_path: Path) -> None:
    ours, others = PackageId("libcuda1"), PackageId("somebodys")
    node = MemoryNode(tmp_path, Packages({ours: PackageState("1"), others: PackageState("1")}, {}), {})
    run = Store(tmp_path).begin("setup")
    run.record_done(*run.record_intents("packages", "driver", [PackageChange(ours, None, PackageState("1"))]))
    run.commit("done")
    status = node.files[STATUS]
    assert status is not None
    before, _, after = status.content.decode().partition(f"Package: {others}\n")
    broken = after.replace(STATUS_ROW, f"Status: install {state}", 1)
    node.files[STATUS] = FileState(f"{before}Package: {others}\n{broken}".encode())
    applied: list[Change] = []

    def apply(changes: Sequence[Change]) -> None:
        if CommandChange.of_kind(changes):
            raise ChangeFailed("the repair failed", why="its licence server\n does not answer", hint="fix that")
        applied.extend(changes)
        content = f"{before.partition('Package: libcuda1')[0]}Package: {others}\n{broken}".encode()
        node.files[STATUS] = FileState(content)

    node.apply = apply  # type: ignore[method-assign]

    answer = command(node, "remove")

    assert [change.subject for change in applied] == (["libcuda1"] if is_removed else [])
    if is_removed:
        assert answer.exit_code == 0
        assert "somebodys cannot be configured, and this remove leaves it as it is" in answer.text
        assert "its licence server does not answer" in answer.text
    else:
        assert answer.exit_code == 6
        hint = answer.envelope["errors"][0]["hint"]
        assert "dpkg --remove --force-remove-reinstreq somebodys" in hint
        assert "sudo dpkg" not in hint, "it would remove this machine's package"


def test_package_that_apt_can_leave_is_no_package_to_remove(tmp_path: Path) -> None:
    """On a full disk, these are the kernel and the builder of its initramfs."""
    ours, others = PackageId("libcuda1"), PackageId("initramfs-tools")
    node = MemoryNode(tmp_path, Packages({ours: PackageState("2"), others: PackageState("1")}, {}), {})
    run = Store(tmp_path).begin("setup")
    changed = PackageChange(ours, PackageState("1"), PackageState("2"))
    run.record_done(*run.record_intents("packages", "driver", [changed]))
    run.commit("done")
    status = node.files[STATUS]
    assert status is not None
    before, name, after = status.content.decode().partition(f"Package: {others}\n")
    broken = after.replace(STATUS_ROW, "Status: install ok half-configured", 1)
    node.files[STATUS] = FileState(f"{before}{name}{broken}".encode())

    def apply(_: Sequence[Change]) -> None:
        raise ChangeFailed("the repair failed", why="No space left on device", hint="make room")

    node.apply = apply  # type: ignore[method-assign]

    answer = command(node, "rollback", "--packages")

    assert answer.exit_code == 6
    assert answer.envelope["errors"][0]["hint"] == "make room"


@pytest.mark.usefixtures("unconfigured")
def test_run_is_chosen_once_though_it_is_planned_again_after_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question about an older run than the newest is asked, and explained, only once."""
    events: list[str] = []
    nothing: Any = NothingToUndo(SimpleNamespace(id="000001-x"), "undone")  # type: ignore[arg-type]

    def choose(*_: object, **__: object) -> Any:
        events.append("chosen")
        return nothing.run

    def plan(*_: object, **__: object) -> None:
        events.append("planned")
        raise JournalDamaged("what", why="why", hint="hint")

    def repair(*_: object, **__: object) -> None:
        events.append("repaired")
        monkeypatch.setattr(undo, "plan_rollback", lambda *_, **__: EMPTY)

    screen = SimpleNamespace(ask_for_consent=lambda *_, **__: None, put=lambda *_: None, show_event=None)
    node = SimpleNamespace(**vars(NODE), screen=screen, signals=SimpleNamespace(raise_if_received=None))
    node.clean_up_after_interruption = lambda: None
    node.store = SimpleNamespace()
    monkeypatch.setattr(undo, "exclusive_session", lambda *_, **__: nullcontext(node))
    monkeypatch.setattr(undo, "require_root", lambda *_: None)
    monkeypatch.setattr(undo, "find_package_repair", lambda _: SimpleNamespace(purpose="finish"))
    monkeypatch.setattr(undo, "run_package_repair", repair)
    monkeypatch.setattr(undo, "_choose_newest_run", choose)
    monkeypatch.setattr(undo, "plan_rollback", plan)
    monkeypatch.setattr(undo, "mark_undone", lambda *_, **__: None)
    monkeypatch.setattr(undo, "explain_undone", lambda *_, **__: nothing)
    monkeypatch.setattr(undo, "already_undone_lines", lambda _: ())
    undo.rollback("", SimpleNamespace(emit=lambda _: None), "/", undo.UndoPermissions(yes=True, with_packages=True))  # type: ignore[arg-type]
    assert events == ["chosen", "planned", "repaired"]


def test_second_rollback_of_a_configuration_names_what_undoes_the_rest(tmp_path: Path) -> None:
    node = MemoryNode(
        tmp_path, Packages({PackageId("nvidia-smi"): PackageState("1")}, {}), {CONTAINERD: FileState(b"")}
    )
    run = Store(tmp_path).begin("setup")
    changes: tuple[Change, ...] = (
        PackageChange(PackageId("nvidia-smi"), None, PackageState("1")),
        FileChange(CONTAINERD, None, FileState(b"")),
    )
    for stage, change in zip(("packages", "runtime"), changes, strict=True):
        run.record_done(run.record_intent(stage, "step", change))
    run.commit("done")

    answers = [command(node, "rollback", "1") for _ in range(3)]

    assert [answer.exit_code for answer in answers] == [0, 0, 0]
    assert [answer.envelope["changed"] for answer in answers] == [True, False, False]
    assert [answer.envelope["result"].get("next_run") for answer in answers[1:]] == [run.id, run.id]


@pytest.mark.parametrize(("with_packages", "has_changed"), [(False, True), (False, False), (True, False)])
def test_rollback_after_a_failed_run_spares_the_run_before_it(
    tmp_path: Path, with_packages: bool, has_changed: bool
) -> None:
    node = MemoryNode(tmp_path, Packages({}, {}), {CONTAINERD: FileState(b"ours")})
    works = Store(tmp_path).begin("setup")
    works.record_done(works.record_intent("runtime", "step", FileChange(CONTAINERD, None, FileState(b"ours"))))
    works.commit("done")
    fails = Store(tmp_path).begin("setup")
    if has_changed:
        change: Change = PackageChange(PackageId("nvidia-smi"), None, PackageState("1"))
        fails.record_done(fails.record_intent("packages", "step", change))
    fails.commit("failed")

    refused = command(node, "rollback", *(["--packages"] if with_packages else []))
    named = command(node, "rollback", "1")

    assert (refused.exit_code, named.exit_code) == (2, 0)
    hint = refused.envelope["errors"][0]["hint"]
    assert "gpunode rollback 1" in hint
    assert ("gpunode rollback 2 --packages" in hint) == has_changed


def test_rollback_without_a_run_undoes_no_earlier_one_unasked(tmp_path: Path) -> None:
    node = MemoryNode(tmp_path, Packages({}, {}), {CONTAINERD: FileState(b"ours")})
    earlier = Store(tmp_path).begin("setup")
    earlier.record_done(earlier.record_intent("runtime", "step", FileChange(CONTAINERD, None, FileState(b"ours"))))
    earlier.commit("done")
    later = Store(tmp_path).begin("setup")
    later.commit("done")

    answer = command(node, "rollback")

    assert (answer.exit_code, node.files[CONTAINERD] is not None) == (2, True)
    (error,) = answer.envelope["errors"]
    assert "run 1 (setup: /etc/containerd/config.toml) is not the newest run" in error["what"]
    assert later.id in error["why"]
    assert "gpunode rollback 1 --" in error["hint"]
    assert "--yes" in error["hint"]
    named = command(node, "rollback", "1")
    assert (named.exit_code, node.files[CONTAINERD]) == (0, None)


def test_rollback_undoes_a_run_that_a_later_one_was_to_complete(tmp_path: Path) -> None:
    node = MemoryNode(tmp_path, Packages({}, {}), {CONTAINERD: FileState(b"ours")})
    earlier = Store(tmp_path).begin("setup")
    earlier.record_done(earlier.record_intent("runtime", "step", FileChange(CONTAINERD, None, FileState(b"ours"))))
    earlier.commit("waiting", "a reboot")
    Store(tmp_path).begin("setup").commit("done")
    assert (command(node, "rollback").exit_code, node.files[CONTAINERD]) == (0, None)
