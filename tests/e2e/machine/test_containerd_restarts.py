"""containerd on a booted machine: restarted only if its file changed, never left with a broken configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.drifts import DRIFTS, Drift
from tests.e2e.chroot.scenario import Answer, by_kind
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.machine.scenario import (
    CONTAINERD,
    CONTAINERD_CONFIG,
    DOCKER,
    PERSISTENCED,
    Machines,
    Start,
    ask,
    impatient,
    is_up,
    kill_at_restart,
    make_fussy,
    make_tame,
    restore,
    setup,
    setup_ok,
    show,
    start_of,
)

pytestmark = pytest.mark.e2e

UNITS = (CONTAINERD, DOCKER, PERSISTENCED)
CONFIG = """\
# Written by hand on this node.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example/pause:3.9" # pinned
"""


@dataclass(frozen=True, slots=True)
class Course:
    """The observations during the course; the node is as the second setup left it."""

    node: Machine
    before: dict[str, Start]
    first: Answer
    between: dict[str, Start]
    files_between: str
    second: Answer
    after: dict[str, Start]
    files_after: str


@pytest.fixture(scope="module")
def course(bases: dict[str, Bases], machines: Machines) -> Iterator[Course]:
    with machines.make(bases["bookworm"].runtime) as node:
        machines.furnish(node)
        restore(node, CONTAINERD, CONTAINERD_CONFIG, CONFIG)
        before = _starts(node)
        first = setup(node, "containerd")
        between, files_between = _starts(node), node.fingerprint("/etc", "/var/lib/gpunode", "/var/lib/dpkg")
        second = setup(node, "containerd")
        files_after = node.fingerprint("/etc", "/var/lib/gpunode", "/var/lib/dpkg")
        yield Course(node, before, first, between, files_between, second, _starts(node), files_after)
        left = marks(node)
    assert leftovers(left) == []


@pytest.fixture
def node(course: Course) -> Machine:
    """Return the machine with its driver, and with containerd as before gpunode."""
    restore(course.node, CONTAINERD, CONTAINERD_CONFIG, CONFIG)
    return course.node


def _starts(node: Machine) -> dict[str, Start]:
    return {unit: start_of(node, unit) for unit in UNITS}


def test_setup_ends_with_a_working_node(course: Course) -> None:
    assert course.first.exit_code == 0, course.first.error
    assert {check["status"] for check in course.first.result["checks"]} == {"passed"}
    assert show(course.node, PERSISTENCED, "UnitFileState", "ActiveState") == ["enabled", "active"]


def test_setup_restarts_containerd_once_and_leaves_docker_alone(course: Course) -> None:
    assert course.between[CONTAINERD].starts == course.before[CONTAINERD].starts + 1
    assert course.between[DOCKER] == course.before[DOCKER]
    (restart,) = [one for one in course.first.result["triggers"] if one["trigger"]["kind"] == "restart"]
    assert restart["trigger"]["target"] == CONTAINERD


def test_second_setup_restarts_and_writes_nothing(course: Course) -> None:
    assert course.second.exit_code == 0
    assert course.second.envelope["changed"] is False
    assert course.after == course.between
    assert course.files_after == course.files_between


@pytest.mark.long
def test_edited_unread_file_is_noted_checked_and_read(node: Machine) -> None:
    setup_ok(node, "containerd")
    edited = node.read(CONTAINERD_CONFIG) + "\n# The night shift was here.\n"
    node.write(CONTAINERD_CONFIG, edited)
    before = _starts(node)

    found = ask(node, "plan", "/root/containerd.toml", "--check")
    assert found.exit_code == 4
    (step,) = [step for step in found.result["steps"] if step["changes"]]
    assert step["id"] == "runtime-config"
    assert "changed after containerd.service last read it" in step["reason"]
    assert _starts(node) == before
    setup_ok(node, "containerd")

    after = _starts(node)
    assert after[CONTAINERD].starts == before[CONTAINERD].starts + 1
    assert after[DOCKER] == before[DOCKER]
    assert node.read(CONTAINERD_CONFIG) == edited
    assert ask(node, "plan", "/root/containerd.toml", "--check").exit_code == 0
    assert setup_ok(node, "containerd").envelope["changed"] is False


@pytest.mark.long
def test_restored_file_with_an_old_date_is_noticed(node: Machine) -> None:
    setup_ok(node, "containerd")
    node.run("cp", "-p", CONTAINERD_CONFIG, "/root/backup.toml")
    node.run("touch", "-d", "2020-01-01", "/root/backup.toml")
    node.run("systemctl", "restart", CONTAINERD)
    assert ask(node, "plan", "/root/containerd.toml", "--check").exit_code == 0
    node.run("cp", "-p", "/root/backup.toml", CONTAINERD_CONFIG)
    assert ask(node, "plan", "/root/containerd.toml", "--check").exit_code == 4


@pytest.mark.long
def test_invalid_containerd_file_is_refused_before_a_restart(node: Machine) -> None:
    setup_ok(node, "containerd")
    node.write(CONTAINERD_CONFIG, 'oom_score = "high"\n' + node.read(CONTAINERD_CONFIG))
    before = _starts(node)

    refused = setup(node, "containerd")

    assert refused.exit_code == 3
    assert _starts(node) == before


@pytest.mark.parametrize(
    ("how", "settings", "hurried"),
    [
        pytest.param("refuses", (), False, id="refuses"),
        pytest.param("hangs", ("TimeoutStartSec=4",), False, id="hangs until systemd gives up", marks=pytest.mark.long),
        pytest.param(
            "hangs", ("TimeoutStartSec=infinity",), True, id="hangs until gpunode gives up", marks=pytest.mark.long
        ),
        pytest.param("dies", (), False, id="dies after 3 s"),
    ],
)
def test_daemon_that_fails_to_start_gets_its_old_configuration_back(
    node: Machine, how: str, settings: tuple[str, ...], *, hurried: bool
) -> None:
    make_fussy(node, CONTAINERD, how, *settings)
    # The wrapper is already in place: only the configuration decides its behaviour.
    node.run("systemctl", "restart", CONTAINERD)

    done = setup(node, "containerd", program=impatient(node) if hurried else "gpunode")

    assert done.exit_code == 6
    assert node.read(CONTAINERD_CONFIG) == CONFIG
    assert is_up(node, CONTAINERD)
    assert CONTAINERD in done.error
    assert f"lab daemon: {how} because of nvidia" in done.error
    assert f"restored: {CONTAINERD_CONFIG}; {CONTAINERD} is running with the former file again" in done.error
    assert "nvidia-container-runtime" in node.read(_kept_file(done))
    # The daemon accepts it after all, once the obstacle is gone.
    make_tame(node, CONTAINERD)
    assert CONTAINERD_CONFIG in by_kind(setup_ok(node, "containerd").changes, "file")
    assert is_up(node, CONTAINERD)


@pytest.mark.long
def test_daemon_that_never_starts_is_named_and_its_file_restored(node: Machine) -> None:
    make_fussy(node, CONTAINERD, "refuses", "ExecStartPre=/bin/false")

    done = setup(node, "containerd")

    assert done.exit_code == 6
    assert node.read(CONTAINERD_CONFIG) == CONFIG
    assert f"restored: {CONTAINERD_CONFIG}; {CONTAINERD} does not start with the former file either" in done.error


def _kept_file(done: Answer) -> str:
    (line,) = [line for line in done.error.splitlines() if " is kept as " in line]
    return line.rpartition(" ")[2]


def test_rollback_restores_the_file_and_restarts_containerd_once(node: Machine) -> None:
    setup_ok(node, "containerd")
    before = _starts(node)

    done = ask(node, "rollback", "--yes")

    assert done.exit_code == 0, done.error
    assert node.read(CONTAINERD_CONFIG) == CONFIG
    after = _starts(node)
    assert after[CONTAINERD].starts == before[CONTAINERD].starts + 1
    assert {**after, CONTAINERD: None} == {**before, CONTAINERD: None}
    assert is_up(node, CONTAINERD)


def test_restart_pending_from_a_killed_setup_is_made_once(node: Machine) -> None:
    before = start_of(node, CONTAINERD)
    assert kill_at_restart(node).returncode in {-9, 137}
    assert "nvidia" in node.read(CONTAINERD_CONFIG)
    assert start_of(node, CONTAINERD) == before

    said = node.run("gpunode", "setup", "/root/containerd.toml", "--yes").stdout

    assert f"restart {CONTAINERD}" in said
    assert start_of(node, CONTAINERD).starts == before.starts + 1
    setup_ok(node, "containerd")
    assert start_of(node, CONTAINERD).starts == before.starts + 1


@pytest.mark.long
def test_daemon_restarted_by_others_has_no_pending_restart(node: Machine) -> None:
    kill_at_restart(node)
    node.run("systemctl", "restart", CONTAINERD)
    before = start_of(node, CONTAINERD)

    setup_ok(node, "containerd")

    assert start_of(node, CONTAINERD) == before


def test_file_of_a_killed_setup_is_put_back_if_the_daemon_rejects_it(node: Machine) -> None:
    kill_at_restart(node)
    make_fussy(node, CONTAINERD, "refuses")

    done = setup(node, "containerd")

    assert done.exit_code == 6
    assert node.read(CONTAINERD_CONFIG) == CONFIG
    assert is_up(node, CONTAINERD)


@pytest.mark.long
def test_verify_detects_a_containerd_without_the_handler(node: Machine) -> None:
    setup_ok(node, "containerd")
    assert ask(node, "verify", "/root/containerd.toml").exit_code == 0
    shown = node.run("gpunode", "status").stdout
    assert "580.178.04" in shown
    assert "GTX 1080" in shown

    restore(node, CONTAINERD, CONTAINERD_CONFIG, CONFIG)
    lost = ask(node, "verify", "/root/containerd.toml")

    assert lost.exit_code == 7
    failed = {check["id"] for check in lost.result["checks"] if check["status"] == "failed"}
    assert failed == {"configuration", "runtime"}


@pytest.mark.parametrize(
    "drift",
    [pytest.param(one, id=one.id, marks=() if one.core else pytest.mark.long) for one in DRIFTS if one.booted],
)
def test_drift_of_units_is_found_named_and_fixed(node: Machine, drift: Drift) -> None:
    setup_ok(node, "containerd")
    node.run("sh", "-c", drift.shell)

    found = ask(node, "plan", "/root/containerd.toml", "--check")

    if drift.answer == "noted":
        assert [note for note in found.envelope["notes"] if drift.named in note]
        node.run("sh", "-c", drift.undo)
    else:
        assert found.exit_code == 4
        assert [step["id"] for step in found.result["steps"] if step["changes"]] == [drift.step]
    setup_ok(node, "containerd")
    assert ask(node, "plan", "/root/containerd.toml", "--check").exit_code == 0


@pytest.mark.long
def test_ctk_restarts_containerd_only_on_request(node: Machine) -> None:
    before = start_of(node, CONTAINERD)

    done = ask(node, "ctk", "runtime", "configure", "--runtime=containerd", "--set-as-default")

    assert (done.exit_code, done.result["reload_command"]) == (0, "sudo systemctl restart containerd")
    assert done.result["validation"] == "checked: `containerd config dump` reads it as intended"
    assert start_of(node, CONTAINERD) == before
    unread = ask(node, "ctk", "runtime", "check", "--runtime=containerd", "--set-as-default")
    assert (unread.exit_code, unread.envelope["status"]) == (7, "verify-failed")

    assert (
        ask(node, "ctk", "runtime", "configure", "--runtime=containerd", "--set-as-default", "--restart").exit_code == 0
    )

    assert start_of(node, CONTAINERD).starts == before.starts + 1
    assert ask(node, "ctk", "runtime", "check", "--runtime=containerd", "--set-as-default").exit_code == 0
    again = ask(node, "ctk", "runtime", "configure", "--runtime=containerd", "--set-as-default", "--restart")
    assert (again.exit_code, again.envelope["changed"]) == (0, False)
    assert ask(node, "ctk", "runtime", "unconfigure", "--runtime=containerd", "--restart").exit_code == 0
    assert node.read(CONTAINERD_CONFIG) == CONFIG
    assert start_of(node, CONTAINERD).starts == before.starts + 2


@pytest.mark.long
def test_containerd_that_fails_after_ctk_gets_its_files_back(node: Machine) -> None:
    make_fussy(node, CONTAINERD, "refuses")
    node.run("systemctl", "restart", CONTAINERD)

    done = ask(node, "ctk", "runtime", "configure", "--runtime=containerd", "--restart")

    assert done.exit_code == 6
    assert f"restored: {CONTAINERD_CONFIG}; {CONTAINERD} is running with the former file again" in done.error
    assert node.read(CONTAINERD_CONFIG) == CONFIG
    assert is_up(node, CONTAINERD)
