"""Files with gpunode's mark that no journal records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpunode.catalog.driver import DriverChoice
from gpunode.change import FileChange, FileState, PackageState
from gpunode.errors import VerifyFailed
from gpunode.facts.model import Facts
from gpunode.journal.store import Store
from gpunode.packages.deb.preferences import PIN_FILE, render_driver_pin
from gpunode.steps import daemons, gpudirect, kernel, mig
from gpunode.workflow.recovery import OWN_FILE_MARK, find_backlog, find_lost_record
from gpunode.workflow.remove import find_remainder, plan_removal
from gpunode.workflow.setup import resume_unit
from tests.unit.steps.machines import CUDA_LIST, CUDA_URI, machine
from tests.unit.workflow.nodes import Node

BLACKLIST = "/etc/modprobe.d/gpunode-nouveau.conf"
PIN = FileState(render_driver_pin(DriverChoice(580, "", "open", "law"), ("Debian",)))
BLACKLISTED = FileState(OWN_FILE_MARK + b": these drivers must not bind the GPU\n")
INSTALLED = {"libcuda1": PackageState("580.95.05-1"), "dkms": PackageState("3"), "libnvidia-x": PackageState("470.1-1")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def node(files: Mapping[str, FileState] | None = None) -> Facts:
    return machine(packages=INSTALLED, files=files or {PIN_FILE: PIN, BLACKLIST: BLACKLISTED})


def test_every_file_owned_by_gpunode_begins_with_the_marker() -> None:
    texts = (
        PIN.content,
        kernel._BLACKLIST_TEXT,
        gpudirect._MODULES_FILE_HEADER.encode(),
        daemons.render_mps_unit(exclusive=False),
        mig._WANTS_DROP_IN_CONTENT,
    )
    assert all(
        text.startswith(OWN_FILE_MARK) for text in (*texts, mig.render_mig_unit({}), resume_unit(("gpunode", "setup")))
    )


def test_marked_files_without_a_journal_are_reported_with_packages(store: Store) -> None:
    left = find_backlog(store, node())
    assert left.lost is not None
    assert (left.lost.files, tuple(map(str, left.lost.packages))) == ((PIN_FILE, BLACKLIST), ("libcuda1",))
    (note,) = left.notes
    assert f"{PIN_FILE}, {BLACKLIST} were written by gpunode, but no run in {store.folder} wrote them" in note
    assert "1 driver package is installed under its pin" in note
    assert not left, "a setup has nothing to do about it"


def test_remove_without_a_journal_ends_with_manual_commands(store: Store) -> None:
    facts = machine(
        packages={**INSTALLED, "nvidia-container-toolkit": "1.20.1-1"},
        files={PIN_FILE: PIN, BLACKLIST: BLACKLISTED, CUDA_LIST: f"deb {CUDA_URI} /\n".encode()},
    )
    host = Node(facts)
    back = plan_removal(store, host, facts)
    assert back.steps == ()
    failure = find_remainder(store, host, facts, back).failure
    assert isinstance(failure, VerifyFailed)
    assert "installed under its pin: libcuda1\n" in failure.why
    assert f"anybody would add the same: {CUDA_LIST}, nvidia-container-toolkit\n" in failure.why
    assert failure.hint.splitlines()[1:] == [
        "sudo apt-get purge libcuda1",
        f"sudo rm {PIN_FILE} {BLACKLIST}",
    ], "no command takes away what may be somebody else's"
    assert "gpunode remove" not in failure.hint, "no hint leads back to itself"


def test_journaled_files_are_not_reported_as_lost_records(store: Store) -> None:
    run = store.begin("setup")
    for path, state in ((PIN_FILE, PIN), (BLACKLIST, BLACKLISTED)):
        run.record_done(run.record_intent("sources", "step", FileChange(path, None, state)))
    run.commit("done")
    edited = FileState(BLACKLISTED.content + b"# more\n")
    assert find_lost_record(store, node()) is None
    assert find_lost_record(store, node({PIN_FILE: PIN, BLACKLIST: edited})) is None


def test_marked_file_older_than_the_journal_is_a_lost_record(store: Store) -> None:
    """A removal restores its former text, which is also gpunode's own."""
    run = store.begin("setup")
    run.record_done(
        run.record_intent(
            "packages", "step", FileChange(BLACKLIST, BLACKLISTED, FileState(OWN_FILE_MARK + b": newer\n"))
        )
    )
    run.commit("done")
    assert find_lost_record(store, node({BLACKLIST: FileState(OWN_FILE_MARK + b": newer\n")})) is None
    lost = find_lost_record(store, node({BLACKLIST: BLACKLISTED}))
    assert lost is not None
    assert lost.files == (BLACKLIST,)


def test_edit_repeated_after_a_setup_is_no_lost_record(store: Store) -> None:
    edited = FileState(BLACKLISTED.content + b"# more\n")
    for before in (None, edited):
        run = store.begin("setup")
        run.record_done(run.record_intent("packages", "step", FileChange(BLACKLIST, before, BLACKLISTED)))
        run.commit("done")
    assert find_lost_record(store, node({BLACKLIST: edited})) is None


def test_node_without_marked_files_has_no_lost_record(store: Store) -> None:
    assert find_lost_record(store, machine()) is None
    assert find_lost_record(store, node({BLACKLIST: FileState(b"# ours\n")})) is None
