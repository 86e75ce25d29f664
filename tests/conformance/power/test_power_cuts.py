"""Every state that a power cut can leave, and how gpunode recovers from it.

Real setups and rollbacks are recorded; ``disk.cuts`` yields the possible contents of the disk after each call.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.conformance.power.disk import Cut, Ended, Event, Machine, Renamed, Synced, Written, cuts
from tests.conformance.power.laws import found_broken, not_recovered
from tests.conformance.power.node import CONTAINERD, Command, Story, standing, start
from tests.fakes.examples import examples, sample

# A sample of 2 300 states; all of them in the long run of the tests.
_LOOKED_AT, _RECOVERED = 300, 50
# States of the run after a kill: its end, and this many others.
_MOMENTS = 3
_PROCESSES = os.cpu_count() or 1


def _command(story: Story, cut: Cut) -> tuple[Command, bool]:
    """Return the command that was running or had just ended when the power failed, and whether it had ended."""
    ended = sum(isinstance(event, Ended) for event in story.events[: cut.events])
    has_ended = isinstance(story.events[cut.events - 1], Ended)
    return story.commands[ended - has_ended], has_ended


def _broken(story: Story, found: Iterable[Cut], work: Path, *, recover: bool = False) -> Iterator[str]:
    """Yield every law that a crash state in ``found`` breaks, and where the power failed."""
    for cut in found:
        command, has_ended = _command(story, cut)
        with standing(cut.tree, work) as root:
            wrong = list(found_broken(root, cut.tree, command, ended=has_ended))
            if recover and not wrong:
                wrong = list(not_recovered(root.parent, cut.tree, command))
        place = f"the power went in {command.again} after {story.events[cut.events - 1]}; kept: {cut.kept}"
        yield from (f"{one}\n  {place[:600]}" for one in wrong)


def _side_by_side(work: Path, check: Callable[[int, Path], Iterable[str]]) -> list[str]:
    """Return the results of ``check``, run in one process per processor; each gets its number."""
    children = {}
    for number in range(_PROCESSES):
        folder = work / str(number)
        folder.mkdir(parents=True)
        if (child := os.fork()) == 0:
            _check_and_leave(folder, check, number)
        children[child] = folder
    for child, folder in children.items():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0, f"a checking process exited with {code}"
        assert folder.is_dir()
    texts = [(folder / "found").read_text() for folder in children.values()]
    return [one for text in texts for one in text.split("\0") if one]


def _check_and_leave(folder: Path, check: Callable[[int, Path], Iterable[str]], number: int) -> None:
    code = 1
    try:
        (folder / "found").write_text("\0".join(check(number, folder)))
        code = 0
    except Exception as error:
        (folder / "found").write_text(f"the check itself failed: {error!r}")
        code = 0
    finally:
        os._exit(code)


def _assert_lawful(story: Story, found: Sequence[Cut], work: Path, *, recover: bool) -> None:
    def check(number: int, folder: Path) -> Iterable[str]:
        return _broken(story, found[number::_PROCESSES], folder, recover=recover)

    wrong = _side_by_side(work, check)
    assert not wrong, f"{len(wrong)} laws broken in {len(found)} crash states, such as:\n" + "\n".join(wrong[:5])


def _sample_cuts(found: Sequence[Cut], count: int) -> list[Cut]:
    return random.Random(1).sample(found, min(examples(count), len(found)))


def test_power_cut_at_any_moment_loses_nothing_and_is_recoverable(story: Story, scratch: Path) -> None:
    every = list(cuts(story.start, story.events))
    assert len(every) > 1500, "a recording without gaps has more"
    _assert_lawful(story, _sample_cuts(every, _LOOKED_AT), scratch / "found", recover=False)
    _assert_lawful(story, _sample_cuts(every, _RECOVERED), scratch / "recovered", recover=True)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_every_crash_state_is_recoverable(story: Story, scratch: Path, seed: int) -> None:
    _assert_lawful(story, list(cuts(story.start, story.events, seed=seed)), scratch / f"long-{seed}", recover=True)


def _story_killed_at(story: Story, number: int, at: int, work: Path) -> Story:
    """Return the story in which command ``number`` was killed before its event ``at`` and run again."""
    machine = Machine(story.start)
    for event in story.events[:at]:
        machine.see(event)
    told = start(work, machine.tree)
    told.commands, told.events, told.start = story.commands[:number], story.events[:at], story.start
    told.run(story.commands[number].again)
    told.commands[-1] = replace(story.commands[number], wanted=told.commands[-1].wanted)
    return told


def _syncs(story: Story, number: int) -> list[int]:
    """Return the indexes of a command's syncs among the events; before each, earlier effects are not on the disk."""
    ends = [0, *(place for place, event in enumerate(story.events, 1) if isinstance(event, Ended))]
    return [n for n in range(ends[number], ends[number + 1]) if isinstance(story.events[n], Synced)]


@pytest.mark.parametrize(
    "number", [pytest.param(0, id="containerd", marks=pytest.mark.long), pytest.param(3, id="docker")]
)
def test_unsynced_state_of_a_killed_run_is_not_relied_on(story: Story, scratch: Path, number: int) -> None:
    def check(process: int, folder: Path) -> Iterator[str]:
        for at in sample(_syncs(story, number), "syncs", str, 4)[process::_PROCESSES]:
            again = _story_killed_at(story, number, at, folder / str(at))
            end, chance = len(again.events), random.Random(at)
            moments = [end, *chance.sample(range(at + 1, end), min(_MOMENTS, end - at - 1))]
            found = cuts(again.start, again.events, at=moments)
            yield from (f"killed before event {at}: {one}" for one in _broken(again, found, folder))

    wrong = _side_by_side(scratch / f"killed-{number}", check)
    assert not wrong, f"{len(wrong)} laws broken, such as:\n" + "\n".join(wrong[:5])


def _files_unsynced(events: Sequence[Event]) -> list[Event]:
    written = {event.path for event in events if isinstance(event, Written)}
    return [event for event in events if not (isinstance(event, Synced) and event.path in written)]


def _folders_unsynced(events: Sequence[Event]) -> list[Event]:
    written = {event.path for event in events if isinstance(event, Written)}
    return [event for event in events if not isinstance(event, Synced) or event.path in written]


def _journal_unsynced(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if not (isinstance(event, Synced) and event.path.endswith("journal.jsonl"))]


def _effect_first(events: Sequence[Event]) -> list[Event]:
    """Return the events of replacing and syncing a file before the intent is in the journal."""
    said = next(n for n, e in enumerate(events) if isinstance(e, Written) and b'"type":"intent"' in e.data)
    replaced = next(n for n, e in enumerate(events) if isinstance(e, Renamed) and e.new == CONTAINERD)
    intent, effect = events[said : said + 2], events[said + 2 : replaced + 2]
    assert [type(event) for event in (*intent, *effect)].count(Synced) == 3
    return [*events[:said], *effect, *intent, *events[replaced + 2 :]]


def _in_place(events: Sequence[Event]) -> list[Event]:
    """Return the events of writing a file in place, as most tools do."""
    replaced = next(n for n, e in enumerate(events) if isinstance(e, Renamed) and e.new == CONTAINERD)
    renamed = events[replaced]
    content = next(e for e in events[:replaced] if isinstance(e, Written) and e.path == renamed.path and e.offset == 0)
    return [*events[:replaced], replace(content, path=CONTAINERD), Synced(CONTAINERD), *events[replaced + 1 :]]


@pytest.mark.parametrize(
    "carelessly", [_files_unsynced, _folders_unsynced, _journal_unsynced, _effect_first, _in_place]
)
def test_missing_sync_is_detected(
    story: Story, scratch: Path, carelessly: Callable[[Sequence[Event]], list[Event]]
) -> None:
    events = carelessly(story.events)
    careless = replace(story, events=events)
    work = scratch / carelessly.__name__
    work.mkdir()
    assert list(islice(_broken(careless, cuts(story.start, events), work), 1))
