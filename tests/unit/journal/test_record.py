from __future__ import annotations

import json
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
    triggers_of,
)
from gpunode.errors import JournalDamaged
from gpunode.journal.history import (
    RunRecord,
    intents_to_undo,
    inverse_intents,
    is_configuration_change,
    pending_trigger_times,
    pending_triggers,
    triggers_done_by,
    untriggered_changes,
)
from gpunode.journal.record import (
    JOURNAL_FORMAT,
    Begin,
    Commit,
    Done,
    Entry,
    Failed,
    Intent,
    TriggerCompleted,
    decode,
    decode_without_contents,
    encode,
    without_torn_line,
)
from gpunode.package_id import PackageId
from tests.fakes.journals import encode_lines

RESTART = Trigger("restart", "docker.service")
RELOAD = Trigger("reload", "docker.service")
BEGIN = Begin("000001-20270115T080000Z", 1.5, "setup", "0.1.0", "docker", "ab", "boot", "ada", ("gpunode", "setup"))


def write(path: str, before: bytes | None, after: bytes | None, *owes: Trigger) -> FileChange:
    was, now = (None if content is None else FileState(content) for content in (before, after))
    return FileChange(path, was, now, frozenset(owes))


def test_journal_format_matches_the_golden_bytes() -> None:
    """Journals outlive the gpunode that wrote them."""
    golden = Path(__file__).with_name(f"format-{JOURNAL_FORMAT}.jsonl").read_bytes()
    journal: tuple[Entry, ...] = (
        BEGIN,
        Intent(1, "runtime", "configure", write("/etc/docker/daemon.json", None, b"{}", RESTART), "no handler", 2.0),
        Done(1, 2.5),
        TriggerCompleted(RESTART, "restarted", 3.0),
        Commit("done", "", 4.0),
    )
    assert b"".join(encode_lines(journal)) == golden
    assert decode(golden, {digest(b"{}"): b"{}"}.__getitem__) == journal


def line_of(version: int, body: bytes, previous_line: bytes = b"") -> bytes:
    """Return a line with a true checksum."""
    sum_above = json.loads(previous_line)["sum"].encode() if previous_line else b""
    checksum = digest(b"%d:%s:%s" % (version, sum_above, body))[:16].encode()
    return b'{"v":%d,"sum":"%s","entry":%s}\n' % (version, checksum, body)


def test_format_3_is_read_as_what_it_says() -> None:
    """Its lines for a trigger, an end and a file have other names."""
    former = Path(__file__).with_name("format-3.jsonl").read_bytes()
    now = Path(__file__).with_name(f"format-{JOURNAL_FORMAT}.jsonl").read_bytes()
    contents = {digest(b"{}"): b"{}"}.__getitem__
    assert decode(former, contents) == decode(now, contents)


@pytest.mark.parametrize(
    ("body", "entry"),
    [
        (b'{"is":"begin",%s,"of":"1","whole":true}', replace(BEGIN, undoes="1", with_packages=True)),
        (b'{"is":"failed","seq":1,"why":"disk full"}', Failed(1, "disk full")),
        (b'{"is":"commit","result":"failed","why":"no"}', Commit("failed", "no")),
        (
            b'{"is":"intent","seq":1,"stage":"s","step":"s","change":{"is":"command","argv":["a"],"why":"w"}}',
            Intent(1, "s", "s", CommandChange(("a",), "w")),
        ),
        (
            (
                b'{"is":"intent","seq":1,"stage":"s","step":"s","change":{"is":"file","path":"/a","after":null,"before":'
                b'{"is":"file-state","content":"00","mode":420,"uid":0,"gid":0,"attributes":{"user.a":"ff"}}}}'
            ),
            Intent(1, "s", "s", FileChange("/a", FileState(b"00", xattrs=(("user.a", b"\xff"),)), None)),
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bytes) else "",
)
def test_names_that_format_3_has_and_format_4_has_not_are_read(body: bytes, entry: Entry) -> None:
    begin = json.loads(encode(BEGIN))["entry"]
    common = json.dumps({key: begin[key] for key in begin if key not in ("type", "undoes", "with_packages")})
    body = body.replace(b"%s", common[1:-1].encode())
    (read,) = decode(line_of(3, body), str.encode)
    assert read == entry
    if isinstance(entry, Intent) and isinstance(read, Intent) and isinstance(read.change, FileChange):
        assert read.change.before is not None
        assert read.change.before.xattrs == (("user.a", b"\xff"),)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (3, b'{"type":"done","seq":1}'),
        (3, b'{"is":"failed","seq":1,"error":"no"}'),
        (3, b'{"is":"commit","result":"done","reason":""}'),
        (4, b'{"is":"done","seq":1}'),
        (4, b'{"type":"settle","trigger":{"type":"trigger","kind":"cdi","target":""}}'),
        (4, b'{"type":"commit","result":"done","why":""}'),
    ],
)
def test_names_of_one_format_in_a_line_of_another_are_damage(version: int, body: bytes) -> None:
    with pytest.raises(JournalDamaged, match="damaged in line 1") as raised:
        decode(line_of(version, body), str.encode)
    assert "no gpunode writes such a line" in (raised.value.why or "")


def test_a_run_may_be_begun_in_format_3_and_ended_in_format_4() -> None:
    former = b"".join(Path(__file__).with_name("format-3.jsonl").read_bytes().splitlines(keepends=True)[:3])
    last = former.splitlines(keepends=True)[-1]
    end = encode(Commit("interrupted", "found done"), previous_line=last)
    contents = {digest(b"{}"): b"{}"}.__getitem__
    assert decode(former + end, contents)[-1] == Commit("interrupted", "found done")


@pytest.mark.parametrize("name", ["dkms", "libcuda1:i386"])
def test_package_is_encoded_by_its_name(name: str) -> None:
    """The format always had the name, followed by the architecture if it is a foreign one."""
    entry = Intent(1, "packages", "driver", PackageChange(PackageId.of(name), None, None))
    body = b'"change":{"type":"package","name":"%s","before":null,"after":null,"triggers":[]}' % name.encode()
    assert body in encode(entry)
    assert decode(encode(entry), str.encode) == (entry,)


def test_older_line_without_a_newer_field_is_read() -> None:
    assert decode(line_of(JOURNAL_FORMAT, b'{"type":"done","seq":1}'), str.encode) == (Done(1, 0.0),)
    assert decode(line_of(3, b'{"is":"done","seq":1}'), str.encode) == (Done(1, 0.0),)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"type":"nothing"}',
        b'{"type":"trigger","kind":"cdi","target":""}',
        b'{"type":"done"}',
        b'{"type":"done","seq":1,"more":2}',
        b'{"type":"done","seq":1}}',
        b'{"type":["done"]}',
        b"{" * 100000 + b"}",
        b'{"type":"done","seq":"1"}',
        b'{"type":"done","seq":-1}',
        b'{"type":"done","seq":true}',
        b'{"type":"done","seq":1,"at":1e300}',
        b'{"type":"done","seq":1,"at":NaN}',
        b'{"type":"failed","seq":1,"error":["x"]}',
        b'{"type":"commit","result":null}',
        b'{"type":"done","seq":68719476736}',
        b'{"type":"intent","seq":1,"stage":"s","step":"s","change":{"type":"command","argv":[1],"purpose":"w"}}',
        b'{"type":"done","seq":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_invalid_entry_with_a_valid_checksum_is_damage(body: bytes) -> None:
    with pytest.raises(JournalDamaged, match=r"journal\.jsonl is damaged in line 2") as raised:
        decode(encode(BEGIN) + line_of(JOURNAL_FORMAT, body, previous_line=encode(BEGIN)) + encode(BEGIN), str.encode)
    assert raised.value.why
    assert "checksum" not in raised.value.why


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            b'{"type":"done","seq":1,"more":2,"also":3}',
            "no gpunode writes such a line: unknown: also, more",
        ),
        (b'{"type":"done","seq":"first"}', "no gpunode writes such a line: 'first' is not a valid int"),
        (b'{"type":"trigger","kind":"cdi","target":""}', "not a journal entry"),
    ],
)
def test_damage_is_explained(body: bytes, why: str) -> None:
    with pytest.raises(JournalDamaged) as raised:
        decode(line_of(JOURNAL_FORMAT, body), str.encode)
    assert why in (raised.value.why or "")


@pytest.mark.parametrize("other", [2, JOURNAL_FORMAT + 1])
def test_another_journal_format_is_named(other: int) -> None:
    line = encode(BEGIN).replace(b'"v":%d' % JOURNAL_FORMAT, b'"v":%d' % other)
    with pytest.raises(JournalDamaged, match=r"x\.jsonl is damaged in line 1") as raised:
        decode(line, str.encode, file="x.jsonl")
    assert (
        raised.value.why
        == f"it was written by another gpunode, in format {other}; this one reads 3 and {JOURNAL_FORMAT}"
    )


def configuration_back(entries: Iterable[Entry]) -> tuple[Change, ...]:
    """Return the changes that a plain rollback undoes."""
    return tuple(intent.change for intent in filter(is_configuration_change, intents_to_undo(entries)))


class TestLineSeals:
    """Each line seals the previous one, so lines cannot be removed or added unnoticed."""

    WRITTEN = encode_lines((BEGIN, Done(1), Done(2), Commit("done")))

    @pytest.mark.parametrize(
        ("kept", "line"),
        [((1, 2, 3), 1), ((0, 2, 3), 2), ((0, 1, 3), 3), ((0, 2, 1, 3), 2), ((0, 1, 1, 2, 3), 3)],
        ids=["the first is gone", "the second is gone", "the third is gone", "swapped", "twice"],
    )
    def test_misplaced_line_is_damage(self, kept: tuple[int, ...], line: int) -> None:
        with pytest.raises(JournalDamaged, match=f"damaged in line {line}"):
            decode(b"".join(self.WRITTEN[number] for number in kept), str.encode)

    def test_line_of_another_journal_is_damage(self) -> None:
        other = encode_lines((replace(BEGIN, run="000002-20270115T080000Z"), Done(1)))
        with pytest.raises(JournalDamaged, match="damaged in line 2"):
            decode(self.WRITTEN[0] + other[1], str.encode)

    def test_journal_in_the_folder_of_another_run_is_damage(self) -> None:
        first, second, *_ = self.WRITTEN
        assert decode_without_contents(first, run=BEGIN.run) == decode_without_contents(first) == (BEGIN,)
        for journal, run in (
            (first + second, "000002-20270115T080000Z"),
            (encode(Done(1)), BEGIN.run),
            (b"", BEGIN.run),
        ):
            with pytest.raises(JournalDamaged, match=r"journal x/journal\.jsonl is damaged in line 1") as raised:
                decode_without_contents(journal, file="x/journal.jsonl", run=run)
            assert raised.value.why == f"it does not begin run {run}, but is in the folder of that run"

    def test_damage_names_its_file_and_a_fix(self) -> None:
        for read in (decode_without_contents, partial(decode, load=str.encode)):
            with pytest.raises(JournalDamaged, match=r"^the journal journal\.jsonl is damaged in line 1") as raised:
                read(self.WRITTEN[1])
            assert "the checksum does not match" in (raised.value.why or "")
            assert "Restore that file from a backup" in (raised.value.hint or "")
            assert "can no longer undo that run" in (raised.value.hint or "")
        with pytest.raises(JournalDamaged, match=r"x\.jsonl is damaged"):
            decode_without_contents(self.WRITTEN[1], file="x.jsonl")


def test_torn_last_line_is_dropped_and_an_earlier_hole_is_damage() -> None:
    first, second = encode_lines((BEGIN, Done(1)))
    for hole in (second[:30] + bytes(len(second) - 31) + b"\n", bytes(40) + second[40:]):
        assert without_torn_line(first + hole) == first
        assert decode(first + hole, str.encode) == (BEGIN,)
        with pytest.raises(JournalDamaged, match="damaged in line 2"):
            decode(first + hole + encode(Commit("done"), previous_line=hole), str.encode)
        with pytest.raises(JournalDamaged, match="damaged in line 2"):
            decode(first + hole + b"\n", str.encode)
    with pytest.raises(JournalDamaged, match="damaged in line 1"):
        decode(first[:-1] + b"\0" + second, str.encode)
    with pytest.raises(JournalDamaged, match="damaged in line 2"):
        decode(first + second[:-1] + b"\0\0\n", str.encode)


def test_entries_written_at_once_are_one_line() -> None:
    first = encode(BEGIN)
    several = encode(Done(1), Done(2), previous_line=first)
    assert several.count(b"\n") == 1
    assert decode(first + several, str.encode) == (BEGIN, Done(1), Done(2))
    assert decode(first + several[:-1], str.encode) == (BEGIN,)
    assert without_torn_line(first + several[:-1]) == first
    intent = Intent(1, "runtime", "x", write("/a", None, b"1"))
    assert decode(encode(intent, Done(1)), {digest(b"1"): b"1"}.__getitem__) == (intent, Done(1))


def test_file_attributes_are_kept_in_the_line() -> None:
    state = FileState(b"x", xattrs=(("security.capability", bytes(range(20))), ("user.note", b"")))
    (read,) = decode(encode(Intent(1, "runtime", "x", FileChange("/a", state, None))), {digest(b"x"): b"x"}.__getitem__)
    assert isinstance(read, Intent)
    assert isinstance(read.change, FileChange)
    assert read.change.before is not None
    assert read.change.before.xattrs == state.xattrs


class TestUndo:
    def test_file_written_twice_is_undone_in_both_steps(self) -> None:
        first, second = write("/a", b"1", b"2"), write("/a", b"2", b"3")
        entries = (BEGIN, Intent(1, "runtime", "x", first), Done(1), Intent(2, "runtime", "x", second))
        assert configuration_back(entries) == (write("/a", b"3", b"2"), write("/a", b"2", b"1"))

    def test_failed_change_is_undone_too(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", write("/a", b"1", b"2")), Failed(1, "disk full"))
        assert configuration_back(entries) == (write("/a", b"2", b"1"),)

    def test_packages_and_modules_are_undone_only_with_the_whole_run(self) -> None:
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


class TestUnsettledChanges:
    ONE, OTHER = (FileChange(path, None, FileState(b"1"), frozenset({RESTART})) for path in ("/a", "/b"))

    def test_untriggered_changes_are_listed_newest_first(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", self.ONE), BEGIN, Intent(1, "runtime", "x", self.OTHER), Done(1))
        assert untriggered_changes(entries) == (self.OTHER, self.ONE)
        assert untriggered_changes((*entries, BEGIN, TriggerCompleted(RESTART))) == ()

    def test_failed_change_is_settled_by_its_own_run_only(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", self.ONE), BEGIN, Intent(1, "runtime", "x", self.OTHER))
        assert untriggered_changes((*entries, Failed(1, "no"))) == (self.ONE,)

    def test_change_that_was_put_back_waits_for_no_daemon(self) -> None:
        """The next run whose daemon fails would repeat the change, and undo it again."""
        back = FileChange(self.ONE.path, FileState(b"1"), None, self.ONE.triggers)
        entries = (BEGIN, Intent(1, "runtime", "x", self.OTHER), Intent(2, "runtime", "x", self.ONE))
        assert untriggered_changes((*entries, Intent(3, "recovery", "put-back", back))) == (self.OTHER,)

    def test_failed_package_is_no_unsettled_change(self) -> None:
        entries = (
            BEGIN,
            Intent(1, "packages", "x", PackageChange(PackageId("p"), None, PackageState("1"))),
            Failed(1, "no"),
        )
        assert untriggered_changes(entries) == ()

    def test_only_files_are_untriggered_changes(self) -> None:
        loaded = ModuleChange("nvidia", False, True, frozenset({RESTART}))
        assert untriggered_changes((BEGIN, Intent(1, "kernel", "x", loaded))) == ()


class TestPendingTriggers:
    def test_only_a_restart_settles_another_trigger(self) -> None:
        assert triggers_done_by(RESTART) == (RESTART, RELOAD)
        for trigger in (RELOAD, Trigger("daemon-reload"), Trigger("index-refresh", "/etc/apt/sources.list")):
            assert triggers_done_by(trigger) == (trigger,)

    def test_restart_settles_a_reload(self) -> None:
        entries = (BEGIN, Intent(1, "runtime", "x", write("/a", None, b"1", RELOAD, RESTART)))
        assert pending_triggers(entries) == (RELOAD, RESTART)
        assert pending_triggers((*entries, TriggerCompleted(RELOAD))) == (RESTART,)
        assert pending_triggers((*entries, TriggerCompleted(RESTART))) == ()

    def test_write_after_the_restart_needs_another_one(self) -> None:
        change = write("/a", None, b"1", RESTART)
        assert pending_triggers((BEGIN, Intent(1, "runtime", "x", change), TriggerCompleted(RESTART))) == ()
        assert pending_triggers((BEGIN, TriggerCompleted(RESTART), Intent(1, "runtime", "x", change))) == (RESTART,)

    def test_trigger_of_another_change_stays_when_one_fails(self) -> None:
        one, other = write("/a", None, b"1", RESTART), write("/b", None, b"1", RESTART)
        entries = (BEGIN, Intent(1, "runtime", "x", one), Intent(2, "runtime", "x", other), Failed(1, "put back"))
        assert pending_triggers(entries) == (RESTART,)

    def test_sequence_numbers_start_again_with_each_run(self) -> None:
        change = write("/a", None, b"1", RESTART)
        entries = (BEGIN, Intent(1, "runtime", "x", change), BEGIN, Intent(1, "runtime", "x", write("/b", None, b"")))
        assert pending_triggers((*entries, Failed(1, "put back"))) == (RESTART,)

    def test_trigger_is_pending_since_its_last_change(self) -> None:
        """A daemon that started after that needs no restart."""
        one, other = (Intent(n, "runtime", "x", write("/a", None, b"1", RESTART), at=float(n)) for n in (1, 2))
        assert pending_trigger_times((BEGIN, one, other)) == {RESTART: 2.0}
        assert pending_trigger_times((BEGIN, one, other, Done(1, 3.0))) == {RESTART: 3.0}
        assert pending_trigger_times((BEGIN, one, Done(1, 3.0), Done(9, 4.0))) == {RESTART: 3.0}


def test_run_summary_names_each_subject_once() -> None:
    twice = [Intent(n, "runtime", "x", write("/a", None, b"1")) for n in (1, 2)]
    end = Commit("failed", "docker did not start")
    run = RunRecord((BEGIN, *twice, end))
    assert (run.begin, run.commit, run.subjects, run.configuration_subjects) == (BEGIN, end, ("/a",), frozenset({"/a"}))
    assert run.other_subjects == frozenset()


def test_made_begun_and_failed_changes_are_separated() -> None:
    first, second, third = write("/a", b"1", b"2"), write("/b", b"1", b"2"), write("/c", b"1", b"2")
    intents = [Intent(n, "runtime", "x", change) for n, change in enumerate((first, second, third), 1)]
    run = RunRecord((BEGIN, intents[0], Done(1), intents[1], Failed(2, "no room"), intents[2]))
    assert run.changes("done") == (first,)
    assert run.changes("failed") == (second,)
    assert run.changes("unknown") == (third,)
    assert run.changes("done", "unknown") == (first, third)


def test_huge_format_number_is_damage() -> None:
    line = encode(BEGIN).replace(b'"v":%d' % JOURNAL_FORMAT, b'"v":' + b"9" * 5000)
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
def test_every_kind_of_change_and_its_undo_may_have_a_trigger(change: Change) -> None:
    journal = (BEGIN, Intent(1, "packages", "step", change), Done(1))
    assert decode(b"".join(encode_lines(journal)), str.encode) == journal
    assert pending_triggers(journal) == (RESTART,)
    (back,) = inverse_intents(journal)
    assert triggers_of([back.change]) == (RESTART,)
