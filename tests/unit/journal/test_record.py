from __future__ import annotations

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
    Trigger,
)
from gpunode.errors import JournalDamaged
from gpunode.journal.record import (
    Begin,
    Commit,
    CutShort,
    Done,
    Entry,
    Failed,
    Intent,
    Owe,
    RunSummary,
    Settle,
    cut_short,
    decode,
    digest,
    encode,
    owed,
    summary,
    undo,
    unsettled,
)

RESTART = Trigger("restart", "docker.service")
RELOAD = Trigger("reload", "docker.service")
BEGIN = Begin("000001-20270115T080000Z", 1.5, "setup", "0.1.0", "docker", "ab", "boot", "ada", ("gpunode", "setup"))


def write(path: str, before: bytes | None, after: bytes | None, *owes: Trigger) -> FileChange:
    was, now = (None if content is None else FileState(content) for content in (before, after))
    return FileChange(path, was, now, frozenset(owes))


def test_the_format_on_the_disk_is_the_one_that_was_released() -> None:
    """Journals outlive the gpunode that wrote them: these bytes are readable for as long as the format is 1."""
    golden = Path(__file__).with_name("format-1.jsonl").read_bytes()
    journal: tuple[Entry, ...] = (
        BEGIN,
        Intent(1, "runtime", "configure", write("/etc/docker/daemon.json", None, b"{}", RESTART), "no handler", 2.0),
        Done(1, 2.5),
        Settle(RESTART, "restarted", 3.0),
        Commit("done", "", 4.0),
    )
    assert b"".join(map(encode, journal)) == golden
    assert decode(golden, {digest(b"{}"): b"{}"}.__getitem__) == journal


def test_an_older_line_without_a_newer_field_is_read() -> None:
    line = b'{"v":1,"sum":"%s","entry":%s}\n'
    body = b'{"is":"done","seq":1}'
    assert decode(line % (digest(b"1:" + body)[:16].encode(), body), str.encode) == (Done(1, 0.0),)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"is":"nothing"}',
        b'{"is":"trigger","kind":"cdi","target":""}',
        b'{"is":"done"}',
        b'{"is":"done","seq":1,"more":2}',
        b'{"is":"done","seq":1}}',
        b'{"is":["done"]}',
        b"{" * 100000 + b"}",
    ],
)
def test_a_line_with_a_true_checksum_that_says_nonsense_is_damage_too(body: bytes) -> None:
    line = b'{"v":1,"sum":"%s","entry":%s}\n' % (digest(b"1:" + body)[:16].encode(), body)
    with pytest.raises(JournalDamaged, match=r"journal\.jsonl is damaged in line 2"):
        decode(encode(BEGIN) + line + encode(BEGIN), str.encode)


class TestUndo:
    def test_a_file_that_was_written_twice_goes_back_both_steps(self) -> None:
        first, second = write("/a", b"1", b"2"), write("/a", b"2", b"3")
        entries = (BEGIN, Intent(1, "runtime", "x", first), Done(1), Intent(2, "runtime", "x", second))
        assert undo(entries) == (write("/a", b"3", b"2"), write("/a", b"2", b"1"))

    def test_a_failed_change_is_undone_too_since_half_of_it_may_be_there(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", write("/a", b"1", b"2")), Failed(1, "disk full"))
        assert undo(entries) == (write("/a", b"2", b"1"),)

    def test_packages_and_modules_only_when_asked(self) -> None:
        package = PackageChange("docker.io", None, PackageState("20"))
        module = ModuleChange("nvidia", False, True)
        command = CommandChange(("dpkg", "--configure", "-a"), "interrupted")
        changes: tuple[Change, ...] = (package, module, command)
        entries = [Intent(n, "runtime", "x", change) for n, change in enumerate(changes)]
        assert undo(entries) == ()
        assert undo(entries, kinds=(PackageChange,)) == (PackageChange("docker.io", PackageState("20"), None),)
        assert undo(entries, kinds=(ModuleChange, CommandChange)) == (ModuleChange("nvidia", True, False),)

    def test_blacklists_stay_unless_their_stage_is_named(self) -> None:
        blacklist = write("/etc/modprobe.d/gpunode-nouveau.conf", None, b"blacklist nouveau\n")
        entries = [Intent(1, "kernel", "x", blacklist)]
        assert undo(entries) == ()
        assert undo(entries, stages=("kernel",)) == (write(blacklist.path, b"blacklist nouveau\n", None),)
        assert undo(entries, stages=None) == undo(entries, stages=("kernel",))


class TestUnsettled:
    ONE, OTHER = (FileChange(path, None, FileState(b"1"), frozenset({RESTART})) for path in ("/a", "/b"))

    def test_the_changes_that_no_daemon_has_read_come_newest_first(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", self.ONE), BEGIN, Intent(1, "runtime", "x", self.OTHER), Done(1))
        assert unsettled(entries) == (self.OTHER, self.ONE)
        assert unsettled((*entries, BEGIN, Settle(RESTART))) == ()

    def test_a_change_that_failed_owes_nothing_whatever_its_number_means_in_another_run(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", self.ONE), BEGIN, Intent(1, "runtime", "x", self.OTHER))
        assert unsettled((*entries, Failed(1, "no"))) == (self.ONE,)

    def test_only_files_are_put_back(self) -> None:
        assert unsettled((BEGIN, Intent(1, "kernel", "x", ModuleChange("nvidia", False, True)), Owe(RESTART, 1))) == ()


class TestOwed:
    def test_a_restart_reads_what_a_reload_would_have(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", write("/a", None, b"1", RELOAD, RESTART)))
        assert owed(entries) == (RELOAD, RESTART)
        assert owed((*entries, Settle(RELOAD))) == (RESTART,)
        assert owed((*entries, Settle(RESTART))) == ()

    def test_a_write_after_the_restart_owes_another_one(self) -> None:
        change = write("/a", None, b"1", RESTART)
        assert owed((BEGIN, Intent(1, "runtime", "x", change), Settle(RESTART))) == ()
        assert owed((BEGIN, Settle(RESTART), Intent(1, "runtime", "x", change))) == (RESTART,)

    def test_what_another_change_owes_stays_when_one_fails(self) -> None:
        one, other = write("/a", None, b"1", RESTART), write("/b", None, b"1", RESTART)
        entries = (BEGIN, Intent(1, "runtime", "x", one), Intent(2, "runtime", "x", other), Failed(1, "put back"))
        assert owed(entries) == (RESTART,)

    def test_numbers_start_anew_with_each_run(self) -> None:
        change = write("/a", None, b"1", RESTART)
        entries = (BEGIN, Intent(1, "runtime", "x", change), BEGIN, Intent(1, "runtime", "x", write("/b", None, b"")))
        assert owed((*entries, Failed(1, "put back"))) == (RESTART,)

    def test_more_can_be_owed_than_the_change_says(self) -> None:
        assert owed((BEGIN, Owe(Trigger("cdi"), 1), Owe(Trigger("initramfs"), 1))) == (
            Trigger("initramfs"),
            Trigger("cdi"),
        )


def test_a_run_in_short_names_what_it_changed_once() -> None:
    twice = [Intent(n, "runtime", "x", write("/a", None, b"1")) for n in (1, 2)]
    end = Commit("failed", "docker did not start")
    assert summary((BEGIN, *twice, end)) == RunSummary(BEGIN, ("/a",), end)
    assert summary(()) is None


class TestCutShort:
    def test_a_run_that_has_ended_was_not(self) -> None:
        assert cut_short((BEGIN, Commit("failed"))) is None
        assert cut_short(()) is None

    def test_what_is_known_to_be_made_is_told_from_what_was_under_way(self) -> None:
        first, second, third = write("/a", b"1", b"2"), write("/b", b"1", b"2"), write("/c", b"1", b"2")
        entries = (
            BEGIN,
            Intent(1, "runtime", "x", first),
            Done(1),
            Intent(2, "runtime", "x", second),
            Failed(2, "no room"),
            Intent(3, "runtime", "x", third),
        )
        assert cut_short(entries) == CutShort(BEGIN, (first,), (third,))
