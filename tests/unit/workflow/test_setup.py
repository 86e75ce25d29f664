"""setup on nodes where something goes wrong, and on those where no action needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import (
    Change,
    CommandChange,
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
from gpunode.facts.model import Facts, Known, LoadedDriver
from gpunode.journal.record import Owe
from gpunode.journal.run import Run
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Action, Simulation
from gpunode.recipe import Recipe, RuntimeSettings
from gpunode.workflow.converge import StagePlan, project_stage
from gpunode.workflow.events import Event, Notice
from gpunode.workflow.plan import has_pending_work
from gpunode.workflow.reboot import Resume
from gpunode.workflow.recovery import Backlog, find_backlog
from gpunode.workflow.setup import SetupOptions, SetupResult, setup
from gpunode.workflow.verify import check_configuration
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON, GTX_1080, gpu, machine, recipe, unit, with_driver
from tests.unit.workflow.nodes import Node

DRIVER_ALONE = ("driver-pin", "conflicts", "driver")
ASKED = SetupOptions(version="test")
RESTART = Trigger("restart", "containerd.service")
ONLY_CONFIG = replace(ASKED, only=("runtime-config",))
DOCKER_CDI = Recipe("test", runtime=RuntimeSettings("docker", cdi=True))
BEFORE = b"# mine\nversion = 2\n"


def owe(run: Run, trigger: Trigger, seq: int) -> None:
    """What the change ``seq`` owes beyond its own triggers."""
    run._note("", Owe(trigger, seq, run._clock()))


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
    return [summary.commit.result if summary.commit else "cut short" for summary in store.runs()]


def untouched(host: Node, store: Store) -> bool:
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
def test_a_refusal_leaves_no_trace(node: Facts, wanted: Recipe, kind: type[GpunodeError], store: Store) -> None:
    host = Node(node)
    with pytest.raises(kind):
        run(node, host, store, wanted, ASKED)
    assert untouched(host, store)


def test_a_removal_outside_the_plan_is_seen_before_anything_is_done(store: Store) -> None:
    node = docker()
    gone = Simulation(
        (Action("install", PackageId("containerd"), "1.6"), Action("remove", PackageId("openmpi-bin"), former="4.1"))
    )
    host = Node(node, solver=lambda _changes: gone)
    asked = replace(ASKED, only=("runtime-install",))
    with pytest.raises(Refused, match="would not do what was planned"):
        run(replace(node, units={}), host, store, recipe("containerd"), asked)
    assert untouched(host, store)


def test_who_says_no_has_changed_nothing(store: Store) -> None:
    def no(_plans: Sequence[StagePlan]) -> None:
        raise UsageError("declined")

    host = Node(containerd())
    with pytest.raises(UsageError, match="declined"):
        run(containerd(), host, store, recipe("containerd"), replace(ONLY_CONFIG, confirm=no))
    assert untouched(host, store)


def test_nothing_to_do_leaves_no_run_and_asks_nobody(store: Store) -> None:
    host = Node(containerd())
    first = run(containerd(), host, store, recipe("containerd"))
    assert first.changed

    def never(_plans: Sequence[StagePlan]) -> None:
        pytest.fail("asked about an empty plan")

    second = run(first.facts, host, store, recipe("containerd"), replace(ONLY_CONFIG, confirm=never))
    assert not second.changed
    assert len(store.runs()) == 1


@pytest.mark.parametrize("word", ["a\nb", "\udcff.toml"])
def test_a_word_that_no_unit_can_hold_is_told_before_the_changes(word: str, store: Store) -> None:
    host = Node(containerd())
    with pytest.raises(UsageError, match="systemd"):
        run(
            containerd(),
            host,
            store,
            recipe("containerd"),
            replace(ONLY_CONFIG, resume=Resume(lambda _: ("gpunode", word), b"")),
        )
    assert untouched(host, store)


# -- workloads ---------------------------------------------------------------------------------------------------------

RUNNING = Capture("docker ps", "ok", b"4f2 trainer\n9a1 web server\n")


def test_running_containers_are_named_and_not_stopped_unasked(store: Store) -> None:
    host = Node(docker(), docker_ps=RUNNING)
    with pytest.raises(DrainRequired) as caught:
        run(docker(), host, store, DOCKER_CDI)
    assert "trainer, web server" in caught.value.why
    assert untouched(host, store)
    assert run(docker(), host, store, DOCKER_CDI, replace(ONLY_CONFIG, allow_disruption=True)).changed


@pytest.mark.parametrize("said", [Capture("docker ps", "timeout"), Capture("docker ps", "failed", error="permission")])
def test_a_docker_that_does_not_say_what_it_runs_is_not_restarted(said: Capture, store: Store) -> None:
    host = Node(docker(), docker_ps=said)
    with pytest.raises(Undetermined, match="which docker containers"):
        run(docker(), host, store, DOCKER_CDI)
    assert untouched(host, store)


@pytest.mark.parametrize(
    "said",
    [
        Capture("docker ps", "absent"),
        Capture("docker ps", "ok", b""),
        Capture("docker ps", "failed", error="Cannot connect to the Docker daemon. Is the docker daemon running?"),
        Capture(
            "docker ps", "failed", error="failed to connect: check if the path is correct and if the daemon is running"
        ),
    ],
)
def test_a_docker_that_runs_nothing_is_no_obstacle(said: Capture, store: Store) -> None:
    assert run(docker(), Node(docker(), docker_ps=said), store, DOCKER_CDI).changed


def test_no_container_is_in_the_way_of_a_reload_or_of_containerd(store: Store) -> None:
    assert run(docker(), Node(docker(), docker_ps=RUNNING), store, recipe("docker")).changed
    assert run(containerd(), Node(containerd(), docker_ps=RUNNING), store, recipe("containerd")).changed


# -- a daemon that refuses ---------------------------------------------------------------------------------------------


def test_a_daemon_that_refuses_its_new_file_runs_with_the_former_one_again(store: Store) -> None:
    host = Node(containerd(), accepts=lambda _trigger, node: node.bytes_of(CONTAINERD) == BEFORE)
    with pytest.raises(ChangeFailed) as caught:
        run(containerd(), host, store, recipe("containerd"))
    assert host.bytes_of(CONTAINERD) == BEFORE
    assert host.triggered == [RESTART, RESTART]
    assert "bad file" in caught.value.why
    assert f"restored: {CONTAINERD}" in caught.value.why
    assert store.pending_triggers() == {}
    assert journal(store) == ["failed"]
    (kept,) = store.folder.rglob("rejected-*")
    assert b"nvidia-container-runtime" in kept.read_bytes()


def test_a_file_that_was_not_there_is_gone_again(store: Store) -> None:
    host = Node(docker(), accepts=lambda _trigger, node: node.bytes_of(DAEMON_JSON) is None)
    with pytest.raises(ChangeFailed):
        run(docker(), host, store, recipe("docker"))
    assert host.files[DAEMON_JSON] is None


def test_a_daemon_that_never_comes_up_is_told_with_both_failures(store: Store) -> None:
    host = Node(containerd(), accepts=lambda _trigger, _node: False)
    with pytest.raises(ChangeFailed) as caught:
        run(containerd(), host, store, recipe("containerd"))
    assert host.bytes_of(CONTAINERD) == BEFORE
    assert "does not start with the former file either" in caught.value.why
    assert RESTART in store.pending_triggers()


def test_a_stopped_daemon_that_cannot_be_started_gets_its_file_back_too(store: Store) -> None:
    node = containerd(units={"containerd.service": unit(active=False)})
    host = Node(node, refuses=ServiceChange)
    with pytest.raises(ChangeFailed) as caught:
        run(node, host, store, recipe("containerd"))
    assert host.bytes_of(CONTAINERD) == BEFORE
    assert "restored: " in caught.value.why


def test_only_the_file_of_the_daemon_that_failed_is_put_back(store: Store) -> None:
    """docker's restart is owed by a run that was cut short; it is not containerd's file that docker refused."""
    cut = store.begin("setup", version="test")
    owe(cut, Trigger("restart", "docker.service"), 1)
    cut.close()
    node = containerd(units={"containerd.service": unit(), "docker.service": unit()})
    host = Node(node, accepts=lambda trigger, _node: trigger == RESTART)
    with pytest.raises(ChangeFailed, match=r"docker\.service") as caught:
        run(node, host, store, recipe("containerd"), replace(ONLY_CONFIG, allow_disruption=True))
    assert host.bytes_of(CONTAINERD) != BEFORE
    assert RESTART not in store.pending_triggers()
    assert Trigger("restart", "docker.service") in store.pending_triggers()
    assert "restored: nothing" in caught.value.why


def test_a_file_that_a_run_that_was_cut_short_wrote_goes_back_when_its_daemon_refuses_it(store: Store) -> None:
    written = converged(None).files[CONTAINERD]
    assert isinstance(written, Known)
    assert written.value is not None
    cut = store.begin("setup", version="test")
    change = FileChange(CONTAINERD, FileState(BEFORE), written.value, frozenset({RESTART}))
    cut.done(*cut.intend_all("runtime", "runtime-config", (change,)))
    cut.close()
    node = containerd(files={CONTAINERD: written.value.content})
    host = Node(node, accepts=lambda _trigger, node: node.bytes_of(CONTAINERD) == BEFORE)

    with pytest.raises(ChangeFailed) as caught:
        run(node, host, store, recipe("containerd"))

    assert host.bytes_of(CONTAINERD) == BEFORE
    assert f"restored: {CONTAINERD}" in caught.value.why
    assert store.pending_triggers() == {}


def test_what_containerd_reads_otherwise_than_meant_once_it_is_written_goes_back(store: Store) -> None:
    class Misread(Node):
        def read_back(self, expectation: RuntimeExpectation, /) -> None:
            assert self.bytes_of(expectation.path) != BEFORE
            raise ChangeFailed("containerd does not read its new configuration as intended")

    host = Misread(containerd())
    with pytest.raises(ChangeFailed, match="new configuration") as caught:
        run(containerd(), host, store, recipe("containerd"))
    assert host.bytes_of(CONTAINERD) == BEFORE
    assert f"restored: {CONTAINERD}" in caught.value.why
    assert journal(store) == ["failed"]
    assert (host.triggered, store.pending_triggers()) == ([], {})


def test_of_two_files_of_a_runtime_both_are_written_or_none(store: Store) -> None:
    class Full(Node):
        def apply(self, changes: Sequence[Change], /) -> None:
            if any(isinstance(change, FileChange) and change.path == CONTAINERD for change in changes):
                raise ChangeFailed("no room")
            super().apply(changes)

    node = containerd(packages={"containerd": "2.1.9"})
    host = Full(node)
    earlier = store.begin("setup", version="test")
    owe(earlier, Trigger("restart", "docker.service"), 1)
    earlier.close()
    with pytest.raises(ChangeFailed, match="no room") as caught:
        run(node, host, store, recipe("containerd"), replace(ONLY_CONFIG, allow_disruption=True))
    assert {path: state for path, state in host.files.items() if state is not None} == {CONTAINERD: FileState(BEFORE)}
    assert "restored: /etc/containerd/conf.d/99-nvidia.toml" in caught.value.why
    assert host.triggered == []
    assert set(store.pending_triggers()) == {Trigger("restart", "docker.service")}, "an earlier run's debt stays"


def test_a_reload_that_docker_rejects_stays_owed_and_nobody_elses_file_is_put_back(store: Store) -> None:
    """The file was edited since docker read it: gpunode only has it read again."""
    node = converged(1.0, "docker")
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
        assert set(store.pending_triggers()) == {Trigger("reload", "docker.service")}
        # systemd takes the signal for a reload that was done.
        node = replace(node, changed_at={DAEMON_JSON: 0.5})


# -- an earlier run that was cut short ---------------------------------------------------------------------------------


def told(node: Facts, host: Node, store: Store) -> tuple[SetupResult, list[str]]:
    events: list[Event] = []
    done = setup(
        recipe("containerd"), host, store, node, advance=project_stage, options=ONLY_CONFIG, on_event=events.append
    )
    return done, [event.text for event in events if isinstance(event, Notice)]


def test_a_run_that_was_cut_short_is_told_and_finished(store: Store) -> None:
    cut = store.begin("setup", version="test", user="ada")
    cut.close()

    done, (said,) = told(containerd(), Node(containerd()), store)

    assert done.changed
    assert cut.id in said
    assert "by ada" in said
    assert said.endswith("cut short before its first change; this run finishes it")


def test_a_run_that_had_nothing_left_to_do_is_told_once(store: Store) -> None:
    first = Node(containerd())
    run(containerd(), first, store, recipe("containerd"))
    cut = store.begin("setup", version="test")
    cut.close()
    node = containerd(files={CONTAINERD: first.bytes_of(CONTAINERD)})

    done, (said,) = told(node, Node(node), store)
    _, again = told(node, Node(node), store)

    assert not done.changed
    assert said.endswith("nothing is left to do")
    assert again == []


# -- what an earlier run owes ------------------------------------------------------------------------------------------


def owing(store: Store, trigger: Trigger) -> float:
    cut = store.begin("setup", version="test")
    owe(cut, trigger, 1)
    cut.close()
    return store.pending_triggers()[trigger]


def converged(started_at: float | None, name: str = "containerd") -> Facts:
    path, text = (CONTAINERD, BEFORE) if name == "containerd" else (DAEMON_JSON, b"{}")
    packages = {"containerd": "1.6.20", "docker.io": "20.10.24"}
    node = machine(packages=packages, files={path: text}, units={f"{name}.service": unit(started_at=started_at)})
    stage = Node(node)
    change = _written(node, stage, name)
    return replace(node, files={**node.files, path: Known(change, "x")})


def _written(node: Facts, host: Node, name: str) -> FileState:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run(node, host, Store(folder), recipe(name))
    state = host.files[CONTAINERD if name == "containerd" else DAEMON_JSON]
    assert isinstance(state, FileState)
    return state


def test_a_restart_that_a_power_cut_swallowed_is_made_up_for(store: Store) -> None:
    since = owing(store, RESTART)
    node = converged(since - 1)
    host = Node(node)
    told: list[Event] = []
    done = setup(
        recipe("containerd"), host, store, node, advance=project_stage, options=ONLY_CONFIG, on_event=told.append
    )
    assert host.triggered == [RESTART]
    assert store.pending_triggers() == {}
    assert done.changed
    assert any(isinstance(event, Notice) and "containerd.service" in event.text for event in told)


def test_what_a_failed_run_owes_is_pending_and_is_told_as_that(store: Store) -> None:
    node, cold = containerd(), Trigger("initramfs")
    failed = store.begin("setup", version="test")
    owe(failed, cold, 1)
    failed.commit("failed", "the initramfs could not be rebuilt")
    whole = replace(node, files=converged(None).files)

    left = find_backlog(store, whole)

    assert left.owed == (cold,)
    assert has_pending_work((), left)
    assert str(left) == "an earlier run failed and left this pending: initramfs"
    check = check_configuration(recipe("containerd"), whole, Node(whole), planned=(), left=left)
    assert (check.status, check.detail) == ("failed", "still to do: initramfs")
    _, (said,) = told(whole, Node(whole), store)
    assert said.startswith(str(left))
    assert not find_backlog(store, whole)


@pytest.mark.parametrize(("cut", "words"), [(True, "was cut short"), (False, "was interrupted")])
def test_cut_short_is_said_of_what_was_cut_short_alone(store: Store, cut: bool, words: str) -> None:
    begun = store.begin("setup", version="test")
    owe(begun, RESTART, 1)
    if cut:
        begun.close()
    else:
        begun.commit("interrupted", "SIGINT")
    assert str(find_backlog(store, converged(None))) == f"an earlier run {words} and left this pending: {RESTART}"


def test_whoever_may_not_read_the_journal_is_told_so_and_no_check_passes(store: Store) -> None:
    left = Backlog(unread="only root may read the journal")
    assert not has_pending_work((), left)
    node = converged(None)
    check = check_configuration(recipe("containerd"), node, Node(node), planned=(), left=left)
    assert check.status == "not run"
    assert left.unread in check.detail


def test_a_daemon_that_was_started_since_has_read_its_file(store: Store) -> None:
    since = owing(store, RESTART)
    host = Node(converged(since + 1))
    assert not run(converged(since + 1), host, store, recipe("containerd")).changed
    assert host.triggered == []


def test_an_owed_restart_of_docker_stops_no_container_unasked(store: Store) -> None:
    since = owing(store, Trigger("restart", "docker.service"))
    node = converged(since - 1, "docker")
    host = Node(node, docker_ps=RUNNING)
    with pytest.raises(DrainRequired):
        run(node, host, store, recipe("docker"))
    assert host.triggered == []


# -- in the middle -----------------------------------------------------------------------------------------------------


def test_a_signal_ends_the_run_between_two_changes(store: Store) -> None:
    host = Node(machine())

    def stop() -> None:
        if len(host.made) == 2:
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        run(machine(), host, store, recipe("containerd"), replace(ASKED, pause=stop))
    assert len(host.made) == 2
    assert journal(store) == ["interrupted"]
    assert {trigger.kind for trigger in store.pending_triggers()} == {"index-refresh"}


def test_a_change_that_fails_leaves_the_ones_before_it_journaled(store: Store) -> None:
    host = Node(machine(), refuses=PackageChange)
    with pytest.raises(ChangeFailed):
        run(machine(), host, store, recipe(), ASKED)
    (summary,) = store.runs()
    assert journal(store) == ["failed"]
    assert "/etc/apt/preferences.d/gpunode-nvidia" in summary.subjects


def test_a_tool_that_says_yes_and_does_nothing_is_found_out(store: Store) -> None:
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


def solved(*more: Action, needs: str = "") -> Callable[[Sequence[PackageChange]], Simulation]:
    """apt does as it is asked, and ``more``; it does nothing without ``needs``."""

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        if any(str(change.id) == needs and change.after is None for change in changes):
            return Simulation((), f"nvidia-driver-cuda : Depends: {needs} but it is not going to be installed")
        gone = tuple(Action("purge", change.id, former="470.256.02-1") for change in changes if change.after is None)
        brought = [str(change.id) for change in changes if change.after is not None and str(change.id) != needs]
        brought += [needs] if needs else []
        return Simulation((*(Action("install", PackageId.of(name), "595.91.07-1") for name in brought), *gone, *more))

    return solver


def test_a_removal_that_shows_only_once_the_index_is_read_stops_the_run(store: Store) -> None:
    old = {"nvidia-driver": "470.256.02-1", "nvidia-settings": "595.71.05-1"}
    node = machine(packages=old)
    host = Node(node, solver=solved(Action("remove", PackageId("nvidia-settings"), former="595.71.05-1")))
    with pytest.raises(Refused) as caught:
        run(node, host, store, recipe(), replace(ASKED, only=DRIVER_ALONE))
    assert "nvidia-settings" in caught.value.what
    assert "run the same command again" in caught.value.hint
    assert not any(isinstance(change, PackageChange) for change in host.made)


def test_what_is_upgraded_instead_of_purged_is_told_before_it_is_done(store: Store) -> None:
    node = machine(packages={"nvidia-driver": "470.256.02-1", "libcuda1": "470.256.02-1"})
    host = Node(node, solver=solved(needs="libcuda1"))
    heard: list[str] = []

    def tell(event: Event) -> None:
        if isinstance(event, Notice):
            assert not any(isinstance(change, PackageChange) for change in host.made)
            heard.append(event.text)

    setup(recipe(), host, store, node, advance=project_stage, options=replace(ASKED, only=DRIVER_ALONE), on_event=tell)
    assert "the new driver needs libcuda1, which is upgraded" in heard[-1]
    gone = {str(change.id) for change in host.made if isinstance(change, PackageChange) and change.after is None}
    assert gone == {"nvidia-driver"}


def test_an_index_that_lacks_the_packages_is_read_again_once(store: Store) -> None:
    node = with_driver("580.95.05")

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        if not any(trigger == Trigger("index-refresh") for trigger in host.triggered):
            return Simulation((), "E: Unable to locate package containerd")
        return Simulation(tuple(Action("install", change.id, "1.6.20") for change in changes))

    host = Node(node, solver=solver)
    done = run(node, host, store, recipe("containerd"), replace(ASKED, only=("runtime-install",)))
    assert host.triggered.count(Trigger("index-refresh")) == 1
    assert done.changed


def test_a_driver_whose_version_the_archive_has_no_more_is_told_with_the_ways_out(store: Store) -> None:
    node = with_driver("580.95.05", packages={"libcuda1": "580.65.06-1"})
    problem = "E: Version '580.95.05-*' for 'libcuda1' was not found"
    host = Node(node, solver=lambda _changes: Simulation((), problem))
    with pytest.raises(ChangeFailed) as caught:
        run(node, host, store, recipe(), replace(ASKED, only=("driver",)))
    assert "libcuda1 580.95.05" in caught.value.hint
    assert "setup --upgrade" in caught.value.hint
    assert "apt-get purge libcuda1" in caught.value.hint


def test_headers_that_the_archive_has_no_more_are_told_with_the_way_out(store: Store) -> None:
    node = machine()
    problem = "E: Unable to locate package linux-headers-6.1.0-37-amd64"
    host = Node(node, solver=lambda _changes: Simulation((), problem))
    with pytest.raises(ChangeFailed) as caught:
        run(node, host, store, recipe(), replace(ASKED, only=("headers",)))
    assert problem in caught.value.why
    assert "linux-headers-6.1.0-37-amd64" in caught.value.hint
    assert "reboot" in caught.value.hint


def test_an_upgrade_reads_the_index_and_is_done_when_the_newest_is_there(store: Store) -> None:
    node = with_driver("595.91.07")
    upgrade = replace(recipe(), upgrade=True)
    only = replace(ASKED, only=("driver",))
    newest = "595.99.01-1"

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        return Simulation(tuple(Action("install", c.id, newest, "595.91.07-1") for c in changes))

    def advance(facts: Facts, stage: StagePlan) -> Facts:
        after = project_stage(facts, stage)
        host.solver = lambda _changes: Simulation(())
        return after

    host = Node(node, solver=solver)
    done = setup(upgrade, host, store, node, advance=advance, options=only, on_event=lambda _event: None)
    assert host.triggered[0] == Trigger("index-refresh")
    assert {getattr(change, "after", None) for change in host.made} == {PackageState(newest)}
    again = setup(upgrade, host, store, done.facts, advance=advance, options=only, on_event=lambda _event: None)
    assert not again.changed


# -- reboot ------------------------------------------------------------------------------------------------------------


def waiting() -> Facts:
    return with_driver("580.95.05", loaded_driver=LoadedDriver("470.256.02", open_module=False))


ONLY_LOAD = replace(ASKED, only=("module-load",))
RESUME = Resume(lambda run: ("/usr/bin/gpunode", "setup", "--resume", run, "--yes"), b"schema = 1\n")


def test_what_only_a_reboot_can_do_is_the_answer_and_no_change(store: Store) -> None:
    host = Node(waiting())
    done = run(waiting(), host, store, recipe(), ONLY_LOAD)
    assert [wait.for_ for wait in done.waits] == ["reboot"]
    assert untouched(host, store)


def test_a_reboot_is_arranged_only_when_it_is_asked_for_and_needed(store: Store) -> None:
    host = Node(waiting())
    run(waiting(), host, store, recipe(), replace(ONLY_LOAD, resume=RESUME))
    unit_file = host.files["/etc/systemd/system/gpunode-resume.service"]
    assert isinstance(unit_file, FileState)
    (kept,) = store.ids()
    assert f'"--resume" "{kept}"' in unit_file.content.decode()
    assert store.request(kept) == RESUME.request
    assert any(isinstance(change, CommandChange) and "enable" in change.argv for change in host.made)
    assert journal(store) == ["waiting"]
    calm = Node(with_driver("580.95.05"))
    assert not run(with_driver("580.95.05"), calm, store, recipe(), replace(ONLY_LOAD, resume=RESUME)).changed


def test_later_steps_still_run_while_one_waits(store: Store) -> None:
    node = replace(
        waiting(),
        files={**waiting().files, CONTAINERD: Known(FileState(BEFORE), "x")},
        packages=Known({**_packages(waiting()), PackageId("containerd"): PackageState("1.6.20")}, "x"),
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


def test_the_order_is_files_packages_modules_and_restarts_at_the_very_end(store: Store) -> None:
    host = Node(machine())
    run(machine(), host, store, recipe("containerd"), ASKED)
    kinds: list[type[Change]] = [type(change) for change in host.made]
    assert kinds.index(PackageChange) > 0
    assert kinds.index(ModuleChange) > kinds.index(PackageChange)
    assert [trigger.kind for trigger in host.triggered] == ["index-refresh"] * 2 + ["initramfs", "restart"]
