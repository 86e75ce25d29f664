"""rollback: what is restored, what is refused, and which run is chosen."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import (
    FileChange,
    FileState,
    MigChange,
    MigLayout,
    ModuleChange,
    PackageChange,
    PackageState,
    Trigger,
)
from gpunode.errors import ChangeFailed, Conflict, DrainRequired, Undetermined, UsageError, VerifyFailed
from gpunode.facts.evidence import Capture, Ownership, Probe
from gpunode.host.local import LocalHost
from gpunode.host.port import TriggerResult
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.workflow.rollback import (
    UndoResult,
    execute_undo,
    explain_undone,
    find_newest_run,
    find_run,
    mark_undone,
    plan_rollback,
    preview_rollback,
    undo_failure,
)
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON, machine
from tests.unit.workflow.nodes import Node

RESTART = Trigger("restart", "containerd.service")
FORMER, OURS, EDITED = (FileState(text) for text in (b"former\n", b"ours\n", b"edited\n"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def host() -> Node:
    return Node(machine(files={CONTAINERD: FORMER}))


def write(
    host: Node,
    store: Store,
    after: FileState | None = OURS,
    *,
    path: str = CONTAINERD,
    stage: str = "runtime",
    trigger: Trigger = RESTART,
    finish: bool = True,
) -> str:
    """Write one file in a run, and return the id."""
    run = store.begin("setup")
    change = FileChange(path, host.files.get(path), after, frozenset({trigger}))
    seq = run.record_intent(stage, "step", change)
    host.apply([change])
    if finish:
        run.record_done(seq)
        run.record_trigger(trigger)
        run.commit("done")
    else:
        run.close()
    return run.id


def undo(host: Node, store: Store, run: str, *, force: bool = False) -> UndoResult:
    back = plan_rollback(store, host, run, force=force)
    return execute_undo(back, host, store, on_event=lambda _event: None)


def test_rollback_restores_bytes_mode_and_owner_and_restarts_the_daemon(store: Store) -> None:
    former = FileState(b"\xff not text\r\n", 0o600, 0, 999)
    host = Node(machine(files={CONTAINERD: former}))
    run = write(host, store)
    done = undo(host, store, run)
    assert host.files[CONTAINERD] == former
    assert host.triggered == [RESTART]
    assert [one.trigger for one in done.trigger_results] == [RESTART]
    assert store.find_pending_triggers() == {}


def test_rollback_removes_a_file_that_setup_made(store: Store, host: Node) -> None:
    run = write(host, store, path=DAEMON_JSON)
    undo(host, store, run)
    assert host.files[DAEMON_JSON] is None


def test_folder_left_by_a_killed_rollback_is_removed_by_the_next(store: Store, tmp_path: Path) -> None:
    host, drop_in = LocalHost(str(tmp_path)), tmp_path / "etc/containerd/conf.d/99-nvidia.toml"
    (tmp_path / "etc").mkdir()
    run = store.begin("setup")
    ours = FileState(b"ours", uid=os.geteuid(), gid=os.getegid())
    change = host.complete_change(FileChange("/etc/containerd/conf.d/99-nvidia.toml", None, ours))
    seq = run.record_intent("runtime", "step", change)
    host.apply([change])
    run.record_done(seq)
    run.commit("done")
    drop_in.unlink()  # killed here: the file has gone, and the folders that were made for it have not
    execute_undo(plan_rollback(store, host, run.id), host, store, on_event=lambda _event: None)
    assert list((tmp_path / "etc").iterdir()) == []
    assert plan_rollback(store, host, run.id).steps == ()


def test_folder_is_removed_with_the_last_of_its_two_files(store: Store, tmp_path: Path) -> None:
    host, folder = LocalHost(str(tmp_path)), tmp_path / "etc/docker"
    (tmp_path / "etc").mkdir()
    run = store.begin("setup")
    for path in (DAEMON_JSON, "/etc/docker/key.json"):
        ours = FileState(b"{}", uid=os.geteuid(), gid=os.getegid())
        change = host.complete_change(FileChange(path, None, ours))
        seq = run.record_intent("runtime", "step", change)
        host.apply([change])
        run.record_done(seq)
    run.commit("done")
    (folder / "daemon.json").unlink()  # the folder was made for this one
    execute_undo(plan_rollback(store, host, run.id), host, store, on_event=lambda _event: None)
    assert not folder.exists()


@pytest.mark.parametrize("theirs", ["certs.d", ".theirs"])
def test_folder_in_use_by_others_leaves_nothing_to_undo(store: Store, tmp_path: Path, theirs: str) -> None:
    host, folder = LocalHost(str(tmp_path)), tmp_path / "etc/docker"
    (tmp_path / "etc").mkdir()
    run = store.begin("setup")
    ours = FileState(b"{}", uid=os.geteuid(), gid=os.getegid())
    change = host.complete_change(FileChange(DAEMON_JSON, None, ours, frozenset({RESTART})))
    seq = run.record_intent("runtime", "step", change)
    host.apply([change])
    run.record_done(seq)
    run.record_trigger(RESTART)
    run.commit("done")
    (folder / "daemon.json").unlink()
    (folder / theirs).mkdir()
    assert plan_rollback(store, host, run.id).steps == (), "no daemon is restarted for a file that is gone already"
    (folder / theirs).rmdir()
    (step,) = plan_rollback(store, host, run.id).steps
    assert step.change.folders == ("/etc/docker",)


def test_rollback_shows_and_keeps_an_edit_unless_forced(store: Store, host: Node) -> None:
    run = write(host, store)
    host.files[CONTAINERD] = EDITED
    with pytest.raises(Conflict) as caught:
        plan_rollback(store, host, run)
    assert "+edited" in caught.value.why
    assert "--force" in caught.value.hint
    assert host.files[CONTAINERD] == EDITED
    forced = undo(host, store, run, force=True)
    assert host.files[CONTAINERD] == FORMER
    undo(host, store, forced.run)
    assert host.files[CONTAINERD] == EDITED


NVIDIA = b'"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}'


@pytest.mark.parametrize(
    ("former", "ours", "now", "offered"),
    [
        (None, b"{%s}" % NVIDIA, b'{"debug": true, %s}' % NVIDIA, True),
        (b'{"debug": true}', b'{"debug": true, %s}' % NVIDIA, b"{%s}" % NVIDIA, True),
        (b"{%s}" % NVIDIA, b'{"default-runtime": "nvidia", %s}' % NVIDIA, b'{"debug": true, %s}' % NVIDIA, False),
        (None, b"{%s}" % NVIDIA, b"{}", False),
        (None, b"{%s}" % NVIDIA, b"{", False),
    ],
)
def test_rollback_conflict_offers_unconfigure_where_that_keeps_the_edit(
    former: bytes | None, ours: bytes, now: bytes, offered: bool, store: Store
) -> None:
    host = Node(machine(files={DAEMON_JSON: FileState(former)} if former else {}))
    run = write(host, store, FileState(ours), path=DAEMON_JSON, trigger=Trigger("reload", "docker.service"))
    host.files[DAEMON_JSON] = FileState(now)
    with pytest.raises(Conflict) as caught:
        plan_rollback(store, host, run)
    command = f"sudo gpunode ctk runtime unconfigure --runtime=docker --root {store.root}"
    assert (command in caught.value.hint.splitlines()) is offered
    assert caught.value.hint.startswith("make the second change by hand") is not offered
    assert "--force" in caught.value.hint


def test_file_removed_or_chmodded_since_counts_as_edited(store: Store, host: Node) -> None:
    run = write(host, store)
    for now in (None, replace(OURS, mode=0o600), replace(OURS, uid=1000)):
        host.files[CONTAINERD] = now
        with pytest.raises(Conflict, match="edited since" if now else "deleted since") as refused:
            plan_rollback(store, host, run)
        assert ("the edited file" in refused.value.hint) == (now is not None)


def test_already_restored_file_needs_no_rollback(store: Store, host: Node) -> None:
    run = write(host, store)
    host.files[CONTAINERD] = FORMER
    assert plan_rollback(store, host, run).changes == ()


def test_run_interrupted_before_its_write_needs_no_rollback(store: Store, host: Node) -> None:
    run = write(host, store, finish=False)
    host.files[CONTAINERD] = FORMER
    assert plan_rollback(store, host, run).changes == ()


def test_run_interrupted_after_its_write_can_be_rolled_back(store: Store, host: Node) -> None:
    run = write(host, store, finish=False)
    undo(host, store, run)
    assert host.files[CONTAINERD] == FORMER


def test_later_run_on_the_same_file_must_be_rolled_back_first(store: Store, host: Node) -> None:
    first = write(host, store)
    second = write(host, store, FileState(b"theirs\n"))
    with pytest.raises(Conflict) as caught:
        plan_rollback(store, host, first)
    assert second in caught.value.what
    assert caught.value.hint == f"sudo gpunode rollback 2 --root {store.root}"
    undo(host, store, second)
    undo(host, store, first)
    assert host.files[CONTAINERD] == FORMER


def test_later_run_on_another_file_does_not_block_a_rollback(store: Store, host: Node) -> None:
    first = write(host, store)
    write(host, store, path=DAEMON_JSON)
    undo(host, store, first)
    assert host.files[CONTAINERD] == FORMER
    assert host.files[DAEMON_JSON] == OURS


def test_two_writes_of_one_file_are_rolled_back_to_the_state_before_both(store: Store, host: Node) -> None:
    run = store.begin("setup")
    for after in (OURS, EDITED):
        change = FileChange(CONTAINERD, host.files[CONTAINERD], after, frozenset({RESTART}))
        run.record_done(run.record_intent("runtime", "step", change))
        host.apply([change])
    run.commit("done")
    undo(host, store, run.id)
    assert host.files[CONTAINERD] == FORMER


def write_twice(host: Node, store: Store) -> str:
    """Write one file twice in a run, and return the id: only the first write owes a reload of systemd."""
    run = store.begin("setup")
    reload = Trigger("daemon-reload")
    for before, after, owes in ((FORMER, OURS, {reload, RESTART}), (OURS, FileState(b"ours 2\n"), {RESTART})):
        change = FileChange(CONTAINERD, before, after, frozenset(owes))
        run.record_done(run.record_intent("runtime", "step", change))
        host.apply([change])
    for trigger in (reload, RESTART):
        run.record_trigger(trigger)
    run.commit("done")
    return run.id


def test_first_of_two_writes_is_not_taken_for_an_edit(store: Store, host: Node) -> None:
    run = write_twice(host, store)
    host.files[CONTAINERD] = OURS
    undo(host, store, run)
    assert host.files[CONTAINERD] == FORMER


def test_rollback_fires_the_triggers_of_every_write(store: Store, host: Node) -> None:
    undo(host, store, write_twice(host, store))
    assert host.triggered == [Trigger("daemon-reload"), RESTART]


def test_plain_rollback_leaves_packages_and_sources(store: Store, host: Node) -> None:
    path = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    run = write(host, store, path=path, stage="sources")
    assert plan_rollback(store, host, run).changes == ()


def test_daemon_that_rejects_the_restored_file_keeps_the_present_one(store: Store) -> None:
    host = Node(machine(files={CONTAINERD: FORMER}))
    run = write(host, store)
    host.accepts = lambda _trigger, node: node.files[CONTAINERD] == OURS
    with pytest.raises(ChangeFailed) as caught:
        undo(host, store, run)
    assert host.files[CONTAINERD] == OURS
    assert f"restored: {CONTAINERD}" in caught.value.why


def test_rollback_needs_consent_to_stop_running_containers(store: Store, host: Node) -> None:
    run = write(host, store, path=DAEMON_JSON, trigger=Trigger("restart", "docker.service"))
    host.docker_ps = Capture("docker ps", "ok", b"4f2 trainer\n")
    with pytest.raises(DrainRequired, match="1 running docker") as caught:
        plan_rollback(store, host, run)
    assert "--allow-disruption" in caught.value.hint
    back = plan_rollback(store, host, run, allow_disruption=True)
    execute_undo(back, host, store, on_event=lambda _event: None)
    assert host.files[DAEMON_JSON] is None


def test_removed_docker_default_runtime_needs_a_restart_not_a_reload(store: Store, host: Node) -> None:
    reload, restart = (Trigger(kind, "docker.service") for kind in ("reload", "restart"))
    document = b'{"runtimes": {"nvidia": {"path": "/n"}}, "default-runtime": "nvidia"}'
    run = write(host, store, FileState(document), path=DAEMON_JSON, trigger=reload)
    assert plan_rollback(store, host, run).files[0].triggers == {restart}
    host.docker_ps = Capture("docker ps", "ok", b"4f2 trainer\n")
    with pytest.raises(DrainRequired):
        plan_rollback(store, host, run)
    run = write(host, store, FileState(b'{"runtimes": {"nvidia": {"path": "/n"}}}'), path=DAEMON_JSON, trigger=reload)
    assert plan_rollback(store, host, run).files[0].triggers == {reload}


def test_rollback_works_while_docker_is_down(store: Store, host: Node) -> None:
    run = write(host, store, path=DAEMON_JSON, trigger=Trigger("restart", "docker.service"))
    host.docker_ps = Capture("docker ps", "failed", error="Is the docker daemon running?")
    undo(host, store, run)
    assert host.files[DAEMON_JSON] is None


@pytest.mark.parametrize("is_running", [True, False])
def test_rollback_does_not_restart_a_docker_without_client_unasked(store: Store, host: Node, is_running: bool) -> None:
    """Debian 13 has the client in a package of its own, so that nothing lists what dockerd runs."""
    run = write(host, store, path=DAEMON_JSON, trigger=Trigger("restart", "docker.service"))
    host.docker_ps = Capture("docker ps", "absent")
    state = "active" if is_running else "inactive"
    host.units = Capture("systemctl", "ok", f"Id=docker.service\nLoadState=loaded\nActiveState={state}\n".encode())
    if not is_running:
        undo(host, store, run)
        return
    with pytest.raises(Undetermined) as caught:
        plan_rollback(store, host, run)
    assert "docker-cli" in caught.value.why


class Unreadable(Node):
    def run_probe(self, probe: Probe, /) -> Capture:
        if probe.path == CONTAINERD:
            return Capture(probe.path, "failed", error="Input/output error", ownership=Ownership(0o644, 0, 0))
        return super().run_probe(probe)

    def run_triggers(self, triggers: object, /) -> tuple[TriggerResult, ...]:
        raise AssertionError("nothing is restarted")


def test_unreadable_file_is_not_overwritten_by_rollback(store: Store) -> None:
    host = Unreadable(machine(files={CONTAINERD: FORMER}))
    run = write(host, store)
    with pytest.raises(Undetermined, match="cannot be read") as caught:
        plan_rollback(store, host, run)
    assert "Input/output error" in caught.value.why


# -- which run ---------------------------------------------------------------------------------------------------------


def test_second_rollback_undoes_nothing_and_names_the_next_run(store: Store, host: Node) -> None:
    """A script that rolls back twice undoes one run."""
    first = write(host, store)
    second = write(host, store, EDITED)
    undo(host, store, find_newest_run(store).id)
    for _ in range(2):
        run = find_newest_run(store)
        assert (run.id, run.is_undone(with_packages=False)) == (second, True)
    older = explain_undone(store, run, "", with_packages=False)
    assert older.newest_not_undone is not None
    assert (older.newest_not_undone.id, older.command) == (first, f"sudo gpunode rollback 1 --root {store.root}")
    undo(host, store, first)
    assert host.files[CONTAINERD] == FORMER
    assert explain_undone(store, find_newest_run(store), "", with_packages=False).newest_not_undone is None


@pytest.mark.parametrize("with_packages", [False, True])
def test_rollback_after_two_kills_undoes_the_run_that_changed_something(
    store: Store, host: Node, *, with_packages: bool
) -> None:
    cut = store.begin("setup")
    cut.record_done(cut.record_intent("runtime", "runtime-config", FileChange(CONTAINERD, FORMER, OURS)))
    cut.close()
    store.begin("setup").close()
    assert find_newest_run(store, with_packages=with_packages).id == cut.id


def test_rollback_after_a_kill_does_not_undo_a_run_that_worked(store: Store, host: Node) -> None:
    write(host, store)
    cut = store.begin("setup")
    cut.record_intent("packages", "driver", PackageChange(PackageId("libcuda1"), None, PackageState("1")))
    cut.close()
    store.begin("setup").close()
    with pytest.raises(UsageError, match="run 3 ended early, before it changed a container runtime's") as caught:
        find_newest_run(store)
    first, second = caught.value.hint.splitlines()
    assert first == f"undo what run 2 did: sudo gpunode rollback 2 --packages --root {store.root}"
    assert second == f"undo run 1: sudo gpunode rollback 1 --root {store.root}"
    for number in "12":
        find_run(store, number)


def test_rest_of_a_run_is_undone_after_the_configuration_of_an_earlier_one(store: Store, host: Node) -> None:
    """The hint was to undo the earlier run's rollback, which registers its runtime again."""
    first = write(host, store)
    second = store.begin("setup")
    file, driver = FileChange(CONTAINERD, OURS, EDITED), PackageChange(PackageId("libcuda1"), None, PackageState("1"))
    second.record_done(second.record_intent("packages", "driver", driver))
    second.record_done(second.record_intent("runtime", "runtime-config", file))
    second.commit("done")
    host.apply([file])
    for run in (second.id, first):
        undo(host, store, run)

    back = plan_rollback(store, host, second.id, machine(packages={"libcuda1": PackageState("1")}))

    assert [one.subject for one in back.changes] == ["libcuda1"]
    assert host.files[CONTAINERD] == FORMER


def test_run_with_nothing_left_counts_as_undone(store: Store, host: Node) -> None:
    first = write(host, store)
    second = write(host, store, EDITED)
    host.files[CONTAINERD] = OURS  # by hand
    assert plan_rollback(store, host, second).steps == ()
    for _ in range(2):
        mark_undone(store, find_newest_run(store), with_packages=False)
    assert len(store.read_runs()) == 3, "recorded once"
    assert find_newest_run(store).is_fully_undone, "it changed nothing but the configuration"
    undo(host, store, first)
    assert host.files[CONTAINERD] == FORMER


def test_rollback_of_a_rollback_by_id_works(store: Store, host: Node) -> None:
    run = write(host, store)
    back = undo(host, store, run)
    undo(host, store, find_run(store, back.run).id)
    assert host.files[CONTAINERD] == OURS
    assert find_newest_run(store).id == run
    assert not find_newest_run(store).undone_by


DOCKER_RUNS = FileState(b'{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}')


@pytest.mark.parametrize("is_there", [False, True])
def test_runtime_whose_program_has_gone_is_not_registered_again(store: Store, host: Node, *, is_there: bool) -> None:
    """After a removal, docker could start no container if only its configuration were restored."""
    host.files["/usr/bin/nvidia-container-runtime"] = FileState(b"") if is_there else None
    removal = store.begin("remove")
    change = FileChange(DAEMON_JSON, DOCKER_RUNS, None)
    toolkit = PackageChange(PackageId("nvidia-container-toolkit"), PackageState("1"), None)
    for stage, step, made in (("runtime", "runtime-config", change), ("packages", "toolkit", toolkit)):
        removal.record_done(removal.record_intent(stage, step, made))
    removal.commit("done")
    if is_there:
        undo(host, store, removal.id)
        assert host.files[DAEMON_JSON] == DOCKER_RUNS
        return
    with pytest.raises(Conflict, match=r"would name /usr/bin/nvidia-container-runtime, which is not installed") as told:
        undo(host, store, removal.id)
    assert told.value.hint == f"sudo gpunode rollback 1 --packages --root {store.root}"
    assert preview_rollback(store, host, find_run(store, "1")) == "can be undone with --packages"


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("/usr/bin/nvidia-container-runtime", "sudo gpunode setup --runtime=docker --only=toolkit-repository"),
        ("/opt/site/nvidia-container-runtime", "install /opt/site/nvidia-container-runtime, which is not part of"),
    ],
)
def test_undo_of_a_mere_rollback_says_how_to_install_the_missing_program(
    store: Store, host: Node, program: str, hint: str
) -> None:
    runs = FileState(DOCKER_RUNS.content.replace(b"/usr/bin/nvidia-container-runtime", program.encode()))
    back = undo(host, store, write(host, store, runs, path=DAEMON_JSON))
    host.files[program] = None
    for facts in (None, machine()):
        with pytest.raises(Conflict, match="not installed") as told:
            plan_rollback(store, host, back.run, facts)
        assert told.value.hint.startswith(hint)


def test_file_that_a_later_run_had_read_again_can_be_undone(store: Store, host: Node) -> None:
    # That run, which should be undone first, has nothing to undo.
    cut = write(host, store, finish=False)
    reread = store.begin("configure")
    reread.record_done(
        reread.record_intent("runtime", "step", FileChange(CONTAINERD, OURS, OURS, frozenset({RESTART})))
    )
    reread.record_trigger(RESTART)
    reread.commit("done")
    assert [step.change.subject for step in plan_rollback(store, host, cut).steps] == [CONTAINERD]


def test_removal_undoes_only_what_is_left(store: Store, host: Node) -> None:
    rolled_back, kept = write(host, store), write(host, store, path=DAEMON_JSON)
    store.begin("setup").commit("failed")
    back = undo(host, store, rolled_back)
    removal = store.begin("remove", with_packages=True)
    removal.record_done(removal.record_intent("runtime", "remove", FileChange(DAEMON_JSON, OURS, None)))
    removal.commit("done")
    assert [run.undone_by for run in store.read_runs()] == [back.run, removal.id, "", "", ""]
    assert kept == store.read_runs()[1].id


def test_removal_counts_as_undoing_every_earlier_run(store: Store, host: Node) -> None:
    run = write(host, store)
    removal = store.begin("remove", with_packages=True)
    change = FileChange(CONTAINERD, OURS, FORMER, frozenset({RESTART}))
    removal.record_done(removal.record_intent("runtime", "remove", change))
    removal.commit("done")
    host.apply([change])
    assert find_newest_run(store).undone_by == removal.id
    undo(host, store, removal.id)
    assert find_newest_run(store).id == run
    assert not find_newest_run(store).undone_by


def test_run_is_found_by_id_or_number(store: Store, host: Node) -> None:
    run = write(host, store)
    assert find_run(store, run).id == find_run(store, "1").id == run
    for wrong in ("2", "0", run[:-1]):
        with pytest.raises(UsageError, match="there is no run") as caught:
            find_run(store, wrong)
        assert caught.value.why == "recorded: 1"


def test_run_without_configuration_points_to_the_packages_option(store: Store, host: Node) -> None:
    write(host, store, path="/etc/apt/sources.list.d/cuda-debian12-x86_64.list", stage="sources")
    refusals: tuple[Callable[[], object], ...] = (
        lambda: find_run(store, "1", with_packages=False),
        lambda: find_newest_run(store),
    )
    for refused in refusals:
        with pytest.raises(UsageError, match=r"configuration|nothing to roll back") as caught:
            refused()
        assert caught.value.hint == f"sudo gpunode rollback 1 --packages --root {store.root}"
    assert find_newest_run(store, with_packages=True).id == find_run(store, "1", with_packages=True).id


def test_log_says_of_each_run_whether_it_can_be_undone(store: Store, host: Node) -> None:
    cuda_list = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    runs = [
        write(host, store, path=cuda_list, stage="sources"),
        write(host, store),
        write(host, store, EDITED),
        write(host, store, path=DAEMON_JSON),
    ]

    def told(host: Node) -> list[str]:
        return [preview_rollback(store, host, run) for run in store.read_runs()]

    assert told(host) == [
        "can be undone with --packages",
        f"cannot be undone now: later runs changed the same things: {runs[2]}",
        "can be undone now",
        "can be undone now",
    ]
    host.files[CONTAINERD] = FileState(b"by hand")
    undo(host, store, runs[3])
    assert told(host)[1:4] == [
        f"cannot be undone now: later runs changed the same things: {runs[2]}",
        f"cannot be undone now: {CONTAINERD} was edited since gpunode wrote it",
        "undone by run 5",
    ]
    host.files[CONTAINERD] = OURS
    assert told(host)[2] == "its files are already restored or gone"


def test_many_things_that_a_later_run_changed_too_are_counted(store: Store, host: Node) -> None:
    for before, after in ((None, PackageState("1")), (PackageState("1"), PackageState("2"))):
        run = store.begin("setup")
        for number in range(9):
            change = PackageChange(PackageId(f"p{number}"), before, after)
            run.record_done(run.record_intent("packages", "driver", change))
        run.commit("done")
    with pytest.raises(Conflict) as refused:
        plan_rollback(store, host, store.read_runs()[0].id, machine())
    assert refused.value.why.endswith("p5 and 3 more")


def test_run_of_packages_that_a_later_one_changed_cannot_be_undone(store: Store, host: Node) -> None:
    for before, after in ((None, PackageState("1")), (PackageState("1"), PackageState("2"))):
        run = store.begin("setup")
        run.record_done(run.record_intent("packages", "driver", PackageChange(PackageId("libcuda1"), before, after)))
        run.commit("done")
    first, second = store.read_runs()
    assert preview_rollback(store, host, first) == f"cannot be undone now: later runs changed the same things: {run.id}"
    assert preview_rollback(store, host, second) == "can be undone with --packages"


def test_run_that_only_packages_undo_is_named_as_the_next(store: Store, host: Node) -> None:
    write(host, store, path="/etc/apt/sources.list.d/cuda-debian12-x86_64.list", stage="sources")
    undo(host, store, write(host, store))
    left = explain_undone(store, find_newest_run(store), "run 3 undid it", with_packages=False)
    assert left.command == f"sudo gpunode rollback 1 --packages --root {store.root}"


def test_run_that_only_loaded_a_module_needs_no_undo(store: Store, host: Node) -> None:
    # Its module stays until the next boot, so it does not block the undo of the run that installed the driver.
    driver = PackageChange(PackageId("nvidia-driver-cuda"), None, PackageState("1"))
    module = ModuleChange("nvidia", before=False, after=True)
    for stage, step, change in (("packages", "driver", driver), ("kernel", "module-load", module)):
        run = store.begin("setup")
        run.record_done(run.record_intent(stage, step, change))
        run.commit("done")
    first, second = store.read_runs()
    assert preview_rollback(store, host, second) == "changed nothing that can be undone"
    back = plan_rollback(store, host, first.id, machine(packages={"nvidia-driver-cuda": PackageState("1")}))
    assert [one.subject for one in back.changes] == ["nvidia-driver-cuda"]


def test_rollback_that_could_not_restore_a_layout_can_be_run_again(store: Store, host: Node) -> None:
    """NVML does not answer while the driver is not loaded."""
    run = store.begin("setup")
    split = MigChange("GPU-1", MigLayout(enabled=False), MigLayout(enabled=True))
    run.record_done(run.record_intent("runtime", "mig", split))
    file = FileChange(CONTAINERD, FORMER, OURS)
    run.record_done(run.record_intent("runtime", "step", file))
    run.commit("done")
    host.apply([file])

    done = undo(host, store, run.id)

    assert isinstance(undo_failure(done.plan), VerifyFailed)
    assert host.files[CONTAINERD] == FORMER
    assert not find_newest_run(store).is_undone(with_packages=False)
    again = plan_rollback(store, host, run.id)
    assert (again.steps, again.is_incomplete) == ((), True)


def test_node_without_runs_has_nothing_to_roll_back(store: Store) -> None:
    with pytest.raises(UsageError, match="nothing to roll back") as caught:
        find_newest_run(store)
    assert "no run of gpunode" in caught.value.why
    assert caught.value.hint == f"sudo gpunode remove --root {store.root}", "a log without runs tells nothing"


DEFAULT = FileState(b'{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}\n')
PLAIN = FileState(b'{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}\n')


@pytest.mark.parametrize(
    ("former", "ours", "kind"),
    [
        (None, PLAIN, "reload"),
        (PLAIN, DEFAULT, "restart"),
        (None, DEFAULT, "restart"),
        (FileState(b"not json"), DEFAULT, "restart"),
    ],
)
def test_rollback_restarts_docker_where_a_reload_keeps_a_stale_default(
    former: FileState | None, ours: FileState, kind: str, store: Store
) -> None:
    """dockerd keeps a default runtime that its file no longer names, although it has dropped the entry."""
    host = Node(machine(files={DAEMON_JSON: former} if former else {}), docker_ps=Capture("docker ps", "ok"))
    run = write(host, store, ours, path=DAEMON_JSON, trigger=Trigger("reload", "docker.service"))
    notes = undo(host, store, run).plan.notes
    assert [trigger.kind for trigger in host.triggered] == [kind]
    assert host.files[DAEMON_JSON] == former
    assert any("a running dockerd keeps nvidia until its next restart" in note for note in notes) == (kind == "reload")
