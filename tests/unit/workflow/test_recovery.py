"""Messages about a run that was interrupted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from gpunode.change import Change, FileChange, FileState, PackageChange, PackageState, Trigger
from gpunode.facts.model import Facts, Known
from gpunode.host.local import LocalHost
from gpunode.journal.history import RunRecord
from gpunode.journal.record import Begin, Done, Failed, Intent, Verb
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages.deb import REPAIR_COMMAND
from gpunode.workflow.apply import Applier, possible_temporary_files, record_change_outcomes
from gpunode.workflow.recovery import (
    describe_interrupted_run,
    find_backlog,
    find_missing_marks,
    read_backlog,
)
from tests.fakes.dpkg import STATUS, Packages
from tests.fakes.memory_node import MemoryNode
from tests.ids import by_id
from tests.unit.steps.machines import machine
from tests.unit.workflow.nodes import Node

BEGIN = Begin("000003-20270115T080000Z", 1_800_000_000.0, "setup", "0.1.0", "containerd", "", "", "ada", ())
FILE = FileChange("/etc/modprobe.d/x.conf", None, FileState(b""))
PACKAGES = tuple(PackageChange(PackageId.of(f"lab-{n}"), None, PackageState("1")) for n in range(5))


def interrupted(
    made: Sequence[Change] = (), begun: Sequence[Change] = (), failed: Sequence[Change] = (), verb: Verb = "setup"
) -> RunRecord:
    """Return a run without an end."""
    intents = [Intent(n, "packages", "x", change) for n, change in enumerate((*made, *failed, *begun))]
    done = (Done(n) for n in range(len(made)))
    no = (Failed(n, "no") for n in range(len(made), len(made) + len(failed)))
    return RunRecord((replace(BEGIN, verb=verb), *intents, *done, *no))


def having(installed: Mapping[str, PackageState], selected_for_removal: Collection[str] = ()) -> Facts:
    """Return the facts of a node with these packages."""
    selected = frozenset(map(PackageId, selected_for_removal))
    return replace(machine(), packages=Known(by_id(installed), "test"), selected_for_removal=selected)


@pytest.mark.parametrize(
    ("made", "begun", "how_far"),
    [
        ((), (), "before its first change"),
        ((FILE,), (), "after 1 change, the last of them /etc/modprobe.d/x.conf"),
        ((), (FILE,), "in the middle of /etc/modprobe.d/x.conf"),
        (
            (FILE, FILE),
            PACKAGES,
            "after 2 changes, the last of them /etc/modprobe.d/x.conf, in the middle of lab-0, lab-1, lab-2 and 2 more",
        ),
    ],
)
def test_interrupted_run_says_how_far_it_got(made: tuple[Change, ...], begun: tuple[Change, ...], how_far: str) -> None:
    assert describe_interrupted_run(interrupted(made, begun), "this run finishes it") == (
        "run 000003-20270115T080000Z (setup containerd, started 2027-01-15 08:00 UTC by ada) was cut short "
        f"{how_far}; this run finishes it"
    )


def test_run_that_goes_on_is_not_called_cut_short(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = store.begin("setup")
    change = FileChange("/etc/modprobe.d/x.conf", None, FileState(b""), frozenset({Trigger("initramfs")}))
    with store.lock():
        run.record_done(run.record_intent("packages", "nouveau", change))
        going_on = read_backlog(store, machine())
    assert not going_on
    assert going_on.ending_phrase == ""
    assert going_on.notes[0].startswith("another gpunode is changing this node: process ")
    killed = read_backlog(store, machine())
    assert (bool(killed), killed.ending_phrase, killed.notes) == (True, "was cut short", ())


def test_possible_temporary_files_of_an_interrupted_run_are_listed() -> None:
    paths = possible_temporary_files(interrupted(begun=(FILE, *PACKAGES)))
    assert paths == (
        "/etc/modprobe.d/x.conf",
        "/etc/containerd/config.toml",
        "/etc/containerd/conf.d/99-nvidia.toml",
        "/etc/docker/daemon.json",
        "/etc/crio/crio.conf",
        "/etc/crio/crio.conf.d/99-nvidia.toml",
    )


def test_auto_marks_missing_after_an_interrupted_setup_are_set() -> None:
    def bring(name: str, *, auto: bool) -> PackageChange:
        return PackageChange(PackageId.of(name), None, PackageState("1", auto=auto))

    begun = tuple(bring(name, auto=name != "asked") for name in ("needed", "asked", "gone", "newer"))
    cut = interrupted(begun=(FILE, *begun))
    installed = {name: PackageState("1") for name in ("needed", "asked")} | {"newer": PackageState("2")}

    assert find_missing_marks(cut, having(installed)) == (
        PackageChange(PackageId("needed"), PackageState("1"), PackageState("1", auto=True)),
    )
    assert find_missing_marks(interrupted(begun=(FILE, *begun), verb="rollback"), having(installed)) == ()


class TestRecordOfInterruptedChanges:
    """The next command checks what an interrupted run changed, and records it."""

    PATH, OURS = "/etc/apt/preferences.d/gpunode-nvidia", FileState(b"ours")
    STATUS = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """Return the store of a setup that added a file and a package, and of a killed remove of both."""
        store = Store(tmp_path)
        brought = FileChange(self.PATH, None, self.OURS), PackageChange(PackageId("dkms"), None, PackageState("3"))
        run = store.begin("setup")
        run.record_done(*run.record_intents("packages", "x", brought))
        run.commit("done")
        cut = store.begin("remove")
        cut.record_intents("packages", "remove", [back for change in brought if (back := change.inverse())])
        cut.close()
        return store

    def node(self, *packages: str, file: FileState | None = None) -> Node:
        node = Node(machine())
        states = (
            f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 3\n" for name in packages
        )
        node.files["/var/lib/dpkg/status"] = FileState("\n".join((self.STATUS, *states)).encode())
        node.files[self.PATH] = file
        return node

    def test_packages_removed_by_a_killed_remove_are_not_owned_any_more(self, store: Store) -> None:
        """A later remove must not take what a user has installed or written since."""
        record_change_outcomes(store, self.node())
        record_change_outcomes(store, self.node("dkms", file=FileState(b"theirs")))
        assert (store.footprint().packages, store.footprint().files) == ({}, {})
        cut = store.find_interrupted_run()
        assert cut is not None
        assert cut.changes("unknown") == ()

    @pytest.fixture
    def cut(self, store: Store) -> Store:
        """Return the store of a later setup that removed dkms, and of a killed rollback that should restore it."""
        run = store.begin("setup")
        away = PackageChange(PackageId("dkms"), PackageState("3"), None)
        run.record_done(run.record_intent("packages", "x", away))
        run.commit("done")
        killed = store.begin("rollback")
        killed.record_intent("packages", "rollback", PackageChange(PackageId("dkms"), None, PackageState("3")))
        killed.close()
        return store

    def test_package_that_a_killed_undo_never_brought_back_is_its_installers(self, cut: Store) -> None:
        record_change_outcomes(cut, self.node())
        record_change_outcomes(cut, self.node("dkms"))
        assert cut.footprint().packages == {}

    def test_package_may_still_come_while_dpkg_is_at_work(self, cut: Store) -> None:
        record_change_outcomes(cut, self.node(), is_idle=False)
        assert set(cut.footprint().packages) == {PackageId("dkms")}

    @pytest.mark.parametrize("status", ["install ok unpacked", "install reinstreq half-installed"])
    def test_package_that_a_killed_undo_brought_in_part_is_owned(self, cut: Store, status: str) -> None:
        node = self.node()
        part = f"\nPackage: dkms\nStatus: {status}\nArchitecture: amd64\nVersion: 3\n"
        node.files["/var/lib/dpkg/status"] = FileState((self.STATUS + part).encode())
        record_change_outcomes(cut, node)
        assert set(cut.footprint().packages) == {PackageId("dkms")}

    def test_packages_left_by_a_killed_remove_are_still_owned(self, store: Store) -> None:
        record_change_outcomes(store, self.node("dkms", file=self.OURS))
        assert set(store.footprint().packages) == {PackageId("dkms")}
        assert set(store.footprint().files) == {self.PATH}

    def test_half_removed_package_is_still_owned(self, store: Store) -> None:
        node = self.node()
        half = b"\nPackage: dkms\nStatus: deinstall reinstreq half-installed\nArchitecture: amd64\nVersion: 3\n"
        node.files["/var/lib/dpkg/status"] = FileState(self.STATUS.encode() + half)
        record_change_outcomes(store, node)
        assert set(store.footprint().packages) == {PackageId("dkms")}

    def test_removed_file_is_still_owned_until_its_folder_is_removed(self, tmp_path: Path) -> None:
        """Killed after the file was removed and before the folder was: the next undo removes that."""
        store, host, folder = Store(tmp_path), LocalHost(str(tmp_path)), tmp_path / "etc/nvidia"
        ours = FileChange("/etc/nvidia/ours.conf", None, self.OURS, folders=("/etc/nvidia",))
        run = store.begin("setup")
        run.record_done(run.record_intent("packages", "x", ours))
        run.commit("done")
        cut = store.begin("remove")
        cut.record_intent("packages", "x", replace(ours, before=self.OURS, after=None))
        cut.close()
        folder.mkdir(parents=True)
        record_change_outcomes(store, host)
        assert set(store.footprint().files) == {ours.path}
        (folder / "theirs.conf").touch()
        record_change_outcomes(store, host)
        assert store.footprint().files == {}

    def test_later_run_on_a_package_hides_the_interrupted_one(self, store: Store) -> None:
        run = store.begin("setup")
        run.record_done(
            run.record_intent("packages", "x", PackageChange(PackageId("dkms"), PackageState("3"), PackageState("4")))
        )
        run.commit("done")
        record_change_outcomes(store, self.node())
        assert PackageId("dkms") in store.footprint().packages


@pytest.mark.parametrize("verb", ["setup", "rollback", "remove"])
def test_auto_marks_of_packages_an_interrupted_run_kept_are_restored(verb: Verb) -> None:
    """apt clears the marks before dpkg starts."""
    begun = tuple(
        PackageChange(PackageId(name), PackageState("1", auto=name != "asked"), None)
        for name in ("asked", "needed", "gone", "newer")
    )
    installed = {"asked": PackageState("1"), "needed": PackageState("1"), "newer": PackageState("2")}
    cut = interrupted(begun=begun[:1], failed=begun[1:], verb=verb)
    assert find_missing_marks(cut, having(installed)) == (
        PackageChange(PackageId("needed"), PackageState("1"), PackageState("1", auto=True)),
    )


def test_package_that_a_killed_run_left_selected_for_removal_is_marked() -> None:
    """``dpkg --purge --pending`` would remove it; somebody else's selections stay."""
    manual, auto = PackageState("1"), PackageState("1", auto=True)
    names = {"manual": manual, "auto": auto, "lost-mark": auto, "not-selected": manual, "now-auto": manual}
    cut = interrupted(begun=[PackageChange(PackageId(name), was, None) for name, was in names.items()], verb="remove")
    installed = {**names, "lost-mark": manual, "now-auto": auto, "foreign": manual}

    found = find_missing_marks(cut, having(installed, installed.keys() - {"not-selected"}))

    assert [(str(one.id), one.before, one.after) for one in found] == [
        ("manual", manual, manual),
        ("auto", auto, auto),
        ("lost-mark", manual, auto),
        ("now-auto", auto, auto),
    ]


@pytest.mark.parametrize("ending", [None, "failed", "done"])
def test_hold_lost_by_a_killed_reinstallation_survives_a_second_kill(
    ending: Literal["failed", "done"] | None, tmp_path: Path
) -> None:
    store, held = Store(tmp_path), PackageState("1", held=True)
    first, second = (store.begin("setup") for _ in range(2))
    first.record_intents("packages", "toolkit", [PackageChange(PackageId("lab"), held, held)])
    second.record_intent("sources", "repair", REPAIR_COMMAND)
    if ending:
        second.commit(ending)

    marks = find_backlog(store, having({"lab": PackageState("1")})).marks

    lost = PackageChange(PackageId("lab"), PackageState("1"), held)
    assert marks == (() if ending == "done" else (lost,)), "a completed run has set it"


@pytest.mark.parametrize("is_held", [False, True])
def test_hold_is_not_restored_on_a_version_that_somebody_chose_since(tmp_path: Path, *, is_held: bool) -> None:
    store, held = Store(tmp_path), PackageState("1", held=True)
    killed = store.begin("setup")
    killed.record_intents("packages", "toolkit", [PackageChange(PackageId("lab"), held, held)])

    backlog = find_backlog(store, having({"lab": PackageState("2", held=is_held)}))

    assert (backlog.marks, backlog.holds_at_risk) == ((), ())
    assert [note.split(":")[0] for note in backlog.notes] == (
        []
        if is_held
        else ["lab was on hold in version 1 when a run was killed, and somebody has changed it to 2 since"]
    )


def test_hold_that_somebody_removed_stays_removed_after_a_later_failure(tmp_path: Path) -> None:
    """The completed run left the hold; only then was it removed."""
    store, held = Store(tmp_path), PackageState("1", held=True)
    killed, completed, failed = (store.begin("setup") for _ in range(3))
    killed.record_intents("packages", "toolkit", [PackageChange(PackageId("lab"), held, held)])
    completed.commit("done")
    failed.commit("failed")

    assert find_backlog(store, having({"lab": PackageState("1")})).marks == ()


@pytest.mark.parametrize("status", ["reinstreq half-installed", "ok unpacked"])
def test_repair_announces_the_holds_that_it_may_lose(status: str, tmp_path: Path) -> None:
    rows = f"Package: lab\nStatus: hold {status}\nArchitecture: amd64\nVersion: 1\n"
    whole = rows.replace("lab", "whole").replace(status, "ok installed")
    dpkg = rows.replace("lab", "dpkg").replace(f"hold {status}", "install ok installed")
    node = MemoryNode(tmp_path, Packages({}, {}), {})
    node.files[STATUS] = FileState("\n".join((dpkg, whole, rows)).encode())
    node.apply = lambda _: None  # type: ignore[method-assign]
    run = Store(tmp_path).begin("setup")

    Applier(node, run, lambda _: None, lambda: None).apply_change(
        "sources", "repair", REPAIR_COMMAND, "it was interrupted"
    )

    held = PackageState("1", held=True)
    named = [entry.change for entry in run.entries() if isinstance(entry, Intent)]
    assert named == [REPAIR_COMMAND, PackageChange(PackageId("lab"), held, held)]
