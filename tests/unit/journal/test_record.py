from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
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
    ServiceChange,
    ServiceState,
    Trigger,
    digest,
    triggers,
)
from gpunode.errors import JournalDamaged
from gpunode.journal.history import (
    InterruptedRun,
    RunSummary,
    find_interrupted_run,
    intents_to_undo,
    inverse_intents,
    pending_since,
    pending_triggers,
    summarize_run,
    triggers_settled_by,
    unsettled_changes,
)
from gpunode.journal.record import (
    FORMAT,
    Begin,
    Commit,
    Done,
    Entry,
    Failed,
    Forget,
    Intent,
    Owe,
    Settle,
    decode,
    decode_without_contents,
    encode,
    encode_lines,
    without_torn_line,
)
from gpunode.package_id import PackageId

RESTART = Trigger("restart", "docker.service")
RELOAD = Trigger("reload", "docker.service")
BEGIN = Begin("000001-20270115T080000Z", 1.5, "setup", "0.1.0", "docker", "ab", "boot", "ada", ("gpunode", "setup"))


def write(path: str, before: bytes | None, after: bytes | None, *owes: Trigger) -> FileChange:
    was, now = (None if content is None else FileState(content) for content in (before, after))
    return FileChange(path, was, now, frozenset(owes))


def test_the_format_is_written_in_these_very_bytes() -> None:
    """Journals outlive the gpunode that wrote them."""
    golden = Path(__file__).with_name(f"format-{FORMAT}.jsonl").read_bytes()
    journal: tuple[Entry, ...] = (
        BEGIN,
        Intent(1, "runtime", "configure", write("/etc/docker/daemon.json", None, b"{}", RESTART), "no handler", 2.0),
        Done(1, 2.5),
        Settle(RESTART, "restarted", 3.0),
        Commit("done", "", 4.0),
    )
    assert b"".join(encode_lines(journal)) == golden
    assert decode(golden, {digest(b"{}"): b"{}"}.__getitem__) == journal


@pytest.mark.parametrize("name", ["dkms", "libcuda1:i386"])
def test_a_package_stands_in_a_line_by_its_name(name: str) -> None:
    """As the format has had it all along; the architecture behind it where it is a foreign one."""
    entry = Intent(1, "packages", "driver", PackageChange(PackageId.of(name), None, None))
    body = b'"change":{"is":"package","name":"%s","before":null,"after":null,"triggers":[]}' % name.encode()
    assert body in encode(entry)
    assert decode(encode(entry), str.encode) == (entry,)


def test_an_older_line_without_a_newer_field_is_read() -> None:
    line = b'{"v":3,"sum":"%s","entry":%s}\n'
    body = b'{"is":"done","seq":1}'
    assert decode(line % (digest(b"3::" + body)[:16].encode(), body), str.encode) == (Done(1, 0.0),)


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
        b'{"is":"done","seq":"1"}',
        b'{"is":"done","seq":-1}',
        b'{"is":"done","seq":true}',
        b'{"is":"done","seq":1,"at":1e300}',
        b'{"is":"done","seq":1,"at":NaN}',
        b'{"is":"failed","seq":1,"why":["x"]}',
        b'{"is":"commit","result":null}',
        b'{"is":"done","seq":68719476736}',
        b'{"is":"intent","seq":1,"stage":"s","step":"s","change":{"is":"command","argv":[1],"why":"w"}}',
        b'{"is":"done","seq":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_line_with_a_true_checksum_that_says_nonsense_is_damage_too(body: bytes) -> None:
    line = b'{"v":3,"sum":"%s","entry":%s}\n' % (digest(b"3::" + body)[:16].encode(), body)
    with pytest.raises(JournalDamaged, match=r"journal\.jsonl is damaged in line 2") as raised:
        decode(encode(BEGIN) + line + encode(BEGIN), str.encode)
    assert raised.value.why


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            b'{"is":"done","seq":1,"more":2,"also":3}',
            "no gpunode writes such a line: unknown: also, more",
        ),
        (b'{"is":"done","seq":"first"}', "no gpunode writes such a line: 'first' is not a valid int"),
        (b'{"is":"trigger","kind":"cdi","target":""}', "not a journal entry"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(body: bytes, why: str) -> None:
    with pytest.raises(JournalDamaged) as raised:
        decode(b'{"v":3,"sum":"%s","entry":%s}\n' % (digest(b"3::" + body)[:16].encode(), body), str.encode)
    assert why in (raised.value.why or "")


def test_a_journal_of_a_newer_gpunode_is_named_as_such() -> None:
    newer = encode(BEGIN).replace(b'"v":%d' % FORMAT, b'"v":%d' % (FORMAT + 1))
    with pytest.raises(JournalDamaged, match=r"x\.jsonl is damaged in line 1") as raised:
        decode(newer, str.encode, file="x.jsonl")
    assert raised.value.why == f"it was written by another gpunode, in format {FORMAT + 1}; this one reads {FORMAT}"


def configuration_back(entries: Iterable[Entry]) -> tuple[Change, ...]:
    """What a plain rollback does."""
    return tuple(intent.change for intent in intents_to_undo(entries, whole=False))


class TestWholeLines:
    """A line vouches for the one before it, so nobody can take whole lines away, or bring others, unseen."""

    WRITTEN = encode_lines((BEGIN, Done(1), Done(2), Commit("done")))

    @pytest.mark.parametrize(
        ("kept", "line"),
        [((1, 2, 3), 1), ((0, 2, 3), 2), ((0, 1, 3), 3), ((0, 2, 1, 3), 2), ((0, 1, 1, 2, 3), 3)],
        ids=["the first is gone", "the second is gone", "the third is gone", "swapped", "twice"],
    )
    def test_a_line_that_is_not_in_its_place_is_damage(self, kept: tuple[int, ...], line: int) -> None:
        with pytest.raises(JournalDamaged, match=f"damaged in line {line}"):
            decode(b"".join(self.WRITTEN[number] for number in kept), str.encode)

    def test_a_line_of_another_journal_is_damage(self) -> None:
        other = encode_lines((replace(BEGIN, run="000002-20270115T080000Z"), Done(1)))
        with pytest.raises(JournalDamaged, match="damaged in line 2"):
            decode(self.WRITTEN[0] + other[1], str.encode)

    def test_a_journal_in_the_folder_of_another_run_is_damage(self) -> None:
        first, second, *_ = self.WRITTEN
        assert decode_without_contents(first, run=BEGIN.run) == decode_without_contents(first) == (BEGIN,)
        assert decode_without_contents(b"", run=BEGIN.run) == ()
        for journal, run in ((first + second, "000002-20270115T080000Z"), (encode(Done(1)), BEGIN.run)):
            with pytest.raises(JournalDamaged, match=r"journal x/journal\.jsonl is damaged in line 1") as raised:
                decode_without_contents(journal, file="x/journal.jsonl", run=run)
            assert raised.value.why == f"it does not begin run {run}, but is in the folder of that run"

    def test_damage_is_named_with_its_file_and_a_way_out(self) -> None:
        for read in (decode_without_contents, partial(decode, load=str.encode)):
            with pytest.raises(JournalDamaged, match=r"^the journal journal\.jsonl is damaged in line 1") as raised:
                read(self.WRITTEN[1])
            assert "the checksum does not match" in (raised.value.why or "")
            assert "Restore that file from a backup" in (raised.value.hint or "")
            assert "can no longer undo that run" in (raised.value.hint or "")
        with pytest.raises(JournalDamaged, match=r"x\.jsonl is damaged"):
            decode_without_contents(self.WRITTEN[1], file="x.jsonl")


def test_what_a_power_cut_left_of_the_last_line_is_dropped_and_a_hole_before_it_is_damage() -> None:
    first, second = encode_lines((BEGIN, Done(1)))
    for hole in (second[:30] + bytes(len(second) - 31) + b"\n", bytes(40) + second[40:]):
        assert without_torn_line(first + hole) == first
        assert decode(first + hole, str.encode) == (BEGIN,)
        with pytest.raises(JournalDamaged, match="damaged in line 2"):
            decode(first + hole + encode(Commit("done"), above=hole), str.encode)
        with pytest.raises(JournalDamaged, match="damaged in line 2"):
            decode(first + hole + b"\n", str.encode)
    with pytest.raises(JournalDamaged, match="damaged in line 1"):
        decode(first[:-1] + b"\0" + second, str.encode)
    with pytest.raises(JournalDamaged, match="damaged in line 2"):
        decode(first + second[:-1] + b"\0\0\n", str.encode)


def test_what_is_written_at_once_is_one_line_so_that_all_of_it_counts_or_nothing() -> None:
    first = encode(BEGIN)
    several = encode(Done(1), Done(2), above=first)
    assert several.count(b"\n") == 1
    assert decode(first + several, str.encode) == (BEGIN, Done(1), Done(2))
    assert decode(first + several[:-1], str.encode) == (BEGIN,)
    assert without_torn_line(first + several[:-1]) == first
    intent = Intent(1, "runtime", "x", write("/a", None, b"1"))
    assert decode(encode(intent, Done(1)), {digest(b"1"): b"1"}.__getitem__) == (intent, Done(1))


def test_attributes_of_a_file_are_kept_in_the_line() -> None:
    state = FileState(b"x", attributes=(("security.capability", bytes(range(20))), ("user.note", b"")))
    (read,) = decode(encode(Intent(1, "runtime", "x", FileChange("/a", state, None))), {digest(b"x"): b"x"}.__getitem__)
    assert isinstance(read, Intent)
    assert isinstance(read.change, FileChange)
    assert read.change.before is not None
    assert read.change.before.attributes == state.attributes


class TestUndo:
    def test_a_file_that_was_written_twice_goes_back_both_steps(self) -> None:
        first, second = write("/a", b"1", b"2"), write("/a", b"2", b"3")
        entries = (BEGIN, Intent(1, "runtime", "x", first), Done(1), Intent(2, "runtime", "x", second))
        assert configuration_back(entries) == (write("/a", b"3", b"2"), write("/a", b"2", b"1"))

    def test_a_failed_change_is_undone_too_since_half_of_it_may_be_there(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", write("/a", b"1", b"2")), Failed(1, "disk full"))
        assert configuration_back(entries) == (write("/a", b"2", b"1"),)

    def test_packages_modules_and_blacklists_are_undone_only_with_the_whole_run(self) -> None:
        package = PackageChange(PackageId("docker.io"), None, PackageState("20"))
        module = ModuleChange("nvidia", False, True)
        command = CommandChange(("dpkg", "--configure", "-a"), "interrupted")
        blacklist = write("/etc/modprobe.d/gpunode-nouveau.conf", None, b"blacklist nouveau\n")
        changes: tuple[Change, ...] = (package, module, command, blacklist)
        entries = [Intent(n, "packages", "x", change) for n, change in enumerate(changes)]
        assert configuration_back(entries) == ()
        assert [intent.change for intent in inverse_intents(entries)] == [
            write(blacklist.path, b"blacklist nouveau\n", None),
            ModuleChange("nvidia", True, False),
            PackageChange(PackageId("docker.io"), PackageState("20"), None),
        ]


class TestUnsettled:
    ONE, OTHER = (FileChange(path, None, FileState(b"1"), frozenset({RESTART})) for path in ("/a", "/b"))

    def test_the_changes_that_no_daemon_has_read_come_newest_first(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", self.ONE), BEGIN, Intent(1, "runtime", "x", self.OTHER), Done(1))
        assert unsettled_changes(entries) == (self.OTHER, self.ONE)
        assert unsettled_changes((*entries, BEGIN, Settle(RESTART))) == ()

    def test_a_change_that_failed_owes_nothing_whatever_its_number_means_in_another_run(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", self.ONE), BEGIN, Intent(1, "runtime", "x", self.OTHER))
        assert unsettled_changes((*entries, Failed(1, "no"))) == (self.ONE,)

    def test_a_package_that_failed_is_no_matter(self) -> None:
        entries = (
            BEGIN,
            Intent(1, "packages", "x", PackageChange(PackageId("p"), None, PackageState("1"))),
            Failed(1, "no"),
        )
        assert unsettled_changes(entries) == ()

    def test_only_files_are_put_back(self) -> None:
        assert (
            unsettled_changes((BEGIN, Intent(1, "kernel", "x", ModuleChange("nvidia", False, True)), Owe(RESTART, 1)))
            == ()
        )


class TestOwed:
    def test_only_a_restart_does_the_work_of_another_trigger(self) -> None:
        assert triggers_settled_by(RESTART) == (RESTART, RELOAD)
        for trigger in (RELOAD, Trigger("daemon-reload"), Trigger("index-refresh", "/etc/apt/sources.list")):
            assert triggers_settled_by(trigger) == (trigger,)

    def test_a_restart_reads_what_a_reload_would_have(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", write("/a", None, b"1", RELOAD, RESTART)))
        assert pending_triggers(entries) == (RELOAD, RESTART)
        assert pending_triggers((*entries, Settle(RELOAD))) == (RESTART,)
        assert pending_triggers((*entries, Settle(RESTART))) == ()

    def test_a_write_after_the_restart_owes_another_one(self) -> None:
        change = write("/a", None, b"1", RESTART)
        assert pending_triggers((BEGIN, Intent(1, "runtime", "x", change), Settle(RESTART))) == ()
        assert pending_triggers((BEGIN, Settle(RESTART), Intent(1, "runtime", "x", change))) == (RESTART,)

    def test_what_another_change_owes_stays_when_one_fails(self) -> None:
        one, other = write("/a", None, b"1", RESTART), write("/b", None, b"1", RESTART)
        entries = (BEGIN, Intent(1, "runtime", "x", one), Intent(2, "runtime", "x", other), Failed(1, "put back"))
        assert pending_triggers(entries) == (RESTART,)

    def test_numbers_start_anew_with_each_run(self) -> None:
        change = write("/a", None, b"1", RESTART)
        entries = (BEGIN, Intent(1, "runtime", "x", change), BEGIN, Intent(1, "runtime", "x", write("/b", None, b"")))
        assert pending_triggers((*entries, Failed(1, "put back"))) == (RESTART,)

    def test_a_debt_dates_from_when_its_last_change_was_made(self) -> None:
        """A daemon that started after that owes nothing any more."""
        one, other = (Intent(n, "runtime", "x", write("/a", None, b"1", RESTART), at=float(n)) for n in (1, 2))
        assert pending_since((BEGIN, one, other)) == {RESTART: 2.0}
        assert pending_since((BEGIN, one, other, Done(1, 3.0))) == {RESTART: 3.0}
        assert pending_since((BEGIN, one, Done(1, 3.0), Done(9, 4.0))) == {RESTART: 3.0}
        assert pending_since((BEGIN, one, Done(1, 3.0), Owe(RELOAD, 1, 4.0))) == {RELOAD: 4.0, RESTART: 3.0}

    def test_more_can_be_owed_than_the_change_says(self) -> None:
        assert pending_triggers((BEGIN, Owe(Trigger("cdi"), 1), Owe(Trigger("initramfs"), 1))) == (
            Trigger("initramfs"),
            Trigger("cdi"),
        )


def test_a_run_in_short_names_what_it_changed_once() -> None:
    twice = [Intent(n, "runtime", "x", write("/a", None, b"1")) for n in (1, 2)]
    end = Commit("failed", "docker did not start")
    assert summarize_run((BEGIN, *twice, end)) == RunSummary(BEGIN, ("/a",), end, configuration=frozenset({"/a"}))
    assert summarize_run(()) is None
    assert summarize_run((BEGIN, *twice)) == RunSummary(BEGIN, ("/a",), configuration=frozenset({"/a"}))
    assert summarize_run((BEGIN, end, Forget("ada"))) == RunSummary(BEGIN, (), end, forgotten=True)


class TestCutShort:
    def test_a_run_that_has_ended_was_not(self) -> None:
        assert find_interrupted_run((BEGIN, Commit("failed"))) is None
        assert find_interrupted_run(()) is None

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
        assert find_interrupted_run(entries) == InterruptedRun(BEGIN, (first,), (third,), (second,))


def test_a_format_of_five_thousand_digits_is_damage_and_no_bug() -> None:
    line = encode(BEGIN).replace(b'"v":3', b'"v":' + b"9" * 5000)
    with pytest.raises(JournalDamaged, match="line 1"):
        decode(line, str.encode)


@pytest.mark.parametrize(
    "change",
    [
        PackageChange(PackageId("nvidia-driver"), None, PackageState("580"), frozenset({RESTART})),
        ServiceChange("a.service", ServiceState(False, False), ServiceState(True, True), frozenset({RESTART})),
        ModuleChange("nvidia", False, True, frozenset({RESTART})),
        CommandChange(("true",), "because", ("false",), triggers=frozenset({RESTART})),
    ],
    ids=lambda change: type(change).__name__,
)
def test_every_change_of_a_node_may_owe_a_trigger_and_so_does_its_undoing(change: Change) -> None:
    journal = (BEGIN, Intent(1, "packages", "step", change), Done(1))
    assert decode(b"".join(encode_lines(journal)), str.encode) == journal
    assert pending_triggers(journal) == (RESTART,)
    (back,) = inverse_intents(journal)
    assert triggers([back.change]) == (RESTART,)
