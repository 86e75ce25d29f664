"""Laws of an undo cut short by a power failure: the next remove leaves nothing of gpunode's, or names it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gpunode.catalog.conflicts import is_deb_driver_package
from gpunode.change import Change, FileChange, FileState, PackageChange, PackageState
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from tests.fakes.dpkg import Packages
from tests.fakes.examples import examples
from tests.fakes.memory_node import MemoryNode, command

# One that a driver needs, two that a plain rollback restores, and one that may have existed before.
PATHS = {
    "/etc/apt/preferences.d/gpunode-nvidia": "sources",
    "/etc/modprobe.d/gpunode-nouveau.conf": "packages",
    "/etc/nvidia-container-runtime/config.toml": "runtime",
    "/etc/crio/crio.conf.d/99-nvidia.toml": "runtime",
}
BROUGHT = tuple(map(PackageId, ("nvidia-driver-cuda", "libcuda1", "nvidia-container-toolkit", "dkms")))
FORMER = tuple(map(PackageId, ("gcc", "nvidia-tesla-470-driver")))
UNDOING = (("remove",), ("rollback", "--packages"), ("rollback",))


@dataclass(frozen=True, slots=True)
class Story:
    """A node, what setups do to it, and what happens to it afterwards.

    Attributes:
        changes: the changes of each setup.
        needed: a package of gpunode's that another package now depends on, or None.
        undone: undo commands, each with the moment at which the power fails.
    """

    packages: Mapping[PackageId, PackageState]
    files: Mapping[str, FileState]
    changes: tuple[tuple[Change, ...], ...]
    needed: PackageId | None
    undone: tuple[tuple[tuple[str, ...], int], ...]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    former = {one: PackageState("1", auto=draw(st.booleans())) for one in FORMER}
    files = {path: FileState(b"# mine\n") for path in PATHS if draw(st.booleans())}
    packages, present = dict(former), dict[str, FileState](files)
    setups = tuple(draw(_setup(number, packages, present)) for number in range(draw(st.integers(1, 2))))
    brought = [one for one in BROUGHT if one in packages]
    needed = draw(st.none() | st.sampled_from(brought)) if brought else None
    cuts = st.tuples(st.sampled_from(UNDOING), st.integers(0, 45))
    return Story(former, files, setups, needed, tuple(draw(st.lists(cuts, min_size=1, max_size=2))))


@st.composite
def _setup(
    draw: st.DrawFn, number: int, packages: dict[PackageId, PackageState], files: dict[str, FileState]
) -> tuple[Change, ...]:
    """Return the changes of a setup, and update ``packages`` and ``files`` to match."""
    changes: list[Change] = []
    for path in draw(st.lists(st.sampled_from(tuple(PATHS)), unique=True)):
        after = FileState(b"# Written by gpunode: %d\n" % number)
        changes.append(FileChange(path, files.get(path), after))
        files[path] = after
    for package in draw(st.lists(st.sampled_from((*BROUGHT, *FORMER)), unique=True)):
        before = packages.get(package)
        after_states = st.builds(PackageState, st.sampled_from(("1", "2")), auto=st.booleans())
        state = draw(st.none() | after_states) if before else draw(after_states)
        if before != state:
            changes.append(PackageChange(package, before, state))
            packages.pop(package, None)
            packages.update({package: state} if state else {})
    return tuple(sorted(changes, key=lambda change: isinstance(change, PackageChange)))


def set_up(node: MemoryNode, changes: Sequence[Change]) -> None:
    """Record a setup that made ``changes``."""
    run = Store(node.root).begin("setup")
    for is_package, same in groupby(changes, key=lambda change: isinstance(change, PackageChange)):
        for batch in [tuple(same)] if is_package else [(change,) for change in same]:
            first = batch[0]
            stage = PATHS[first.path] if isinstance(first, FileChange) else "packages"
            seqs = run.record_intents(stage, "law", batch)
            node.apply(batch)
            run.record_done(*seqs)
    run.commit("done")


def others_come_to_need(node: MemoryNode, package: PackageId) -> None:
    """Install a package of a user's own that depends on ``package``."""
    bring(node, theirs := PackageId("lab-needs"))
    node.keep(replace(node.packages, depends={theirs: package}))


def bring(node: MemoryNode, package: PackageId) -> None:
    """Install ``package`` as a user does."""
    found = node.packages
    node.keep(replace(found, states={**found.states, package: PackageState("1")}))


def was_brought(story: Story, package: PackageId) -> bool:
    """True if a setup installed ``package``."""
    changes = (change for changes in story.changes for change in changes if isinstance(change, PackageChange))
    return any(change.id == package and change.after for change in changes)


def wrong(story: Story, node: MemoryNode, said: str) -> list[str]:
    """Return gpunode's leftovers that have no reason or that ``said`` does not name, and other differences from before.

    Valid reasons: another package needs it, or it belongs to a driver that another package needs.
    """
    states = node.packages.states
    added = [str(one) for one in BROUGHT if one in states]
    marks = [
        f"{one}: auto={states[one].auto}"
        for one, before in story.packages.items()
        if one in states and states[one].auto != before.auto
    ]
    ours = [path for path in PATHS if (state := node.files.get(path)) and state.content.startswith(b"# Written by")]
    reasons = {str(story.needed), *(PATHS if story.needed and is_deb_driver_package(story.needed.name) else ())}
    lost = [path for path, state in story.files.items() if path not in ours and node.files.get(path) != state]
    return [*(one for one in (*added, *ours) if one not in said or one not in reasons), *marks, *lost]


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories())
def test_remove_after_any_partial_undo_leaves_nothing_unnamed(story: Story) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = MemoryNode(Path(folder), Packages(story.packages, {}), story.files)
        for changes in story.changes:
            set_up(node, changes)
        if story.needed:
            others_come_to_need(node, story.needed)
        for words, moment in story.undone:
            event(f"{words[0]} ended with {command(node, *words, cut_at=moment).exit_code}")

        removed = command(node, "remove")

        assert removed.exit_code == 0, removed.text
        assert wrong(story, node, removed.text) == []
        again = command(node, "remove")
        assert (again.exit_code, again.envelope["changed"]) == (0, False)
        assert wrong(story, node, again.text) == []
        theirs = [package for package in BROUGHT if package not in node.packages.states]
        for package in theirs:
            bring(node, package)
        last = command(node, "remove")
        assert (last.exit_code, last.envelope["changed"]) == (0, False)
        assert set(theirs) <= set(node.packages.states), "what somebody installed since is theirs"
        assert all(f"{package} is installed" in last.text for package in theirs if was_brought(story, package))
