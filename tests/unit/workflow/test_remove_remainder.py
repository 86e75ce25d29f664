"""Changes of earlier runs that a removal names at its end: nothing of the user's own is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.change import Change, FileChange, FileState, ServiceChange, ServiceState
from gpunode.journal.record import Verb
from gpunode.journal.store import Store
from gpunode.workflow.remove import find_remainder, plan_removal
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON, machine, unit
from tests.unit.workflow.editing import DOCKER, DROP_IN, PLAIN, Machine, configured, unconfigured

DOCKER_UNIT = "docker.service"
STOPPED, RUNNING = ServiceState(enabled=True, active=False), ServiceState(enabled=True, active=True)
DISABLED = ServiceState(enabled=False, active=False)
MINE, BOTH, OURS = FileState(b'{"debug": true}\n'), FileState(b'{"debug": true, "runtimes": {}}\n'), FileState(b"{}\n")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def record_run(store: Store, verb: Verb, *changes: Change) -> None:
    run = store.begin(verb)
    for change in changes:
        run.record_done(run.record_intent("runtime", "step", change))
    run.commit("done")


def find_kept(store: Store, file: FileState | None = None) -> dict[str, str]:
    """Return the named items of a node with docker enabled and ``file`` as its configuration."""
    contents = {DAEMON_JSON: file} if file else {}
    facts, host = machine(files=contents, units={DOCKER_UNIT: unit()}), Machine(contents)
    return {
        one.subject: one.reason for one in find_remainder(store, host, facts, plan_removal(store, host, facts)).kept
    }


def test_file_without_the_removed_handler_belongs_to_the_user(store: Store) -> None:
    host = Machine({DAEMON_JSON: b'{"debug": true}\n'})
    configured(host, store, DOCKER, "docker")
    edited = host.contents[DAEMON_JSON].replace(b"true", b"false", 1)
    assert edited != host.contents[DAEMON_JSON]
    host.files[DAEMON_JSON] = FileState(edited)
    unconfigured(host, store, DOCKER, "docker")
    assert find_kept(store, FileState(host.contents[DAEMON_JSON])) == {}


@pytest.mark.parametrize("verb", ["rollback", "remove"])
def test_content_restored_by_a_run_belongs_to_the_user(store: Store, verb: Verb) -> None:
    edited = FileState(b'{"debug": false}\n')
    record_run(store, "setup", FileChange(DAEMON_JSON, MINE, BOTH))
    record_run(store, verb, FileChange(DAEMON_JSON, FileState(b'{"debug": false, "runtimes": {}}\n'), edited))
    record_run(store, "remove", FileChange(DAEMON_JSON, edited, edited))
    assert find_kept(store, edited) == {}


@pytest.mark.parametrize("is_first", [True, False])
def test_file_made_from_the_users_is_named_with_its_backup(store: Store, *, is_first: bool) -> None:
    """Also if the user created the file after gpunode's own was removed."""
    if not is_first:
        record_run(store, "setup", FileChange(DAEMON_JSON, None, OURS))
        record_run(store, "remove", FileChange(DAEMON_JSON, OURS, None))
    record_run(store, "configure", FileChange(DAEMON_JSON, MINE, BOTH))
    record_run(store, "remove", FileChange(DAEMON_JSON, BOTH, MINE))
    how = find_kept(store, BOTH)[DAEMON_JSON]
    assert f"backup is in {store.objects.path_of_content(MINE.content)}" in how
    assert "rm " not in how


def test_handler_copied_to_another_file_is_named_with_its_remedy(store: Store) -> None:
    """`containerd config migrate` copies the drop-ins' settings into the file and then ignores the drop-ins."""
    host = Machine({CONTAINERD: PLAIN})
    configured(host, store)
    _, head, entry = host.contents[DROP_IN].partition(
        b'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]'
    )
    host.files[CONTAINERD] = FileState(host.contents[CONTAINERD] + head + entry)
    plan = plan_removal(store, host, machine(files=host.contents))
    host.apply(plan.changes)

    left = find_remainder(store, host, machine(files=host.contents), plan)

    (kept,) = left.kept
    assert kept.subject == "the runtime nvidia of containerd"
    assert f"`sudo gpunode ctk runtime unconfigure --runtime=containerd --root {store.root}`" in kept.reason


def test_edit_that_only_needed_a_restart_belongs_to_the_user(store: Store) -> None:
    edited = FileState(BOTH.content + b"\n")
    record_run(store, "setup", FileChange(DAEMON_JSON, None, BOTH))
    record_run(store, "setup", FileChange(DAEMON_JSON, edited, edited))
    record_run(store, "remove", FileChange(DAEMON_JSON, edited, None))
    assert find_kept(store, edited) == {}


@pytest.mark.parametrize(
    "changes",
    [
        [("setup", STOPPED, RUNNING), ("remove", RUNNING, STOPPED)],
        [("setup", RUNNING, DISABLED), ("rollback", DISABLED, RUNNING)],
        [("setup", RUNNING, DISABLED), ("setup", DISABLED, RUNNING)],
    ],
    ids=["only started", "enabled again by a rollback", "enabled again by a setup"],
)
def test_unit_enabled_before_gpunode_is_not_named(
    store: Store, changes: list[tuple[Verb, ServiceState, ServiceState]]
) -> None:
    for verb, before, after in changes:
        record_run(store, verb, ServiceChange(DOCKER_UNIT, before, after))
    assert find_kept(store) == {}
