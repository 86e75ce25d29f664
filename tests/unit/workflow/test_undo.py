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
    CONFFILES_STEP_ID,
    OVERWRITTEN_STEP_ID,
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
    restrict_writes_to_root,
    triggers_of,
)
from gpunode.errors import ChangeFailed, Conflict, DrainRequired, RebootRequired, Refused, Undetermined, VerifyFailed
from gpunode.facts.evidence import Capture, GlobMatch, Probe, encode_matches
from gpunode.facts.model import Facts, Known, LoadedDriver, Unit, Unknown
from gpunode.facts.probes import MPS_UNIT_FILE
from gpunode.host.port import GpuClient, Workloads
from gpunode.journal.history import RunRecord, inverse_intents
from gpunode.journal.record import Intent, Verb
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages.deb.status import DIVERSIONS_FILE
from gpunode.packages.simulation import Action, Simulation
from gpunode.steps.daemons import MPS_SERVICE
from gpunode.steps.gpudirect import GPUDIRECT_MODULES_FILE
from gpunode.steps.packages import CUDA_PROFILE_SCRIPT
from gpunode.workflow.apply import Applier
from gpunode.workflow.events import Event, Notice, ignore_event
from gpunode.workflow.live_state import package_checksum
from gpunode.workflow.remove import Remainder, find_remainder, plan_removal
from gpunode.workflow.rollback import UndoResult, execute_undo, find_newest_run, plan_rollback, undo_failure
from gpunode.workflow.undo import UndoPlan
from tests.ids import ids
from tests.unit.steps.machines import CONTAINERD, CUDA_KEYRING, CUDA_LIST, CUDA_URI, DAEMON_JSON, KERNEL, machine, unit
from tests.unit.workflow.nodes import Node

STATUS, INFO = "/var/lib/dpkg/status", "/var/lib/dpkg/info"
BLACKLIST = "/etc/modprobe.d/gpunode-nouveau.conf"
UNIT = "nvidia-persistenced.service"
TOOLKIT_LIST = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
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
        self.owned: dict[str, tuple[str, ...]] = {}
        self.globs: dict[str, Capture] = {}

    def run_probe(self, probe: Probe, /) -> Capture:
        if (place := probe.glob or probe.path) in self.globs:
            return self.globs[place]
        if probe.glob == f"{INFO}/*.list":
            lists = ((name, "\n".join(["/.", *paths, ""]).encode()) for name, paths in self.owned.items())
            found = encode_matches(GlobMatch(f"{INFO}/{name}.list", data=data) for name, data in lists)
            return Capture(probe.glob, "ok", found)
        return super().run_probe(probe)

    def apply(self, changes: Sequence[Change], /) -> None:
        super().apply(changes)
        if isinstance(changes[0], PackageChange):
            self.files.update(self.after_packages)

    def list_offered_versions(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        return {one: self.archives[str(one)] for one in packages if str(one) in self.archives}

    def find_workloads(self) -> Workloads:
        return self.busy


def _obeys(changes: Sequence[PackageChange]) -> Simulation:
    return Simulation(
        tuple(
            Action("purge" if change.after is None else "remove", change.id)
            if not change.exists_after
            else Action("install", change.id, getattr(change.after, "version", ""))
            for change in changes
        )
    )


def paragraph(name: str, depends: str = "", conffile: str = "") -> str:
    relations = f"Depends: {depends}\n" if depends else ""
    kept = f"Conffiles:\n {conffile} 0123\n" if conffile else ""
    return f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n{relations}{kept}\n"


_PINNED = FileState(b"release 580\npriority 1001\n")
_DOCKER = b'{"runtimes": {"nvidia": {"path": "%s"}}}\n'
_CRI = b'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "pause:3.9"\n'
_ENTRY = b"""\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/n"
"""
HALF = "Package: half\nStatus: install reinstreq half-installed\nArchitecture: amd64\n\n"
# The changes of a setup: archive, packages, blacklist, unit, configuration.
CHANGES: tuple[tuple[str, str, Change], ...] = (
    ("sources", "cuda-repository", FileChange(CUDA_LIST, None, FileState(b"deb x\n"), frozenset({REFRESH}))),
    ("packages", "nouveau", FileChange(BLACKLIST, None, FileState(b"blacklist nouveau\n"), frozenset({INITRAMFS}))),
    ("packages", "driver", PackageChange(PackageId("nvidia-driver-cuda"), None, NEW)),
    ("packages", "dependencies", PackageChange(PackageId("dkms"), None, PackageState("3"))),
    ("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None)),
    ("kernel", "persistence", ServiceChange(UNIT, OFF, ON)),
    ("runtime", "runtime-config", FileChange(CONTAINERD, FORMER, OURS, frozenset({RESTART}))),
)
AFTER = {"nvidia-driver-cuda": NEW, "dkms": PackageState("3")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def host(store: Store) -> Machine:
    """Return a node after that setup."""
    made = Machine(machine(files={CONTAINERD: FORMER}))
    run = store.begin("setup")
    for stage, step, change in CHANGES:
        run.record_done(run.record_intent(stage, step, change))
        made.apply([change])
    for trigger in (REFRESH, INITRAMFS, RESTART):
        run.record_trigger(trigger)
    run.commit("done")
    made.files[STATUS] = FileState("".join(map(paragraph, AFTER)).encode())
    return made


def facts_now(packages: Mapping[str, PackageState] = AFTER, *, loaded: bool = False, active: bool = True) -> Facts:
    driver = LoadedDriver("580.178.04", open_module=False) if loaded else None
    units = {UNIT: unit(active=active, enabled=active)}
    return machine(packages=packages, units=units, loaded_driver=Known(driver, "nvidia-version"))


def newest(store: Store) -> str:
    return store.ids()[-1]


def plan(verb: Verb, host: Machine, store: Store, run: str = "", *, loaded: bool = False) -> UndoPlan:
    """Return the plan of a removal, or of a complete rollback of ``run``, the newest by default."""
    facts = facts_now(loaded=loaded)
    return (
        plan_removal(store, host, facts)
        if verb == "remove"
        else plan_rollback(store, host, run or newest(store), facts)
    )


def note_checksum(host: Machine, package: str, path: str, state: FileState) -> None:
    host.files[f"{INFO}/{package}.md5sums"] = FileState(f"{package_checksum(state.content)}  {path[1:]}\n".encode())


def undo(host: Machine, store: Store, back: UndoPlan) -> UndoResult:
    return execute_undo(back, host, store, on_event=ignore_event)


class TestWholeRollback:
    def test_undo_reverses_dependencies_blacklist_after_driver(self, host: Machine, store: Store) -> None:
        back = plan_rollback(store, host, newest(store), facts_now())
        subjects = [one.subject for one in back.changes]
        assert subjects[:2] == [UNIT, CONTAINERD]
        assert set(subjects[2:5]) == {"nvidia-driver-cuda", "dkms", "nvidia-driver"}
        assert subjects[5:] == [BLACKLIST, CUDA_LIST], "the blacklist never goes while the driver stays"
        assert (back.is_incomplete, back.notes, back.reboot_reason) == (False, (), "")

    def test_whole_rollback_can_be_rolled_back_in_the_order_of_a_setup(self, host: Machine, store: Store) -> None:
        done = undo(host, store, plan_rollback(store, host, newest(store), facts_now()))
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

    def test_undone_rollback_enables_the_unit_whose_file_it_restores(self, store: Store) -> None:
        """gpunode's own unit comes with no package."""
        file, service = FileChange(MPS_UNIT_FILE, None, FileState(b"[Unit]\n")), ServiceChange(MPS_SERVICE, OFF, ON)
        run = store.begin("setup")
        run.record_done(*run.record_intents("kernel", "mps", (file, service)))
        run.commit("done")
        node = Machine(machine(files={MPS_UNIT_FILE: FileState(b"[Unit]\n")}))
        done = undo(node, store, plan_rollback(store, node, run.id, machine(units={MPS_SERVICE: unit()})))

        gone = Unit(OFF, exists=False)
        again = plan_rollback(store, node, done.run, machine(units={MPS_SERVICE: gone}))

        assert again.changes == (file, service)

    def test_third_rollback_makes_the_changes_of_the_first(self, host: Machine, store: Store) -> None:
        first = plan_rollback(store, host, newest(store), facts_now())
        bare = machine(packages={"nvidia-driver": OLD}, units={UNIT: unit(active=False, enabled=False)})
        again = plan_rollback(store, host, undo(host, store, first).run, bare)
        third = plan_rollback(store, host, undo(host, store, again).run, facts_now())
        assert [one.subject for one in third.changes] == [one.subject for one in first.changes]

    def test_rollback_restarts_daemons_and_rebuilds_the_initramfs_once(self, host: Machine, store: Store) -> None:
        host.triggered.clear()
        undo(host, store, plan_rollback(store, host, newest(store), facts_now()))
        assert host.triggered == [REFRESH, INITRAMFS, RESTART]
        assert store.find_pending_triggers() == {}

    def test_already_restored_package_is_left_out(self, host: Machine, store: Store) -> None:
        back = plan_rollback(store, host, newest(store), facts_now({"nvidia-driver": OLD, "dkms": PackageState("3")}))
        assert [str(change.id) for change in back.packages] == ["dkms"]

    def test_alternative_that_comes_back_serves_those_that_need_one(self, host: Machine, store: Store) -> None:
        # As after another flavour of the kernel module: packages of NVIDIA's depend on either.
        needs = paragraph("cuda-app", "nvidia-driver | nvidia-driver-cuda")
        host.files[STATUS] = FileState("".join((*map(paragraph, AFTER), needs)).encode())
        back = plan_rollback(store, host, newest(store), facts_now())
        assert {(str(one.id), one.after) for one in back.packages} == {
            ("nvidia-driver-cuda", None),
            ("dkms", None),
            ("nvidia-driver", OLD),
        }
        assert back.kept == ()
        host.archives.clear()
        lossy = plan_rollback(store, host, newest(store), facts_now(), allow_loss=True)
        assert [str(one.id) for one in lossy.packages] == ["dkms"]
        assert "nvidia-driver-cuda stays: cuda-app needs it now" in lossy.remarks

    def test_package_that_gets_only_its_marks_back_keeps_what_it_needs(self, host: Machine, store: Store) -> None:
        marked, before = PackageState("1"), PackageState("1", auto=True)
        run = store.begin("setup")
        for change in (
            PackageChange(PackageId("zfs"), before, marked),
            PackageChange(PackageId("gcc"), None, PackageState("9")),
        ):
            run.record_done(run.record_intent("packages", "x", change))
        run.commit("done")
        host.files[STATUS] = FileState((paragraph("zfs", "gcc") + paragraph("gcc")).encode())
        back = plan_rollback(store, host, run.id, facts_now({"zfs": marked, "gcc": PackageState("9")}))
        assert back.packages == (PackageChange(PackageId("zfs"), marked, before),)
        assert "gcc stays: zfs needs it now" in back.remarks

    def test_package_upgraded_since_is_removed_too(self, host: Machine, store: Store) -> None:
        newer = {**AFTER, "nvidia-driver-cuda": PackageState("580.200.01-1")}
        back = plan_rollback(store, host, newest(store), facts_now(newer))
        assert PackageChange(PackageId("nvidia-driver-cuda"), newer["nvidia-driver-cuda"], None) in back.packages

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    @pytest.mark.parametrize(
        ("before", "now", "is_masked", "wanted"),
        [
            (ServiceState(enabled=True, active=False), OFF, True, OFF),
            (ServiceState(enabled=True, active=False), OFF, False, OFF),
            (ServiceState(enabled=True, active=False), ServiceState(enabled=False, active=True), False, OFF),
            (OFF, ServiceState(enabled=False, active=True), True, OFF),
            (OFF, ServiceState(enabled=True, active=False), False, OFF),
        ],
    )
    def test_unit_that_somebody_disabled_or_masked_stays_so(
        self,
        store: Store,
        verb: Verb,
        before: ServiceState,
        now: ServiceState,
        wanted: ServiceState,
        *,
        is_masked: bool,
    ) -> None:
        """A package enables its unit, and gpunode starts it: enabling a masked unit would end each removal."""
        run = store.begin("setup")
        run.record_done(run.record_intent("kernel", "persistence", ServiceChange(UNIT, before, ON)))
        run.commit("done")
        facts = machine(units={UNIT: Unit(now, masked=is_masked)})
        made = Machine(facts)
        made.files[STATUS] = FileState(b"")
        undone = (
            plan_removal(store, made, facts) if verb == "remove" else plan_rollback(store, made, newest(store), facts)
        )
        assert [change.after for change in ServiceChange.of_kind(undone.changes)] == ([] if wanted == now else [wanted])

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    @pytest.mark.parametrize("now", [ON, ServiceState(enabled=False, active=True)])
    def test_unit_that_a_boot_started_is_stopped(self, store: Store, verb: Verb, now: ServiceState) -> None:
        """Setup enables MPS before the driver is loaded; its daemon would run on without its unit."""
        run = store.begin("setup")
        run.record_done(
            run.record_intent("kernel", "mps", ServiceChange(UNIT, OFF, ServiceState(enabled=True, active=False)))
        )
        run.commit("done")
        facts = machine(units={UNIT: Unit(now)})
        made = Machine(facts)
        made.files[STATUS] = FileState(b"")
        undone = (
            plan_removal(store, made, facts) if verb == "remove" else plan_rollback(store, made, newest(store), facts)
        )
        assert [change.after for change in ServiceChange.of_kind(undone.changes)] == [OFF]

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    @pytest.mark.parametrize("content", [b"deb x\n", b"deb x # NVIDIA's\n", b"neither\n"])
    def test_file_that_a_package_has_by_now_stays(
        self, host: Machine, store: Store, verb: Verb, content: bytes
    ) -> None:
        """cuda-keyring, installed since, has the same list, or its own."""
        packaged = FileState(content)
        host.owned, host.files[CUDA_LIST] = {"nvidia-smi": (CUDA_LIST,)}, packaged
        note_checksum(host, "nvidia-smi", CUDA_LIST, packaged)
        host.files[STATUS] = FileState("".join(map(paragraph, (*AFTER, "nvidia-smi"))).encode())
        back = plan(verb, host, store)
        assert CUDA_LIST not in [one.subject for one in back.changes]
        assert f"{CUDA_LIST} stays: it belongs to the package nvidia-smi now" in back.remarks
        undo(host, store, back)
        assert host.files[CUDA_LIST] == packaged

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_former_file_is_named_not_written_over_a_packages(self, host: Machine, store: Store, verb: Verb) -> None:
        former, packaged = FileState(b"the user's key"), FileState(b"key of the package")
        run = store.begin("setup")
        run.record_done(run.record_intent("sources", "x", FileChange(CUDA_KEYRING, former, FileState(b"our key"))))
        run.commit("done")
        host.owned, host.files[CUDA_KEYRING] = {"cuda-keyring": (CUDA_KEYRING,)}, packaged
        note_checksum(host, "cuda-keyring", CUDA_KEYRING, packaged)
        host.files[STATUS] = FileState("".join(map(paragraph, (*AFTER, "cuda-keyring"))).encode())
        back = plan(verb, host, store)
        backup = store.objects.path_of_content(former.content)
        assert (
            f"{CUDA_KEYRING} stays: it belongs to the package cuda-keyring now; what was there before gpunode is in "
            f"{backup}"
        ) in back.remarks
        undo(host, store, back)
        assert (host.files[CUDA_KEYRING], Path(backup).read_bytes()) == (packaged, former.content)

        host.files[CUDA_KEYRING] = FileState(b"our key")
        undo(host, store, plan(verb, host, store, run.id))
        assert host.files[CUDA_KEYRING] == former, "gpunode's own version of a package's file is taken back"

    def test_plain_rollback_leaves_a_configuration_that_a_package_has_by_now(self, host: Machine, store: Store) -> None:
        packaged = FileState(b"disabled_plugins = ['cri']\n")
        host.owned, host.files[CONTAINERD] = {"containerd.io": (CONTAINERD,)}, packaged
        note_checksum(host, "containerd.io", CONTAINERD, packaged)
        host.files[STATUS] = FileState(paragraph("containerd.io").encode())
        back = plan_rollback(store, host, newest(store))
        assert back.steps == ()
        assert f"{CONTAINERD} stays: it belongs to the package containerd.io now" in back.remarks[0]

    def test_undo_of_an_undo_edits_the_file_of_a_package_again(self, host: Machine, store: Store) -> None:
        """Debian's containerd ships the file that setup edits and a rollback restores."""
        shipped, ours = FileState(b"version = 2\n"), FileState(b"version = 2\n[nvidia]\n")
        run = store.begin("setup")
        run.record_done(run.record_intent("runtime", "runtime-config", FileChange(CONTAINERD, shipped, ours)))
        run.commit("done")
        host.owned, host.files[CONTAINERD] = {"containerd": (CONTAINERD,)}, ours
        note_checksum(host, "containerd", CONTAINERD, shipped)
        host.files[STATUS] = FileState("".join(map(paragraph, (*AFTER, "containerd"))).encode())
        done = execute_undo(plan_rollback(store, host, run.id), host, store, on_event=lambda _: None)
        assert host.files[CONTAINERD] == shipped
        execute_undo(plan_rollback(store, host, done.run), host, store, on_event=lambda _: None)
        assert host.files[CONTAINERD] == ours

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_undo_refuses_while_the_owners_of_files_are_unknown(self, host: Machine, store: Store, verb: Verb) -> None:
        host.globs = {f"{INFO}/*.list": Capture("lists", "failed", error="Input/output error")}
        with pytest.raises(Undetermined, match="cannot tell what belongs to which package"):
            plan(verb, host, store)
        host.globs = {f"{INFO}/*.list": Capture("lists", "ok", encode_matches(iter([GlobMatch(f"{INFO}/a.list")])))}
        with pytest.raises(Undetermined) as stopped:
            plan(verb, host, store)
        assert f"ls -l {INFO}/a.list" in stopped.value.hint

    def test_database_that_cannot_be_understood_stops_a_plain_rollback(self, host: Machine, store: Store) -> None:
        host.owned = {"containerd": (CONTAINERD,)}
        host.files[STATUS] = FileState(b"Package: containerd\n")
        with pytest.raises(Undetermined, match="cannot tell what belongs to which package"):
            plan_rollback(store, host, newest(store))

    def test_file_of_a_package_that_leaves_too_is_removed(self, host: Machine, store: Store) -> None:
        host.owned = {"nvidia-driver-cuda:amd64": (CUDA_LIST,)}
        back = plan_rollback(store, host, newest(store), facts_now())
        assert CUDA_LIST in [one.subject for one in back.changes]

    @pytest.mark.parametrize(
        ("owners", "diverted_by", "stays"),
        [
            (("nvidia-smi", "nvidia-driver-cuda:amd64"), "", True),
            (("nvidia-driver-cuda", "dkms"), "", False),
            (("nvidia-smi",), "nvidia-smi", True),
            (("nvidia-smi",), "dkms", False),
            (("nvidia-smi",), ":", False),
            (("removed-before",), "", False),
        ],
    )
    def test_file_stays_for_installed_packages_that_stay(
        self, host: Machine, store: Store, owners: tuple[str, ...], diverted_by: str, *, stays: bool
    ) -> None:
        host.owned = dict.fromkeys(owners, (CUDA_LIST,))
        if diverted_by:
            host.files[DIVERSIONS_FILE] = FileState(f"{CUDA_LIST}\n{CUDA_LIST}.moved\n{diverted_by}\n".encode())
        host.files[STATUS] = FileState("".join(map(paragraph, (*AFTER, "nvidia-smi"))).encode())
        back = plan_rollback(store, host, newest(store), facts_now())
        assert (CUDA_LIST not in [one.subject for one in back.changes]) is stays

    def test_file_in_place_of_a_deleted_conffile_is_removed(self, host: Machine, store: Store) -> None:
        """The package still lists the path, but what is there is gpunode's."""
        host.owned = {"nvidia-smi": (CUDA_LIST,)}
        text = "".join(map(paragraph, AFTER)) + paragraph("nvidia-smi", conffile=CUDA_LIST)
        host.files[STATUS] = FileState(text.encode())
        back = plan_rollback(store, host, newest(store), facts_now())
        assert CUDA_LIST in [one.subject for one in back.changes]

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_purged_package_that_somebody_holds_is_named(self, host: Machine, store: Store, verb: str) -> None:
        facts = facts_now({**AFTER, "dkms": PackageState("3", held=True)})
        back = (
            plan_removal(store, host, facts) if verb == "remove" else plan_rollback(store, host, newest(store), facts)
        )
        assert "held packages that are changed anyway, because the undo includes them: dkms" in back.notes

    def test_package_needed_by_others_stays_and_is_named(self, host: Machine, store: Store) -> None:
        host.files[STATUS] = FileState("".join((*map(paragraph, AFTER), paragraph("zfs-dkms", "dkms"))).encode())
        back = plan_rollback(store, host, newest(store), facts_now())
        assert "dkms" not in [str(change.id) for change in back.packages]
        assert back.remarks == ("dkms stays: zfs-dkms needs it now",)

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    @pytest.mark.parametrize("is_upgrade", [True, False])
    def test_version_gone_from_the_archives_needs_allow_loss(
        self, host: Machine, store: Store, verb: Verb, *, is_upgrade: bool
    ) -> None:
        host.archives = {"nvidia-driver": frozenset({"535.261.03-1"})}
        there = {**AFTER, "nvidia-driver": PackageState("595.1-1")} if is_upgrade else AFTER
        if verb == "remove":
            removed = plan_removal(store, host, facts_now(there))
            assert "nvidia-driver" not in [str(change.id) for change in removed.packages]
            assert any("nvidia-driver" in note for note in removed.notes), "it says so before it begins"
            return
        with pytest.raises(Refused, match="cannot get their former versions back") as refused:
            plan_rollback(store, host, newest(store), facts_now(there))
        lost = (
            f"nvidia-driver cannot get version {OLD.version} back: no archive in the package index has it "
            "(but 535.261.03-1)"
        )
        assert (refused.value.exit_code, refused.value.why) == (3, lost)
        assert "--allow-loss" in refused.value.hint
        back = plan_rollback(store, host, newest(store), facts_now(there), allow_loss=True)
        assert "nvidia-driver" not in [str(change.id) for change in back.packages]
        assert lost in map(str, back.kept), "or the node would count as it was before"
        assert undo_failure(undo(host, store, back).plan) is None

    def test_undo_is_refused_when_apt_would_do_something_else(self, host: Machine, store: Store) -> None:
        host.solver = lambda changes: Simulation((*_obeys(changes).actions, Action("remove", PackageId("kubelet"))))
        with pytest.raises(Refused, match="would change more than") as refused:
            plan_rollback(store, host, newest(store), facts_now())
        assert "kubelet" in refused.value.why
        assert host.files[CONTAINERD] == OURS

    def test_extra_packages_from_apt_are_journaled(self, host: Machine, store: Store) -> None:
        along = Action("install", PackageId("libnvidia-legacy"), "470.256.02-1")
        host.solver = lambda changes: Simulation((*_obeys(changes).actions, along))
        back = plan_rollback(store, host, newest(store), facts_now())
        assert (
            PackageChange(PackageId("libnvidia-legacy"), None, PackageState("470.256.02-1", auto=True)) in back.packages
        )

    def test_undo_with_a_loaded_module_requires_a_reboot(self, host: Machine, store: Store) -> None:
        back = plan_rollback(store, host, newest(store), facts_now(loaded=True))
        assert "580.178.04" in back.reboot_reason
        assert isinstance(undo_failure(undo(host, store, back).plan), RebootRequired)

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_undo_after_one_whose_initramfs_failed_makes_up_for_it(
        self, host: Machine, store: Store, verb: Verb, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "_boot_id", lambda: "b0a1")  # that of ``machine``
        run = newest(store)
        host.accepts = lambda trigger, _: trigger != INITRAMFS
        with pytest.raises(ChangeFailed):
            undo(host, store, plan(verb, host, store, run, loaded=True))
        host.accepts = lambda *_: True
        host.triggered.clear()

        after = facts_now({"nvidia-driver": OLD} if verb == "rollback" else {}, loaded=True, active=False)
        for has_failed in (True, False):
            again = plan_removal(store, host, after) if verb == "remove" else plan_rollback(store, host, run, after)
            assert (again.steps, INITRAMFS in again.pending_triggers) == ((), has_failed)
            undo(host, store, again)
            assert ("580.178.04" in again.reboot_reason) is has_failed, "said once"
            assert isinstance(undo_failure(again), RebootRequired) is has_failed
        assert host.triggered.count(INITRAMFS) == 1

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_driver_loaded_since_the_next_boot_is_none_of_the_undos(
        self, host: Machine, store: Store, verb: Verb, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "_boot_id", lambda: "an earlier boot")
        run = newest(store)
        host.accepts = lambda trigger, _: trigger != INITRAMFS
        with pytest.raises(ChangeFailed):
            undo(host, store, plan(verb, host, store, run, loaded=True))
        after = facts_now({"nvidia-driver": OLD} if verb == "rollback" else {}, loaded=True, active=False)
        again = plan_removal(store, host, after) if verb == "remove" else plan_rollback(store, host, run, after)
        assert again.reboot_reason == ""

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_unit_whose_state_is_unknown_is_named(self, host: Machine, store: Store, verb: Verb) -> None:
        facts = replace(facts_now(), units={UNIT: Unknown("systemctl: no answer within 10 s", "units")})
        back = (
            plan_removal(store, host, facts) if verb == "remove" else plan_rollback(store, host, newest(store), facts)
        )
        assert UNIT not in [one.subject for one in back.changes]
        assert f"{UNIT} stays as it is: systemctl: no answer within 10 s" in back.remarks

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_undo_needs_consent_to_take_the_driver_from_gpu_processes(
        self, host: Machine, store: Store, verb: str
    ) -> None:
        host.busy = Workloads(gpu_clients=(GpuClient(812, "python3 train.py"),))

        def planned(*, allow_disruption: bool) -> UndoPlan:
            if verb == "remove":
                return plan_removal(store, host, facts_now(), allow_disruption=allow_disruption)
            return plan_rollback(store, host, newest(store), facts_now(), allow_disruption=allow_disruption)

        with pytest.raises(DrainRequired, match="take the driver away from 1 process") as refused:
            planned(allow_disruption=False)
        assert "812 (python3 train.py)" in refused.value.why
        assert planned(allow_disruption=True).packages

    def test_packages_can_be_rolled_back_after_a_plain_rollback(self, host: Machine, store: Store) -> None:
        run = newest(store)
        plain = plan_rollback(store, host, run)
        execute_undo(plain, host, store, on_event=ignore_event)
        chosen = find_newest_run(store, with_packages=True)
        assert (chosen.id, chosen.is_undone(with_packages=False), chosen.is_undone(with_packages=True)) == (
            run,
            True,
            False,
        )
        whole = plan_rollback(store, host, run, facts_now())
        assert CONTAINERD not in (one.subject for one in whole.changes)
        undo(host, store, whole)
        assert find_newest_run(store, with_packages=True).is_undone(with_packages=True)

    def test_later_run_on_the_same_package_must_be_rolled_back_first(self, host: Machine, store: Store) -> None:
        first = newest(store)
        run = store.begin("setup")
        run.record_done(
            run.record_intent(
                "packages", "driver", PackageChange(PackageId("nvidia-driver-cuda"), NEW, PackageState("595.1-1"))
            )
        )
        run.commit("done")
        assert plan_rollback(store, host, first).changes, "the configuration alone is no matter of packages"
        with pytest.raises(Conflict, match="later runs changed the same things") as refused:
            plan_rollback(store, host, first, facts_now())
        assert refused.value.hint == f"sudo gpunode rollback 2 --packages --root {store.root}"

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
    def test_packages_needed_by_a_later_run_are_not_removed(
        self, store: Store, brought: str, package: str, later: str, path: str
    ) -> None:
        host = Machine(machine())
        first, second = store.begin("setup"), None
        made: dict[str, Change] = {
            CUDA_LIST: FileChange(CUDA_LIST, None, FileState(b"deb x\n")),
            DAEMON_JSON: FileChange(DAEMON_JSON, None, FileState(b"{}")),
            UNIT: ServiceChange(UNIT, OFF, ON),
        }
        lower, upper = (made.get(name, PackageChange(PackageId.of(name), None, NEW)) for name in (package, path))
        first.record_done(first.record_intent("packages", brought, lower))
        first.commit("done")
        second = store.begin("setup", recipe="docker")
        stage = "runtime" if path == DAEMON_JSON else "packages"
        second.record_done(second.record_intent(stage, later, upper))
        second.commit("done")
        for change in (lower, upper):
            host.apply([change])
        facts = facts_now({name: NEW for name in (package, path) if name not in made})
        with pytest.raises(Conflict, match="later run needs") as refused:
            plan_rollback(store, host, first.id, facts)
        assert f"{path}, of run 2, needs {package}" in refused.value.why
        beyond = "" if path == DAEMON_JSON else " --packages"
        assert refused.value.hint == f"sudo gpunode rollback 2{beyond} --root {store.root}"

        if path in made and path != UNIT:
            host.files[path] = None  # by hand: what is gone needs nothing
            assert plan_rollback(store, host, first.id, facts).steps
            host.apply([upper])
        back = plan_rollback(store, host, second.id, None if path == DAEMON_JSON else facts)
        execute_undo(back, host, store, on_event=ignore_event)
        assert plan_rollback(store, host, first.id, facts).steps

    @pytest.mark.parametrize(("verb", "is_refused"), [("configure", True), ("unconfigure", False)])
    def test_run_that_removed_a_runtime_does_not_need_the_toolkit(
        self, store: Store, verb: Verb, is_refused: bool
    ) -> None:
        toolkit, before = "nvidia-container-toolkit", FileState(b"{ }")
        host = Machine(machine(files={DAEMON_JSON: before}))
        first = store.begin("setup")
        first.record_done(first.record_intent("packages", "toolkit", PackageChange(PackageId.of(toolkit), None, NEW)))
        first.commit("done")
        second, change = store.begin(verb), FileChange(DAEMON_JSON, before, FileState(b"{}"))
        second.record_done(second.record_intent("runtime", "runtime-config", change))
        second.commit("done")
        host.apply([change])
        try:
            assert plan_rollback(store, host, first.id, facts_now({toolkit: NEW})).packages
        except Conflict:
            assert is_refused
        else:
            assert not is_refused

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_undo_of_a_package_fires_the_triggers_of_its_installation(self, store: Store, verb: str) -> None:
        host, toolkit = Machine(machine()), "nvidia-container-toolkit"
        run = store.begin("setup")
        run.record_done(
            run.record_intent(
                "packages", "toolkit", PackageChange(PackageId.of(toolkit), None, NEW, frozenset({RESTART}))
            )
        )
        run.record_trigger(RESTART)
        run.commit("done")
        facts = facts_now({toolkit: NEW})
        back = plan_rollback(store, host, run.id, facts) if verb == "rollback" else plan_removal(store, host, facts)
        assert triggers_of(back.packages) == (RESTART,)

    def test_downgrade_is_not_blocked_by_a_later_run(self, store: Store) -> None:
        host, toolkit = Machine(machine()), "nvidia-container-toolkit"
        host.archives[toolkit] = frozenset({OLD.version})
        first = store.begin("setup")
        first.record_done(first.record_intent("packages", "toolkit", PackageChange(PackageId.of(toolkit), OLD, NEW)))
        first.commit("done")
        second, change = store.begin("setup"), FileChange(DAEMON_JSON, None, FileState(b"{}"))
        second.record_done(second.record_intent("runtime", "runtime-config", change))
        second.commit("done")
        host.apply([change])
        assert plan_rollback(store, host, first.id, facts_now({toolkit: NEW})).packages

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    @pytest.mark.parametrize("after", [None, PackageState("1.5"), PackageState("1.6", config_files_only=True)])
    @pytest.mark.parametrize("runtime", ["containerd", "containerd.io"])
    def test_undo_needs_consent_to_take_containerd_from_containers(
        self, store: Store, runtime: str, after: PackageState | None, verb: str
    ) -> None:
        host, there = Machine(machine()), PackageState("1.6")
        host.archives[runtime] = frozenset({"1.5"})
        run = store.begin("setup")
        run.record_done(
            run.record_intent("packages", "runtime-install", PackageChange(PackageId.of(runtime), after, there))
        )
        run.commit("done")
        host.busy = Workloads(containers=("k8s.io/4f2",))

        def planned(*, allow_disruption: bool) -> UndoPlan:
            if verb == "remove":
                return plan_removal(store, host, facts_now({runtime: there}), allow_disruption=allow_disruption)
            return plan_rollback(store, host, run.id, facts_now({runtime: there}), allow_disruption=allow_disruption)

        if verb == "remove" and after == PackageState("1.5"):
            assert not planned(allow_disruption=False).packages, "it was there before gpunode"
            return
        with pytest.raises(DrainRequired, match="take containerd away from 1 container") as refused:
            planned(allow_disruption=False)
        assert "k8s.io/4f2" in refused.value.why
        assert planned(allow_disruption=True).packages
        host.busy = Workloads()
        assert planned(allow_disruption=False).packages

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    @pytest.mark.parametrize(
        "change",
        [
            PackageChange(PackageId("docker.io"), None, NEW),
            PackageChange(PackageId("docker-ce"), None, NEW),
            ServiceChange("docker.service", OFF, ON),
        ],
    )
    def test_undo_needs_consent_to_take_docker_from_its_containers(
        self, store: Store, change: Change, verb: str
    ) -> None:
        host = Machine(machine())
        host.docker_ps = Capture("docker ps", "ok", b"4f2 trainer\n")
        run = store.begin("setup")
        run.record_done(run.record_intent("packages", "step", change))
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
    @pytest.mark.parametrize("is_removed", [False, True])
    @pytest.mark.parametrize("owner", ["", "/100000.100000"])  # the second with userns-remap
    def test_docker_with_images_or_volumes_is_not_purged(
        self, store: Store, verb: str, is_removed: bool, owner: str
    ) -> None:
        """docker.io.postrm deletes /var/lib/docker in a purge, also when the package was removed before."""
        host, present = Machine(machine()), replace(NEW, config_files_only=is_removed)
        run = store.begin("setup")
        added = [PackageChange(PackageId(name), None, NEW) for name in ("docker.io", "docker-cli")]
        run.record_done(*run.record_intents("packages", "runtime-install", added))
        run.commit("done")
        facts = machine(packages={"docker.io": present, "docker-cli": NEW})

        def planned() -> UndoPlan:
            if verb == "remove":
                return plan_removal(store, host, facts)
            return plan_rollback(store, host, run.id, facts)

        assert {str(one.id) for one in planned().packages} == {"docker.io", "docker-cli"}
        volume = encode_matches(iter([GlobMatch(f"/var/lib/docker{owner}/volumes/db/_data")]))
        pattern = f"/var/lib/docker{owner and '/[0-9]*.[0-9]*'}/volumes/*/_data"
        host.globs[pattern] = Capture("", "ok", volume)
        assert [str(one.id) for one in planned().packages] == (["docker-cli"] if is_removed else [])
        assert "/var/lib/docker" in "".join(planned().remarks)
        host.globs[pattern] = Capture("", "failed", error="Input/output error")  # what cannot be listed may be data
        assert [str(one.id) for one in planned().packages] == (["docker-cli"] if is_removed else [])

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    @pytest.mark.parametrize("before", [None, replace(NEW, config_files_only=True)])
    def test_dkms_and_headers_stay_for_modules_of_others(
        self, store: Store, verb: str, before: PackageState | None
    ) -> None:
        """A vendor's installer adds its module to DKMS without a package, and DKMS only recommends headers."""
        host, run = Machine(machine()), store.begin("setup")
        steps = {"linux-headers-amd64": "headers", "dkms": "dependencies", "nvidia-kernel-dkms": "driver"}
        for name, step in steps.items():
            run.record_done(run.record_intent("packages", step, PackageChange(PackageId(name), before, NEW)))
        run.commit("done")
        facts = machine(packages=dict.fromkeys(steps, NEW))

        def leaving(*modules: str) -> set[str]:
            found = encode_matches(GlobMatch(f"/var/lib/dkms/{name}/1.0/source") for name in modules)
            host.globs["/var/lib/dkms/*/*/source"] = Capture("", "ok", found)
            if verb == "remove":
                return set(map(str, (one.id for one in plan_removal(store, host, facts).packages)))
            return set(map(str, (one.id for one in plan_rollback(store, host, run.id, facts).packages)))

        assert leaving("nvidia") == set(steps)
        assert leaving("nvidia", "r8125") == {"nvidia-kernel-dkms"}

    @pytest.mark.parametrize("verb", ["rollback", "remove"])
    def test_undo_needs_consent_for_a_pending_docker_restart(self, host: Machine, store: Store, verb: str) -> None:
        run, restart = newest(store), Trigger("restart", "docker.service")
        cut = store.begin("setup")
        cut.record_done(
            cut.record_intent("runtime", "x", FileChange(DAEMON_JSON, None, FileState(b"{}"), frozenset({restart})))
        )
        cut.close()
        host.docker_ps = Capture("docker ps", "ok", b"4f2 trainer\n")
        with pytest.raises(DrainRequired, match="1 running docker container"):
            _ = (
                plan_removal(store, host, facts_now())
                if verb == "remove"
                else plan_rollback(store, host, run, facts_now())
            )

    def test_package_depending_on_a_lost_package_is_not_restored(self, host: Machine, store: Store) -> None:
        run = store.begin("setup")
        run.record_done(
            *run.record_intents(
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
        back = plan_rollback(store, host, run.id, facts_now(), allow_loss=True)
        assert back.packages == ()
        assert "needs-lost cannot be restored without these" in map(str, back.kept)

    def test_file_deleted_with_its_package_is_no_edit(self, host: Machine, store: Store) -> None:
        path = "/etc/nvidia/ours.conf"
        run = store.begin("setup")
        run.record_done(run.record_intent("packages", "x", FileChange(path, FORMER, OURS)))
        run.record_done(*run.record_intents("packages", CONFFILES_STEP_ID, (FileChange(path, OURS, None),)))
        run.record_done(
            run.record_intent("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None))
        )
        run.commit("done")
        assert path in (one.subject for one in plan_rollback(store, host, run.id, facts_now({})).changes)

    def test_unit_whose_package_is_restored_first_is_started_again(self, host: Machine, store: Store) -> None:
        done = undo(host, store, plan_rollback(store, host, newest(store), facts_now()))
        again = plan_rollback(store, host, done.run, machine(packages={"nvidia-driver": OLD}))
        assert ServiceChange(UNIT, OFF, ON) in again.changes

    def test_driver_version_change_needs_consent_too(self, host: Machine, store: Store) -> None:
        run = store.begin("setup")
        run.record_done(run.record_intent("packages", "driver", PackageChange(PackageId("libcuda1"), OLD, NEW)))
        run.commit("done")
        host.archives["libcuda1"] = frozenset({OLD.version})
        host.busy = Workloads(gpu_clients=(GpuClient(812, "python3 train.py"),))
        with pytest.raises(DrainRequired, match="take the driver away from 1 process"):
            plan_rollback(store, host, run.id, facts_now({"libcuda1": NEW}))
        back = plan_rollback(store, host, run.id, facts_now({"libcuda1": NEW}, loaded=True), allow_disruption=True)
        assert "580.178.04" in back.reboot_reason

    def test_rollback_to_the_loaded_driver_needs_no_reboot(self, host: Machine, store: Store) -> None:
        newer = PackageState("580.200.01-1")
        run = store.begin("setup")
        run.record_done(run.record_intent("packages", "driver", PackageChange(PackageId("libcuda1"), NEW, newer)))
        run.commit("waiting")
        host.archives["libcuda1"] = frozenset({NEW.version})
        back = plan_rollback(store, host, run.id, facts_now({"libcuda1": newer}, loaded=True))
        assert ([change.states for change in back.packages], back.reboot_reason) == ([(newer.version, NEW.version)], "")

    @pytest.mark.parametrize("active", [False, True])
    def test_service_that_the_run_stopped_is_started_again(self, host: Machine, store: Store, *, active: bool) -> None:
        """It waited for the upgrade's reboot, which the undo makes unnecessary."""
        newer, start = PackageState("595.91.07-1"), Trigger("start", UNIT)
        run = store.begin("setup")
        for stage, change in (
            ("packages", ServiceChange(UNIT, ON, ServiceState(enabled=True, active=False), frozenset({start}))),
            ("packages", PackageChange(PackageId("libcuda1"), NEW, newer)),
        ):
            run.record_done(run.record_intent(stage, "driver", change))
        run.record_trigger(start, "driver 580.178.04 stays loaded until the reboot")
        run.commit("waiting")
        host.archives["libcuda1"] = frozenset({NEW.version})
        facts = facts_now({"libcuda1": newer}, loaded=True, active=active)
        present = Known(unit(active=active, enabled=True), "units")
        back = plan_rollback(store, host, run.id, replace(facts, units={**facts.units, UNIT: present}))
        assert (start in back.pending_triggers) is not active
        undo(host, store, back)
        assert start in host.triggered

    @pytest.mark.parametrize("masked", [False, True])
    def test_service_that_somebody_has_switched_off_stays_stopped(
        self, host: Machine, store: Store, *, masked: bool
    ) -> None:
        newer, start = PackageState("595.91.07-1"), Trigger("start", UNIT)
        run = store.begin("setup")
        for change in (
            ServiceChange(UNIT, ON, ServiceState(enabled=True, active=False), frozenset({start})),
            PackageChange(PackageId("libcuda1"), NEW, newer),
        ):
            run.record_done(run.record_intent("packages", "driver", change))
        run.record_trigger(start, "")
        run.commit("done")
        host.archives["libcuda1"] = frozenset({NEW.version})
        facts = facts_now({"libcuda1": newer}, loaded=True, active=False)
        off = Known(replace(unit(active=False, enabled=False), masked=masked), "units")
        back = plan_rollback(store, host, run.id, replace(facts, units={**facts.units, UNIT: off}))
        assert start not in back.pending_triggers

    @pytest.mark.parametrize(
        ("builder", "is_reason"), [("nvidia-kernel-dkms", False), ("nvidia-kernel-open-dkms", True)]
    )
    def test_undo_that_brings_back_the_loaded_module_needs_no_reboot(
        self, host: Machine, store: Store, builder: str, *, is_reason: bool
    ) -> None:
        """The kernel has the proprietary module of 580.178.04 (``facts_now``)."""
        run = store.begin("setup")
        for change in (
            PackageChange(PackageId(builder), NEW, None),
            PackageChange(PackageId("nvidia-open"), None, PackageState("595.91.07-1")),
        ):
            run.record_done(run.record_intent("packages", "driver", change))
        run.commit("waiting")
        host.archives[builder] = frozenset({NEW.version})
        facts = facts_now({"nvidia-open": PackageState("595.91.07-1")}, loaded=True)
        assert bool(plan_rollback(store, host, run.id, facts).reboot_reason) is is_reason

    def test_trigger_left_by_a_killed_rollback_is_settled_by_the_next(self, host: Machine, store: Store) -> None:
        run = newest(store)
        cut = store.begin("rollback", undoes=run)
        change = FileChange(CONTAINERD, OURS, FORMER, frozenset({RESTART}))
        cut.record_done(cut.record_intent("runtime", "step", change))
        cut.close()
        host.apply([change])
        host.triggered.clear()
        back = plan_rollback(store, host, run)
        assert (back.steps, back.pending_triggers) == ((), (RESTART,))
        execute_undo(back, host, store, on_event=ignore_event)
        assert host.triggered == [RESTART]
        assert store.find_pending_triggers() == {}

    def test_setup_that_put_its_file_back_leaves_nothing_to_undo(self, host: Machine, store: Store) -> None:
        rejected = FileState(b"rejected\n")
        host.files[CONTAINERD] = FORMER
        run = store.begin("setup")
        for stage, before, after in (("runtime", FORMER, rejected), ("recovery", rejected, FORMER)):
            run.record_done(
                run.record_intent(stage, "step", FileChange(CONTAINERD, before, after, frozenset({RESTART})))
            )
        run.record_trigger(RESTART)
        run.commit("failed")
        assert plan_rollback(store, host, run.id, facts_now()).steps == ()
        assert plan_rollback(store, host, run.id).steps == ()

    def test_later_run_may_change_a_file_that_setup_put_back(self, host: Machine, store: Store) -> None:
        rejected, later = FileState(b"rejected\n"), FileState(b"later\n")
        host.files[CONTAINERD] = FORMER
        run = store.begin("setup")
        for stage, before, after in (("runtime", FORMER, rejected), ("recovery", rejected, FORMER)):
            run.record_done(run.record_intent(stage, "step", FileChange(CONTAINERD, before, after)))
        run.commit("failed")
        second = store.begin("setup")
        second.record_done(second.record_intent("runtime", "step", FileChange(CONTAINERD, FORMER, later)))
        second.commit("done")
        host.files[CONTAINERD] = later
        assert plan_rollback(store, host, run.id, facts_now()).steps == ()
        assert plan_rollback(store, host, run.id).steps == ()

    def test_edit_after_the_package_was_reinstalled_is_kept(self, host: Machine, store: Store) -> None:
        path, edited = "/etc/nvidia/old.conf", FileState(b"edited by hand\n")
        run = store.begin("setup")
        run.record_done(*run.record_intents("packages", CONFFILES_STEP_ID, (FileChange(path, edited, None),)))
        run.commit("done")
        host.files[path] = FileState(b"edited again\n")
        host.files[STATUS] = FileState(paragraph("nvidia-driver", conffile=path).encode())
        with pytest.raises(Conflict, match="created again since"):
            plan_rollback(store, host, run.id, facts_now({"nvidia-driver": OLD}))
        host.files[path] = edited
        assert plan_rollback(store, host, run.id, facts_now({"nvidia-driver": OLD})).steps == ()

    def test_foreign_file_in_place_of_a_purged_conffile_is_kept(self, host: Machine, store: Store) -> None:
        run = store.begin("setup")
        run.record_done(*run.record_intents("packages", CONFFILES_STEP_ID, (FileChange(DAEMON_JSON, FORMER, None),)))
        run.record_done(
            run.record_intent("packages", "conflicts", PackageChange(PackageId("nvidia-docker2"), OLD, None))
        )
        run.record_done(run.record_intent("runtime", "runtime-config", FileChange(DAEMON_JSON, None, OURS)))
        run.commit("done")
        host.archives["nvidia-docker2"] = frozenset({OLD.version})
        for there in (None, OURS):
            host.files[DAEMON_JSON] = there
            assert DAEMON_JSON in {file.path for file in plan_rollback(store, host, run.id, facts_now({})).files}
        host.files[DAEMON_JSON] = FileState(b"theirs")
        with pytest.raises(Conflict, match="was edited since"):
            plan_rollback(store, host, run.id, facts_now({}))
        assert plan_rollback(store, host, run.id, facts_now({}), force=True).files

    def test_file_created_after_the_purge_is_kept(self, host: Machine, store: Store) -> None:
        run = store.begin("setup")
        run.record_done(*run.record_intents("packages", CONFFILES_STEP_ID, (FileChange(DAEMON_JSON, FORMER, None),)))
        run.record_done(
            run.record_intent("packages", "conflicts", PackageChange(PackageId("nvidia-docker2"), OLD, None))
        )
        run.commit("done")
        host.archives["nvidia-docker2"] = frozenset({OLD.version})
        host.files[DAEMON_JSON] = FileState(b"theirs")
        with pytest.raises(Conflict, match="created again since"):
            plan_rollback(store, host, run.id, facts_now({}))
        assert plan_rollback(store, host, run.id, facts_now({}), force=True).files

    def test_plain_rollback_leaves_conffiles_of_purged_packages_alone(self, host: Machine, store: Store) -> None:
        path = "/etc/nvidia/old.conf"
        run = store.begin("setup")
        run.record_done(*run.record_intents("packages", CONFFILES_STEP_ID, (FileChange(path, FORMER, None),)))
        run.record_done(
            run.record_intent("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None))
        )
        run.commit("done")
        assert plan_rollback(store, host, run.id).steps == (), "its package does not come back either"
        host.files[path] = FileState(b"of a package that somebody installed again, and edited\n")
        host.files[STATUS] = FileState(paragraph("nvidia-driver", conffile=path).encode())
        assert plan_rollback(store, host, run.id).steps == ()

    def test_purged_conffile_is_restored_with_its_edits(self, host: Machine, store: Store) -> None:
        path, edited = "/etc/nvidia/old.conf", FileState(b"edited by hand\n", 0o600)
        run = store.begin("setup")
        run.record_done(*run.record_intents("packages", CONFFILES_STEP_ID, (FileChange(path, edited, None),)))
        run.record_done(
            run.record_intent("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None))
        )
        run.commit("done")
        back = plan_rollback(store, host, run.id, facts_now({}))
        assert [one.subject for one in back.changes] == ["nvidia-driver", path]
        host.files[path] = FileState(b"as the package ships it\n")  # apt has brought it meanwhile
        undo(host, store, back)
        assert host.files[path] == edited

    @pytest.mark.parametrize(
        "edited", [FileState(b"edited by hand\n"), FileState(b"as shipped\n", 0o600)], ids=["content", "mode"]
    )
    def test_restored_conffile_is_removed_again_with_its_package(
        self, host: Machine, store: Store, edited: FileState
    ) -> None:
        path, shipped = "/etc/nvidia/old.conf", FileState(b"as shipped\n")
        run = store.begin("setup")
        run.record_done(*run.record_intents("packages", CONFFILES_STEP_ID, (FileChange(path, edited, None),)))
        run.record_done(
            run.record_intent("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None))
        )
        run.commit("done")
        database = paragraph("nvidia-driver", conffile=path).replace("0123", hashlib.md5(shipped.content).hexdigest())
        host.after_packages = {path: shipped, STATUS: FileState(database.encode())}
        back = undo(host, store, plan_rollback(store, host, run.id, facts_now({})))
        assert host.files[path] == edited

        host.after_packages = {path: None}
        again = undo(host, store, plan_rollback(store, host, back.run, facts_now({"nvidia-driver": OLD})))
        assert host.files[path] is None
        host.after_packages = {path: shipped}
        undo(host, store, plan_rollback(store, host, again.run, facts_now({})))
        assert host.files[path] == edited

    def test_conffile_is_not_restored_without_its_package(self, host: Machine, store: Store) -> None:
        path = "/etc/nvidia/old.conf"
        run = store.begin("setup")
        run.record_done(*run.record_intents("packages", CONFFILES_STEP_ID, (FileChange(path, FORMER, None),)))
        run.record_done(
            run.record_intent("packages", "conflicts", PackageChange(PackageId("nvidia-driver"), OLD, None))
        )
        run.commit("done")
        host.archives = {}
        back = plan_rollback(store, host, run.id, facts_now({}), allow_loss=True)
        done = undo(host, store, back)
        assert host.files.get(path) is None
        assert RunRecord(store.read_with_contents(done.run)).changes("done") == ()

    @pytest.mark.parametrize(("is_packaged", "goes"), [(True, True), (True, False), (False, True)])
    def test_overwritten_foreign_file_returns_once_its_package_is_gone(
        self, host: Machine, store: Store, is_packaged: bool, goes: bool
    ) -> None:
        path, foreign, packaged = "/usr/bin/nvidia-smi", FileState(b"of a .run driver\n", 0o755), FileState(b"other\n")
        run = store.begin("setup")
        run.record_done(*run.record_intents("packages", OVERWRITTEN_STEP_ID, (FileChange(path, foreign, None),)))
        run.record_done(run.record_intent("packages", "driver", PackageChange(PackageId("nvidia-smi"), None, NEW)))
        run.commit("done")
        host.files[path], host.owned = packaged, {"nvidia-smi": (path,)} if is_packaged else {}
        host.after_packages = {path: None} if goes else {}
        if not is_packaged:
            with pytest.raises(Conflict, match="created again since"):
                plan_rollback(store, host, run.id, facts_now({"nvidia-smi": NEW}))
            return
        undo(host, store, plan_rollback(store, host, run.id, facts_now({"nvidia-smi": NEW})))
        assert host.files[path] == (foreign if goes else packaged)

    def test_foreign_files_are_backed_up_before_a_driver_comes(self, host: Machine, store: Store) -> None:
        paths = {name: f"/usr/bin/{name}" for name in ("nvidia-smi", "nvidia-debugdump")}
        host.files.update({path: FileState(path.encode(), 0o755) for path in paths.values()})
        host.owned = {"nvidia-smi": (paths["nvidia-debugdump"],)}
        found = encode_matches(iter([GlobMatch(path) for path in paths.values()]))
        host.globs = {"/usr/bin/nvidia-*": Capture("glob", "ok", found)}
        run = store.begin("setup")
        applier = Applier(host, run, lambda _: None, lambda: None)
        applier.apply_packages("packages", (PackageChange(PackageId("libcuda1"), None, NEW),), lambda _: "driver")
        run.commit("done")
        kept = [one.change for one in run.entries() if isinstance(one, Intent) and one.step == OVERWRITTEN_STEP_ID]
        assert [change.subject for change in kept] == [paths["nvidia-smi"]]

    def test_folder_in_the_place_of_a_packages_file_fails_no_transaction(self, host: Machine, store: Store) -> None:
        """dpkg only warns about it and leaves it alone."""
        path = "/etc/nvidia/new.conf"
        host.globs = {path: Capture(path, "failed", error="it is a folder")}
        host.after_packages = {STATUS: FileState(paragraph("nvidia-driver", conffile=path).encode())}
        run = store.begin("setup")
        applier = Applier(host, run, lambda _: None, lambda: None)
        change = PackageChange(PackageId("nvidia-driver"), None, NEW)
        applier.apply_packages("packages", (change,), lambda _: "driver")
        run.commit("done")
        assert RunRecord(store.read_with_contents(run.id)).changes("done") == (change,)

    def test_conffiles_are_backed_up_before_a_purge(self, host: Machine, store: Store) -> None:
        path, edited = "/etc/dkms/framework.conf", FileState(b"edited by hand\n")
        host.files[path] = edited
        host.files[STATUS] = FileState(
            "".join((paragraph("nvidia-driver-cuda"), paragraph("dkms", conffile=path))).encode()
        )
        done = undo(host, store, plan_rollback(store, host, newest(store), facts_now()))
        host.files[path] = None
        again = plan_rollback(store, host, done.run, machine(units={UNIT: unit(active=False, enabled=False)}))
        assert FileChange(path, None, edited) in again.files

    @pytest.mark.parametrize("is_edited", [False, True])
    def test_conffile_only_in_the_newer_version_goes_unless_edited(
        self, host: Machine, store: Store, is_edited: bool
    ) -> None:
        path, shipped = "/etc/modprobe.d/driver.conf", FileState(b"as shipped\n")
        sum_ = hashlib.md5(shipped.content).hexdigest()
        run = store.begin("setup")
        run.record_done(run.record_intent("packages", "driver", PackageChange(PackageId("driver"), OLD, NEW)))
        run.commit("done")
        host.files[path] = FileState(b"edited\n") if is_edited else shipped
        host.archives["driver"] = frozenset({OLD.version})
        back = plan_rollback(store, host, run.id, facts_now({"driver": NEW}))
        installed = "Package: driver\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
        text = f"{installed}Conffiles:\n {path} {sum_}"
        host.files[STATUS] = FileState(text.encode())
        host.after_packages = {STATUS: FileState(f"{text} obsolete\n".encode())}
        done = undo(host, store, back)
        assert (host.files[path] is None) is not is_edited
        host.after_packages = {}  # dpkg treats a missing configuration file as deleted by the user
        undo(host, store, plan_rollback(store, host, done.run, facts_now({"driver": OLD})))
        assert host.files[path] == (FileState(b"edited\n") if is_edited else shipped)
        assert path not in store.footprint().files

    def test_folder_in_the_place_of_a_leaving_packages_file_stops_no_removal(self, host: Machine, store: Store) -> None:
        """dpkg only warns about it and leaves it alone: for a removed package, and for one edited by a setup."""
        path, said = "/etc/dkms/framework.conf", list[Event]()
        host.globs = {one: Capture(one, "failed", error="it is a folder") for one in (path, CONTAINERD)}
        host.files[STATUS] = FileState(
            "".join((paragraph("nvidia-driver-cuda"), paragraph("dkms", conffile=path))).encode()
        )
        back = plan_removal(store, host, facts_now())
        execute_undo(back, host, store, on_event=said.append)
        assert (
            f"{CONTAINERD} stays as it is: it is a folder, in the place of the file that gpunode wrote" in back.remarks
        )
        notices = [one.text for one in said if isinstance(one, Notice)]
        assert notices == [f"{path} stays: it is a folder, in the place of a package's configuration file"]
        assert {one.subject for one in PackageChange.of_kind(back.changes)} == {"nvidia-driver-cuda", "dkms"}
        left = find_remainder(store, host, machine(), back)
        assert (left.failure, [one.subject for one in left.kept]) == (None, [CONTAINERD])

    def test_unreadable_file_of_a_leaving_package_stops_the_removal(self, host: Machine, store: Store) -> None:
        path = "/etc/dkms/framework.conf"
        host.globs = {path: Capture(path, "failed", error="Input/output error")}
        host.files[STATUS] = FileState(paragraph("dkms", conffile=path).encode())
        with pytest.raises(Undetermined, match=r"framework\.conf cannot be read"):
            undo(host, store, plan_removal(store, host, facts_now()))


def test_only_packages_touched_by_a_failed_transaction_are_undone(store: Store) -> None:
    """Packages that it never reached may have been installed by a user since."""
    host = Node(machine(), refuses=PackageChange)
    host.files[STATUS] = FileState("".join((paragraph("dpkg"), paragraph("dkms"), HALF)).encode())
    run = store.begin("setup")
    names = ("dkms", "half", "docker.io", "libnvidia:i386")
    batch = tuple(PackageChange(PackageId.of(name), None, PackageState("1")) for name in names)
    with pytest.raises(ChangeFailed, match="it could not be done"):
        Applier(host, run, ignore_event, lambda: None).apply_packages("packages", batch, lambda change: str(change.id))
    run.commit("failed")
    assert {intent.change.subject for intent in inverse_intents(store.read_with_contents(run.id))} == {"dkms", "half"}
    assert set(store.footprint().packages) == ids("dkms", "half")


def test_package_in_dpkgs_journal_counts_as_touched(store: Store) -> None:
    """A killed dpkg leaves its last actions there, not in its database."""
    host = Machine(machine())
    host.refuses = PackageChange
    host.files[STATUS] = FileState(paragraph("dpkg").encode())
    entry = GlobMatch(
        "/var/lib/dpkg/updates/0000", data=b"Package: libcuda1\nStatus: install ok unpacked\nVersion: 1\n"
    )
    host.globs["/var/lib/dpkg/updates/*"] = Capture("updates", "ok", encode_matches(iter([entry])))
    run = store.begin("setup")
    batch = tuple(PackageChange(PackageId(name), None, PackageState("1")) for name in ("libcuda1", "docker.io"))
    with pytest.raises(ChangeFailed):
        Applier(host, run, ignore_event, lambda: None).apply_packages("packages", batch, lambda change: str(change.id))
    run.commit("failed")
    assert set(store.footprint().packages) == ids("libcuda1")


@pytest.mark.parametrize("status", [None, FileState(b"Package: torn")])
def test_failed_transaction_counts_as_whole_when_dpkg_status_is_unknown(store: Store, status: FileState | None) -> None:
    host = Node(machine(), refuses=PackageChange)
    host.files[STATUS] = status
    run = store.begin("setup")
    change = PackageChange(PackageId("dkms"), None, PackageState("1"))
    with pytest.raises(ChangeFailed, match="it could not be done"):
        Applier(host, run, ignore_event, lambda: None).apply_packages("packages", (change,), lambda _: "x")
    run.commit("failed")
    assert set(store.footprint().packages) == ids("dkms")


class TestRemove:
    def test_merged_configuration_is_checked_before_it_is_written(
        self, host: Machine, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.files[CONTAINERD] = edited = FileState(b"# mine, edited\nnvidia = true\n")

        def check_candidate_files(expectation: RuntimeExpectation, changes: Sequence[FileChange]) -> str:
            assert (expectation.runtime, [change.path for change in changes]) == ("containerd", [CONTAINERD])
            raise Refused("containerd does not take it")

        monkeypatch.setattr(host, "check_candidate_files", check_candidate_files)
        with pytest.raises(Refused, match="does not take it"):
            undo(host, store, plan_removal(store, host, facts_now()))
        assert host.files[CONTAINERD] == edited

    def test_remove_deletes_what_was_added_and_restores_the_rest(self, host: Machine, store: Store) -> None:
        back = plan_removal(store, host, facts_now())
        assert {str(change.id): change.after for change in back.packages} == {"nvidia-driver-cuda": None, "dkms": None}
        undo(host, store, back)
        assert (host.files[CONTAINERD], host.files[CUDA_LIST], host.files[BLACKLIST]) == (FORMER, None, None)

    def test_purged_packages_are_named_and_not_reinstalled(self, host: Machine, store: Store) -> None:
        back = plan_removal(store, host, facts_now())
        assert "gpunode purged these packages and does not reinstall them: nvidia-driver" in back.notes

    def test_user_edit_is_kept(self, host: Machine, store: Store) -> None:
        host.files[CONTAINERD] = FileState(b"# mine, edited\nnvidia = true\n")
        back = plan_removal(store, host, facts_now())
        assert [c.after for c in back.files if c.path == CONTAINERD] == [FileState(b"# mine, edited\n")]
        assert any("the edits are kept" in note for note in back.notes)

    def test_edit_of_gpunode_lines_is_a_conflict_unless_forced(self, host: Machine, store: Store) -> None:
        host.files[CONTAINERD] = FileState(b"# mine\nnvidia = false\n")
        with pytest.raises(Conflict, match="was edited since") as refused:
            plan_removal(store, host, facts_now())
        assert "+nvidia = false" in refused.value.why
        assert "-nvidia = true" in refused.value.why
        forced = plan_removal(store, host, facts_now(), force=True)
        assert [c.after for c in forced.files if c.path == CONTAINERD] == [FORMER]

    def test_edit_between_two_setups_is_kept(self, host: Machine, store: Store) -> None:
        between = FileState(b"# mine\n# theirs\nnvidia = true\n")
        run = store.begin("setup")
        again = FileChange(CONTAINERD, between, FileState(b"# mine\n# theirs\nnvidia = 2\n"), frozenset({RESTART}))
        run.record_done(run.record_intent("runtime", "step", again))
        run.commit("done")
        host.files[CONTAINERD] = again.after if isinstance(again.after, FileState) else None
        back = plan_removal(store, host, facts_now())
        assert [c.after for c in back.files if c.path == CONTAINERD] == [FileState(b"# mine\n# theirs\n")]

    @pytest.mark.parametrize(
        ("path", "before", "first", "edited", "second", "left"),
        [
            pytest.param(CONTAINERD, FORMER, OURS, FileState(b"# mine\nnvidia = false\n"), OURS, FORMER, id="value"),
            pytest.param(BLACKLIST, None, _PINNED, FileState(b"release 580\npriority 990\n"), _PINNED, None,
                         id="whole file"),
            pytest.param(BLACKLIST, None, _PINNED, FileState(b"release 580\npriority 1001\ntheirs\n"), _PINNED, None,
                         id="added line"),
            pytest.param(BLACKLIST, None, _PINNED, FileState(b"release 99\npriority 1001\n"),
                         FileState(b"release 595\npriority 1001\n"), None, id="another release since"),
            pytest.param(CONTAINERD, FORMER, OURS, replace(OURS, mode=0o666), OURS, FORMER, id="mode"),
            pytest.param(DAEMON_JSON, FileState(b"{}\n"), FileState(_DOCKER % b"/n"), FileState(_DOCKER % b"/wrapper"),
                         FileState(_DOCKER % b"/n"), FileState(b"{}\n"), id="program"),
            pytest.param(DAEMON_JSON, None, FileState(_DOCKER % b"/n"),
                         FileState((_DOCKER % b"/wrapper").replace(b"{", b'{"debug": true, ', 1)),
                         FileState((_DOCKER % b"/n").replace(b"{", b'{"debug": true, ', 1)),
                         FileState(b'{"debug": true}\n'), id="docker's program, beside an edit that stays"),
            pytest.param(CONTAINERD, FileState(_CRI), FileState(_CRI + _ENTRY),
                         FileState((_CRI + _ENTRY).replace(b"3.9", b"4.0").replace(b"/n", b"/wrapper")),
                         FileState((_CRI + _ENTRY).replace(b"3.9", b"4.0")), FileState(_CRI.replace(b"3.9", b"4.0")),
                         id="program, beside an edit that stays"),
        ],
    )  # fmt: skip
    def test_edit_that_a_later_setup_overwrote_stays_gone(
        self, store: Store, path: str, before: FileState, first: FileState, edited: FileState, second: FileState,
        left: FileState | None,
    ) -> None:  # fmt: skip
        for change in (FileChange(path, before, first), FileChange(path, edited, second)):
            run = store.begin("setup")
            run.record_done(run.record_intent("runtime", "step", change))
            run.commit("done")
        made = Machine(machine(files={path: second}))
        assert [change.after for change in plan_removal(store, made, facts_now({})).files] == [left]

    @pytest.mark.parametrize(
        ("edited", "kept"),
        [
            pytest.param(FileState(b"a = 1\ng = 2\n", 0o600), FileState(b"a = 1\n", 0o600), id="mode"),
            pytest.param(FileState(b"a = 1\ng = 2\n", 0o660), FileState(b"a = 1\n", 0o640), id="part of the mode"),
            pytest.param(FileState(b"a = 1\n# theirs\ng = 2\n"), None, id="comment"),
            pytest.param(FileState(b"a = 1  # theirs\ng = 2\n"), None, id="comment behind a value"),
            pytest.param(FileState(b"g = 2\n"), FileState(b""), id="deleted line"),
        ],
    )
    def test_edit_that_a_later_setup_kept_beside_one_that_it_overwrote_stays(
        self, store: Store, edited: FileState, kept: FileState | None
    ) -> None:
        """A removal names a conflict where the two cannot be separated: losing a line of theirs is worse."""
        second = restrict_writes_to_root(replace(edited, content=edited.content.replace(b"g = 2", b"g = 1")))
        first = FileState(b"a = 1\ng = 1\n")
        for change in (FileChange(CONTAINERD, FileState(b"a = 1\n"), first), FileChange(CONTAINERD, edited, second)):
            run = store.begin("setup")
            run.record_done(run.record_intent("runtime", "step", change))
            run.commit("done")
        made = Machine(machine(files={CONTAINERD: second}))
        if kept is None:
            with pytest.raises(Conflict, match="was edited since gpunode wrote it"):
                plan_removal(store, made, facts_now({}))
        else:
            assert [change.after for change in plan_removal(store, made, facts_now({})).files] == [kept]

    @pytest.mark.parametrize("first", [FileState(b"a = 1\n"), None])
    @pytest.mark.parametrize("path", [CONTAINERD, BLACKLIST])
    @pytest.mark.parametrize("verb", ["remove", "rollback"])
    def test_earlier_version_of_gpunode_from_a_backup_is_no_edit(
        self, store: Store, verb: Verb, path: str, first: FileState | None
    ) -> None:
        earlier, edited, later = (FileState(b"a = 1\ng = %d\n" % value) for value in (1, 2, 3))
        undone: list[tuple[Verb, FileState | None, FileState | None]] = [("rollback", earlier, first)]
        made = undone if verb == "rollback" else []
        last: tuple[Verb, FileState | None, FileState | None] = ("setup", first if made else edited, later)
        for verb_made, before, after in (("setup", first, earlier), *made, last):
            run = store.begin(verb_made, undoes=newest(store) if verb_made == "rollback" else "")
            run.record_done(run.record_intent("runtime", "step", FileChange(path, before, after)))
            run.commit("done")
        node = Machine(machine(files={path: earlier}))
        assert [change.after for change in plan(verb, node, store).files] == [first]
        private = Machine(machine(files={path: replace(earlier, mode=0o600)}))
        if first:
            with pytest.raises(Conflict):
                plan(verb, private, store)
        else:
            assert [change.after for change in plan(verb, private, store).files] == [None]

    def test_line_that_somebody_deleted_stays_deleted(self, store: Store) -> None:
        first, second = FileState(b"x\ny\ngpunode's\n"), FileState(b"x\ngpunode's\n")
        edited = FileState(b"x\ntheirs\n")
        for change in (FileChange(BLACKLIST, FileState(b"x\ny\n"), first), FileChange(BLACKLIST, edited, second)):
            run = store.begin("setup")
            run.record_done(run.record_intent("runtime", "step", change))
            run.commit("done")
        with pytest.raises(Conflict, match="was edited since gpunode wrote it"):
            plan_removal(store, Machine(machine(files={BLACKLIST: second})), facts_now({}))

    def test_foreign_lines_in_a_file_gpunode_made_are_kept(self, host: Machine, store: Store) -> None:
        host.files[CUDA_LIST] = FileState(b"deb x\ndeb theirs\n")
        back = plan_removal(store, host, facts_now())
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
    def test_daemon_json_stays_valid_for_dockerd(
        self, host: Machine, store: Store, document: bytes, left: bytes | None
    ) -> None:
        run = store.begin("setup")
        made = FileState(b'{"runtimes": {"nvidia": {"path": "/n"}}}')
        change = FileChange(DAEMON_JSON, None, made, frozenset({Trigger("reload", "docker.service")}))
        run.record_done(run.record_intent("runtime", "runtime-config", change))
        run.commit("done")
        host.files[DAEMON_JSON] = FileState(document)
        if left is None:
            with pytest.raises(Conflict):
                plan_removal(store, host, facts_now())
            return
        back = plan_removal(store, host, facts_now())
        assert [c.after for c in back.files if c.path == DAEMON_JSON] == [FileState(left)]
        assert ("the default runtime nvidia no longer exists" in " ".join(back.notes)) is (b"default" in document)

    @pytest.mark.parametrize("is_made", [False, True])
    def test_file_is_removed_in_either_state_of_a_killed_rollback(
        self, host: Machine, store: Store, is_made: bool
    ) -> None:
        """Two setups wrote the file, and a rollback of the second was killed before or after it restored the first."""
        second = FileState(b"# mine\nnvidia = 2\n")
        run = store.begin("setup")
        run.record_done(
            run.record_intent("runtime", "step", FileChange(CONTAINERD, OURS, second, frozenset({RESTART})))
        )
        run.commit("done")
        cut = store.begin("rollback", undoes=run.id)
        cut.record_intent("runtime", "step", FileChange(CONTAINERD, second, OURS, frozenset({RESTART})))
        cut.close()
        host.files[CONTAINERD] = OURS if is_made else second
        back = plan_removal(store, host, facts_now())
        assert [c.after for c in back.files if c.path == CONTAINERD] == [FORMER]

    @pytest.mark.parametrize("is_built", [True, False])
    def test_modules_that_dkms_cannot_remove_are_refused_before(
        self, host: Machine, store: Store, is_built: bool
    ) -> None:
        name = "nvidia-kernel-open-dkms"
        run = store.begin("setup")
        run.record_done(run.record_intent("packages", "driver", PackageChange(PackageId(name), None, NEW)))
        run.commit("done")
        tree = frozenset({"/var/lib/dkms/nvidia/580.178.04"}) if is_built else frozenset[str]()
        there = {**AFTER, name: NEW, "dkms": PackageState("3.2.2-1~deb13u1")}
        facts = replace(facts_now(there), leftovers=Known(tree, "dkms-tree"))
        for make in (plan_removal, lambda *node: plan_rollback(node[0], node[1], run.id, node[2])):
            if is_built:
                with pytest.raises(Refused, match=f"{name} cannot be removed: the source") as refused:
                    make(store, host, facts)
                assert f"--reinstall {name}={NEW.version}" in refused.value.hint
            else:
                assert name in {one.subject for one in make(store, host, facts).changes}

    def test_deleted_file_stays_deleted(self, host: Machine, store: Store) -> None:
        host.files[CONTAINERD] = None
        assert CONTAINERD not in (one.subject for one in plan_removal(store, host, facts_now()).changes)

    def test_file_whose_backup_was_deleted_stays_and_is_named(self, host: Machine, store: Store) -> None:
        Path(store.objects.path_of_content(FORMER.content)).unlink()
        back = plan_removal(store, host, facts_now())
        assert {change.path for change in back.files} == {CUDA_LIST, BLACKLIST}
        assert f"{CONTAINERD} stays as it is: a backup of it was deleted" in back.remarks

    def test_package_installed_by_the_user_after_an_undo_is_kept(self, host: Machine, store: Store) -> None:
        undo(host, store, plan_rollback(store, host, newest(store), facts_now()))
        back = plan_removal(store, host, machine(packages={"dkms": PackageState("3")}))
        assert back.packages == ()

    def test_driver_needed_by_others_keeps_its_files_and_units(self, host: Machine, store: Store) -> None:
        needs = paragraph("cuda-app", "nvidia-driver-cuda")
        host.files[STATUS] = FileState("".join((*map(paragraph, AFTER), needs)).encode())
        for back in (plan_removal(store, host, facts_now()), plan_rollback(store, host, newest(store), facts_now())):
            subjects = {one.subject for one in back.changes}
            assert subjects.isdisjoint({BLACKLIST, CUDA_LIST, UNIT, "nvidia-driver-cuda"})
            assert CONTAINERD in subjects
            assert f"{BLACKLIST} stays with nvidia-driver-cuda" in back.remarks

    @pytest.mark.parametrize(
        ("needed", "staying"),
        [
            ("nvidia-driver-cuda", {CUDA_LIST}),
            ("cuda-toolkit-12-9", {CUDA_LIST, CUDA_PROFILE_SCRIPT}),
            ("nvidia-container-toolkit", {TOOLKIT_LIST}),
            ("docker-ce", {"docker.service"}),
            ("containerd", set()),
            ("nvidia-fs-dkms", {CUDA_LIST, GPUDIRECT_MODULES_FILE}),
        ],
    )
    def test_files_and_units_stay_with_the_package_that_needs_them(
        self, store: Store, needed: str, staying: set[str]
    ) -> None:
        content = {
            CUDA_LIST: FileState(f"deb {CUDA_URI} /\n".encode()),
            TOOLKIT_LIST: FileState(b"deb https://toolkit.example /\n"),
            CUDA_PROFILE_SCRIPT: FileState(b"export PATH\n"),
            GPUDIRECT_MODULES_FILE: FileState(b"nvidia_fs\n"),
        }
        steps = {
            CUDA_LIST: "cuda-repository",
            TOOLKIT_LIST: "toolkit-repository",
            CUDA_PROFILE_SCRIPT: "cuda-toolkit",
            GPUDIRECT_MODULES_FILE: "gpudirect-modules",
        }
        packages = {
            "nvidia-driver-cuda": ("driver", NEW),
            "cuda-toolkit-12-9": ("cuda-toolkit", NEW),
            "nvidia-container-toolkit": ("toolkit", NEW),
            "docker-ce": ("runtime-install", NEW),
            "containerd": ("dependencies", NEW),
            "nvidia-fs-dkms": ("gpudirect", NEW),
        }
        host = Machine(machine(files=content))
        run = store.begin("setup")
        for path, state in content.items():
            run.record_done(run.record_intent("packages", steps[path], FileChange(path, None, state)))
        for name, (step, version) in packages.items():
            run.record_done(run.record_intent("packages", step, PackageChange(PackageId(name), None, version)))
        run.record_done(run.record_intent("runtime", "runtime-config", ServiceChange("docker.service", OFF, ON)))
        run.commit("done")
        facts = machine(
            packages={name: version for name, (_, version) in packages.items()},
            files=content,
            units={"docker.service": unit(active=True, enabled=True)},
        )
        database = (*map(paragraph, packages), paragraph("cuda-app", needed))
        host.files[STATUS] = FileState("".join(database).encode())
        for back in (plan_removal(store, host, facts), plan_rollback(store, host, run.id, facts)):
            subjects = content.keys() | {"docker.service"}
            assert {one.subject for one in back.changes} & subjects == subjects - staying
            assert staying <= {one.subject for one in back.kept if one.reason == f"stays with {needed}"}

    def test_replaced_source_list_is_not_restored_beside_our_own(self, store: Store) -> None:
        """apt would read no list at all: two entries of one archive with two keys."""
        theirs, key = "/etc/apt/sources.list.d/cuda.list", FileState(b"NVIDIA's key")
        former = FileState(f"deb [signed-by=/k.gpg] {CUDA_URI} /\n".encode())
        ours = FileState(f"deb [signed-by={CUDA_KEYRING}] {CUDA_URI} /\n".encode())
        files = {CUDA_LIST: (None, ours), theirs: (former, None), CUDA_KEYRING: (FileState(b"armored"), key)}
        host = Machine(machine(files={CUDA_KEYRING: key, CUDA_LIST: ours}))
        run = store.begin("setup")
        for path, (before, after) in files.items():
            run.record_done(run.record_intent("sources", "cuda-repository", FileChange(path, before, after)))
        run.record_done(
            run.record_intent("packages", "driver", PackageChange(PackageId("nvidia-driver-cuda"), None, NEW))
        )
        run.commit("done")
        driver = paragraph("nvidia-driver-cuda")
        facts = machine(packages={"nvidia-driver-cuda": NEW}, files={CUDA_LIST: ours, CUDA_KEYRING: key})

        host.files[STATUS] = FileState((driver + paragraph("cuda-app", "nvidia-driver-cuda")).encode())
        for back in (plan_removal(store, host, facts), plan_rollback(store, host, run.id, facts)):
            assert back.steps == ()
            notes = {one.subject: one.reason for one in back.kept}
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

    def test_package_that_only_loses_its_hold_is_not_called_changed(self, host: Machine, store: Store) -> None:
        before, after = PackageState("2"), PackageState("2", held=True)
        run = store.begin("setup")
        marked = PackageChange(PackageId("nvidia-persistenced"), before, after)
        run.record_done(run.record_intent("packages", "marks", marked))
        run.commit("done")
        back = plan_removal(store, host, facts_now({**AFTER, "nvidia-persistenced": after}))
        assert "nvidia-persistenced" in [one.subject for one in back.changes]
        assert not [note for note in back.notes if "held, and changed" in note]

    def test_keyring_named_by_a_foreign_list_is_never_removed(self, store: Store) -> None:
        theirs, key = "/etc/apt/sources.list.d/cuda.list", FileState(b"NVIDIA's key")
        listed = FileState(f"deb [signed-by={CUDA_KEYRING}] {CUDA_URI} /\n".encode())
        host = Machine(machine(files={CUDA_KEYRING: key, theirs: listed}))
        for former in (FileState(b"two keys"), None):
            run = store.begin("setup")
            run.record_done(run.record_intent("sources", "cuda-repository", FileChange(CUDA_KEYRING, former, key)))
            run.commit("done")
            back = plan_rollback(store, host, run.id, machine(files={CUDA_KEYRING: key, theirs: listed}))
            assert [change.after for change in back.files] == ([former] if former else [])
            assert (f"{CUDA_KEYRING} stays: {theirs} names it" in back.remarks) is (former is None)

    @pytest.mark.parametrize(
        ("now_auto", "back_to_auto"), [(False, True), (True, None)], ids=["as gpunode left it", "as before by hand"]
    )
    def test_package_that_was_auto_installed_before_is_auto_again(
        self, host: Machine, store: Store, *, now_auto: bool, back_to_auto: bool | None
    ) -> None:
        before, after = PackageState("2", auto=True), PackageState("2")
        run = store.begin("setup")
        run.record_done(
            run.record_intent("packages", "marks", PackageChange(PackageId("nvidia-persistenced"), before, after))
        )
        run.commit("done")
        state = PackageState("2", auto=now_auto)
        back = plan_removal(store, host, facts_now({**AFTER, "nvidia-persistenced": state}))
        marks = [change.after for change in back.packages if str(change.id) == "nvidia-persistenced"]
        assert marks == ([] if back_to_auto is None else [PackageState("2", auto=back_to_auto)])

    def test_manual_mark_set_since_is_kept(self, host: Machine, store: Store) -> None:
        before, after = PackageState("1", auto=True), PackageState("2", auto=True)
        run = store.begin("setup")
        run.record_done(
            run.record_intent("packages", "driver", PackageChange(PackageId("nvidia-persistenced"), before, after))
        )
        run.commit("done")
        back = plan_removal(store, host, facts_now({**AFTER, "nvidia-persistenced": PackageState("2")}))
        assert "nvidia-persistenced" not in (one.subject for one in back.changes)

    def test_change_failure_is_reported_even_when_the_journal_is_full(
        self, host: Machine, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a full disk, no change is reported that was not made."""
        back = plan_removal(store, host, facts_now())
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
        assert {str(change.id) for change in plan_removal(store, host, facts_now()).packages} == set(AFTER)

    def test_second_removal_finds_nothing(self, host: Machine, store: Store) -> None:
        back = plan_removal(store, host, facts_now())
        execute_undo(back, host, store, on_event=ignore_event)
        assert plan_removal(store, host, machine()).steps == ()


@pytest.mark.parametrize(
    ("modules", "made", "reason"),
    [
        (frozenset[str](), [("nvidia", ""), (UNIT, ON)], ""),
        (
            frozenset({"nouveau"}),
            [(UNIT, replace(ON, active=False))],
            "nouveau drives the GPU until the next boot",
        ),
    ],
)
@pytest.mark.parametrize("package", ["nvidia-kernel-dkms", f"linux-modules-nvidia-580-server-open-{KERNEL}"])
def test_undone_removal_loads_the_driver_before_its_services(
    store: Store, package: str, modules: frozenset[str], made: list[tuple[str, object]], reason: str
) -> None:
    """The persistence daemon does not start without the module."""
    removal = store.begin("remove", with_packages=True)
    for change in (
        ServiceChange(UNIT, ON, OFF),
        PackageChange(PackageId(package), NEW, None),
    ):
        removal.record_done(removal.record_intent("packages", "step", change))
    removal.commit("done")
    facts = machine(loaded_driver=Known(None, "x"), modules=modules)
    back = plan_rollback(store, Machine(facts), removal.id, facts)
    shown = [
        (one.change.subject, one.change.after if isinstance(one.change, ServiceChange) else "") for one in back.steps
    ]
    assert (shown, back.reboot_reason) == ([(package, ""), *made], reason)


def test_undone_setup_loads_no_module_of_the_driver_that_leaves(store: Store) -> None:
    """The driver that is rolled back does not load: modprobe would fail, or load it with older libraries."""
    run = store.begin("setup")
    change = PackageChange(PackageId("nvidia-kernel-dkms"), OLD, NEW)
    run.record_done(run.record_intent("packages", "step", change))
    run.commit("done")
    facts = machine(packages={"nvidia-kernel-dkms": NEW}, loaded_driver=Known(None, "x"))
    host = Machine(facts)
    host.archives = {"nvidia-kernel-dkms": frozenset({OLD.version})}
    assert [one.change for one in plan_rollback(store, host, run.id, facts).steps] == [change.inverse()]


class TestLeftoversOfARemoval:
    """The leftovers that a removal finds at its end."""

    def removed(self, host: Machine, store: Store) -> UndoPlan:
        back = plan_removal(store, host, facts_now())
        execute_undo(back, host, store, on_event=ignore_event)
        return back

    def test_nothing_remains_after_a_complete_removal(self, host: Machine, store: Store) -> None:
        assert find_remainder(store, host, machine(), self.removed(host, store)) == Remainder()

    def test_objects_left_after_successful_commands_are_a_failure(self, host: Machine, store: Store) -> None:
        back = self.removed(host, store)
        host.files[BLACKLIST] = FileState(b"blacklist nouveau\n")
        left = find_remainder(store, host, facts_now({"dkms": PackageState("3")}), back)
        assert set(left.not_removed) == {BLACKLIST, "dkms", UNIT}
        assert isinstance(left.failure, VerifyFailed)
        assert "dkms" in left.failure.why

    def test_file_deleted_with_its_package_is_no_failure(self, host: Machine, store: Store) -> None:
        """Its former text was put back first, as somebody else's package might have stayed."""
        back = self.removed(host, store)
        host.files[CONTAINERD] = None
        assert find_remainder(store, host, machine(), back).failure is None

    def test_objects_recreated_since_are_named(self, host: Machine, store: Store) -> None:
        self.removed(host, store)
        host.files[BLACKLIST] = FileState(b"blacklist nouveau\n")
        nothing = plan_removal(store, host, facts_now({"dkms": PackageState("3")}))
        assert nothing.steps == ()
        left = find_remainder(store, host, facts_now({"dkms": PackageState("3")}), nothing)
        assert left.failure is None
        notes = {one.subject: one.reason for one in left.kept}
        assert f"`sudo rm {BLACKLIST}`" in notes[BLACKLIST]
        assert "came back after gpunode had removed it" in notes["dkms"]
        assert "purge" not in notes["dkms"], "whoever installed it again needs it"
        assert f"`sudo systemctl disable {UNIT}`" in notes[UNIT]

    def test_generated_cdi_file_and_loaded_module_are_named(self, host: Machine, store: Store) -> None:
        spec = "/var/run/cdi/nvidia.yaml"
        promise = FileChange(spec, None, Deferred("the GPUs", "nvidia-ctk"), frozenset({Trigger("cdi")}))
        run = store.begin("setup")
        for change in (promise, ModuleChange("nvidia-fs", before=False, after=True)):
            run.record_done(run.record_intent("kernel", "step", change))
        run.commit("done")
        back = self.removed(host, store)
        host.files[spec] = FileState(b"cdiVersion: 0.5.0\n")
        left = find_remainder(store, host, machine(modules=frozenset({"nvidia_fs"})), back)
        assert {str(one) for one in left.kept} == {
            f"{spec} stays, which nvidia-ctk wrote, until the next boot",
            "nvidia-fs stays in the kernel until the next boot",
        }
