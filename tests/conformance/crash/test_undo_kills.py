"""An undo of packages and files killed at each of its writes: the next remove leaves the node as before gpunode."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import pytest

from gpunode.host import apt, chroot
from tests.conformance.crash.killing import run
from tests.conformance.crash.nodes import EDITED, Case, copy, litter, tree
from tests.conformance.crash.packages import FilePackages
from tests.conformance.crash.test_kills import Command, Lab, every
from tests.conformance.warming import warm_up

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: setup and remove do")

WITH_TOOLKIT: Final = Case(
    "toolkit-and-docker",
    ("--runtime", "docker", "--only", "toolkit", "--only", "runtime-config"),
    EDITED.path,
    (*EDITED.files, ("var/lib/apt/extended_states", b"", 0o644, 0, 0)),
    undo=("--packages",),
)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    """Return a node with the toolkit and its runtime's configuration; processes forked from here use no apt."""
    monkeypatch.setattr(apt, "Apt", FilePackages)
    monkeypatch.setattr(chroot, "prepare_root", lambda _: nullcontext())
    made = Lab(WITH_TOOLKIT, tmp_path)
    warm_up(remove(copy(made.done, tmp_path / "removed")))
    assert b"nvidia-container-toolkit" in made.wanted["var/lib/dpkg/status"][3]
    return made


def remove(root: Path) -> tuple[str, ...]:
    """Return the command line that removes everything."""
    return ("remove", "--root", str(root), "--yes", "--json")


@pytest.mark.parametrize("undo", ["remove", "rollback"])
def test_remove_after_an_undo_killed_at_any_write_restores_the_node(lab: Lab, undo: str) -> None:
    command: Command = remove if undo == "remove" else lab.case.rollback
    calls = lab.boundaries(command, lab.done)
    assert any("var/lib/dpkg/status" in call for call in calls), "the packages' own writes are among them"
    for label, kill in every(command, calls):
        with lab.node(lab.done) as node:
            kill(node)
            lab.problems += [f"{label}: {fault}" for fault in _finished(lab, node)]

    assert not lab.problems, "\n".join(lab.problems)


def _finished(lab: Lab, node: Path) -> Iterator[str]:
    """Yield the errors after a remove, and after a second one."""
    ended = run(remove(node))
    if ended.status:
        yield f"remove: {ended.status}: {ended.said}"
    after = tree(node)
    yield from (
        f"{name} is {after.get(name)}" for name in after.keys() | lab.former if after.get(name) != lab.former.get(name)
    )
    yield from (f"remove left {name}" for name in litter(node))
    again = run(remove(node))
    if again.status or again.envelope["changed"]:
        yield f"remove again: {again.status}: {again.said}"
