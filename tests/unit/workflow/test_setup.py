"""setup on nodes where something goes wrong, and on those where no action is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import (
    Change,
    FileChange,
    FileState,
    ModuleChange,
    PackageChange,
    PackageState,
    RuntimeExpectation,
    ServiceChange,
    Trigger,
)
from gpunode.errors import (
    ChangeFailed,
    DrainRequired,
    GpunodeError,
    Interrupted,
    Refused,
    Undetermined,
    UsageError,
)
from gpunode.facts.evidence import Capture
from gpunode.facts.model import Facts, Known, LoadedDriver, value_or
from gpunode.facts.probes import RESUME_SERVICE, RESUME_SERVICE_FILE
from gpunode.facts.project import project_changes
from gpunode.journal.run import Run
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Action, Simulation
from gpunode.recipe import Recipe, RuntimeSettings
from gpunode.workflow.converge import StagePlan, project_stage
from gpunode.workflow.events import Event, Notice
from gpunode.workflow.plan import has_pending_work
from gpunode.workflow.recovery import Backlog, find_backlog
from gpunode.workflow.remove import plan_removal
from gpunode.workflow.setup import Resume, SetupOptions, SetupResult, setup
from gpunode.workflow.verify import check_configuration
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON, GTX_1080, gpu, machine, recipe, unit, with_driver
from tests.unit.workflow.nodes import Node

DRIVER_ALONE = ("driver-pin", "conflicts", "driver")
ASKED = SetupOptions()
RESTART = Trigger("restart", "containerd.service")
ONLY_CONFIG = replace(ASKED, only=("runtime-config",))
DOCKER_CDI = Recipe("test", runtime=RuntimeSettings("docker", cdi=True))
BEFORE = b"# mine\nversion = 2\n"


def owe(run: Run, trigger: Trigger) -> None:
    """Record a change that owes a trigger, and no file."""
    run.record_done(run.record_intent("kernel", "x", ModuleChange("x", False, True, frozenset({trigger}))))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def run(node: Facts, host: Node, store: Store, wanted: Recipe, asked: SetupOptions = ONLY_CONFIG) -> SetupResult:
    return setup(wanted, host, store, node, advance=project_stage, options=asked, on_event=lambda _event: None)


def containerd(**more: object) -> Facts:
    there = {"packages": {"containerd": "1.6.20"}, "files": {CONTAINERD: BEFORE}}
    return machine(**{**there, "units": {"containerd.service": unit()}, **more})  # type: ignore[arg-type]


def docker(**more: object) -> Facts:
    there = {"packages": {"docker.io": "20.10.24"}, "units": {"docker.service": unit()}}
    return machine(**{**there, **more})  # type: ignore[arg-type]


def journal(store: Store) -> list[str]:
    return [summary.commit.result if summary.commit else "cut short" for summary in store.read_runs()]


def is_untouched(host: Node, store: Store) -> bool:
    return not host.made and not host.triggered and not store.folder.exists()


# -- before anything ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "wanted", "kind"),
    [
        (machine(gpus=()), recipe("containerd"), Refused),
        (machine(files={CONTAINERD: b"not = = toml"}), recipe("containerd", version="none"), Refused),
        (machine(packages={"nvidia-tesla-470-driver": PackageState("470.256.02-1", held=True)}), recipe(), Refused),
        (machine(gpus=(gpu(GTX_1080), gpu("2901", address="0000:02:00.0"))), recipe(), Refused),
    ],
    ids=["no GPU", "a file that is no TOML", "a hold", "a mixed host"],
)
def test_refused_setup_changes_nothing(node: Facts, wanted: Recipe, kind: type[GpunodeError], store: Store) -> None:
    host = Node(node)
    with pytest.raises(kind):
        run(node, host, store, wanted, ASKED)
    assert is_untouched(host, store)


def test_unplanned_removal_is_refused_before_any_change(store: Store) -> None:
    node = docker()
    gone = Simulation(
        (Action("install", PackageId("containerd"), "1.6"), Action("remove", PackageId("openmpi-bin"), former="4.1"))
    )
    host = Node(node, solver=lambda _changes: gone)
    asked = replace(ASKED, only=("runtime-install",))
    with pytest.raises(Refused, match="would not do what was planned"):
        run(replace(node, units={}), host, store, recipe("containerd"), asked)
    assert is_untouched(host, store)


def test_declined_setup_changes_nothing(store: Store) -> None:
    def no(_plans: Sequence[StagePlan]) -> None:
        raise UsageError("declined")

    host = Node(containerd())
    with pytest.raises(UsageError, match="declined"):
        run(containerd(), host, store, recipe("containerd"), replace(ONLY_CONFIG, confirm=no))
    assert is_untouched(host, store)


def test_converged_setup_records_no_run_and_asks_nothing(store: Store) -> None:
    host = Node(containerd())
    first = run(containerd(), host, store, recipe("containerd"))
    assert first.changed

    def never(_plans: Sequence[StagePlan]) -> None:
        pytest.fail("asked about an empty plan")

    second = run(first.facts, host, store, recipe("containerd"), replace(ONLY_CONFIG, confirm=never))
    assert not second.changed
    assert len(store.read_runs()) == 1


@pytest.mark.parametrize("word", ["a\nb", "\udcff.toml"])
def test_unsafe_resume_argument_is_refused_before_any_change(word: str, store: Store) -> None:
    host = Node(containerd())
    with pytest.raises(UsageError, match="systemd"):
        run(
            containerd(),
            host,
            store,
            recipe("containerd"),
            replace(ONLY_CONFIG, resume=Resume(lambda _: ("gpunode", word), b"")),
        )
    assert is_untouched(host, store)


# -- workloads ---------------------------------------------------------------------------------------------------------

RUNNING = Capture("docker ps", "ok", b"4f2 trainer\n9a1 web server\n")


def test_setup_needs_consent_to_stop_running_containers(store: Store) -> None:
    host = Node(docker(), docker_ps=RUNNING)
    with pytest.raises(DrainRequired) as caught:
        run(docker(), host, store, DOCKER_CDI)
    assert "trainer, web server" in caught.value.why
    assert is_untouched(host, store)
    assert run(docker(), host, store, DOCKER_CDI, replace(ONLY_CONFIG, allow_disruption=True)).changed


@pytest.mark.parametrize(
    "said",
    [
        Capture("docker ps", "timeout"),
        Capture("docker ps", "failed", error="permission"),
        Capture("docker ps", "absent"),  # Debian 13: docker.io only recommends docker-cli
    ],
)
def test_docker_that_cannot_list_its_containers_is_not_restarted(said: Capture, store: Store) -> None:
    host = Node(docker(), docker_ps=said)
    with pytest.raises(Undetermined, match="which docker containers"):
        run(docker(), host, store, DOCKER_CDI)
    assert is_untouched(host, store)


@pytest.mark.parametrize(
    "said",
    [
        Capture("docker ps", "ok", b""),
        Capture("docker ps", "failed", error="Cannot connect to the Docker daemon. Is the docker daemon running?"),
        Capture(
            "docker ps", "failed", error="failed to connect: check if the path is correct and if the daemon is running"
        ),
    ],
)
def test_docker_without_containers_is_restarted(said: Capture, store: Store) -> None:
    assert run(docker(), Node(docker(), docker_ps=said), store, DOCKER_CDI).changed


def test_containers_do_not_block_a_reload_or_a_containerd_restart(store: Store) -> None:
    assert run(docker(), Node(docker(), docker_ps=RUNNING), store, recipe("docker")).changed
    assert run(containerd(), Node(containerd(), docker_ps=RUNNING), store, recipe("containerd")).changed


# -- a daemon that refuses ---------------------------------------------------------------------------------------------


def test_daemon_that_rejects_its_new_file_gets_the_old_one_back(store: Store) -> None:
    host = Node(containerd(), accepts=lambda _trigger, node: node.bytes_of(CONTAINERD) == BEFORE)
    with pytest.raises(ChangeFailed) as caught:
        run(containerd(), host, store, recipe("containerd"))
    assert host.bytes_of(CONTAINERD) == BEFORE
    assert host.triggered == [RESTART, RESTART]
    assert "bad file" in caught.value.why
    assert f"restored: {CONTAINERD}" in caught.value.why
    assert store.find_pending_triggers() == {}
    assert journal(store) == ["failed"]
    (kept,) = store.folder.rglob("rejected-*")
    assert b"nvidia-container-runtime" in kept.read_bytes()


def test_rejected_new_file_is_removed(store: Store) -> None:
    host = Node(docker(), accepts=lambda _trigger, node: node.bytes_of(DAEMON_JSON) is None)
    with pytest.raises(ChangeFailed):
        run(docker(), host, store, recipe("docker"))
    assert host.files[DAEMON_JSON] is None


def test_daemon_that_does_not_recover_is_reported_with_both_failures(store: Store) -> None:
    host = Node(containerd(), accepts=lambda _trigger, _node: False)
    with pytest.raises(ChangeFailed) as caught:
        run(containerd(), host, store, recipe("containerd"))
    assert host.bytes_of(CONTAINERD) == BEFORE
    assert "does not start with the former file either" in caught.value.why
    assert RESTART in store.find_pending_triggers()


def test_stopped_daemon_that_fails_to_start_gets_its_old_file_back(store: Store) -> None:
    node = containerd(units={"containerd.service": unit(active=False)})
    host = Node(node, refuses=ServiceChange)
    with pytest.raises(ChangeFailed) as caught:
        run(node, host, store, recipe("containerd"))
    assert host.bytes_of(CONTAINERD) == BEFORE
    assert "restored: " in caught.value.why


def test_only_the_file_of_the_failed_daemon_is_put_back(store: Store) -> None:
    """An interrupted run owes docker's restart; docker did not reject containerd's file."""
    cut = store.begin("setup")
    owe(cut, Trigger("restart", "docker.service"))
    cut.close()
    node = containerd(units={"containerd.service": unit(), "docker.service": unit()})
    host = Node(node, accepts=lambda trigger, _node: trigger == RESTART)
    with pytest.raises(ChangeFailed, match=r"docker\.service") as caught:
        run(node, host, store, recipe("containerd"), replace(ONLY_CONFIG, allow_disruption=True))
    assert host.bytes_of(CONTAINERD) != BEFORE
    assert RESTART not in store.find_pending_triggers()
    assert Trigger("restart", "docker.service") in store.find_pending_triggers()
    assert "restored: nothing" in caught.value.why


def test_file_of_an_interrupted_run_is_put_back_when_its_daemon_rejects_it(store: Store) -> None:
    written = converged_node(None).files[CONTAINERD]
    assert isinstance(written, Known)
    assert written.value is not None
    cut = store.begin("setup")
    change = FileChange(CONTAINERD, FileState(BEFORE), written.value, frozenset({RESTART}))
    cut.record_done(*cut.record_intents("runtime", "runtime-config", (change,)))
    cut.close()
    node = containerd(files={CONTAINERD: written.value.content})
    host = Node(node, accepts=lambda _trigger, node: node.bytes_of(CONTAINERD) == BEFORE)

    with pytest.raises(ChangeFailed) as caught:
        run(node, host, store, recipe("containerd"))

    assert host.bytes_of(CONTAINERD) == BEFORE
    assert f"restored: {CONTAINERD}" in caught.value.why
    assert store.find_pending_triggers() == {}


def test_written_config_that_containerd_misreads_is_put_back(store: Store) -> None:
    class Misread(Node):
        def check_written_files(self, expectation: RuntimeExpectation, /) -> None:
            assert self.bytes_of(expectation.path) != BEFORE
            raise ChangeFailed("containerd does not read its new configuration as intended")

    host = Misread(containerd())
    with pytest.raises(ChangeFailed, match="new configuration") as caught:
        run(containerd(), host, store, recipe("containerd"))
    assert host.bytes_of(CONTAINERD) == BEFORE
    assert f"restored: {CONTAINERD}" in caught.value.why
    assert journal(store) == ["failed"]
    assert (host.triggered, store.find_pending_triggers()) == ([], {})


def test_failed_write_leaves_neither_of_two_runtime_files(store: Store) -> None:
    class Full(Node):
        def apply(self, changes: Sequence[Change], /) -> None:
            if any(isinstance(change, FileChange) and change.path == CONTAINERD for change in changes):
                raise ChangeFailed("no room")
            super().apply(changes)

    node = containerd(packages={"containerd": "2.1.9"})
    host = Full(node)
    earlier = store.begin("setup")
    owe(earlier, Trigger("restart", "docker.service"))
    earlier.close()
    with pytest.raises(ChangeFailed, match="no room") as caught:
        run(node, host, store, recipe("containerd"), replace(ONLY_CONFIG, allow_disruption=True))
    assert {path: state for path, state in host.files.items() if state is not None} == {CONTAINERD: FileState(BEFORE)}
    assert "restored: /etc/containerd/conf.d/99-nvidia.toml" in caught.value.why
    assert host.triggered == []
    assert set(store.find_pending_triggers()) == {Trigger("restart", "docker.service")}, "an earlier run's debt stays"


def test_rejected_docker_reload_stays_pending_and_keeps_a_foreign_edit(store: Store) -> None:
    """The file was edited since docker read it: gpunode only makes docker read it again."""
    node = converged_node(1.0, "docker")
    state = node.files[DAEMON_JSON]
    assert isinstance(state, Known)
    assert state.value is not None
    node = replace(node, changed_at={DAEMON_JSON: 2.0})
    host = Node(node, accepts=lambda _trigger, _node: False)
    for _ in range(2):
        with pytest.raises(ChangeFailed) as caught:
            run(node, host, store, recipe("docker"))
        assert host.bytes_of(DAEMON_JSON) == state.value.content
        assert "nothing was restored" in caught.value.why
        assert set(store.find_pending_triggers()) == {Trigger("reload", "docker.service")}
        # systemd counts the signal as a completed reload.
        node = replace(node, changed_at={DAEMON_JSON: 0.5})


# -- an earlier run that was cut short ---------------------------------------------------------------------------------


def setup_with_notices(node: Facts, host: Node, store: Store) -> tuple[SetupResult, list[str]]:
    events: list[Event] = []
    done = setup(
        recipe("containerd"), host, store, node, advance=project_stage, options=ONLY_CONFIG, on_event=events.append
    )
    return done, [event.text for event in events if isinstance(event, Notice)]


def test_interrupted_run_is_reported_and_finished(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    cut = store.begin("setup")
    cut.close()

    done, (said,) = setup_with_notices(containerd(), Node(containerd()), store)

    assert done.changed
    assert cut.id in said
    assert "by ada" in said
    assert said.endswith("cut short before its first change; this run finishes it")


def test_interrupted_run_with_nothing_left_is_reported_once(store: Store) -> None:
    first = Node(containerd())
    run(containerd(), first, store, recipe("containerd"))
    cut = store.begin("setup")
    cut.close()
    node = containerd(files={CONTAINERD: first.bytes_of(CONTAINERD)})

    done, (said,) = setup_with_notices(node, Node(node), store)
    _, again = setup_with_notices(node, Node(node), store)

    assert not done.changed
    assert said.endswith("nothing is left to do")
    assert again == []


# -- what an earlier run owes ------------------------------------------------------------------------------------------


def record_pending_trigger(store: Store, trigger: Trigger) -> float:
    cut = store.begin("setup")
    owe(cut, trigger)
    cut.close()
    return store.find_pending_triggers()[trigger]


def converged_node(started_at: float | None, name: str = "containerd") -> Facts:
    path, text = (CONTAINERD, BEFORE) if name == "containerd" else (DAEMON_JSON, b"{}")
    packages = {"containerd": "1.6.20", "docker.io": "20.10.24"}
    node = machine(packages=packages, files={path: text}, units={f"{name}.service": unit(started_at=started_at)})
    stage = Node(node)
    change = _written_file(node, stage, name)
    return replace(node, files={**node.files, path: Known(change, "x")})


def _written_file(node: Facts, host: Node, name: str) -> FileState:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run(node, host, Store(folder), recipe(name))
    state = host.files[CONTAINERD if name == "containerd" else DAEMON_JSON]
    assert isinstance(state, FileState)
    return state


def test_restart_lost_in_a_power_cut_is_made_up_for(store: Store) -> None:
    since = record_pending_trigger(store, RESTART)
    node = converged_node(since - 1)
    host = Node(node)
    told: list[Event] = []
    done = setup(
        recipe("containerd"), host, store, node, advance=project_stage, options=ONLY_CONFIG, on_event=told.append
    )
    assert host.triggered == [RESTART]
    assert store.find_pending_triggers() == {}
    assert done.changed
    assert any(isinstance(event, Notice) and "containerd.service" in event.text for event in told)


def test_pending_trigger_of_a_failed_run_is_reported_as_such(store: Store) -> None:
    node, cold = containerd(), Trigger("initramfs")
    failed = store.begin("setup")
    owe(failed, cold)
    failed.commit("failed", "the initramfs could not be rebuilt")
    whole = replace(node, files=converged_node(None).files)

    left = find_backlog(store, whole)

    assert left.pending_triggers == (cold,)
    assert has_pending_work((), left)
    assert str(left) == "an earlier run failed and left this pending: initramfs"
    check = check_configuration(recipe("containerd"), whole, Node(whole), planned=(), backlog=left)
    assert (check.status, check.detail) == ("failed", "still to do: initramfs")
    _, (said,) = setup_with_notices(whole, Node(whole), store)
    assert said.startswith(str(left))
    assert not find_backlog(store, whole)


@pytest.mark.parametrize(("cut", "words"), [(True, "was cut short"), (False, "was interrupted")])
def test_only_interrupted_runs_are_called_interrupted(store: Store, cut: bool, words: str) -> None:
    begun = store.begin("setup")
    owe(begun, RESTART)
    if cut:
        begun.close()
    else:
        begun.commit("interrupted", "SIGINT")
    assert str(find_backlog(store, converged_node(None))) == f"an earlier run {words} and left this pending: {RESTART}"


def test_unreadable_journal_is_reported_and_passes_no_check(store: Store) -> None:
    left = Backlog(unread_reason="only root may read the journal")
    assert not has_pending_work((), left)
    node = converged_node(None)
    check = check_configuration(recipe("containerd"), node, Node(node), planned=(), backlog=left)
    assert check.status == "skipped"
    assert left.unread_reason in check.detail


def test_daemon_started_after_the_write_needs_no_restart(store: Store) -> None:
    since = record_pending_trigger(store, RESTART)
    host = Node(converged_node(since + 1))
    assert not run(converged_node(since + 1), host, store, recipe("containerd")).changed
    assert host.triggered == []


def test_pending_docker_restart_needs_consent_to_stop_containers(store: Store) -> None:
    since = record_pending_trigger(store, Trigger("restart", "docker.service"))
    node = converged_node(since - 1, "docker")
    host = Node(node, docker_ps=RUNNING)
    with pytest.raises(DrainRequired):
        run(node, host, store, recipe("docker"))
    assert host.triggered == []


# -- in the middle -----------------------------------------------------------------------------------------------------


def test_signal_stops_setup_between_two_changes(store: Store) -> None:
    host = Node(machine())

    def stop() -> None:
        if len(host.made) == 2:
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        run(machine(), host, store, recipe("containerd"), replace(ASKED, check_interrupt=stop))
    assert len(host.made) == 2
    assert journal(store) == ["interrupted"]
    assert {trigger.kind for trigger in store.find_pending_triggers()} == {"index-refresh"}


def test_failed_change_leaves_earlier_changes_journaled(store: Store) -> None:
    host = Node(machine(), refuses=PackageChange)
    with pytest.raises(ChangeFailed):
        run(machine(), host, store, recipe(), ASKED)
    (summary,) = store.read_runs()
    assert journal(store) == ["failed"]
    assert "/etc/apt/preferences.d/gpunode-nvidia" in summary.subjects


def test_change_that_had_no_effect_fails_the_run(store: Store) -> None:
    def unmoved(facts: Facts, _stage: StagePlan) -> Facts:
        return facts

    with pytest.raises(ChangeFailed, match="not as planned") as caught:
        setup(
            recipe("containerd"),
            Node(containerd()),
            store,
            containerd(),
            advance=unmoved,
            options=ONLY_CONFIG,
            on_event=lambda _event: None,
        )
    assert caught.value.exit_code == 6


def solver_with(*more: Action, needs: str = "") -> Callable[[Sequence[PackageChange]], Simulation]:
    """Return a solver that does what is requested plus ``more``, but nothing without ``needs``."""

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        if any(str(change.id) == needs and change.after is None for change in changes):
            return Simulation((), f"nvidia-driver-cuda : Depends: {needs} but it is not going to be installed")
        gone = tuple(Action("purge", change.id, former="470.256.02-1") for change in changes if change.after is None)
        brought = [str(change.id) for change in changes if change.after is not None and str(change.id) != needs]
        brought += [needs] if needs else []
        return Simulation((*(Action("install", PackageId.of(name), "595.91.07-1") for name in brought), *gone, *more))

    return solver


def test_unplanned_removal_found_after_the_index_refresh_is_refused(store: Store) -> None:
    old = {"nvidia-driver": "470.256.02-1", "nvidia-settings": "595.71.05-1"}
    node = machine(packages=old)
    host = Node(node, solver=solver_with(Action("remove", PackageId("nvidia-settings"), former="595.71.05-1")))
    with pytest.raises(Refused) as caught:
        run(node, host, store, recipe(), replace(ASKED, only=DRIVER_ALONE))
    assert "nvidia-settings" in caught.value.what
    assert "run the same command again" in caught.value.hint
    assert not any(isinstance(change, PackageChange) for change in host.made)


def test_package_upgraded_instead_of_purged_is_announced(store: Store) -> None:
    node = machine(packages={"nvidia-driver": "470.256.02-1", "libcuda1": "470.256.02-1"})
    host = Node(node, solver=solver_with(needs="libcuda1"))
    heard: list[str] = []

    def tell(event: Event) -> None:
        if isinstance(event, Notice):
            assert not any(isinstance(change, PackageChange) for change in host.made)
            heard.append(event.text)

    setup(recipe(), host, store, node, advance=project_stage, options=replace(ASKED, only=DRIVER_ALONE), on_event=tell)
    assert "the new driver needs libcuda1 in its own version" in heard[-1]
    gone = {str(change.id) for change in host.made if isinstance(change, PackageChange) and change.after is None}
    assert gone == {"nvidia-driver"}


def test_index_without_the_packages_is_refreshed_once(store: Store) -> None:
    node = with_driver("580.95.05")

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        if not any(trigger == Trigger("index-refresh") for trigger in host.triggered):
            return Simulation((), "E: Unable to locate package containerd")
        return Simulation(tuple(Action("install", change.id, "1.6.20") for change in changes))

    host = Node(node, solver=solver)
    done = run(node, host, store, recipe("containerd"), replace(ASKED, only=("runtime-install",)))
    assert host.triggered.count(Trigger("index-refresh")) == 1
    assert done.changed


@pytest.mark.parametrize("has_index", [True, False])
def test_lost_version_is_told_once_before_the_transaction(store: Store, has_index: bool) -> None:
    """Before the question if the index is known, else once it is read."""
    node = with_driver("595.91.07")
    newest, said = "595.99.01-1", list[str]()

    class WithArchives(Node):
        def list_offered_versions(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
            return dict.fromkeys(packages, frozenset({newest})) if is_read() else {}

    def is_read() -> bool:  # --upgrade refreshes it before the plan
        return has_index or host.triggered.count(Trigger("index-refresh")) > 1

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        if not is_read():
            return Simulation((), "E: Unable to locate package libcuda1")
        return Simulation(tuple(Action("install", c.id, newest, "595.91.07-1") for c in changes))

    def tell(event: Event) -> None:
        if isinstance(event, Notice) and "no archive" in event.text:
            assert not PackageChange.of_kind(host.made)
            said.append(event.text)

    host = WithArchives(node, solver=solver)
    confirmed: list[int] = []
    options = replace(ASKED, only=("driver",), confirm=lambda _: confirmed.append(len(said)))
    setup(replace(recipe(), upgrade=True), host, store, node, advance=_settle(host), options=options, on_event=tell)
    assert confirmed == [int(has_index)]
    (note,) = said
    assert "libcuda1 595.91.07-1" in note
    assert note.endswith(", so `rollback --packages` could not restore them")


def _settle(host: Node) -> Callable[[Facts, StagePlan], Facts]:
    """Return a function that advances the node, after which the solver finds nothing to do."""

    def advance(facts: Facts, stage: StagePlan) -> Facts:
        host.solver = lambda _changes: Simulation(())
        return project_stage(facts, stage)

    return advance


def test_driver_version_gone_from_the_archive_is_reported_with_fixes(store: Store) -> None:
    node = with_driver("580.95.05", packages={"libcuda1": "580.65.06-1"})
    problem = "E: Version '580.95.05-*' for 'libcuda1' was not found"

    class Upgraded(Node):
        def list_offered_versions(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
            return dict.fromkeys(packages, frozenset({"580.126.09-1"}))

    host = Upgraded(node, solver=lambda _changes: Simulation((), problem))
    with pytest.raises(ChangeFailed) as caught:
        run(node, host, store, recipe(), replace(ASKED, only=("driver",)))
    assert "libcuda1 580.95.05" in caught.value.hint
    assert "--upgrade" in caught.value.hint


def test_headers_gone_from_the_archive_are_reported_with_a_fix(store: Store) -> None:
    node = machine()
    problem = "E: Unable to locate package linux-headers-6.1.0-37-amd64"
    host = Node(node, solver=lambda _changes: Simulation((), problem))
    with pytest.raises(ChangeFailed) as caught:
        run(node, host, store, recipe(), replace(ASKED, only=("headers",)))
    assert problem in caught.value.why
    assert "linux-headers-6.1.0-37-amd64" in caught.value.hint
    assert "reboot" in caught.value.hint


def test_upgrade_refreshes_the_index_and_stops_at_the_newest_version(store: Store) -> None:
    node = with_driver("595.91.07")
    upgrade = replace(recipe(), upgrade=True)
    only = replace(ASKED, only=("driver",))
    newest = "595.99.01-1"

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        return Simulation(tuple(Action("install", c.id, newest, "595.91.07-1") for c in changes))

    host = Node(node, solver=solver)
    advance = _settle(host)
    done = setup(upgrade, host, store, node, advance=advance, options=only, on_event=lambda _event: None)
    assert host.triggered[0] == Trigger("index-refresh")
    assert {change.after for change in PackageChange.of_kind(host.made)} == {PackageState(newest)}
    again = setup(upgrade, host, store, done.facts, advance=advance, options=only, on_event=lambda _event: None)
    assert not again.changed


def test_upgrade_leaves_a_package_whose_hold_a_killed_run_lost(store: Store) -> None:
    """The hold comes back first, and then it counts as any other."""
    node = with_driver("595.91.07")
    package = PackageId("libcuda1")
    held = replace(value_or(node.packages, {})[package], held=True)
    store.begin("setup").record_intents("packages", "driver", [PackageChange(package, held, held)])

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        return Simulation(tuple(Action("install", c.id, "595.99.01-1", "595.91.07-1") for c in changes))

    def advance(facts: Facts, stage: StagePlan) -> Facts:
        return project_changes(project_stage(facts, stage), PackageChange.of_kind(host.made))

    host = Node(node, solver=solver)
    upgrade = replace(recipe(), upgrade=True)
    with pytest.raises(Refused, match="libcuda1 is held"):
        setup(upgrade, host, store, node, advance=advance, options=ASKED, on_event=lambda _event: None)
    assert PackageChange.of_kind(host.made) == (PackageChange(package, replace(held, held=False), held),)


# -- reboot ------------------------------------------------------------------------------------------------------------


def node_needing_reboot() -> Facts:
    return with_driver("580.95.05", loaded_driver=LoadedDriver("470.256.02", open_module=False))


ONLY_LOAD = replace(ASKED, only=("module-load",))
RESUME = Resume(lambda run: ("/usr/bin/gpunode", "setup", "--resume", run, "--yes"), b"schema = 1\n")


def test_required_reboot_is_returned_without_a_change(store: Store) -> None:
    host = Node(node_needing_reboot())
    done = run(node_needing_reboot(), host, store, recipe(), ONLY_LOAD)
    assert [wait.waits_for for wait in done.waits] == ["reboot"]
    assert is_untouched(host, store)


def test_resume_after_reboot_is_set_up_only_if_requested_and_needed(store: Store) -> None:
    host = Node(node_needing_reboot())
    run(node_needing_reboot(), host, store, recipe(), replace(ONLY_LOAD, resume=RESUME))
    unit_file = host.files[RESUME_SERVICE_FILE]
    assert isinstance(unit_file, FileState)
    (kept,) = store.ids()
    assert f'"--resume" "{kept}"' in unit_file.content.decode()
    assert store.read_request(kept) == RESUME.request
    assert [one.after.enabled for one in ServiceChange.of_kind(host.made) if one.unit == RESUME_SERVICE] == [True]
    assert journal(store) == ["waiting"]
    calm = Node(with_driver("580.95.05"))
    assert not run(with_driver("580.95.05"), calm, store, recipe(), replace(ONLY_LOAD, resume=RESUME)).changed


@pytest.mark.parametrize("stays", ["", "nvidia-driver-cuda"])
def test_undo_before_the_reboot_disables_and_removes_the_resume_unit(store: Store, stays: str) -> None:
    host = Node(node_needing_reboot())
    run(node_needing_reboot(), host, store, recipe(), replace(ONLY_LOAD, resume=RESUME))
    if stays:  # a package of the driver that others need now
        installed = store.begin("setup")
        driver = PackageChange(PackageId(stays), None, PackageState("580.95.05-1"))
        installed.record_done(installed.record_intent("packages", "driver", driver))
        installed.commit("done")
        app = "Package: app\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
        host.files["/var/lib/dpkg/status"] = FileState(
            f"{app}Depends: {stays}\n\n{app.replace('app', stays)}\n".encode()
        )
    facts = replace(
        machine(packages={stays: "580.95.05-1"} if stays else {}, units={RESUME_SERVICE: unit(active=False)}),
    )
    back = [
        one.change
        for one in plan_removal(store, host, facts).steps
        if one.change.subject in {RESUME_SERVICE, RESUME_SERVICE_FILE}
    ]
    assert [type(one) for one in back] == [ServiceChange, FileChange]
    assert not any(one.exists_after for one in FileChange.of_kind(back))
    assert not any(one.after.enabled for one in ServiceChange.of_kind(back))


def test_later_steps_run_while_one_waits_for_a_reboot(store: Store) -> None:
    node = replace(
        node_needing_reboot(),
        files={**node_needing_reboot().files, CONTAINERD: Known(FileState(BEFORE), "x")},
        packages=Known({**_packages(node_needing_reboot()), PackageId("containerd"): PackageState("1.6.20")}, "x"),
    )
    host = Node(node)
    asked = replace(ASKED, only=("module-load", "runtime-config"))
    done = run(node, host, store, recipe("containerd"), asked)
    assert host.bytes_of(CONTAINERD) != BEFORE
    assert done.waits
    assert journal(store) == ["waiting"]


def _packages(facts: Facts) -> dict[PackageId, PackageState]:
    assert isinstance(facts.packages, Known)
    return dict(facts.packages.value)


def test_changes_run_in_order_files_packages_modules_restarts(store: Store) -> None:
    host = Node(machine())
    run(machine(), host, store, recipe("containerd"), ASKED)
    kinds: list[type[Change]] = [type(change) for change in host.made]
    assert kinds.index(PackageChange) > 0
    assert kinds.index(ModuleChange) > kinds.index(PackageChange)
    assert [trigger.kind for trigger in host.triggered] == ["index-refresh"] * 2 + ["initramfs", "restart"]
