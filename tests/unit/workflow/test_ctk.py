"""Editing only a runtime's configuration: journaled, all or nothing, and undone by every command that can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import FileChange, FileState, RuntimeExpectation
from gpunode.cli.runtime_config import local_reload_command, reload_command
from gpunode.errors import ChangeFailed, Conflict, DrainRequired, Interrupted, Refused, UsageError
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.probes import TOOLKIT_PROGRAM, unit_probe
from gpunode.host.port import TriggerResult
from gpunode.journal.store import Store
from gpunode.runtimes import DesiredConfig, ObservedConfig, find_runtime
from gpunode.workflow import ctk, rollback
from gpunode.workflow.events import ignore_event
from gpunode.workflow.remove import plan_removal
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON, machine
from tests.unit.workflow.editing import (
    DOCKER,
    DROP_IN,
    IN_DROP_IN,
    IN_PLACE,
    PLAIN,
    RESTART,
    Machine,
    configured,
    made,
    plan_of,
    unconfigured,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_configure_is_journaled_under_its_verb_and_restarts_nothing(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    done = configured(host, store)
    (run,) = store.read_runs()
    assert (run.id, run.verb, run.subjects) == (done.run, "configure", (DROP_IN, CONTAINERD))
    assert run.commit is not None
    assert run.commit.result == "done"
    assert host.triggered == []
    assert store.find_pending_triggers() == {}


def test_second_configure_has_nothing_to_do(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    configured(host, store)
    assert plan_of(host).files == ()


def test_rollback_of_configure_restores_the_file_and_restarts_the_daemon(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    done = configured(host, store)
    chosen = rollback.find_newest_run(store)
    assert chosen.id == done.run
    back = rollback.plan_rollback(store, host, chosen.id)
    rollback.execute_undo(back, host, store, on_event=ignore_event)
    assert host.contents == {CONTAINERD: PLAIN}
    assert host.triggered == [RESTART]


def test_unconfigure_removes_all_files_that_configure_wrote(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    configured(host, store)
    assert set(store.footprint().files) == {CONTAINERD, DROP_IN}
    unconfigured(host, store)
    assert store.footprint().files == {}


@pytest.mark.parametrize("desired", [IN_DROP_IN, replace(IN_PLACE, default=True)])
@pytest.mark.parametrize("verb", ["remove", "unconfigure"])
def test_configuration_that_a_rollback_brings_back_is_taken_out_again(
    desired: DesiredConfig, verb: str, store: Store
) -> None:
    former = {CONTAINERD: PLAIN, TOOLKIT_PROGRAM: b""}
    host = Machine(former)
    configured(host, store, desired)
    unconfigured(host, store, desired)
    back = rollback.plan_rollback(store, host, store.ids()[-1])
    rollback.execute_undo(back, host, store, on_event=ignore_event)
    assert host.contents != former
    if verb == "remove":
        rollback.execute_undo(plan_removal(store, host, machine()), host, store, on_event=ignore_event)
    else:
        unconfigured(host, store, desired)
    assert host.contents == former


@pytest.mark.parametrize("desired", [IN_DROP_IN, IN_PLACE, replace(IN_PLACE, default=True, enable_cdi=True)])
def test_unconfigure_restores_an_untouched_file_byte_for_byte(desired: DesiredConfig, store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    configured(host, store, desired)
    plan = unconfigured(host, store, desired)
    assert host.contents == {CONTAINERD: PLAIN}
    assert plan.trigger == RESTART
    assert [run.verb for run in store.read_runs()] == ["configure", "unconfigure"]


@pytest.mark.parametrize("former", [None, b'{"debug": true}\n'])
@pytest.mark.parametrize("packaged", [b'{\n    "log-driver": "local"\n}\n', b"{}\n", b""])
def test_unconfigure_leaves_a_file_that_a_package_brought_since(
    former: bytes | None, packaged: bytes, store: Store
) -> None:
    host = Machine({} if former is None else {DAEMON_JSON: former})
    configured(host, store, DOCKER, "docker")
    host.files[DAEMON_JSON] = FileState(packaged)
    row = "Package: docker.io\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
    host.files["/var/lib/dpkg/status"] = FileState(row.encode())
    host.files["/var/lib/dpkg/info/docker.io.list"] = FileState(f"/.\n{DAEMON_JSON}\n".encode())
    unconfigured(host, store, DOCKER, "docker")
    assert host.contents[DAEMON_JSON] == packaged


def test_failed_write_puts_back_the_file_written_before_it(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    host.full = {CONTAINERD}
    with pytest.raises(ChangeFailed) as stopped:
        configured(host, store)
    assert host.contents == {CONTAINERD: PLAIN}
    assert f"restored: {DROP_IN}" in stopped.value.why
    (run,) = store.read_runs()
    assert run.commit is not None
    assert run.commit.result == "failed"
    assert store.find_pending_triggers() == {}


def test_file_edited_since_the_plan_is_not_overwritten(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    plan = plan_of(host)
    host.files[CONTAINERD] = FileState(PLAIN + b"# theirs\n")
    with pytest.raises(Conflict):
        made(host, store, plan)
    assert host.contents == {CONTAINERD: PLAIN + b"# theirs\n"}


def test_configuration_refused_by_the_runtime_parser_is_not_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Machine({CONTAINERD: PLAIN})

    def check_candidate_files(expectation: RuntimeExpectation, changes: Sequence[FileChange]) -> str:
        assert [change.path for change in changes] == [DROP_IN, CONTAINERD]
        assert expectation.handlers == {("nvidia", "/usr/bin/nvidia-container-runtime")}
        raise Refused("containerd does not take it")

    monkeypatch.setattr(host, "check_candidate_files", check_candidate_files)
    with pytest.raises(Refused):
        configured(host, store)
    assert host.contents == {CONTAINERD: PLAIN}
    (run,) = store.read_runs()
    assert (run.subjects, run.commit and run.commit.result) == ((), "failed")
    with pytest.raises(UsageError, match="nothing to roll back"):
        rollback.find_newest_run(store)


def test_signal_before_the_first_write_leaves_no_run(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})

    def stop() -> None:
        raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        ctk.apply_edit(plan_of(host), host, store, "configure", ignore_event, check_interrupt=stop)
    assert store.read_runs() == ()


def test_requested_restart_is_made_and_settled(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    done = made(host, store, plan_of(host), restart=True)
    assert host.triggered == [RESTART]
    assert [one.trigger for one in done.trigger_results] == [RESTART]


def test_daemon_that_fails_to_restart_gets_both_files_back(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    host.accepts = lambda _trigger, node: DROP_IN not in node.files or node.files[DROP_IN] is None
    with pytest.raises(ChangeFailed) as stopped:
        made(host, store, plan_of(host), restart=True)
    assert host.contents == {CONTAINERD: PLAIN}
    assert "is running with the former file again" in stopped.value.why


def test_containers_that_a_restart_would_stop_are_named() -> None:
    host = Machine({DAEMON_JSON: b"{}\n"})
    host.docker_ps = Capture("docker ps", "ok", b"abc web\ndef db\n")
    ctk.refuse_disruption(host, plan_of(host, DOCKER, "docker"))
    with pytest.raises(DrainRequired, match="2 running docker containers") as stopped:
        ctk.refuse_disruption(host, plan_of(host, replace(DOCKER, enable_cdi=True), "docker"))
    assert "web, db" in stopped.value.why


def test_configure_without_restart_leaves_an_earlier_trigger_pending(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    cut = store.begin("setup")
    cut.record_done(
        cut.record_intent("runtime", "step", FileChange("/etc/other", None, FileState(b""), frozenset({RESTART})))
    )
    cut.close()
    configured(host, store)
    assert set(store.find_pending_triggers()) == {RESTART}
    still = store.find_interrupted_run()
    assert still is not None
    assert still.begin.verb == "setup"


def test_interrupted_edit_is_concluded_when_nothing_is_left_to_do(store: Store) -> None:
    store.begin("configure").close()
    ctk.conclude_interrupted_edit(store)
    assert store.find_interrupted_run() is None
    cut = store.begin("setup")
    cut.close()
    ctk.conclude_interrupted_edit(store)
    assert store.find_interrupted_run() is not None


UNIT = " ".join(unit_probe("containerd.service").argv)
RUNS = """Id=containerd.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
MainPID=1
ExecMainStartTimestamp=Fri 2026-05-01 00:00:00.000000 UTC
StateChangeTimestamp=Fri 2026-05-01 00:00:00.000000 UTC
"""
STARTED = 1777593600.0
HAS = {"nvidia": "/usr/bin/nvidia-container-runtime"}


@pytest.mark.parametrize(("changed", "unread"), [(STARTED - 1, False), (STARTED + 1, True), (None, False)])
def test_daemon_started_before_its_file_changed_is_restarted(changed: float | None, unread: bool, store: Store) -> None:
    class Dated(Machine):
        def run_probe(self, probe: Probe, /) -> Capture:
            capture = super().run_probe(probe)
            owner = capture.ownership
            return replace(capture, ownership=replace(owner, ctime=changed)) if owner else capture

    host = Dated({CONTAINERD: PLAIN}, {UNIT: RUNS})
    configured(host, store)
    plan = plan_of(host)
    assert bool(plan.files) is unread
    assert ctk.with_restart_choice(plan, restart=False).files == ()
    made(host, store, ctk.with_restart_choice(plan, restart=True), restart=True)
    assert host.triggered == [RESTART] * unread
    assert (
        "was changed after containerd.service" in ctk.compare_with_plan(plan, effective(HAS), is_live=True).difference
    ) is unread


@pytest.mark.parametrize("row", ["docker", "containerd"])
def test_failed_daemon_has_not_read_its_file_and_is_started(row: str, store: Store) -> None:
    desired, main, unit = (DOCKER, DAEMON_JSON, "docker") if row == "docker" else (IN_DROP_IN, CONTAINERD, "containerd")
    files = {DAEMON_JSON: b"{}\n", CONTAINERD: PLAIN}
    failed = RUNS.replace("containerd", unit).replace("=active", "=failed").replace("MainPID=1", "MainPID=0")
    host = Machine({main: files[main]}, {" ".join(unit_probe(f"{unit}.service").argv): failed})
    configured(host, store, desired, row)
    plan = plan_of(host, desired, row)
    assert plan.files == ()
    (again,) = ctk.with_restart_choice(plan, restart=True).files
    assert again.before == again.after
    assert ctk.explain_no_reload(plan) == ""
    verdict = ctk.compare_with_plan(plan, effective({}), is_live=True)
    assert (verdict.failed, "it has failed" in verdict.difference) == (True, True)
    assert str(reload_command(plan, failed=verdict.failed)) == f"sudo systemctl restart {unit}"


def test_starting_daemon_is_reported_as_unverified(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN}, {UNIT: RUNS.replace("=active", "=activating\nSubState=start")})
    configured(host, store)
    plan = plan_of(host)
    assert ctk.with_restart_choice(plan, restart=True).files
    verdict = ctk.compare_with_plan(plan, effective({}), is_live=True)
    assert verdict == ctk.ConfigStatus(unverified="it is still starting; try again in a moment")


def effective(handlers: Mapping[str, str]) -> ctk.ReadEffectiveConfig:
    return lambda _: ObservedConfig(handlers)


def test_config_status_compares_files_before_it_asks_the_daemon(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN}, {UNIT: RUNS})
    assert ctk.compare_with_plan(plan_of(host), effective({}), is_live=True).differs_from_request
    configured(host, store)
    plan = plan_of(host)
    good = effective(HAS)
    assert ctk.compare_with_plan(plan, good, is_live=True) == ctk.ConfigStatus()
    assert "handler nvidia" in ctk.compare_with_plan(plan, effective({}), is_live=True).difference
    assert "image" in ctk.compare_with_plan(plan, effective({}), is_live=False).unverified
    assert "containerd is not installed" in ctk.compare_with_plan(plan, lambda _: None, is_live=True).unverified


def test_file_of_another_daemon_is_not_loaded_by_the_systems() -> None:
    """A rootless dockerd reads its own file."""
    plan = plan_of(Machine({}), replace(DOCKER, config="/home/joe/.config/docker/daemon.json"), "docker")
    assert "systemctl" not in reload_command(plan, failed=False)
    assert "only file" not in plan.planned.reason


def test_daemon_without_its_client_is_not_called_missing(store: Store) -> None:
    runs = {" ".join(unit_probe("docker.service").argv): RUNS.replace("containerd", "docker")}
    host = Machine({DAEMON_JSON: b"{}\n"}, runs)
    made(host, store, plan_of(host, DOCKER, "docker"))
    status = ctk.compare_with_plan(plan_of(host, DOCKER, "docker"), lambda _: None, is_live=True)
    assert "docker-cli" in status.unverified


def test_stopped_daemon_or_one_with_another_file_is_not_asked(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN}, {UNIT: RUNS.replace("ActiveState=active", "ActiveState=inactive")})
    configured(host, store)
    assert "is not running" in ctk.compare_with_plan(plan_of(host), effective({}), is_live=True).unverified
    elsewhere = replace(IN_PLACE, config="/opt/config.toml")
    configured(host, store, elsewhere)
    assert "/opt/config.toml" in ctk.compare_with_plan(plan_of(host, elsewhere), effective({}), is_live=True).unverified


def test_daemon_that_cannot_parse_its_files_is_a_difference(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN}, {UNIT: RUNS})
    configured(host, store)

    def broken(_: str) -> ObservedConfig | None:
        raise ChangeFailed("containerd does not say", why="toml: line 3")

    assert "toml: line 3" in ctk.compare_with_plan(plan_of(host), broken, is_live=True).difference


@pytest.mark.parametrize("row", ["docker", "containerd"])
@pytest.mark.parametrize(
    ("beside", "skipped"),
    [
        (set(), False),  # nothing runs; it reads its files when it starts
        ({"socket"}, True),
        ({"socket", "systemd"}, False),
    ],
)
def test_next_command_without_systemd_names_how_to_restart_the_daemon(
    row: str, beside: set[str], skipped: bool, store: Store
) -> None:
    desired, main = (DOCKER, DAEMON_JSON) if row == "docker" else (IN_DROP_IN, CONTAINERD)
    places = {"socket": find_runtime(row).socket, "systemd": "/run/systemd/system"}
    host = Machine({main: b"{}\n" if row == "docker" else PLAIN, **{places[name]: b"" for name in beside}})
    plan = plan_of(host, desired, row)
    assert plan.trigger is not None
    told = (TriggerResult(plan.trigger, 0.0, "systemd is not running here"),)
    assert ctk.reload_was_skipped(host, plan, ctk.EditResult("1", told)) is skipped
    assert not ctk.reload_was_skipped(host, plan, ctk.EditResult("1", (TriggerResult(plan.trigger, 0.1),)))
    following = reload_command(plan, failed=False, systemd=False)
    assert following == (
        "sudo kill -HUP $(pidof dockerd)" if row == "docker" else "restart containerd the way it was started"
    )
    with_systemd = f"sudo systemctl {'reload' if row == 'docker' else 'restart'} {row}"
    proposed = {"systemd": with_systemd, "socket": following}
    expected = next((proposed[one] for one in ("systemd", "socket") if one in beside), "")
    assert local_reload_command(host, plan, failed=False) == expected
