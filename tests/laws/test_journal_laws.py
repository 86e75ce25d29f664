from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpunode.change import Deferred, FileChange, FileState, MigChange, ModuleChange, SigningKey, Trigger, digest
from gpunode.change import triggers_of as owed_by
from gpunode.errors import JournalDamaged
from gpunode.journal.history import intents_to_undo, inverse_intents, is_configuration_change, pending_triggers
from gpunode.journal.record import (
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
)
from tests.fakes.journals import encode_lines
from tests.laws.strategies import argvs, changes, file_states, settled_changes, settled_files, triggers, words

times = st.floats(0, 2**33)
seqs = st.integers(1, 9)
stages = st.sampled_from(["sources", "packages", "kernel", "runtime"])
begins = st.builds(
    Begin, words, times, st.sampled_from(["setup", "rollback"]), words, words, words, words, words, argvs, words
)
intents = st.builds(Intent, seqs, stages, words, changes, words, times)
entries: st.SearchStrategy[Entry] = st.one_of(
    begins,
    intents,
    st.builds(Done, seqs, times),
    st.builds(Failed, seqs, words, times),
    st.builds(TriggerCompleted, triggers, words, times),
    st.builds(Commit, st.sampled_from(["done", "failed", "interrupted", "waiting"]), words, times),
)
journals = st.lists(entries, max_size=8)


def backups(journal: Sequence[Entry]) -> dict[str, bytes]:
    return {
        digest(content): content for entry in journal if isinstance(entry, Intent) for content in entry.change.contents
    }


def encode_journal(journal: Sequence[Entry]) -> bytes:
    return b"".join(encode_lines(journal))


@given(journals)
def test_journal_round_trips(journal: list[Entry]) -> None:
    assert list(decode(encode_journal(journal), backups(journal).__getitem__)) == journal


@given(entries)
def test_entry_is_one_ascii_line(entry: Entry) -> None:
    line = encode(entry)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert line.isascii()


@given(journals, st.data())
def test_truncated_journal_is_a_prefix(journal: list[Entry], data: st.DataObject) -> None:
    whole = encode_journal(journal)
    end = data.draw(st.integers(0, len(whole)))
    read = list(decode(whole[:end], backups(journal).__getitem__))
    assert read == journal[: whole[:end].count(b"\n")]


@given(journals.filter(bool), st.data())
def test_changed_byte_is_detected_or_truncates(journal: list[Entry], data: st.DataObject) -> None:
    whole = bytearray(encode_journal(journal))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        read = list(decode(bytes(whole), backups(journal).__getitem__))
    except JournalDamaged:
        return
    assert read == journal[:-1]


@given(journals)
def test_journal_is_read_without_backups(journal: list[Entry]) -> None:
    bare = decode_without_contents(encode_journal(journal))
    assert [type(entry) for entry in bare] == [type(entry) for entry in journal]
    assert {content for entry in bare if isinstance(entry, Intent) for content in entry.change.contents} == {
        name.encode() for name in backups(journal)
    }


@given(st.lists(st.builds(Intent, seqs, stages, words, settled_changes)))
def test_undo_inverts_everything_in_reverse(journal: list[Intent]) -> None:
    back = inverse_intents(journal)
    assert [intent.change.inverse() for intent in reversed(back)] == [entry.change for entry in journal]


@given(st.lists(intents))
def test_plain_undo_only_touches_runtime_files_and_mig(journal: list[Intent]) -> None:
    found = [one.change for one in journal if one.stage == "runtime" and isinstance(one.change, FileChange | MigChange)]
    changed = [one for one in reversed(found) if isinstance(one, MigChange) or one.before != one.after]
    backwards = [intent.change for intent in filter(is_configuration_change, intents_to_undo(journal))]
    assert backwards == [back for one in changed if (back := one.inverse()) is not None]


@given(journals, triggers)
def test_settled_trigger_is_not_pending_until_owed_again(journal: list[Entry], trigger: Trigger) -> None:
    settled = [*journal, TriggerCompleted(trigger)]
    assert trigger not in pending_triggers(settled)
    assert set(pending_triggers(settled)) <= set(pending_triggers(journal))
    module = ModuleChange("nvidia", False, True, frozenset({trigger}))
    assert trigger in pending_triggers([*settled, Intent(1, "kernel", "x", module)])


@given(st.lists(settled_files))
def test_intent_has_its_triggers_pending_with_or_without_a_crash(files: list[FileChange]) -> None:
    journal: list[Entry] = [Intent(n, "runtime", "configure", change) for n, change in enumerate(files)]
    assert pending_triggers(journal) == owed_by(files)
    done = [*journal, *(Done(n) for n in range(len(files)))]
    assert pending_triggers(done) == owed_by(files)
    failed = [*journal, *(Failed(n, "put back") for n in range(len(files)))]
    assert pending_triggers(failed) == ()


@given(st.lists(journals.map(lambda some: [entry for entry in some if not isinstance(entry, Begin)])))
def test_later_run_settles_triggers_of_an_earlier_one(runs: list[list[Entry]]) -> None:
    begin = Begin("1", 0.0, "setup", "", "", "", "", "", ())
    before = [entry for run in runs for entry in (begin, *run)]
    assert (
        pending_triggers([*before, begin, *(TriggerCompleted(trigger) for trigger in pending_triggers(before))]) == ()
    )


@given(st.lists(st.tuples(st.sampled_from("ab"), st.none() | file_states), max_size=6), st.data())
def test_undo_after_a_crash_anywhere_restores_every_file(
    writes: list[tuple[str, FileState | None]], data: st.DataObject
) -> None:
    """The node is a dictionary of files; the crash happens before or after the effect of any intent."""
    start: dict[str, FileState | None] = {"a": FileState(b"a"), "b": None}
    node, journal = dict(start), list[Entry]()
    crash = data.draw(st.integers(0, 2 * len(writes)))
    for number, (path, content) in enumerate(writes[: (crash + 1) // 2]):
        journal.append(Intent(number, "runtime", "configure", FileChange(path, node[path], content)))
        if 2 * number + 1 < crash:
            node[path] = content
    for back in (intent.change for intent in filter(is_configuration_change, intents_to_undo(journal))):
        assert isinstance(back, FileChange)
        if node[back.path] != back.after:
            assert node[back.path] == back.before
            assert not isinstance(back.after, Deferred | SigningKey)
            node[back.path] = back.after
    assert node == start
