"""rollback --packages and remove: what they would do, in what order, what they leave and what they refuse."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import (
    CONFFILES,
    Change,
    Deferred,
    FileChange,
    FileState,
    ModuleChange,
    PackageChange,
    PackageState,
    RuntimeExpectation,
    ServiceChange,
    ServiceState,
    Trigger,
    triggers,
)
from gpunode.errors import ChangeFailed, Conflict, DrainRequired, RebootRequired, Refused, VerifyFailed
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Facts, Known, LoadedDriver
from gpunode.host.port import Workloads
from gpunode.journal.history import inverse_intents, made_changes
from gpunode.journal.record import Verb
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Action, Simulation, is_removal
from gpunode.workflow import standing
from gpunode.workflow.apply import Applier
from gpunode.workflow.events import ignore_event
from gpunode.workflow.remove import Remainder, find_remainder, plan_removal
from gpunode.workflow.rollback import RollbackResult, failure_of, plan_rollback, rollback
from gpunode.workflow.undo import UndoPlan, find_leftovers
from tests.fakes.journals import forget
from tests.ids import ids
from tests.unit.steps.machines import CONTAINERD, CUDA_KEYRING, CUDA_LIST, CUDA_URI, DAEMON_JSON, machine, unit
from tests.unit.workflow.nodes import Node

STATUS = "/var/lib/dpkg/status"
BLACKLIST = "/etc/modprobe.d/gpunode-nouveau.conf"
UNIT = "nvidia-persistenced.service"
RESTART, REFRESH, INITRAMFS = (
    Trigger("restart", "containerd.service"),
    Trigger("index-refresh", CUDA_LIST),
    Trigger("initramfs"),
)
FORMER, OURS = FileState(b"# mine\n"), FileState(b"# mine\nnvidia = true\n")
OFF, ON = ServiceState(enabled=False, active=False), ServiceState(enabled=True, active=True)
NEW, OLD = PackageState("580.178.04-1"), PackageState("470.256.02-1")


class Machine(Node):
    """A node with archives and workloads."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts, solver=_obeys)
        self.archives: dict[str, frozenset[str]] = {"nvidia-driver": frozenset({OLD.version})}
        self.busy = Workloads()
        self.after_packages: dict[str, FileState | None] = {}
        self.enrolled = ""

    def look(self, probe: Probe, /) -> Capture:
        if probe.argv[:2] == ("mokutil", "--test-key") and self.enrolled:
            # mokutil's own words; it exits with 1 when the key is there (mokutil.c, test_key).
            said = b"is already enrolled\n" if probe.argv[2] == self.enrolled else b"is not enrolled\n"
            return Capture("mokutil", "failed", probe.argv[2].encode() + b" " + said, exit_status=1)
        return super().look(probe)

    def apply(self, changes: Sequence[Change], /) -> None:
        super().apply(changes)
        if isinstance(changes[0], PackageChange):
            self.files.update(self.after_packages)

    def offered(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        return {one: self.archives[str(one)] for one in packages if str(one) in self.archives}

    def workloads(self) -> Workloads:
        return self.busy


def _obeys(changes: Sequence[PackageChange]) -> Simulation:
    return Simulation(
        tuple(
            Action("purge" if change.after is None else "remove", change.id)
            if is_removal(change)
            else Action("install", change.id, getattr(change.after, "version", ""))
            for change in changes
        )
    )


def paragraph(name: str, depends: str = "", conffile: str = "") -> str:
    relations = f"Depends: {depends}\n" if depends else ""
    kept = f"Conffiles:\n {conffile} 0123\n" if conffile else ""
    return f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n{relations}{kept}\n"


HALF = "Package: half\nStatus: install reinstreq half-installed\nArchitecture: amd64\n\n"
# What a setup does: archive, packages, blacklist, unit, configuration.
CHANGES: tuple[tuple[str, Change], ...] = (
    ("sources", FileChange(CUDA_LIST, None, FileState(b"deb x\n"), frozenset({REFRESH}))),
    ("packages", FileChange(BLACKLIST, None, FileState(b"blacklist nouveau\n"), frozenset({INITRAMFS}))),
    ("packages", PackageChange(PackageId("nvidia-driver-cuda"), None, NEW)),
    ("packages", PackageChange(PackageId("dkms"), None, PackageState("3"))),
    ("packages", PackageChange(PackageId("nvidia-driver"), OLD, None)),
    ("kernel", ServiceChange(UNIT, OFF, ON)),
    ("runtime", FileChange(CONTAINERD, FORMER, OURS, frozenset({RESTART}))),
)
AFTER = {"nvidia-driver-cuda": NEW, "dkms": PackageState("3")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def host(store: Store) -> Machine:
    """A node on which that setup has run."""
    made = Machine(machine(files={CONTAINERD: FORMER}))
    run = store.begin("setup", version="test")
    for stage, change in CHANGES:
        run.done(run.intend(stage, "step", change))
        made.apply([change])
    for trigger in (REFRESH, INITRAMFS, RESTART):
        run.settle(trigger)
    run.commit("done")
    made.files[STATUS] = FileState("".join(map(paragraph, AFTER)).encode())
    return made


def now(packages: Mapping[str, PackageState] = AFTER, *, loaded: bool = False) -> Facts:
    driver = LoadedDriver("580.178.04", open_module=False) if loaded else None
    return machine(packages=packages, units={UNIT: unit()}, loaded_driver=Known(driver, "nvidia-version"))


def newest(store: Store) -> str:
    return store.ids()[-1]


def undo(host: Machine, store: Store, back: UndoPlan) -> RollbackResult:
    return rollback(back, host, store, version="test", argv=(), on_event=ignore_event, whole=True)


class TestWholeRollback:
    def test_what_uses_a_thing_goes_before_the_thing(self, host: Machine, store: Store) -> None:
        back = plan_rollback(store, host, newest(store), now())
        subjects = [one.subject for one in back.changes]
        assert subjects[:2] == [UNIT, CONTAINERD]
        assert set(subjects[2:5]) == {"nvidia-driver-cuda", "dkms", "nvidia-driver"}
        assert subjects[5:] == [BLACKLIST, CUDA_LIST], "the blacklist never goes while the driver stays"
        assert (back.incomplete, back.notes, back.reboot) == (False, (), "")

    def test_it_can_be_rolled_back_in_the_order_of_a_setup(self, host: Machine, store: Store) -> None:
        done = undo(host, store, plan_rollback(store, host, newest(store), now()))
        assert host.files[CONTAINERD] == FORMER
        assert host.files[CUDA_LIST] is None
        then = machine(packages={"nvidia-driver": OLD}, units={UNIT: unit(active=False, enabled=False)})
        again = plan_rollback(store, host, done.run, then)
        subjects = [one.subject for one in again.changes]
        assert subjects[0] == CUDA_LIST
        assert subjects.index("nvidia-driver-cuda") < subjects.index(CONTAINERD) < subjects.index(UNIT)
        host.triggered.clear()
        undo(host, store, again)
        assert host.files[CONTAINERD] == OURS
        assert host.triggered[0] == REFRESH, "the index is read before packages are asked for"

    def test_to_undo_it_thrice_is_to_undo_it_once(self, host: Machine, store: Store) -> None:
        first = plan_rollback(store, host, newest(store), now())
        bare = machine(packages={"nvidia-driver": OLD}, units={UNIT: unit(active=False, enabled=False)})
        again = plan_rollback(store, host, undo(host, store, first).run, bare)
        third = plan_rollback(store, host, undo(host, store, again).run, now())
        assert [one.subject for one in third.changes] == [one.subject for one in first.changes]

    def test_daemons_read_what_came_back_and_the_initramfs_is_built_once(self, host: Machine, store: Store) -> None:
        host.triggered.clear()
        undo(host, store, plan_rollback(store, host, newest(store), now()))
        assert host.triggered == [REFRESH, INITRAMFS, RESTART]
        assert store.pending_triggers() == {}

    def test_what_is_as_before_already_is_left_out(self, host: Machine, store: Store) -> None:
        back = plan_rollback(store, host, newest(store), now({"nvidia-driver": OLD, "dkms": PackageState("3")}))
        assert [str(change.id) for change in back.packages] == ["dkms"]

    def test_a_package_that_was_upgraded_since_goes_all_the_same(self, host: Machine, store: Store) -> None:
        newer = {**AFTER, "nvidia-driver-cuda": PackageState("580.200.01-1")}
        back = plan_rollback(store, host, newest(store), now(newer))
        assert PackageChange(PackageId("nvidia-driver-cuda"), newer["nvidia-driver-cuda"], None) in back.packages

    def test_what_others_need_now_stays_and_is_named(self, host: Machine, store: Store) -> None:
        host.files[STATUS] = FileState("".join((*map(paragraph, AFTER), paragraph("zfs-dkms", "dkms"))).encode())
        back = plan_rollback(store, host, newest(store), now())
        assert "dkms" not in [str(change.id) for change in back.packages]
        assert back.remarks == ("dkms stays: zfs-dkms needs it now",)

    def test_what_the_archives_have_no_more_is_said_and_ends_as_not_whole(self, host: Machine, store: Store) -> None:
        host.archives = {"nvidia-driver": frozenset({"535.261.03-1"})}
        back = plan_rollback(store, host, newest(store), now())
        assert "nvidia-driver" not in [str(change.id) for change in back.packages]
        assert back.notes == (
            f"nvidia-driver {OLD.version} cannot be restored: no archive has it any more (they have 535.261.03-1)",
        )
        assert isinstance(failure_of(undo(host, store, back)), VerifyFailed)

    def test_an_apt_that_would_do_something_else_is_refused_before_anything(self, host: Machine, store: Store) -> None:
        host.solver = lambda changes: Simulation((*_obeys(changes).actions, Action("remove", PackageId("kubelet"))))
        with pytest.raises(Refused, match="would not just restore") as refused:
            plan_rollback(store, host, newest(store), now())
        assert "kubelet" in refused.value.why
        assert host.files[CONTAINERD] == OURS

    def test_what_apt_brings_along_is_journaled_with_it(self, host: Machine, store: Store) -> None:
        along = Action("install", PackageId("libnvidia-legacy"), "470.256.02-1")
        host.solver = lambda changes: Simulation((*_obeys(changes).actions, along))
        back = plan_rollback(store, host, newest(store), now())
        assert (
            PackageChange(PackageId("libnvidia-legacy"), None, PackageState("470.256.02-1", auto=True)) in back.packages
        )

    def test_a_loaded_module_asks_for_a_reboot(self, host: Machine, store: Store) -> None:
        back = plan_rollback(store, host, newest(store), now(loaded=True))
        assert "580.178.04" in back.reboot
        assert isinstance(failure_of(undo(host, store, back)), RebootRequired)

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_processes_on_a_gpu_are_named_and_not_robbed(self, host: Machine, store: Store, verb: str) -> None:
        host.busy = Workloads(gpu=("812 (python3 train.py)",))

        def planned(*, disrupt: bool) -> UndoPlan:
            if verb == "remove":
                return plan_removal(store, host, now(), disrupt=disrupt)
            return plan_rollback(store, host, newest(store), now(), disrupt=disrupt)

        with pytest.raises(DrainRequired, match="take the driver from 1 process") as refused:
            planned(disrupt=False)
        assert "812 (python3 train.py)" in refused.value.why
        assert planned(disrupt=True).packages

    def test_a_plain_rollback_before_leaves_the_packages_to_be_undone(self, host: Machine, store: Store) -> None:
        run = newest(store)
        plain = plan_rollback(store, host, run)
        rollback(plain, host, store, version="test", argv=(), on_event=ignore_event)
        chosen = standing.find_newest_run(store, whole=True)
        assert (chosen.run, chosen.is_undone(whole=False), chosen.is_undone(whole=True)) == (run, True, False)
        whole = plan_rollback(store, host, run, now())
        assert CONTAINERD not in (one.subject for one in whole.changes)
        undo(host, store, whole)
        assert standing.find_newest_run(store, whole=True).is_undone(whole=True)

    def test_a_later_run_on_the_same_package_comes_first(self, host: Machine, store: Store) -> None:
        first = newest(store)
        run = store.begin("setup", version="test")
        run.done(
            run.intend(
                "packages", "driver", PackageChange(PackageId("nvidia-driver-cuda"), NEW, PackageState("595.1-1"))
            )
        )
        run.commit("done")
        assert plan_rollback(store, host, first).changes, "the configuration alone is no matter of packages"
        with pytest.raises(Conflict, match="later runs changed the same things") as refused:
            plan_rollback(store, host, first, now())
        assert refused.value.hint == f"gpunode rollback 2 --packages --root {store.root}"

    @pytest.mark.parametrize(
        ("brought", "package", "later", "path"),
        [
            ("toolkit", "nvidia-container-toolkit", "runtime-config", DAEMON_JSON),
            ("driver", "nvidia-driver-cuda", "runtime-config", DAEMON_JSON),
            ("runtime-install", "docker.io", "runtime-config", DAEMON_JSON),
            ("driver", "nvidia-driver-cuda", "toolkit", "nvidia-container-toolkit"),
            ("driver", "nvidia-driver-cuda", "persistence", UNIT),
            ("cuda-repository", CUDA_LIST, "driver", "nvidia-driver-cuda"),
        ],
    )
    def test_what_a_later_run_needs_is_not_taken_from_under_it(
        self, store: Store, brought: str, package: str, later: str, path: str
    ) -> None:
        host = Machine(machine())
        first, second = store.begin("setup", version="test"), None
        made: dict[str, Change] = {
            CUDA_LIST: FileChange(CUDA_LIST, None, FileState(b"deb x\n")),
            DAEMON_JSON: FileChange(DAEMON_JSON, None, FileState(b"{}")),
            UNIT: ServiceChange(UNIT, OFF, ON),
        }
        lower, upper = (made.get(name, PackageChange(PackageId.of(name), None, NEW)) for name in (package, path))
        first.done(first.intend("packages", brought, lower))
        first.commit("done")
        second = store.begin("setup", version="test", recipe="docker")
        stage = "runtime" if path == DAEMON_JSON else "packages"
        second.done(second.intend(stage, later, upper))
        second.commit("done")
        for change in (lower, upper):
            host.apply([change])
        facts = now({name: NEW for name in (package, path) if name not in made})
        with pytest.raises(Conflict, match="later run needs") as refused:
            plan_rollback(store, host, first.id, facts)
        assert f"{path}, of run 2, needs {package}" in refused.value.why
        beyond = "" if path == DAEMON_JSON else " --packages"
        assert refused.value.hint == f"gpunode rollback 2{beyond} --root {store.root}"

        if path in made and path != UNIT:
            host.files[path] = None  # by hand: what is gone needs nothing
            assert plan_rollback(store, host, first.id, facts).steps
            host.apply([upper])
        back = plan_rollback(store, host, second.id, None if path == DAEMON_JSON else facts)
        rollback(back, host, store, version="test", argv=(), on_event=ignore_event, whole=path != DAEMON_JSON)
        assert plan_rollback(store, host, first.id, facts).steps

    @pytest.mark.parametrize(("verb", "is_refused"), [("configure", True), ("unconfigure", False)])
    def test_a_run_that_took_a_runtime_out_needs_no_toolkit(self, store: Store, verb: Verb, is_refused: bool) -> None:
        toolkit, before = "nvidia-container-toolkit", FileState(b"{ }")
        host = Machine(machine(files={DAEMON_JSON: before}))
        first = store.begin("setup", version="test")
        first.done(first.intend("packages", "toolkit", PackageChange(PackageId.of(toolkit), None, NEW)))
        first.commit("done")
        second, change = store.begin(verb, version="test"), FileChange(DAEMON_JSON, before, FileState(b"{}"))
        second.done(second.intend("runtime", "runtime-config", change))
        second.commit("done")
        host.apply([change])
        try:
            assert plan_rollback(store, host, first.id, now({toolkit: NEW})).packages
        except Conflict:
            assert is_refused
        else:
            assert not is_refused

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_what_a_package_owed_when_it_came_is_owed_when_it_goes(self, store: Store, verb: str) -> None:
        host, toolkit = Machine(machine()), "nvidia-container-toolkit"
        run = store.begin("setup", version="test")
        run.done(
            run.intend("packages", "toolkit", PackageChange(PackageId.of(toolkit), None, NEW, frozenset({RESTART})))
        )
        run.settle(RESTART)
        run.commit("done")
        facts = now({toolkit: NEW})
        back = plan_rollback(store, host, run.id, facts) if verb == "rollback" else plan_removal(store, host, facts)
        assert triggers(back.packages) == (RESTART,)

    def test_an_older_version_takes_nothing_from_under_a_later_run(self, store: Store) -> None:
        host, toolkit = Machine(machine()), "nvidia-container-toolkit"
        host.archives[toolkit] = frozenset({OLD.version})
        first = store.begin("setup", version="test")
        first.done(first.intend("packages", "toolkit", PackageChange(PackageId.of(toolkit), OLD, NEW)))
        first.commit("done")
        second, change = store.begin("setup", version="test"), FileChange(DAEMON_JSON, None, FileState(b"{}"))
        second.done(second.intend("runtime", "runtime-config", change))
        second.commit("done")
        host.apply([change])
        assert plan_rollback(store, host, first.id, now({toolkit: NEW})).packages

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    @pytest.mark.parametrize("after", [None, PackageState("1.5"), PackageState("1.6", config_files_only=True)])
    @pytest.mark.parametrize("runtime", ["containerd", "containerd.io"])
    def test_running_containers_are_named_and_keep_their_containerd(
        self, store: Store, runtime: str, after: PackageState | None, verb: str
    ) -> None:
        host, there = Machine(machine()), PackageState("1.6")
        host.archives[runtime] = frozenset({"1.5"})
        run = store.begin("setup", version="test")
        run.done(run.intend("packages", "runtime-install", PackageChange(PackageId.of(runtime), after, there)))
        run.commit("done")
        host.busy = Workloads(containers=("k8s.io/4f2",))

        def planned(*, disrupt: bool) -> UndoPlan:
            if verb == "remove":
                return plan_removal(store, host, now({runtime: there}), disrupt=disrupt)
            return plan_rollback(store, host, run.id, now({runtime: there}), disrupt=disrupt)

        if verb == "remove" and after == PackageState("1.5"):
            assert not planned(disrupt=False).packages, "it was there before gpunode"
            return
        with pytest.raises(DrainRequired, match="take containerd from 1 container") as refused:
            planned(disrupt=False)
        assert "k8s.io/4f2" in refused.value.why
        assert planned(disrupt=True).packages
        host.busy = Workloads()
        assert planned(disrupt=False).packages

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    @pytest.mark.parametrize(
        "change",
        [
            PackageChange(PackageId("docker.io"), None, NEW),
            PackageChange(PackageId("docker-ce"), None, NEW),
            ServiceChange("docker.service", OFF, ON),
        ],
    )
    def test_dockers_containers_are_named_and_keep_their_docker(self, store: Store, change: Change, verb: str) -> None:
        host = Machine(machine())
        host.docker_ps = Capture("docker ps", "ok", b"4f2 trainer\n")
        run = store.begin("setup", version="test")
        run.done(run.intend("packages", "step", change))
        run.commit("done")
        packages = {str(change.id): NEW} if isinstance(change, PackageChange) else {}
        facts = machine(packages=packages, units={"docker.service": unit()})

        def planned() -> UndoPlan:
            if verb == "remove":
                return plan_removal(store, host, facts)
            return plan_rollback(store, host, run.id, facts)

        with pytest.raises(DrainRequired, match="1 running docker container"):
            planned()

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_a_restart_that_an_earlier_run_owes_stops_no_container_unasked(
        self, host: Machine, store: Store, verb: str
    ) -> None:
        run, owed = newest(store), Trigger("restart", "docker.service")
        cut = store.begin("setup", version="test")
        cut.done(cut.intend("runtime", "x", FileChange(DAEMON_JSON, None, FileState(b"{}"), frozenset({owed}))))
        cut.close()
        host.docker_ps = Capture("docker ps", "ok", b"4f2 trainer\n")
        with pytest.raises(DrainRequired, match="1 running docker container"):
            _ = (
                plan_removal(store, host, now(), owed=(owed,))
                if verb == "remove"
                else plan_rollback(store, host, run, now())
            )

    def test_what_needs_a_package_that_the_archives_lost_does_not_come_back_either(
        self, host: Machine, store: Store
    ) -> None:
        run = store.begin("setup", version="test")
        run.done(
            *run.intend_all(
                "packages", "x", [PackageChange(PackageId.of(name), OLD, None) for name in ("lost", "needs-lost")]
            )
        )
        run.commit("done")
        host.archives = {"needs-lost": frozenset({OLD.version})}
        host.solver = lambda changes: (
            replace(_obeys(changes), problem="needs-lost: Depends: lost")
            if "needs-lost" in [str(change.id) for change in changes]
            else _obeys(changes)
        )
        back = plan_rollback(store, host, run.id, now())
        assert (back.packages, back.incomplete) == ((), True)
        assert "nor does what came with it: needs-lost" in back.notes

    def test_a_file_that_went_with_its_package_is_nobodys_edit(self, host: Machine, store: Store) -> None:
        path = "/etc/nvidia/ours.conf"
        run = store.begin("setup", version="test")
        run.done(run.intend("packages", "x", FileChange(path, FORMER, OURS)))
        run.done(*run.intend_all("packages", CONFFILES, (FileChange(path, OURS, None),)))
        run.done(run.intend("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None)))
        run.commit("done")
        assert path in (one.subject for one in plan_rollback(store, host, run.id, now({})).changes)

    def test_a_unit_whose_package_comes_back_first_is_started_again(self, host: Machine, store: Store) -> None:
        done = undo(host, store, plan_rollback(store, host, newest(store), now()))
        again = plan_rollback(store, host, done.run, machine(packages={"nvidia-driver": OLD}))
        assert ServiceChange(UNIT, OFF, ON) in again.changes

    def test_another_version_of_the_driver_is_no_less_a_disruption(self, host: Machine, store: Store) -> None:
        run = store.begin("setup", version="test")
        run.done(run.intend("packages", "driver", PackageChange(PackageId("libcuda1"), OLD, NEW)))
        run.commit("done")
        host.archives["libcuda1"] = frozenset({OLD.version})
        host.busy = Workloads(gpu=("812 (python3 train.py)",))
        with pytest.raises(DrainRequired, match="take the driver from 1 process"):
            plan_rollback(store, host, run.id, now({"libcuda1": NEW}))
        back = plan_rollback(store, host, run.id, now({"libcuda1": NEW}, loaded=True), disrupt=True)
        assert "580.178.04" in back.reboot

    def test_what_a_killed_rollback_owes_the_next_one_settles(self, host: Machine, store: Store) -> None:
        run = newest(store)
        cut = store.begin("rollback", version="test", of=run)
        change = FileChange(CONTAINERD, OURS, FORMER, frozenset({RESTART}))
        cut.done(cut.intend("runtime", "step", change))
        cut.close()
        host.apply([change])
        host.triggered.clear()
        back = plan_rollback(store, host, run)
        assert (back.steps, back.owed) == ((), (RESTART,))
        rollback(back, host, store, version="test", argv=(), on_event=ignore_event)
        assert host.triggered == [RESTART]
        assert store.pending_triggers() == {}

    def test_a_setup_that_put_its_file_back_itself_has_nothing_left_to_undo(self, host: Machine, store: Store) -> None:
        rejected = FileState(b"rejected\n")
        host.files[CONTAINERD] = FORMER
        run = store.begin("setup", version="test")
        for stage, before, after in (("runtime", FORMER, rejected), ("recovery", rejected, FORMER)):
            run.done(run.intend(stage, "step", FileChange(CONTAINERD, before, after, frozenset({RESTART}))))
        run.settle(RESTART)
        run.commit("failed")
        assert plan_rollback(store, host, run.id, now()).steps == ()
        assert plan_rollback(store, host, run.id).steps == ()

    def test_a_later_run_may_change_what_a_setup_put_back_itself(self, host: Machine, store: Store) -> None:
        rejected, later = FileState(b"rejected\n"), FileState(b"later\n")
        host.files[CONTAINERD] = FORMER
        run = store.begin("setup", version="test")
        for stage, before, after in (("runtime", FORMER, rejected), ("recovery", rejected, FORMER)):
            run.done(run.intend(stage, "step", FileChange(CONTAINERD, before, after)))
        run.commit("failed")
        second = store.begin("setup", version="test")
        second.done(second.intend("runtime", "step", FileChange(CONTAINERD, FORMER, later)))
        second.commit("done")
        host.files[CONTAINERD] = later
        assert plan_rollback(store, host, run.id, now()).steps == ()
        assert plan_rollback(store, host, run.id).steps == ()

    def test_an_edit_made_after_the_package_came_back_is_no_prey(self, host: Machine, store: Store) -> None:
        path, edited = "/etc/nvidia/old.conf", FileState(b"edited by hand\n")
        run = store.begin("setup", version="test")
        run.done(*run.intend_all("packages", CONFFILES, (FileChange(path, edited, None),)))
        run.commit("done")
        host.files[path] = FileState(b"edited again\n")
        host.files[STATUS] = FileState(paragraph("nvidia-driver", conffile=path).encode())
        with pytest.raises(Conflict, match="edited since"):
            plan_rollback(store, host, run.id, now({"nvidia-driver": OLD}))
        host.files[path] = edited
        assert plan_rollback(store, host, run.id, now({"nvidia-driver": OLD})).steps == ()

    def test_file_that_somebody_wrote_where_a_purged_package_had_its_own_is_no_prey(
        self, host: Machine, store: Store
    ) -> None:
        run = store.begin("setup", version="test")
        run.done(*run.intend_all("packages", CONFFILES, (FileChange(DAEMON_JSON, FORMER, None),)))
        run.done(run.intend("packages", "conflicts", PackageChange(PackageId("nvidia-docker2"), OLD, None)))
        run.done(run.intend("runtime", "runtime-config", FileChange(DAEMON_JSON, None, OURS)))
        run.commit("done")
        host.archives["nvidia-docker2"] = frozenset({OLD.version})
        for there in (None, OURS):
            host.files[DAEMON_JSON] = there
            assert DAEMON_JSON in {file.path for file in plan_rollback(store, host, run.id, now({})).files}
        host.files[DAEMON_JSON] = FileState(b"theirs")
        with pytest.raises(Conflict, match="edited since"):
            plan_rollback(store, host, run.id, now({}))
        assert plan_rollback(store, host, run.id, now({}), force=True).files

    def test_file_written_anew_after_the_purge_is_no_prey(self, host: Machine, store: Store) -> None:
        run = store.begin("setup", version="test")
        run.done(*run.intend_all("packages", CONFFILES, (FileChange(DAEMON_JSON, FORMER, None),)))
        run.done(run.intend("packages", "conflicts", PackageChange(PackageId("nvidia-docker2"), OLD, None)))
        run.commit("done")
        host.archives["nvidia-docker2"] = frozenset({OLD.version})
        host.files[DAEMON_JSON] = FileState(b"theirs")
        with pytest.raises(Conflict, match="edited since"):
            plan_rollback(store, host, run.id, now({}))
        assert plan_rollback(store, host, run.id, now({}), force=True).files

    def test_plain_rollback_leaves_configuration_files_of_purged_packages_alone(
        self, host: Machine, store: Store
    ) -> None:
        path = "/etc/nvidia/old.conf"
        run = store.begin("setup", version="test")
        run.done(*run.intend_all("packages", CONFFILES, (FileChange(path, FORMER, None),)))
        run.done(run.intend("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None)))
        run.commit("done")
        assert plan_rollback(store, host, run.id).steps == (), "its package does not come back either"
        host.files[path] = FileState(b"of a package that somebody installed again, and edited\n")
        host.files[STATUS] = FileState(paragraph("nvidia-driver", conffile=path).encode())
        assert plan_rollback(store, host, run.id).steps == ()

    def test_a_configuration_file_that_was_purged_with_its_package_comes_back_edited_as_it_was(
        self, host: Machine, store: Store
    ) -> None:
        path, edited = "/etc/nvidia/old.conf", FileState(b"edited by hand\n", 0o600)
        run = store.begin("setup", version="test")
        run.done(*run.intend_all("packages", CONFFILES, (FileChange(path, edited, None),)))
        run.done(run.intend("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None)))
        run.commit("done")
        back = plan_rollback(store, host, run.id, now({}))
        assert [one.subject for one in back.changes] == ["nvidia-driver", path]
        host.files[path] = FileState(b"as the package ships it\n")  # apt has brought it meanwhile
        undo(host, store, back)
        assert host.files[path] == edited

    @pytest.mark.parametrize(
        "edited", [FileState(b"edited by hand\n"), FileState(b"as shipped\n", 0o600)], ids=["content", "mode"]
    )
    def test_a_configuration_file_that_came_back_edited_goes_again_with_its_package(
        self, host: Machine, store: Store, edited: FileState
    ) -> None:
        path, shipped = "/etc/nvidia/old.conf", FileState(b"as shipped\n")
        run = store.begin("setup", version="test")
        run.done(*run.intend_all("packages", CONFFILES, (FileChange(path, edited, None),)))
        run.done(run.intend("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None)))
        run.commit("done")
        database = paragraph("nvidia-driver", conffile=path).replace("0123", hashlib.md5(shipped.content).hexdigest())
        host.after_packages = {path: shipped, STATUS: FileState(database.encode())}
        back = undo(host, store, plan_rollback(store, host, run.id, now({})))
        assert host.files[path] == edited

        host.after_packages = {path: None}
        again = undo(host, store, plan_rollback(store, host, back.run, now({"nvidia-driver": OLD})))
        assert host.files[path] is None
        host.after_packages = {path: shipped}
        undo(host, store, plan_rollback(store, host, again.run, now({})))
        assert host.files[path] == edited

    def test_a_configuration_file_stays_away_when_its_package_cannot_come_back(
        self, host: Machine, store: Store
    ) -> None:
        path = "/etc/nvidia/old.conf"
        run = store.begin("setup", version="test")
        run.done(*run.intend_all("packages", CONFFILES, (FileChange(path, FORMER, None),)))
        run.done(run.intend("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None)))
        run.commit("done")
        host.archives = {}
        back = plan_rollback(store, host, run.id, now({}))
        assert back.incomplete
        done = undo(host, store, back)
        assert host.files.get(path) is None
        assert made_changes(store.read(done.run)) == ()

    def test_what_a_purge_takes_along_is_backed_up_before(self, host: Machine, store: Store) -> None:
        path, edited = "/etc/dkms/framework.conf", FileState(b"edited by hand\n")
        host.files[path] = edited
        host.files[STATUS] = FileState(
            "".join((paragraph("nvidia-driver-cuda"), paragraph("dkms", conffile=path))).encode()
        )
        done = undo(host, store, plan_rollback(store, host, newest(store), now()))
        host.files[path] = None
        again = plan_rollback(store, host, done.run, machine(units={UNIT: unit(active=False, enabled=False)}))
        assert FileChange(path, None, edited) in again.files

    @pytest.mark.parametrize("is_edited", [False, True])
    def test_what_only_the_newer_version_shipped_goes_with_it_unless_it_was_edited(
        self, host: Machine, store: Store, is_edited: bool
    ) -> None:
        path, shipped = "/etc/modprobe.d/driver.conf", FileState(b"as shipped\n")
        sum_ = hashlib.md5(shipped.content).hexdigest()
        run = store.begin("setup", version="test")
        run.done(run.intend("packages", "driver", PackageChange(PackageId("driver"), OLD, NEW)))
        run.commit("done")
        host.files[path] = FileState(b"edited\n") if is_edited else shipped
        host.archives["driver"] = frozenset({OLD.version})
        back = plan_rollback(store, host, run.id, now({"driver": NEW}))
        text = f"Package: driver\nStatus: install ok installed\nVersion: 1\nConffiles:\n {path} {sum_}"
        host.files[STATUS] = FileState(text.encode())
        host.after_packages = {STATUS: FileState(f"{text} obsolete\n".encode())}
        done = undo(host, store, back)
        assert (host.files[path] is None) is not is_edited
        host.after_packages = {}  # dpkg takes a missing configuration file for one that somebody deleted
        undo(host, store, plan_rollback(store, host, done.run, now({"driver": OLD})))
        assert host.files[path] == (FileState(b"edited\n") if is_edited else shipped)
        assert path not in store.footprint().files


def test_of_a_transaction_that_failed_only_what_it_touched_is_undone(store: Store) -> None:
    """What it never came to may have been installed by somebody since."""
    host = Node(machine(), refuses=PackageChange)
    host.files[STATUS] = FileState("".join((paragraph("dpkg"), paragraph("dkms"), HALF)).encode())
    run = store.begin("setup", version="test")
    names = ("dkms", "half", "docker.io", "libnvidia:i386")
    batch = tuple(PackageChange(PackageId.of(name), None, PackageState("1")) for name in names)
    with pytest.raises(ChangeFailed, match="it could not be done"):
        Applier(host, run, ignore_event, lambda: None).apply_packages("packages", batch, lambda change: str(change.id))
    run.commit("failed")
    assert {intent.change.subject for intent in inverse_intents(store.read(run.id))} == {"dkms", "half"}
    assert set(store.footprint().packages) == ids("dkms", "half")


@pytest.mark.parametrize("status", [None, FileState(b"Package: torn")])
def test_where_dpkg_does_not_tell_a_failed_transaction_may_have_touched_all(
    store: Store, status: FileState | None
) -> None:
    host = Node(machine(), refuses=PackageChange)
    host.files[STATUS] = status
    run = store.begin("setup", version="test")
    change = PackageChange(PackageId("dkms"), None, PackageState("1"))
    with pytest.raises(ChangeFailed, match="it could not be done"):
        Applier(host, run, ignore_event, lambda: None).apply_packages("packages", (change,), lambda _: "x")
    run.commit("failed")
    assert set(store.footprint().packages) == ids("dkms")


class TestRemove:
    def test_a_merged_configuration_is_checked_before_it_is_written(
        self, host: Machine, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.files[CONTAINERD] = edited = FileState(b"# mine, edited\nnvidia = true\n")

        def check(expectation: RuntimeExpectation, changes: Sequence[FileChange]) -> str:
            assert (expectation.runtime, [change.path for change in changes]) == ("containerd", [CONTAINERD])
            raise Refused("containerd does not take it")

        monkeypatch.setattr(host, "check", check)
        with pytest.raises(Refused, match="does not take it"):
            undo(host, store, plan_removal(store, host, now()))
        assert host.files[CONTAINERD] == edited

    def test_everything_goes_that_was_added_and_what_was_there_is_as_before(self, host: Machine, store: Store) -> None:
        back = plan_removal(store, host, now())
        assert {str(change.id): change.after for change in back.packages} == {"nvidia-driver-cuda": None, "dkms": None}
        undo(host, store, back)
        assert (host.files[CONTAINERD], host.files[CUDA_LIST], host.files[BLACKLIST]) == (FORMER, None, None)

    def test_what_was_purged_is_named_and_does_not_come_back(self, host: Machine, store: Store) -> None:
        back = plan_removal(store, host, now())
        assert "gpunode purged these packages and does not reinstall them: nvidia-driver" in back.notes

    def test_an_edit_of_years_ago_stays(self, host: Machine, store: Store) -> None:
        host.files[CONTAINERD] = FileState(b"# mine, edited\nnvidia = true\n")
        back = plan_removal(store, host, now())
        assert [c.after for c in back.files if c.path == CONTAINERD] == [FileState(b"# mine, edited\n")]
        assert any("the edits stay" in note for note in back.notes)

    def test_an_edit_of_gpunodes_own_lines_is_a_conflict_unless_forced(self, host: Machine, store: Store) -> None:
        host.files[CONTAINERD] = FileState(b"# mine\nnvidia = false\n")
        with pytest.raises(Conflict, match="was edited since") as refused:
            plan_removal(store, host, now())
        assert "+nvidia = false" in refused.value.why
        assert "-nvidia = true" in refused.value.why
        forced = plan_removal(store, host, now(), force=True)
        assert [c.after for c in forced.files if c.path == CONTAINERD] == [FORMER]

    def test_an_edit_between_two_setups_stays_too(self, host: Machine, store: Store) -> None:
        between = FileState(b"# mine\n# theirs\nnvidia = true\n")
        run = store.begin("setup", version="test")
        again = FileChange(CONTAINERD, between, FileState(b"# mine\n# theirs\nnvidia = 2\n"), frozenset({RESTART}))
        run.done(run.intend("runtime", "step", again))
        run.commit("done")
        host.files[CONTAINERD] = again.after if isinstance(again.after, FileState) else None
        back = plan_removal(store, host, now())
        assert [c.after for c in back.files if c.path == CONTAINERD] == [FileState(b"# mine\n# theirs\n")]

    def test_a_file_that_gpunode_made_goes_but_for_what_others_added(self, host: Machine, store: Store) -> None:
        host.files[CUDA_LIST] = FileState(b"deb x\ndeb theirs\n")
        back = plan_removal(store, host, now())
        assert [c.after for c in back.files if c.path == CUDA_LIST] == [FileState(b"deb theirs\n")]

    @pytest.mark.parametrize(
        ("document", "left"),
        [
            (b'{"log-driver": "local", "runtimes": {"nvidia": {"path": "/n"}}}', b'{"log-driver": "local"}'),
            # Made the default by hand: dockerd would not start with a default that is not there.
            (b'{"default-runtime": "nvidia", "debug": true, "runtimes": {"nvidia": {"path": "/n"}}}',
             b'{"debug": true}'),
            (b'{"runtimes": {"nvidia": {"path": "/n"}}, "x": 1,', None),
        ],
    )  # fmt: skip
    def test_a_daemon_json_is_left_as_one_that_dockerd_takes(
        self, host: Machine, store: Store, document: bytes, left: bytes | None
    ) -> None:
        run = store.begin("setup", version="test")
        made = FileState(b'{"runtimes": {"nvidia": {"path": "/n"}}}')
        change = FileChange(DAEMON_JSON, None, made, frozenset({Trigger("reload", "docker.service")}))
        run.done(run.intend("runtime", "runtime-config", change))
        run.commit("done")
        host.files[DAEMON_JSON] = FileState(document)
        if left is None:
            with pytest.raises(Conflict):
                plan_removal(store, host, now())
            return
        back = plan_removal(store, host, now())
        assert [c.after for c in back.files if c.path == DAEMON_JSON] == [FileState(left)]
        assert ("the default runtime nvidia no longer exists" in " ".join(back.notes)) is (b"default" in document)

    @pytest.mark.parametrize("is_made", [False, True])
    def test_file_goes_whichever_of_two_states_a_cut_rollback_left(
        self, host: Machine, store: Store, is_made: bool
    ) -> None:
        """Two setups wrote the file, and a rollback of the second was killed before or after it put the first back."""
        second = FileState(b"# mine\nnvidia = 2\n")
        run = store.begin("setup", version="test")
        run.done(run.intend("runtime", "step", FileChange(CONTAINERD, OURS, second, frozenset({RESTART}))))
        run.commit("done")
        cut = store.begin("rollback", version="test", of=run.id)
        cut.intend("runtime", "step", FileChange(CONTAINERD, second, OURS, frozenset({RESTART})))
        cut.close()
        host.files[CONTAINERD] = OURS if is_made else second
        back = plan_removal(store, host, now())
        assert [c.after for c in back.files if c.path == CONTAINERD] == [FORMER]

    def test_a_file_that_somebody_removed_stays_removed(self, host: Machine, store: Store) -> None:
        host.files[CONTAINERD] = None
        assert CONTAINERD not in (one.subject for one in plan_removal(store, host, now()).changes)

    def test_of_what_was_forgotten_goes_what_is_gpunodes_by_its_hash(self, host: Machine, store: Store) -> None:
        forget(store, newest(store))
        back = plan_removal(store, host, now())
        assert {change.path for change in back.files} == {CUDA_LIST, BLACKLIST}, "there was nothing before gpunode"
        assert any(CONTAINERD in note and "deleted" in note for note in back.remarks)
        host.files[CUDA_LIST] = FileState(b"deb theirs\n")
        assert CUDA_LIST not in (one.subject for one in plan_removal(store, host, now()).changes)

    def test_of_what_was_forgotten_stays_what_somebody_wrote_between_two_runs(
        self, host: Machine, store: Store
    ) -> None:
        change = FileChange(BLACKLIST, FileState(b"blacklist nouveau\n# mine\n"), FileState(b"# both\n# mine\n"))
        run = store.begin("setup", version="test")
        run.done(run.intend("packages", "step", change))
        run.commit("done")
        host.files[BLACKLIST] = FileState(b"# both\n# mine\n")
        for name in store.ids():
            forget(store, name)
        back = plan_removal(store, host, now())
        assert BLACKLIST not in {file.path for file in back.files}
        assert any(BLACKLIST in remark and "deleted" in remark for remark in back.remarks)
        assert BLACKLIST in {file.path for file in plan_removal(store, host, now(), force=True).files}

    def test_what_the_user_installed_after_an_undo_is_the_users(self, host: Machine, store: Store) -> None:
        undo(host, store, plan_rollback(store, host, newest(store), now()))
        back = plan_removal(store, host, machine(packages={"dkms": PackageState("3")}))
        assert back.packages == ()

    def test_a_driver_that_others_need_keeps_what_it_is_run_with(self, host: Machine, store: Store) -> None:
        needs = paragraph("cuda-app", "nvidia-driver-cuda")
        host.files[STATUS] = FileState("".join((*map(paragraph, AFTER), needs)).encode())
        for back in (plan_removal(store, host, now()), plan_rollback(store, host, newest(store), now())):
            subjects = {one.subject for one in back.changes}
            assert subjects.isdisjoint({BLACKLIST, CUDA_LIST, UNIT, "nvidia-driver-cuda"})
            assert CONTAINERD in subjects
            assert f"{BLACKLIST} stays with nvidia-driver-cuda" in back.remarks

    def test_list_that_setup_replaced_does_not_come_back_while_gpunodes_own_stays(self, store: Store) -> None:
        """apt would read no list at all: two entries of one archive with two keys."""
        theirs, key = "/etc/apt/sources.list.d/cuda.list", FileState(b"NVIDIA's key")
        former = FileState(f"deb [signed-by=/k.gpg] {CUDA_URI} /\n".encode())
        ours = FileState(f"deb [signed-by={CUDA_KEYRING}] {CUDA_URI} /\n".encode())
        files = {CUDA_LIST: (None, ours), theirs: (former, None), CUDA_KEYRING: (FileState(b"armored"), key)}
        host = Machine(machine(files={CUDA_KEYRING: key, CUDA_LIST: ours}))
        run = store.begin("setup", version="test")
        for path, (before, after) in files.items():
            run.done(run.intend("sources", "cuda-repository", FileChange(path, before, after)))
        run.done(run.intend("packages", "driver", PackageChange(PackageId("nvidia-driver-cuda"), None, NEW)))
        run.commit("done")
        driver = paragraph("nvidia-driver-cuda")
        facts = machine(packages={"nvidia-driver-cuda": NEW}, files={CUDA_LIST: ours, CUDA_KEYRING: key})

        host.files[STATUS] = FileState((driver + paragraph("cuda-app", "nvidia-driver-cuda")).encode())
        for back in (plan_removal(store, host, facts), plan_rollback(store, host, run.id, facts)):
            assert back.steps == ()
            notes = {one.subject: one.how for one in back.kept}
            assert f"{CUDA_LIST}:1 is for the same archive" in notes[theirs]
            backup = store.objects.path_of_content(former.content)
            assert f"`sudo install -m 0644 {backup} {theirs}`" in notes[theirs]
            assert Path(backup).read_bytes() == former.content
            assert notes[CUDA_KEYRING] == f"stays: {CUDA_LIST} names it"

        host.files[STATUS] = FileState(driver.encode())
        back = plan_removal(store, host, facts)
        assert {one.subject for one in back.changes} == {*files, "nvidia-driver-cuda"}, (
            "without the driver all is as before"
        )

    def test_keyring_of_somebody_elses_list_comes_back_as_it_was_and_is_never_taken_away(self, store: Store) -> None:
        theirs, key = "/etc/apt/sources.list.d/cuda.list", FileState(b"NVIDIA's key")
        listed = FileState(f"deb [signed-by={CUDA_KEYRING}] {CUDA_URI} /\n".encode())
        host = Machine(machine(files={CUDA_KEYRING: key, theirs: listed}))
        for former in (FileState(b"two keys"), None):
            run = store.begin("setup", version="test")
            run.done(run.intend("sources", "cuda-repository", FileChange(CUDA_KEYRING, former, key)))
            run.commit("done")
            back = plan_rollback(store, host, run.id, machine(files={CUDA_KEYRING: key, theirs: listed}))
            assert [change.after for change in back.files] == ([former] if former else [])
            assert (f"{CUDA_KEYRING} stays: {theirs} names it" in back.remarks) is (former is None)

    @pytest.mark.parametrize(
        ("now_auto", "back_to_auto"), [(False, True), (True, None)], ids=["as gpunode left it", "as before by hand"]
    )
    def test_package_that_was_a_dependency_before_is_one_again(
        self, host: Machine, store: Store, *, now_auto: bool, back_to_auto: bool | None
    ) -> None:
        before, after = PackageState("2", auto=True), PackageState("2")
        run = store.begin("setup", version="test")
        run.done(run.intend("packages", "marks", PackageChange(PackageId("nvidia-persistenced"), before, after)))
        run.commit("done")
        state = PackageState("2", auto=now_auto)
        back = plan_removal(store, host, now({**AFTER, "nvidia-persistenced": state}))
        marks = [change.after for change in back.packages if str(change.id) == "nvidia-persistenced"]
        assert marks == ([] if back_to_auto is None else [PackageState("2", auto=back_to_auto)])

    def test_mark_that_somebody_set_since_stays(self, host: Machine, store: Store) -> None:
        before, after = PackageState("1", auto=True), PackageState("2", auto=True)
        run = store.begin("setup", version="test")
        run.done(run.intend("packages", "driver", PackageChange(PackageId("nvidia-persistenced"), before, after)))
        run.commit("done")
        back = plan_removal(store, host, now({**AFTER, "nvidia-persistenced": PackageState("2")}))
        assert "nvidia-persistenced" not in (one.subject for one in back.changes)

    def test_failure_that_the_journal_has_no_room_for_is_still_what_is_told(
        self, host: Machine, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a full disk nobody says that a change was made which was not."""
        back = plan_removal(store, host, now())
        host.files[STATUS] = FileState(
            "".join(
                paragraph(name).replace("Version: 1", f"Version: {one.version}") for name, one in AFTER.items()
            ).encode()
        )

        def full(_descriptor: int, _data: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def fails(changes: Sequence[Change]) -> None:
            if isinstance(changes[0], PackageChange):
                monkeypatch.setattr(os, "write", full)
                raise ChangeFailed("could not change the packages", why="dpkg: No space left on device")

        monkeypatch.setattr(host, "apply", fails)
        with pytest.raises(ChangeFailed) as failed:
            undo(host, store, back)
        monkeypatch.undo()

        assert failed.value.what == "could not change the packages"
        assert "the journal could not record the end of this run" in failed.value.why
        assert {str(change.id) for change in plan_removal(store, host, now()).packages} == set(AFTER)

    def test_an_enrolled_key_is_named_with_what_takes_it_out(self, host: Machine, store: Store) -> None:
        host.enrolled = "/var/lib/dkms/mok.pub"
        (note,) = (note for note in plan_removal(store, host, now()).notes if "Secure Boot" in note)
        assert "mokutil --delete /var/lib/dkms/mok.pub" in note

    def test_a_second_removal_finds_nothing(self, host: Machine, store: Store) -> None:
        back = plan_removal(store, host, now())
        rollback(back, host, store, version="test", argv=(), on_event=ignore_event, verb="remove", whole=True)
        assert plan_removal(store, host, machine()).steps == ()


class TestRemainder:
    """What a removal finds at its end, by looking."""

    def removed(self, host: Machine, store: Store) -> UndoPlan:
        back = plan_removal(store, host, now())
        rollback(back, host, store, version="test", argv=(), on_event=ignore_event, verb="remove", whole=True)
        return back

    def test_nothing_is_left_of_a_whole_removal(self, host: Machine, store: Store) -> None:
        assert find_remainder(store, host, machine(), self.removed(host, store)) == Remainder()

    def test_what_stays_though_each_command_succeeded_is_a_failure(self, host: Machine, store: Store) -> None:
        back = self.removed(host, store)
        host.files[BLACKLIST] = FileState(b"blacklist nouveau\n")
        left = find_remainder(store, host, now({"dkms": PackageState("3")}), back)
        assert set(left.missed) == {BLACKLIST, "dkms", UNIT}
        assert isinstance(left.failure, VerifyFailed)
        assert "dkms" in left.failure.why

    def test_file_that_went_with_its_package_is_no_failure(self, host: Machine, store: Store) -> None:
        """Its former text was put back first, as somebody else's package might have stayed."""
        back = self.removed(host, store)
        host.files[CONTAINERD] = None
        assert find_remainder(store, host, machine(), back).failure is None

    def test_what_came_again_since_is_named(self, host: Machine, store: Store) -> None:
        self.removed(host, store)
        host.files[BLACKLIST] = FileState(b"blacklist nouveau\n")
        nothing = plan_removal(store, host, now({"dkms": PackageState("3")}))
        assert nothing.steps == ()
        left = find_remainder(store, host, now({"dkms": PackageState("3")}), nothing)
        assert left.failure is None
        notes = {one.subject: one.how for one in left.kept}
        assert f"`sudo rm {BLACKLIST}`" in notes[BLACKLIST]
        assert "came again after gpunode had taken it away" in notes["dkms"]
        assert "purge" not in notes["dkms"], "whoever installed it again needs it"
        assert f"`sudo systemctl disable {UNIT}`" in notes[UNIT]

    def test_generated_specification_and_loaded_module_are_named(self, host: Machine, store: Store) -> None:
        spec = "/var/run/cdi/nvidia.yaml"
        promise = FileChange(spec, None, Deferred("the GPUs", "nvidia-ctk"), frozenset({Trigger("cdi")}))
        run = store.begin("setup", version="test")
        for change in (promise, ModuleChange("nvidia-fs", before=False, after=True)):
            run.done(run.intend("kernel", "step", change))
        run.commit("done")
        back = self.removed(host, store)
        host.files[spec] = FileState(b"cdiVersion: 0.5.0\n")
        left = find_remainder(store, host, machine(modules=frozenset({"nvidia_fs"})), back)
        assert {str(one) for one in left.kept} == {
            f"{spec} stays, which nvidia-ctk wrote, until the next boot",
            "nvidia-fs stays in the kernel until the next boot",
        }


def test_versions_that_others_left_beside_a_file_are_known_by_their_names() -> None:
    names = [f"/etc/a.toml{end}" for end in ("", ".bak", "~", ".dpkg-dist", ".20260101", ".d", "c", ".gpunode-1")]
    assert list(find_leftovers("/etc/a.toml", names)) == [
        "/etc/a.toml.bak",
        "/etc/a.toml~",
        "/etc/a.toml.dpkg-dist",
        "/etc/a.toml.20260101",
    ]
