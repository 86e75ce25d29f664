"""Changes of many runs to a node, summed up as one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpunode.change import (
    CONFFILES_STEP_ID,
    Change,
    FileChange,
    FileState,
    MigChange,
    MigInstance,
    MigLayout,
    PackageChange,
    PackageState,
    ServiceChange,
    ServiceState,
    Trigger,
)
from gpunode.journal.footprint import Footprint, footprint_of_node, footprint_of_run
from gpunode.journal.history import RunRecord
from gpunode.journal.record import Begin, Commit, Done, Entry, Failed, Intent, Result, Verb
from gpunode.package_id import PackageId

RESTART = Trigger("restart", "containerd.service")


def state(content: str) -> FileState:
    return FileState(content.encode())


def wrote(before: str | None, after: str | None, path: str = "/a") -> FileChange:
    was, now = (None if text is None else state(text) for text in (before, after))
    return FileChange(path, was, now, frozenset({RESTART}))


def run(
    number: int,
    *changes: Change,
    verb: Verb = "setup",
    of: int = 0,
    result: Result | None = "done",
    failed: Sequence[int] = (),
    step: str = "x",
) -> RunRecord:
    """Return a run; with an end, it made every change that did not fail; without one, that is unknown."""
    begin = Begin(str(number), 0.0, verb, "", "", "", "", "", (), str(of) if of else "")
    entries: list[Entry] = [begin, *(Intent(n, "runtime", step, change) for n, change in enumerate(changes))]
    entries += [Failed(n, "no") if n in failed else Done(n) for n in range(len(changes)) if result or n in failed]
    return RunRecord((*entries, *([Commit(result)] if result else [])))


def packages_before(found: Footprint) -> dict[PackageId, PackageState | None]:
    return {package: span.change.before for package, span in found.packages.items()}


def spans(*runs: RunRecord, path: str = "/a") -> list[tuple[str | None, str | None]]:
    trail = footprint_of_node(runs).files.get(path)
    texts = []
    for span in trail or ():
        change = span.change
        assert change.after is None or isinstance(change.after, FileState)
        texts.append(tuple(one.content.decode() if one else None for one in (change.before, change.after)))
    return texts  # type: ignore[return-value]


def test_consecutive_runs_merge_into_one_span() -> None:
    assert spans(run(1, wrote(None, "1")), run(2, wrote("1", "2")), run(3, wrote("2", "3"))) == [(None, "3")]


def test_edit_between_runs_starts_a_new_span() -> None:
    assert spans(run(1, wrote("0", "1")), run(2, wrote("edited", "2"))) == [("0", "1"), ("edited", "2")]


def test_third_run_continues_the_second_span() -> None:
    first, second = run(1, wrote("0", "1")), run(2, wrote("edited", "2"))
    assert spans(first, second, run(3, wrote("2", "3"))) == [("0", "1"), ("edited", "3")]
    assert spans(first, second, run(3, wrote("2", "edited"))) == [("0", "1")]


def test_file_that_was_only_reloaded_is_unchanged() -> None:
    assert spans(run(1, wrote("1", "1"))) == []


def test_undone_change_leaves_no_span() -> None:
    assert spans(run(1, wrote("0", "1")), run(2, wrote("1", "0"), verb="rollback", of=1)) == []


def test_failed_write_does_not_count_and_an_intended_one_does() -> None:
    assert spans(run(1, wrote("0", "1"), failed=[0])) == []
    assert spans(run(1, wrote("0", "1"), result=None)) == [("0", "1")]


def test_failed_transaction_counts_only_the_touched_packages() -> None:
    change, spared = (PackageChange(PackageId.of(name), None, PackageState("3")) for name in ("dkms", "docker.io"))
    assert packages_before(footprint_of_node([run(1, change, spared, failed=[1], result="failed")])) == {
        PackageId("dkms"): None
    }


def test_removed_package_is_not_owned() -> None:
    there = PackageState("3")
    back = run(2, PackageChange(PackageId("dkms"), there, None), verb="rollback", of=1)
    assert footprint_of_node([run(1, PackageChange(PackageId("dkms"), None, there)), back]).packages == {}


def test_package_state_before_is_that_of_the_first_run() -> None:
    old, new, newer = (PackageState(version) for version in ("1", "2", "3"))
    found = footprint_of_node(
        [run(1, PackageChange(PackageId("p"), old, new)), run(2, PackageChange(PackageId("p"), new, newer))]
    )
    assert packages_before(found) == {PackageId("p"): old}


class TestInterruptedUndo:
    """An interrupted run announced that it undoes something, and may not have done it."""

    def test_file_is_still_owned(self) -> None:
        back = run(2, wrote("1", "0"), verb="rollback", of=1, result=None)
        assert spans(run(1, wrote("0", "1")), back) == [("0", "1")]

    def test_file_of_two_runs_may_be_in_either_state(self) -> None:
        setups = run(1, wrote("0", "1")), run(2, wrote("1", "2"))
        assert spans(*setups, run(3, wrote("2", "1"), verb="rollback", of=2, result=None)) == [("0", "2"), ("2", "1")]

    def test_next_run_shows_whether_the_undo_happened(self) -> None:
        cut = run(1, wrote("0", "1")), run(2, wrote("1", "2"), result=None)
        assert spans(*cut, run(3, wrote("1", "3"))) == [("0", "3")]
        assert spans(*cut, run(3, wrote("2", "3"))) == [("0", "3")]
        assert spans(*cut, run(3, wrote("edited", "3"))) == [("0", "1"), ("1", "2"), ("edited", "3")]

    def test_package_is_still_owned(self) -> None:
        there = PackageState("3")
        setup = run(1, PackageChange(PackageId("dkms"), None, there))
        cut = run(2, PackageChange(PackageId("dkms"), there, None), verb="remove", result=None)
        assert packages_before(footprint_of_node([setup, cut])) == {PackageId("dkms"): None}
        assert packages_before(footprint_of_node([setup, cut, run(3)])) == {PackageId("dkms"): None}

    def test_unit_and_mig_layout_are_still_owned(self) -> None:
        off, on = ServiceState(enabled=False, active=False), ServiceState(enabled=True, active=True)
        whole, halved = MigLayout(enabled=False), MigLayout(enabled=True)
        setup = run(1, ServiceChange("a.service", off, on), MigChange("GPU-1", whole, halved))
        cut = run(2, ServiceChange("a.service", on, off), MigChange("GPU-1", halved, whole), result=None)
        found = footprint_of_node([setup, cut])
        assert found.units["a.service"].change == ServiceChange("a.service", off, on)
        assert found.layouts["GPU-1"].change == MigChange("GPU-1", whole, halved)


def test_unit_state_before_is_that_of_the_first_run() -> None:
    off, on = ServiceState(enabled=False, active=False), ServiceState(enabled=True, active=True)
    found = footprint_of_node([run(1, ServiceChange("a.service", off, on))])
    assert found.units["a.service"].change == ServiceChange("a.service", off, on)
    undone = run(2, ServiceChange("a.service", on, off), verb="rollback", of=1)
    assert footprint_of_node([run(1, ServiceChange("a.service", off, on)), undone]).units == {}


def test_objects_left_by_a_removal_are_still_owned() -> None:
    there = PackageState("3")
    setup = run(
        1,
        PackageChange(PackageId("dkms"), None, there),
        PackageChange(PackageId("runc"), None, there),
        wrote(None, "1", "/b"),
    )
    removed = run(2, PackageChange(PackageId("runc"), there, None), verb="remove", result="waiting")
    found = footprint_of_node([setup, removed])
    assert packages_before(found) == {PackageId("dkms"): None}
    assert set(found.files) == {"/b"}


def test_objects_restored_by_a_removal_are_not_owned() -> None:
    first, removed = run(1, wrote("0", "1")), run(2, wrote("1 edited", "edited"), verb="remove")
    assert spans(first, removed) == []
    assert spans(first, removed, run(3, wrote("edited", "3"))) == [("edited", "3")]
    assert spans(first, removed, run(3, wrote("edited", "3"), result=None)) == [("edited", "3")]


def test_interrupted_or_undone_removal_ends_nothing() -> None:
    first = run(1, wrote("0", "1"), wrote("0", "1", "/b"))
    assert spans(first, run(2, verb="remove", result=None)) == [("0", "1")]
    removed, back = run(2, wrote("1", "0"), verb="remove"), run(3, wrote("0", "1"), verb="rollback", of=2)
    assert spans(first, removed, back) == [("0", "1")]
    assert spans(first, removed, back, path="/b") == [("0", "1")]
    undone_again = run(4, wrote("1", "0"), verb="rollback", of=3)
    assert spans(first, removed, back, undone_again) == []


class TestUndoneUnconfigure:
    """An unconfigure removes gpunode's entry; undone, the entry is gpunode's again, as it always was."""

    @pytest.mark.parametrize("result", ["done", None])
    def test_entry_that_comes_back_is_owned_again(self, result: Result | None) -> None:
        runs = run(1, wrote("0", "1")), run(2, wrote("1", "0"), verb="unconfigure")
        assert spans(*runs) == []
        back = run(3, wrote("0", "1"), verb="rollback", of=2, result=result)
        assert spans(*runs, back) == [("0", "1")]
        assert spans(*runs, back, run(4, wrote("1", "2"))) == [("0", "2")]
        assert spans(*runs, back, run(4, wrote("1", "0"), verb="rollback", of=3)) == []

    def test_entry_of_somebody_else_is_not_owned(self) -> None:
        removed, back = (
            run(1, wrote("theirs", "0"), verb="unconfigure"),
            run(2, wrote("0", "theirs"), verb="rollback", of=1),
        )
        assert spans(removed, back) == []


class TestForcedRollback:
    """It removes an edit together with gpunode's earlier change; undone, it restores the edit."""

    def test_edit_is_not_restored(self) -> None:
        first, forced = run(1, wrote("0", "1")), run(2, wrote("1 edited", "0"), verb="rollback", of=1)
        assert spans(first, forced) == []
        back = run(3, wrote("0", "1 edited"), verb="rollback", of=2)
        assert spans(first, forced, back) == [("0", "1")]
        assert spans(first, forced, back, run(4, wrote("1 edited", "0"), verb="rollback", of=3)) == []

    def test_former_run_remains(self) -> None:
        first, second = run(1, wrote("0", "1")), run(2, wrote("1", "2"))
        assert spans(first, second, run(3, wrote("2 edited", "1"), verb="rollback", of=2)) == [("0", "1")]
        gone = run(2, wrote("1", None))
        assert spans(first, gone, run(3, wrote("theirs", "1"), verb="rollback", of=2)) == [("0", "1")]

    def test_interrupted_rollback_is_ambiguous(self) -> None:
        forced = run(2, wrote("1 edited", "0"), verb="rollback", of=1, result=None)
        assert spans(run(1, wrote("0", "1")), forced) == [("0", "1"), ("1 edited", "0")]


def test_conffiles_of_packages_are_not_counted() -> None:
    assert spans(run(1, wrote("theirs", None), step=CONFFILES_STEP_ID)) == []


def test_folders_and_triggers_of_all_runs_are_kept() -> None:
    first = FileChange("/a", None, state("1"), frozenset({RESTART}), ("/new",))
    second = FileChange("/a", state("1"), state("2"), frozenset({Trigger("initramfs")}))
    (span,) = footprint_of_node([run(1, first), run(2, second)]).files["/a"]
    assert span.change.path == "/a"
    assert span.folders == ("/new",)
    assert span.change.triggers == {RESTART, Trigger("initramfs")}


def test_folders_survive_an_interrupted_undo() -> None:
    made = FileChange("/a", None, state("1"), folders=("/new",))
    later, taken = wrote("1", "2"), FileChange("/a", state("2"), None, folders=("/new",))
    cut = [run(1, made), run(2, later), run(3, taken, verb="remove", result=None)]
    for goes_on in (wrote("2", "3"), wrote(None, "3")):
        trail = footprint_of_node([*cut, run(4, goes_on)]).files["/a"]
        assert {folder for span in trail for folder in span.folders} == {"/new"}


def test_mig_layout_made_between_runs_is_not_ours() -> None:
    off, ours, theirs = MigLayout(enabled=False), *(MigLayout(True, _one_instance(profile)) for profile in ("3g", "7g"))
    last = MigLayout(True, _one_instance("1g"))
    changes = MigChange("GPU-1", off, ours), MigChange("GPU-1", theirs, last)
    found = footprint_of_node([run(1, changes[0]), run(2, changes[1])]).layouts["GPU-1"]
    assert [found.may_have_left(layout) for layout in (ours, theirs, last)] == [True, False, True]
    alone = footprint_of_run(run(1, *changes)).layouts["GPU-1"]
    assert [alone.may_have_left(layout) for layout in (ours, theirs, last)] == [True, True, True]


def test_file_removed_after_two_runs_differs_from_the_first_result() -> None:
    """They removed the second run's file; the file that the first run removed does not return."""
    first, second = wrote("0", None), wrote(None, "1")
    (span,) = footprint_of_node([run(1, first), run(2, second)]).files["/a"]
    assert (span.may_have_left(state("1")), span.may_have_left(None)) == (True, False)
    (alone,) = footprint_of_run(run(1, first, second)).files["/a"]
    assert alone.may_have_left(None), "it may have ended in between"


def _one_instance(profile: str) -> tuple[MigInstance, ...]:
    return (MigInstance(profile, 0, 1, ("1",)),)


def test_created_file_is_listed_before_the_file_that_names_it() -> None:
    """Undoing from last to first never leaves a reference to a removed file."""
    drop_in, named, updated = wrote(None, "1", "/drop-in"), wrote("0", "1", "/config"), wrote("1", "2", "/drop-in")
    at_once = run(1, drop_in, named, updated)
    for found in (footprint_of_run(at_once), footprint_of_node([at_once])):
        assert list(found.files) == ["/drop-in", "/config"]
    edited, naming = wrote("0", "1", "/config"), wrote("1", "2", "/config")
    for found in (
        footprint_of_node([run(1, edited), run(2, drop_in, naming)]),
        footprint_of_run(run(1, edited, drop_in, naming)),
    ):
        assert list(found.files) == ["/drop-in", "/config"]


def test_trail_is_empty_where_a_backup_is_gone() -> None:
    bare = footprint_of_node([run(1, wrote("name of 0", "name of 1"))])
    kept = bare.with_contents({"name of 0": b"0", "name of 1": b"1"}.get).files["/a"]
    assert (kept[0].change.before, kept[0].change.after) == (state("0"), state("1"))
    assert bare.with_contents({"name of 1": b"1"}.get).files["/a"] == ()


def test_empty_and_missing_files_are_loaded_as_such() -> None:
    gone = (
        footprint_of_node([run(1, wrote("name of nothing", None))])
        .with_contents({"name of nothing": b""}.get)
        .files["/a"]
    )
    assert (gone[0].change.before, gone[0].change.after) == (state(""), None)
