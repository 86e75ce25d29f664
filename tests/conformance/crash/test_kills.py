"""gpunode killed before and after every call that changes a file, and at random: the next run finishes or undoes it.

After each kill, a second setup and a rollback run, each on a copy of the node. All the time another
process reads the configuration file; it must only see the complete old or the complete new content.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import settings

from tests.conformance.crash.killing import Boundaries, Ended, Poller, boundaries, run
from tests.conformance.crash.nodes import (
    CREATED,
    DROP_IN,
    EDITED,
    IMAGE,
    REPLACED,
    Case,
    Row,
    Tree,
    copy,
    litter,
    row,
    tree,
)
from tests.conformance.warming import warm_up
from tests.fakes.examples import examples, sample

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: setup and rollback do")


def _may_mount() -> bool:
    return subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


# 128 + the number of SIGINT, SIGTERM or SIGHUP; 0 if the run was over when the signal came.
_STOPPED = {signal.SIGINT: {130}, signal.SIGTERM: {143, -signal.SIGTERM}, signal.SIGHUP: {143, -signal.SIGHUP}}
Command: TypeAlias = Callable[[Path], tuple[str, ...]]
"""The arguments of gpunode for a root."""
Kill: TypeAlias = Callable[[Path], Ended]
"""Has gpunode end in its middle on a root."""


@dataclass
class Lab:
    """A case's node before and after setup, with space for copies of it.

    Attributes:
        seconds: the duration of a complete setup.
        problems: the failures, each with the kill that caused it.
    """

    case: Case
    folder: Path
    former: Tree = field(init=False)
    wanted: Tree = field(init=False)
    seconds: float = field(init=False)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bare, self.done = self.case.make(self.folder / "bare"), self.folder / "done"
        first = copy(self.bare, self.folder / "first")
        for command in (self.case.setup, self.case.rollback):
            warm_up(command(first))
        ended = run(self.case.setup(copy(self.bare, self.done)))
        assert ended.status == 0, ended.said
        self.seconds = ended.seconds
        self.former, self.wanted = tree(self.bare), tree(self.done)
        assert self.former != self.wanted

    def boundaries(self, command: Command, start: Path) -> list[str]:
        """Return the calls of a complete run that starts from ``start``."""
        with self.node(start) as node:
            return boundaries(command(node))

    @contextmanager
    def node(self, start: Path) -> Iterator[Path]:
        """Yield a copy of ``start``, removed afterwards."""
        room = self.folder / "node"
        try:
            yield copy(start, room / "root")
        finally:
            shutil.rmtree(room)

    def survives(self, start: Path, kills: Iterable[tuple[str, Kill]]) -> None:
        """Assert that the next run recovers from each of ``kills``, on a copy of ``start``."""
        for label, kill in kills:
            with self.node(start) as node:
                with Poller(partial(row, node, self.case.path), self._rows()) as reader:
                    ended = kill(node)
                    left = row(node, self.case.path)
                    away = copy(node, node.parent / "rolled-back")
                    faults = list(self._finished(node))
                with Poller(partial(row, away, self.case.path), self._rows()) as second_reader:
                    faults += self._taken_back(away)
                assert reader.ended == second_reader.ended == -signal.SIGKILL
                if left not in self._rows():
                    faults.append(f"the kill left {left}")
                if reader.saw or second_reader.saw:
                    faults.append(f"a reader saw {reader.saw}{second_reader.saw}")
                self.problems += [f"{label} (ended {ended.status}): {fault}" for fault in faults]

    def _rows(self) -> tuple[Row | None, Row | None]:
        return self.former.get(self.case.path), self.wanted.get(self.case.path)

    def _finished(self, node: Path) -> Iterator[str]:
        """Yield the errors after a second setup, and after a third."""
        again = run(self.case.setup(node))
        if again.status:
            yield f"setup again: {again.status}: {again.said}"
        yield from _differences("setup again", tree(node), self.wanted)
        yield from (f"setup again left {name}" for name in litter(node))
        third = run(self.case.setup(node))
        if third.status or third.envelope["changed"]:
            yield f"not converged: {third.said}"

    def _taken_back(self, node: Path) -> Iterator[str]:
        """Yield the errors after a rollback; if nothing was written, it has nothing to undo."""
        back = run(self.case.rollback(node))
        if back.status and not (back.status == 2 and "there is nothing to roll back" in back.said):
            yield f"rollback: {back.status}: {back.said}"
        yield from _differences("rollback", tree(node), self.former)
        yield from (f"rollback left {name}" for name in litter(node))


def _differences(after: str, found: Tree, meant: Tree) -> Iterator[str]:
    for name in sorted(found.keys() | meant.keys()):
        if found.get(name) != meant.get(name):
            yield f"{after}: {name} is {found.get(name)}, not {meant.get(name)}"


def setup_or_rollback(lab: Lab) -> tuple[tuple[str, Command, Path], ...]:
    """Return the two commands, each with a starting node on which it has work to do."""
    return ("setup", lab.case.setup, lab.bare), ("rollback", lab.case.rollback, lab.done)


def killed_at(command: Command, number: int, *, torn: bool = False) -> Kill:
    """Return a run that dies right before its call ``number``, or in the middle of it."""

    def kill(node: Path) -> Ended:
        ended = run(command(node), Boundaries(number, torn=torn))
        assert ended.status == -signal.SIGKILL, ended.said
        return ended

    return kill


def every(command: Command, calls: Sequence[str]) -> Iterator[tuple[str, Kill]]:
    """Yield a kill before each call (and so after the one before it), and in the middle of each write.

    Only a sample of the calls, except in the long run of the tests.
    """
    for number, call in sample(tuple(enumerate(calls)), "kills", str, 14):
        yield f"killed before {number}, {call}", killed_at(command, number)
        if call.startswith("write "):
            yield f"killed in {number}, {call}", killed_at(command, number, torn=True)


def kill_both(first: Kill, second: Kill) -> Kill:
    """Return a kill that runs both, one after the other."""

    def kill(node: Path) -> Ended:
        first(node)
        return second(node)

    return kill


def signalled_after(command: Command, number: int, after_s: float) -> Kill:
    """Return a kill by signal ``number``, ``after_s`` after the start."""
    return lambda node: run(command(node), sent=number, after_s=after_s)


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    return Lab(request.param, tmp_path)


@pytest.fixture
def chance() -> random.Random:
    """Return random moments; a failing test prints the seed, which can be set here to repeat them."""
    seed = 0 if settings().derandomize else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize(
    "lab",
    [REPLACED, *(pytest.param(case, marks=pytest.mark.long) for case in (CREATED, EDITED, DROP_IN))],
    indirect=True,
    ids=lambda case: case.id,
)
def test_setup_killed_at_every_boundary_recovers(lab: Lab) -> None:
    calls = lab.boundaries(lab.case.setup, lab.bare)
    assert sum("journal.jsonl" in call for call in calls) >= 10, "the journal's own writes are among them"
    assert any(call.startswith("os.rename") for call in calls)

    lab.survives(lab.bare, every(lab.case.setup, calls))

    assert not lab.problems, "\n".join(lab.problems)


@pytest.mark.parametrize(
    "lab",
    [REPLACED, *(pytest.param(case, marks=pytest.mark.long) for case in (CREATED, EDITED, DROP_IN))],
    indirect=True,
    ids=lambda case: case.id,
)
def test_rollback_killed_at_every_boundary_recovers(lab: Lab) -> None:
    lab.survives(lab.done, every(lab.case.rollback, lab.boundaries(lab.case.rollback, lab.done)))

    assert not lab.problems, "\n".join(lab.problems)


@pytest.mark.parametrize("lab", [REPLACED, CREATED], indirect=True, ids=lambda case: case.id)
def test_recovering_run_killed_again_recovers(lab: Lab, chance: random.Random) -> None:
    """Kill twice, each time at a boundary; the second kill hits a setup or a rollback."""
    calls = lab.boundaries(lab.case.setup, lab.bare)

    def kills() -> Iterator[tuple[str, Kill]]:
        for number in range(examples(4)):
            command, name = ((lab.case.setup, "setup"), (lab.case.rollback, "rollback"))[number % 2]
            first, second = chance.randrange(len(calls)), chance.randrange(len(calls))
            # The second run makes fewer calls if it has less to do; then it is not killed.
            again = lambda node, command=command, second=second: run(command(node), Boundaries(second))  # noqa: E731
            label = f"setup killed before {first}, {calls[first]}, then {name} before {second}"
            yield label, kill_both(killed_at(lab.case.setup, first), again)

    lab.survives(lab.bare, kills())

    assert not lab.problems, "\n".join(lab.problems)


MOUNTED = pytest.param(IMAGE, marks=pytest.mark.skipif(not _may_mount(), reason="needs root, and leave to mount"))


@pytest.mark.parametrize("lab", [REPLACED, CREATED, DROP_IN, MOUNTED], indirect=True, ids=lambda case: case.id)
def test_run_killed_at_a_random_moment_recovers(lab: Lab, chance: random.Random) -> None:
    for name, command, start in setup_or_rollback(lab):
        moments = [chance.uniform(0, lab.seconds) for _ in range(examples(2))]
        lab.survives(
            start, ((f"{name} killed after {at:.4f} s", signalled_after(command, signal.SIGKILL, at)) for at in moments)
        )

    assert not lab.problems, "\n".join(lab.problems)


@pytest.mark.parametrize("lab", [REPLACED], indirect=True, ids=lambda case: case.id)
def test_run_stopped_by_a_signal_at_a_random_moment_recovers(lab: Lab, chance: random.Random) -> None:
    """A run that is asked to stop reports that by its exit code, and the next continues as after a kill."""

    def stopped(command: Command, number: signal.Signals, after_s: float) -> Kill:
        def kill(node: Path) -> Ended:
            ended = run(command(node), sent=number, after_s=after_s)
            if ended.status not in {0, *_STOPPED[number]}:
                lab.problems.append(f"{number.name} after {after_s:.4f} s: {ended.status}: {ended.said}")
            return ended

        return kill

    for name, command, start in setup_or_rollback(lab):
        chosen = [(number, chance.uniform(0, lab.seconds)) for number in _STOPPED for _ in range(examples(1))]
        lab.survives(
            start, ((f"{name}, {number.name} after {at:.4f} s", stopped(command, number, at)) for number, at in chosen)
        )

    assert not lab.problems, "\n".join(lab.problems)
