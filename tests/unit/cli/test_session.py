"""JSON answers about a run that stopped midway or that waits."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from signal import SIG_DFL, SIGHUP, SIGINT, SIGTERM, raise_signal, signal
from threading import Timer
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from gpunode.change import FileChange, FileState, Trigger
from gpunode.cli.boundary import run_cli
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.plans import setup_summary_lines, stage_lines
from gpunode.cli.session import Session, SignalGuard, exclusive_session, partial_run_envelope
from gpunode.cli.setup import blocked_setup_error
from gpunode.errors import ChangeFailed, Interrupted, Refused
from gpunode.journal.store import Store
from gpunode.outcome import WAIT_PHRASES, Blocked, BlockingAction, Refusal, reboot_suffices
from gpunode.steps.table import STEPS
from gpunode.workflow.converge import StagePlan, StepPlan, raise_refusal
from gpunode.workflow.recovery import NO_BACKLOG, Backlog


def change(path: str) -> FileChange:
    return FileChange(path, None, FileState(b"x", 0o644, 0, 0))


def test_changes_made_before_a_failure_are_in_the_answer(tmp_path: Path) -> None:
    """Ansible trusts ``changed``, and runs its handlers by it."""
    store = Store(tmp_path)
    store.begin("setup").commit("done")
    before = store.ids()
    run = store.begin("setup")
    run.record_done(run.record_intent("sources", "pin", change("/etc/made")))
    run.record_failed(run.record_intent("sources", "pin", change("/etc/failed")), "no room")
    run.commit("failed", "no room")

    answer = partial_run_envelope("setup", ChangeFailed("no room"), store, before)

    assert (answer.changed, answer.exit_code, answer.result) == (True, 6, {"run": run.id})
    assert answer.changes == (change("/etc/made"),)


def test_run_that_never_began_has_no_changes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin("setup").commit("done")
    answer = partial_run_envelope("setup", ChangeFailed("no room"), store, store.ids())
    assert (answer.changed, answer.changes, answer.result) == (False, (), {})


def test_wait_that_is_over_is_not_shown_as_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as other:
        other.enter_context(Store(tmp_path).lock())
        Timer(0.3, other.close).start()
        with exclusive_session("rollback", OutputOptions(), str(tmp_path), 5.0, wait_for_others=False) as node:
            node.notify("an earlier run was cut short")
    said = capsys.readouterr().out
    assert "waiting up to 5 s: another gpunode is changing this node" in " ".join(said.split())
    assert "not started" not in said


def waits(*kinds: BlockingAction) -> list[Blocked]:
    return [Blocked(kind, f"why {kind}") for kind in kinds]


@pytest.mark.parametrize("kind", get_args(BlockingAction))
def test_waiting_setup_never_exits_with_success(kind: BlockingAction) -> None:
    ended = blocked_setup_error(waits(kind), resumes=True)
    assert ended.exit_code == 10
    assert f"why {kind}" in ended.why
    assert ended.hint


def test_waiting_setup_that_needs_the_console_says_so_with_every_reason() -> None:
    ended = blocked_setup_error(waits("reboot", "console"), resumes=True)
    assert "a reboot with console access is needed" in ended.what
    assert ended.why == "why reboot\nwhy console"
    assert "MokManager" in ended.hint


@pytest.mark.parametrize(("kinds", "suffices"), [((), False), (("reboot",), True), (("reboot", "console"), False),
                                                 (("console",), False)])  # fmt: skip
def test_automatic_reboot_needs_no_other_wait(kinds: tuple[BlockingAction, ...], suffices: bool) -> None:
    assert reboot_suffices(waits(*kinds)) is suffices


@pytest.mark.parametrize("kind", get_args(BlockingAction))
def test_plan_names_what_it_waits_for(kind: BlockingAction) -> None:
    planned = [StagePlan("kernel", (StepPlan(STEPS[0], Blocked(kind, "the reason"), ()),))]
    lines = [*stage_lines(planned, verbose=False), *setup_summary_lines(planned, image=False, verbose=False)]
    text = "\n".join("".join(part.text for part in one.spans) for one in lines)
    assert f"waits for {WAIT_PHRASES[kind]}: the reason" in text
    assert f"{WAIT_PHRASES[kind]} will be needed: the reason" in text


@pytest.mark.parametrize(
    ("left", "is_pending", "exit_code", "next_step"),
    [
        (waits("reboot"), False, 10, "next: sudo systemctl reboot"),
        (waits("console", "reboot"), False, 10, ""),
        (waits("reboot"), True, 4, "next: sudo gpunode setup"),
    ],
)
def test_plan_proposes_setup_only_where_it_changes_something(
    left: list[Blocked],
    is_pending: bool,
    exit_code: int,
    next_step: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [StepPlan(STEPS[0], wait) for wait in left]
    backlog = Backlog(pending_triggers=(Trigger("initramfs"),)) if is_pending else NO_BACKLOG
    monkeypatch.setattr("gpunode.cli.plan.make_plan", lambda *_: [StagePlan("kernel", tuple(steps))])
    monkeypatch.setattr("gpunode.cli.plan.load_backlog", lambda *_: backlog)
    assert run_cli(["plan", "--check", "--node", "debian12-gtx1080"]) == exit_code
    proposed = [said for said in capsys.readouterr().out.splitlines() if said.startswith("next: ")]
    assert "".join(proposed).startswith(next_step)
    assert bool(proposed) is bool(next_step)


@pytest.mark.parametrize(
    ("hint", "in_image"),
    [
        ("  sudo dpkg --configure -a\nthen again", "  sudo chroot '/mnt/my image' dpkg --configure -a\nthen again"),
        ("`sudo dpkg --remove x`", "`sudo chroot '/mnt/my image' dpkg --remove x`"),
        ("check:\n  apt-cache policy", "check:\n  sudo chroot '/mnt/my image' apt-cache policy"),
        ("dpkg was at work, and apt-get did nothing", "dpkg was at work, and apt-get did nothing"),
    ],
)
def test_package_commands_in_hints_run_in_the_image(hint: str, in_image: str) -> None:
    """On the build machine they would remove or configure its own packages."""
    hosts: list[Any] = [SimpleNamespace(root=root) for root in ("/", "/mnt/my image")]
    nothing: Any = None
    this, image = (Session(host, nothing, nothing, nothing, nothing) for host in hosts)
    assert this.adapt_hint(hint) == hint
    assert image.adapt_hint(hint) == in_image
    assert image.adapt_hint(in_image) == in_image


def test_refused_step_ends_the_run() -> None:
    planned = [StagePlan("kernel", (StepPlan(STEPS[0], Refusal("what", "why", "hint"), ()),))]
    with pytest.raises(Refused) as refused:
        raise_refusal(planned)
    assert (refused.value.what, refused.value.why, refused.value.hint) == ("what", "why", "hint")


@pytest.mark.parametrize(("number", "exit_code"), [(SIGINT, 130), (SIGTERM, 143), (SIGHUP, 143)])
def test_signal_ends_the_run_after_the_current_write(number: int, exit_code: int) -> None:
    """systemd and Ansible distinguish a user's interrupt from a requested end."""
    heard = []
    former = signal(number, SIG_DFL)  # nohup starts programs with SIGHUP ignored, and gpunode leaves it so
    try:
        with SignalGuard(lambda: heard.append(number)) as guard:
            raise_signal(number)
            assert heard == [number]
            with pytest.raises(Interrupted) as ended:
                guard.raise_if_received()
    finally:
        signal(number, former)
    assert ended.value.exit_code == exit_code
