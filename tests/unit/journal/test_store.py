from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpunode.change import FileChange, FileState, PackageChange, PackageState, Trigger, digest
from gpunode.errors import ChangeFailed, JournalDamaged, Refused, UsageError
from gpunode.journal.history import RunRecord, intents_to_undo, is_configuration_change
from gpunode.journal.record import Done, Intent
from gpunode.journal.run import Run
from gpunode.journal.store import Store
from gpunode.package_id import PackageId

RESTART = Trigger("restart", "containerd.service")
BEFORE = FileState(b"version = 2\n", 0o600, 0, 0)
CONFIG = FileChange("/etc/containerd/config.toml", BEFORE, FileState(b"version = 3\n"), frozenset({RESTART}))


def newest(store: Store, *, verb: str = "", undone: bool = False) -> RunRecord | None:
    """Return the newest run that changed something; only of ``verb`` if given, including undone ones if requested."""
    fitting = (run for run in reversed(store.read_runs()) if run.subjects and verb in ("", run.verb))
    return next((run for run in fitting if undone or not run.undone_by), None)


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.time", clock)
    return clock


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def setup_run(store: Store, content: bytes = b"version = 3\n", before: FileState | None = BEFORE) -> Run:
    run = store.begin("setup", recipe="containerd", argv=("gpunode", "setup"))
    change = FileChange("/etc/containerd/config.toml", before, FileState(content), frozenset({RESTART}))
    run.record_done(run.record_intent("runtime", "configure-containerd", change))
    run.record_trigger(RESTART)
    run.commit("done")
    return run


def test_run_is_read_back_with_file_contents(store: Store) -> None:
    run = setup_run(store)
    assert store.read_with_contents(run.id) == run.entries()
    (back,) = filter(is_configuration_change, intents_to_undo(store.read_with_contents(run.id)))
    assert back.change == FileChange(CONFIG.path, CONFIG.after, BEFORE, CONFIG.triggers)  # type: ignore[arg-type]


def test_journal_is_readable_by_root_only(store: Store) -> None:
    setup_run(store)
    for path in store.folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_runs_are_ordered_by_number_when_the_clock_goes_back(store: Store, clock: Clock) -> None:
    first = setup_run(store)
    clock.now -= 1e8
    second = setup_run(store)
    assert (first.id, second.id) == ("000001-20270115T080000Z", "000002-20231114T221320Z")
    assert [run.id for run in store.read_runs()] == [first.id, second.id]
    latest = newest(store)
    assert latest is not None
    assert latest.id == second.id


def test_folder_that_is_no_run_is_ignored(store: Store) -> None:
    run = setup_run(store)
    (store.folder / "runs/lost+found").mkdir()
    assert store.ids() == (run.id,)


def test_store_is_empty_before_the_first_run(store: Store) -> None:
    assert store.read_runs() == ()
    assert newest(store) is None
    assert store.find_pending_triggers() == {}
    assert not store.folder.exists()


def test_reading_takes_no_lock(store: Store) -> None:
    with store.lock():
        setup_run(store)
        assert len(store.read_runs()) == 1


def test_unknown_run_is_refused_with_a_hint(store: Store) -> None:
    setup_run(store)
    for name in ("000009-20270115T080000Z", "../../../etc", ""):
        with pytest.raises(UsageError, match="there is no run") as stopped:
            store.read_with_contents(name)
        assert "rollback --list" in stopped.value.hint


def test_interrupted_run_has_no_result_and_pending_triggers(store: Store, clock: Clock) -> None:
    run = store.begin("setup")
    clock.now += 5
    run.record_intent("runtime", "configure-containerd", CONFIG)
    run.close()
    (summary,) = store.read_runs()
    assert summary.commit is None
    assert summary.subjects == (CONFIG.path,)
    assert store.find_pending_triggers() == {RESTART: clock.now}


def test_trigger_dates_from_its_change_and_a_later_run_settles_it(store: Store, clock: Clock) -> None:
    run = store.begin("setup")
    seq = run.record_intent("runtime", "configure-containerd", CONFIG)
    clock.now += 60
    run.record_done(seq)
    run.close()
    assert store.find_pending_triggers() == {RESTART: clock.now}
    later = store.begin("setup")
    later.record_trigger(RESTART, "containerd started after the write")
    assert store.find_pending_triggers() == {}


@pytest.mark.parametrize("call", ["mkdir", "write", "fsync", "rename"])
def test_run_killed_before_its_first_entry_leaves_none(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    first = setup_run(store)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, Disk.refuse)
        with pytest.raises(ChangeFailed):
            store.begin("setup")
    assert store.ids() == (first.id,)
    assert setup_run(store).id.startswith("000002-")
    assert sorted(path.name for path in (store.folder / "runs").iterdir()) == list(store.ids())


def test_draft_of_a_killed_run_is_removed_whatever_it_holds(store: Store) -> None:
    setup_run(store)
    draft = store.folder / "runs/.draft"
    draft.mkdir()
    (draft / "stray").touch()
    setup_run(store)
    assert not draft.exists()


def test_link_in_place_of_a_draft_is_named(store: Store) -> None:
    setup_run(store)
    draft = store.folder / "runs/.draft"
    draft.symlink_to("/nowhere")
    with pytest.raises(Refused, match=rf"{draft} is not a folder") as refused:
        store.begin("setup")
    assert "move it away" in refused.value.hint


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b""), lambda path: os.truncate(path, 99), Path.unlink])
def test_journal_without_its_first_entry_is_damage(store: Store, spoil: Callable[[Path], object]) -> None:
    run = setup_run(store)
    setup_run(store)
    spoil(run.path)
    for look in (
        store.read_runs,
        store.find_pending_triggers,
        lambda: store.entries(run.id),
        lambda: store.read_with_contents(run.id),
    ):
        with pytest.raises(JournalDamaged, match=rf"{run.path} is damaged in line 1") as stopped:
            look()
        assert "its first entry is missing" in stopped.value.why


def test_damaged_journal_is_refused_with_file_and_line(store: Store) -> None:
    run = setup_run(store)
    data = bytearray(run.path.read_bytes())
    data[len(data) // 2] ^= 1
    run.path.write_bytes(data)
    for look in (store.read_runs, store.find_pending_triggers, lambda: store.read_with_contents(run.id)):
        with pytest.raises(JournalDamaged, match=rf"{run.path} is damaged in line \d"):
            look()


def test_newer_journal_is_refused(store: Store) -> None:
    run = setup_run(store)
    run.path.write_bytes(run.path.read_bytes().replace(b'{"v":4', b'{"v":5'))
    with pytest.raises(JournalDamaged) as stopped:
        store.read_runs()
    assert "it was written by another gpunode" in stopped.value.why


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"other"), Path.unlink])
def test_damaged_backup_is_never_restored(store: Store, spoil: Callable[[Path], object]) -> None:
    run = setup_run(store)
    name = digest(BEFORE.content)
    spoil(store.objects.path(name))
    assert len(store.read_runs()) == 1, "a list needs no backups"
    with pytest.raises(JournalDamaged, match="a backup of run"):
        store.read_with_contents(run.id)


def test_damaged_backup_is_saved_again_with_the_same_bytes(store: Store) -> None:
    run = setup_run(store)
    name = digest(BEFORE.content)
    (store.objects.path(name)).write_bytes(b"other")
    setup_run(store)
    assert store.read_with_contents(run.id) == run.entries()


class TestUndoneRuns:
    def rollback(self, store: Store, of: str, result: str = "done") -> Run:
        run = store.begin("rollback", undoes=of)
        run.record_done(run.record_intent("runtime", "undo", CONFIG))
        run.commit(result)  # type: ignore[arg-type]
        return run

    def marks(self, store: Store) -> dict[str, str]:
        return {run.id: run.undone_by for run in store.read_runs()}

    def test_undone_run_is_not_the_next_to_roll_back(self, store: Store) -> None:
        first, second = setup_run(store), setup_run(store)
        undone = self.rollback(store, second.id)
        assert self.marks(store) == {first.id: "", second.id: undone.id, undone.id: ""}
        assert [getattr(newest(store, verb="setup"), "id", None)] == [first.id]
        assert [getattr(newest(store, verb="setup", undone=True), "id", None)] == [second.id]
        assert [getattr(newest(store), "id", None)] == [undone.id]

    def test_undone_rollback_undoes_nothing(self, store: Store) -> None:
        first = setup_run(store)
        second = self.rollback(store, first.id)
        third = self.rollback(store, second.id)
        assert self.marks(store) == {first.id: "", second.id: third.id, third.id: ""}

    def test_failed_rollback_undoes_nothing(self, store: Store) -> None:
        first = setup_run(store)
        self.rollback(store, first.id, "failed")
        assert self.marks(store)[first.id] == ""

    def test_run_without_changes_is_not_rolled_back(self, store: Store) -> None:
        first = setup_run(store)
        store.begin("setup").commit("done")
        assert [getattr(newest(store), "id", None)] == [first.id]


def test_every_run_keeps_its_backups_and_the_original_state(store: Store) -> None:
    runs = [setup_run(store, b"%d" % n, FileState(b"%d" % (n - 1)) if n else BEFORE) for n in range(60)]
    assert all(store.read_with_contents(run.id) for run in runs)
    (span,) = store.footprint().files["/etc/containerd/config.toml"]
    assert (span.change.before, span.change.after) == (BEFORE, FileState(b"59"))


def test_journal_in_another_runs_folder_is_damage(store: Store) -> None:
    first, second = setup_run(store), setup_run(store)
    second.path.write_bytes(first.path.read_bytes())
    with pytest.raises(JournalDamaged, match="damaged in line 1"):
        store.read_runs()


class Disk:
    """Fails the n-th write or fsync, with half of a write done, like a full or failing disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, nth: int, code: int) -> None:
        self.left = nth
        self.real = getattr(os, call)
        self.code = code
        self.call = call
        monkeypatch.setattr(os, call, self.fail_once)

    @staticmethod
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail_once(self, descriptor: int, *args: bytes) -> int:
        self.left -= 1
        if self.left == 0:
            if args:
                self.real(descriptor, bytes(args[0])[: len(args[0]) // 2])
            raise OSError(self.code, os.strerror(self.code))
        return int(self.real(descriptor, *args) or 0)


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("nth", range(1, 12))
def test_unwritten_intent_is_not_recorded(store: Store, monkeypatch: pytest.MonkeyPatch, call: str, nth: int) -> None:
    run = store.begin("setup")
    effects = []
    with monkeypatch.context() as patched:
        disk = Disk(patched, call, nth, errno.ENOSPC)
        for n in range(3):
            change = FileChange(f"/etc/{n}", BEFORE, FileState(b"%d" % n), frozenset({RESTART}))
            try:
                run.record_done(run.record_intent("runtime", "configure", change))
                effects.append(change)
            except ChangeFailed as failure:
                if "No space left on device" not in failure.why or "was not made" not in failure.what:
                    effects.append(change)
        assert disk.left <= 0 or call == "write"
    run.commit("failed", "the disk is full")
    read = store.read_with_contents(run.id)
    assert [entry.change for entry in read if isinstance(entry, Intent)] == effects
    assert read == run.entries()


def test_journal_ends_after_a_torn_line_that_cannot_be_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    run = store.begin("setup")
    run.record_intent("runtime", "configure", CONFIG)
    with monkeypatch.context() as patched:
        Disk(patched, "write", 1, errno.EIO)
        patched.setattr(os, "ftruncate", refuse)
        with pytest.raises(ChangeFailed):
            run.record_done(1)
    with pytest.raises(ChangeFailed, match="not made"):
        run.record_intent("runtime", "configure", CONFIG)
    assert store.read_with_contents(run.id) == run.entries()


@pytest.mark.parametrize("nth", range(1, 8))
def test_run_that_cannot_begin_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    with monkeypatch.context() as patched:
        Disk(patched, "fsync", nth, errno.EROFS)
        with contextlib.suppress(ChangeFailed):
            store.begin("setup")
    assert newest(store) is None
    setup_run(store)


def test_packages_of_one_transaction_are_written_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.begin("setup")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    packages = [
        PackageChange(PackageId.of(name), None, PackageState("1")) for name in ("nvidia-open", "libnvidia-cfg1")
    ]
    seqs = run.record_intents("packages", "install-driver", packages, "the driver is missing")
    assert seqs == (1, 2)
    run.record_done(*seqs)
    assert len(synced) == 2
    assert sum(isinstance(entry, Done) for entry in run.entries()) == 2


def test_rejected_file_is_kept_for_reading(store: Store) -> None:
    run = store.begin("setup")
    kept = [
        Path(run.save_rejected_file(path, path.encode()))
        for path in ("/etc/containerd/config.toml", "/etc/x/config.toml")
    ]
    assert [path.read_bytes() for path in kept] == [b"/etc/containerd/config.toml", b"/etc/x/config.toml"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert {path.parent for path in kept} == {run.path.parent}


def test_journal_of_an_image_does_not_land_on_the_host(tmp_path: Path) -> None:
    image, host = tmp_path / "image", tmp_path / "host"
    (image / "var").mkdir(parents=True)
    host.mkdir()
    (image / "var/lib").symlink_to(host)
    with pytest.raises(Refused, match="a link out of"):
        Store(image).begin("setup")
    assert list(host.iterdir()) == []


@pytest.mark.parametrize("name", ["", "runs", "runs/ID", "objects", "objects/XX"])
def test_folder_that_an_image_exchanges_meanwhile_leads_nowhere(tmp_path: Path, name: str) -> None:
    """The image's programs run between two records of one run."""
    host, content = tmp_path / "host", b"* * * * * root touch /pwned"
    digits = digest(content)[:2]
    image = tmp_path / "image"
    image.mkdir()
    store = Store(image)
    run = store.begin("setup")
    store.objects.save(content)
    (host / "runs" / run.id).mkdir(parents=True)
    (host / "objects" / digits).mkdir(parents=True)
    inside = name.replace("ID", run.id).replace("XX", digits)
    (store.folder / inside).rename(image / "old")
    (store.folder / inside).symlink_to(host / inside)
    before = sorted(host.rglob("*"))

    change = FileChange("/etc/x", None, FileState(content))
    acts: tuple[Callable[[], object], ...] = (
        lambda: run.record_intent("runtime", "configure", change),
        lambda: run.save_request(content),
        lambda: run.save_rejected_file("/etc/x", content),
        lambda: store.begin("setup"),
        lambda: store.objects.remove_files(bool),
    )
    for act in acts:
        with contextlib.suppress(ChangeFailed, Refused, OSError):
            act()
        assert sorted(host.rglob("*")) == before


def test_pipe_in_the_place_of_a_file_to_write_is_replaced(store: Store) -> None:
    run = store.begin("setup")
    name = store.objects.save(b"new")
    store.objects.path(name).unlink()
    for planted in (run.path.with_name("request.json"), store.objects.path(name).with_name(f".{name}.{os.getpid()}")):
        os.mkfifo(planted)
    store.objects.save(b"new")
    run.save_request(b"schema = 1")
    assert (store.objects.find(name), store.read_request(run.id)) == (b"new", b"schema = 1")


def test_lock_of_an_image_does_not_land_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "host").mkdir()
    (tmp_path / "image/run").symlink_to(tmp_path / "host")
    with pytest.raises(Refused, match="a link out of"), Store(tmp_path / "image").lock():
        pass
    assert list((tmp_path / "host").iterdir()) == []


def test_user_behind_sudo_is_recorded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    store.begin("setup").commit("done")
    assert [run.begin.user for run in store.read_runs()] == ["ada"]


class TestInterruptedRun:
    def test_interrupted_run_is_found_behind_a_package_repair(self, store: Store) -> None:
        setup_run(store)
        assert store.find_interrupted_run() is None
        run = store.begin("setup")
        run.record_intent("runtime", "x", CONFIG)
        run.close()
        store.begin("repair").commit("done")

        found = store.find_interrupted_run()

        assert found is not None
        paths = [change.path for change in FileChange.of_kind(found.changes("unknown"))]
        assert (found.begin.run, paths) == (run.id, [CONFIG.path])

    def test_run_with_a_torn_last_line_is_concluded(self, store: Store) -> None:
        run = store.begin("setup")
        run.close()
        with run.path.open("ab") as file:
            file.write(b'{"v":1,"sum":"')

        store.close_interrupted_run(run.id)

        assert store.find_interrupted_run() is None
        (summary,) = store.read_runs()
        assert summary.commit is not None
        assert (summary.commit.result, summary.commit.reason) == (
            "interrupted",
            "cut short; a later run found nothing left to do",
        )

    def test_temporary_backup_is_deleted_and_a_complete_one_kept(self, store: Store) -> None:
        name = store.objects.save(b"whole")
        draft = store.objects.path(name).parent / f".{name}.123"
        draft.write_bytes(b"wh")

        store.remove_temporary_files()

        assert [path.name for path in store.objects.folder.rglob("*") if path.is_file()] == [name]


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def make_endless_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 20 << 30)


@pytest.mark.parametrize("planted", [make_pipe, make_folder, make_link, make_endless_file])
class TestSpecialFilesInTheJournalFolder:
    """gpunode does not wait for, follow or fully read it, but reports damage and its path."""

    def test_special_file_in_place_of_a_journal_is_damage(self, store: Store, planted: Callable[[Path], None]) -> None:
        run = setup_run(store)
        run.path.unlink()
        planted(run.path)
        for act in (
            store.read_runs,
            store.find_pending_triggers,
            lambda: store.find_untriggered_changes(()),
            lambda: store.read_with_contents(run.id),
        ):
            with pytest.raises(JournalDamaged, match=f"{run.path} is damaged in line 1"):
                act()

    def test_special_file_in_place_of_a_backup_is_damage(self, store: Store, planted: Callable[[Path], None]) -> None:
        run = setup_run(store)
        path = store.objects.path(digest(BEFORE.content))
        path.unlink()
        planted(path)
        with pytest.raises(JournalDamaged) as stopped:
            store.read_with_contents(run.id)
        assert stopped.value.why == str(path)


def test_unrelated_name_is_ignored_and_a_run_that_is_no_folder_is_damage(store: Store) -> None:
    setup_run(store)
    runs = store.folder / "runs"
    for name in ("x", "000009-bad", f"{'9' * 200}-20260101T000000Z", "٠٠٠٠٠٩-٢٠٢٦٠١٠١T٠٠٠٠٠٠Z"):
        (runs / name).mkdir()
    assert len(store.read_runs()) == 1
    for planted in (make_link, lambda path: path.symlink_to("/etc"), lambda path: path.write_text("")):
        planted(runs / "000007-20260101T000000Z")
        with pytest.raises(JournalDamaged, match="000007"):
            store.read_runs()
        (runs / "000007-20260101T000000Z").unlink()


@pytest.mark.parametrize("name", ["var/lib/gpunode", "var/lib/gpunode/runs", "var/lib/gpunode/objects"])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give a folder to another user")
class TestJournalFolderWritableByOthers:
    """A journal that others can write could make root write any file anywhere at the next rollback."""

    def refuse(self, store: Store, folder: Path, why: str) -> None:
        for act in (
            store.read_runs,
            store.find_pending_triggers,
            store.footprint,
            lambda: store.begin("setup"),
        ):
            before = sorted(store.root.rglob("*"))
            with pytest.raises(Refused, match="another user's work") as stopped:
                act()
            assert stopped.value.what.startswith(str(folder))
            assert why in stopped.value.why
            assert sorted(store.root.rglob("*")) == before

    def test_folder_of_another_owner_is_refused(self, store: Store, name: str) -> None:
        setup_run(store)
        os.chown(store.root / name, 1234, 1234)
        self.refuse(store, store.root / name, "belongs to uid 1234")

    @pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
    def test_folder_with_a_writable_mode_is_refused(self, store: Store, name: str, mode: int) -> None:
        setup_run(store)
        (store.root / name).chmod(mode)
        self.refuse(store, store.root / name, f"mode is {mode:04o}")

    def test_folder_behind_a_foreign_symlink_is_refused(self, store: Store, name: str) -> None:
        setup_run(store)
        (store.root / name).rename(store.root / "moved")
        (store.root / name).symlink_to(store.root / "moved")
        os.lchown(store.root / name, 1234, 1234)
        self.refuse(store, store.root / name, "a link made by uid 1234")

    def test_folder_readable_by_others_is_closed(self, store: Store, name: str) -> None:
        setup_run(store)
        (store.root / name).chmod(0o755)
        setup_run(store, b"version = 4\n")
        assert stat.S_IMODE((store.root / name).stat().st_mode) == 0o700


def test_journal_on_another_disk_behind_a_root_symlink_is_used(store: Store) -> None:
    (store.root / "disk").mkdir(mode=0o700)
    (store.root / "var/lib").mkdir(parents=True)
    (store.root / "var/lib/gpunode").symlink_to("../../disk")
    setup_run(store)
    assert len(store.read_runs()) == 1
    assert (store.root / "disk/runs").is_dir()


@pytest.mark.parametrize("name", ["var/lib/gpunode", "var/lib/gpunode/runs"])
def test_file_in_place_of_the_runs_folder_is_refused(store: Store, name: str) -> None:
    (store.root / name).parent.mkdir(parents=True)
    (store.root / name).write_text("")
    with pytest.raises(Refused, match=f"{name} is not a folder"):
        store.read_runs()


def test_parent_folders_of_the_journal_are_world_readable(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin("configure").commit("done")
    modes = {path: stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("var", "var/lib", "var/lib/gpunode")}
    assert modes == {"var": 0o755, "var/lib": 0o755, "var/lib/gpunode": 0o700}


def test_permission_error_is_not_reported_as_foreign_ownership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)

    def denied(folder: Path, root: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("gpunode.journal.store.refuse_untrusted_folder", denied)
    with pytest.raises(UsageError, match="readable by root only"):
        store.ids()


def test_backup_of_a_large_library_is_read_back(tmp_path: Path) -> None:
    """A driver's libnvidia-gpucomp has more than 64 MiB; a limit below that made its run impossible to undo."""
    content, backups = bytes(65 << 20), Store(tmp_path).objects
    assert backups.find(backups.save(content)) == content
